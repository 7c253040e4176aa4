//! `checkpoint-guard run`: the daemon.

use std::process::ExitCode;

use crate::agent::{self, Options};
use crate::cli::{Common, Misconfigured, node};
use crate::config::{ASSUMED_WRITE_SPEED, Config, ConfigFile, KubernetesMode, ProbeMode};
use crate::observe::filesystem::observe;
use crate::report::logging;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Decide and report, but delete nothing.
    #[arg(long)]
    dry_run: bool,
    /// How to log: for people on a terminal, as JSON elsewhere.
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    log_format: logging::Format,
    /// How much to log: error, warn, info, debug, trace, or a tracing filter. RUST_LOG works as well.
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

/// Runs the daemon until SIGTERM.
pub fn run(args: Args, common: &Common) -> anyhow::Result<ExitCode> {
    logging::start(args.log_format, args.log_level.as_deref()).map_err(Misconfigured::new)?;
    let (file, config) = common.load()?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), config = %common.config.display(), pool = config.pool.as_deref(),
        directories = ?config.directories.iter().map(|it| it.path.display().to_string()).collect::<Vec<_>>(),
        dry_run = args.dry_run, "checkpoint-guard starts"
    );
    refuse_what_is_not_built(&config)?;
    refuse_late_thresholds(&file, &config)?;
    let options = Options {
        config_path: common.config.clone(),
        pool: common.pool().map(str::to_owned),
        dry_run: args.dry_run,
    };
    agent::run(options, config)?;
    Ok(ExitCode::SUCCESS)
}

/// What is asked for by name and cannot be had is an error; `auto` takes what there is.
fn refuse_what_is_not_built(config: &Config) -> anyhow::Result<()> {
    let refuse = |key: &str, accepted: &str| {
        let message = format!("{key}: this version has none of that; write {accepted}");
        Err(Misconfigured::new(message).into())
    };
    if matches!(config.probe, ProbeMode::Fexit | ProbeMode::Kprobe) {
        return refuse("probe.mode", "\"auto\", \"raw-tracepoint\" or \"off\"");
    }
    if config.kubernetes.mode == KubernetesMode::On {
        return refuse("kubernetes.mode", "\"auto\" or \"off\": the API server is not asked yet");
    }
    Ok(())
}

/// Thresholds that act later than the kubelet's protect nothing: the node would be degraded first.
///
/// Looked at for every directory that is there; one that appears later is told by the loop.
fn refuse_late_thresholds(file: &ConfigFile, config: &Config) -> anyhow::Result<()> {
    let mut late = Vec::new();
    for dir in node::open_present(config) {
        if let Ok(seen) = observe(&dir) {
            late.extend(file.later_than_kubelet(config.pool.as_deref(), &seen, ASSUMED_WRITE_SPEED)?);
        }
    }
    late.sort_by_key(ToString::to_string);
    late.dedup();
    if late.is_empty() {
        return Ok(());
    }
    let lines: Vec<_> = late.iter().map(ToString::to_string).collect();
    Err(Misconfigured::new(lines.join("\n")).into())
}
