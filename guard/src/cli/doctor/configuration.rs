//! Whether the configuration can be used, and which pool applies.

use super::report::{Check, Section};
use crate::cli::Common;
use crate::config::{Config, ConfigFile};

/// The file, the pool, what there is to note.
pub(super) fn section(common: &Common, loaded: &anyhow::Result<(ConfigFile, Config)>) -> Section {
    let path = common.config.display().to_string();
    let checks = match loaded {
        Ok((file, config)) => {
            let pools = file.pools().count();
            let pool = match (&config.pool, pools) {
                (Some(pool), _) => Check::ok("pool", pool),
                (None, 0) => Check::ok("pool", "none; the file has no pools"),
                (None, pools) => {
                    Check::note("pool", format!("none is named here, though the file has {pools}"))
                        .advising("--pool or CHECKPOINT_GUARD_POOL names it, when the daemon has one")
                }
            };
            vec![Check::ok("file", path), pool]
        }
        Err(problems) => problems
            .to_string()
            .lines()
            .map(|problem| {
                Check::missing(
                    "file",
                    problem,
                    format!("put {path} right; checkpoint-guard check-config explains"),
                )
            })
            .collect(),
    };
    Section { name: "configuration", checks }
}
