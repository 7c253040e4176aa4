//! `checkpoint-guard run`: the daemon.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use crate::act::checkpoint_dir::CheckpointDir;
use crate::agent::{self, Labels, Options, cluster, descriptors};
use crate::cli::{Common, Misconfigured};
use crate::config::{ASSUMED_WRITE_SPEED, Config, ConfigFile};
use crate::model::Observation;
use crate::observe::filesystem::observe;
use crate::report::logging;
use crate::report::metrics::Metrics;
use crate::sandbox;

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

/// Where pools are configured, nobody names one, and nothing is remembered, the Node's labels are waited for this long before
/// the settings outside pools are taken: at the very first start, and a fifth of the kubelet's own interval.
const LABELS_LIMIT: Duration = Duration::from_secs(2);

/// Runs the daemon until SIGTERM.
pub fn run(args: Args, common: &Common) -> anyhow::Result<ExitCode> {
    logging::start(args.log_format, args.log_level.as_deref()).map_err(Misconfigured::new)?;
    descriptors::make_room();
    let file = common.file()?;
    let options = Options {
        config_path: common.config.clone(),
        pool: common.pool().map(str::to_owned),
        labels: Labels::default(),
        dry_run: args.dry_run,
    };
    // A pool cannot say how the pool is found, so what stands outside pools says whom to ask.
    let kubernetes = file.effective(options.pool.as_deref()).map_err(Misconfigured::new)?.kubernetes;
    let metrics = Arc::new(Metrics::new());
    let mut asking = cluster::prepare(&kubernetes).map_err(Misconfigured::new)?;
    if let Some(asking) = &mut asking {
        if options.pool.is_none() && file.pools().next().is_some() {
            asking.find_labels(LABELS_LIMIT);
        }
        options.labels.set(asking.known());
    }
    let config = options.choose(&file).map_err(Misconfigured::new)?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), config = %common.config.display(), pool = config.pool.as_deref(),
        directories = ?config.directories.iter().map(|it| it.path.display().to_string()).collect::<Vec<_>>(),
        dry_run = args.dry_run, "checkpoint-guard starts"
    );
    sandbox::start_companions(&config);
    refuse_late_thresholds(&file, &config)?;
    agent::run(options, config, metrics, asking)?;
    Ok(ExitCode::SUCCESS)
}

/// What there is to know of a filesystem is known after this long, or it hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Looks at the filesystem of every directory that is there, each in a thread of its own: one that hangs (a FUSE server that
/// is stuck, a server that is gone) must not keep the others from being protected.
fn filesystems(config: &Config) -> Vec<Observation> {
    let (outbox, inbox) = std::sync::mpsc::channel();
    let mut lookers = Vec::new();
    for directory in &config.directories {
        let (outbox, path) = (outbox.clone(), directory.path.clone());
        let look = move || {
            if let Some(seen) = CheckpointDir::open(&path).ok().and_then(|dir| observe(&dir).ok()) {
                // Err: it came too late.
                let _ = outbox.send(seen);
            }
        };
        match std::thread::Builder::new().name("look".to_owned()).spawn(look) {
            Ok(looker) => lookers.push(looker),
            Err(error) => tracing::warn!(directory = %directory.path.display(), %error,
                "its thresholds are not compared with the kubelet's"),
        }
    }
    drop(outbox);
    let mut seen = Vec::new();
    let answer = loop {
        match inbox.recv_timeout(ANSWER_LIMIT) {
            Ok(one) => seen.push(one),
            Err(answer) => break answer,
        }
    };
    let all_done = answer == RecvTimeoutError::Disconnected;
    if !all_done {
        tracing::warn!(
            "a directory's filesystem does not answer; its thresholds are not compared with the kubelet's"
        );
    }
    // The sandbox wants this thread to be the only one; who hangs never gets to do anything again.
    for looker in lookers.into_iter().filter(|looker| all_done || looker.is_finished()) {
        // It panics only by a bug, which has been printed by then.
        let _ = looker.join();
    }
    seen
}

/// Thresholds that act later than the kubelet's protect nothing: the node would be degraded first.
///
/// Looked at for every directory that is there; one that appears later is told by the loop.
fn refuse_late_thresholds(file: &ConfigFile, config: &Config) -> anyhow::Result<()> {
    let mut late = Vec::new();
    for seen in filesystems(config) {
        late.extend(file.later_than_kubelet(config.pool.as_deref(), &seen, ASSUMED_WRITE_SPEED)?);
    }
    late.sort_by_key(ToString::to_string);
    late.dedup();
    if late.is_empty() {
        return Ok(());
    }
    let lines: Vec<_> = late.iter().map(ToString::to_string).collect();
    Err(Misconfigured::new(lines.join("\n")).into())
}
