//! `checkpoint-guard reclaim SIZE`: free so much now, by the same rules.

use std::cell::RefCell;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Serialize;

use crate::act::executor::{Context, execute};
use crate::act::journal::{Intent, Journal, Outcome};
use crate::agent::{clock, notify};
use crate::cli::{Common, Misconfigured, Output, node};
use crate::decide::{self, Request, protection};
use crate::model::{Bytes, Need, Trigger};
use crate::observe::filesystem::observe;
use crate::report::audit::{AuditLog, AuditSettings};
use crate::report::record::{API_VERSION, CheckpointRecord};
use crate::sandbox;

/// Arguments of `reclaim`.
///
/// Deletes checkpoints in the configured order until so much is freed, measured on the filesystem. Pinned, protected
/// and used ones, those still being written, those younger than min-age and the last of each container are spared,
/// as at the hard level. Where there is a command before deletions ([notify] command), it is run first. Exit code 3 when less could be freed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How much to free: "10GiB", "500MB".
    size: String,
    /// Which of the watched directories' filesystems, by one of its directories; needed when there are several.
    #[arg(long, value_name = "PATH")]
    directory: Option<PathBuf>,
    /// Say what would be deleted, and delete nothing.
    #[arg(long)]
    dry_run: bool,
    /// How to print.
    #[arg(long, short, default_value = "table", value_name = "FORMAT")]
    output: Output,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    api_version: &'static str,
    kind: &'static str,
    wanted_bytes: u64,
    freed_bytes: u64,
    missing_bytes: u64,
    items: Vec<Item>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    #[serde(flatten)]
    checkpoint: CheckpointRecord,
    outcome: &'static str,
    reason: String,
    error: Option<String>,
    freed_bytes: u64,
}

/// Frees space.
pub fn run(args: Args, common: &Common) -> anyhow::Result<ExitCode> {
    let wanted: Bytes = args.size.parse().map_err(|error| Misconfigured::new(format!("SIZE: {error}")))?;
    let (_, config) = common.load()?;
    if !args.dry_run {
        // Before there is another thread.
        sandbox::start_runner(&config);
    }
    let filesystem = choose(node::take(&config)?, args.directory.as_deref())?;
    let now = clock::wall();
    let request = Request { need: Need { bytes: wanted, inodes: 0 }, trigger: Trigger::Manual };
    let plan = decide::plan(&filesystem.inventory, &request, &config.policy, now);
    let records = node::records(&filesystem.inventory, &config.policy, now);
    let audit = config.audit.path.clone().filter(|_| !args.dry_run).map(|path| {
        let settings = AuditSettings { path, max_size: config.audit.max_size, keep: config.audit.keep };
        AuditLog::open(settings, clock::wall)
    });
    let audit = RefCell::new(audit);
    let mut journal = Recorded(&audit);
    let mut first = |intent: &Intent<'_>| match &config.notify.command {
        Some(command) => notify::run_before(command, intent, &mut || None, &mut |_, _, event| {
            if let Some(audit) = &mut *audit.borrow_mut() {
                audit.record(event);
            }
        }),
        None => Ok(()),
    };
    let asker = format!("uid {}", nix::unistd::getuid());
    let mut context = Context {
        observe: &mut || observe(&filesystem.dirs[0]),
        journal: &mut journal,
        before: config.notify.command.is_some().then_some(&mut first),
        clock: &clock::monotonic,
        protection: &|checkpoint| {
            protection::of_readings(&config.policy.protection, checkpoint.identity.readings()).protection
        },
        stop: &AtomicBool::new(false),
        on_outcome: &mut |_| {},
        planned_at: None,
        hard: Bytes::ZERO,
        requested_by: Some(&asker),
        dry_run: args.dry_run,
        patience: None,
        names_holders: true,
    };
    let round = execute(&plan, &filesystem.inventory, &filesystem.dirs, &mut context);
    if let Some(audit) = &*audit.borrow()
        && !audit.flush(Duration::from_secs(2))
    {
        eprintln!("checkpoint-guard: the audit log is not on the disk yet: it is slow or full");
    }
    let items = round.outcomes.iter().map(|outcome| {
        let victim = plan.victims.iter().chain(&plan.reserve).find(|victim| victim.index == outcome.index);
        Item {
            checkpoint: records[outcome.index as usize].clone(),
            outcome: outcome.label(),
            reason: victim.map(|victim| victim.reason.to_string()).unwrap_or_default(),
            error: outcome.refused().map(ToString::to_string),
            freed_bytes: outcome.freed.bytes.0,
        }
    });
    let document = Document {
        api_version: API_VERSION,
        kind: "Reclaim",
        wanted_bytes: wanted.0,
        freed_bytes: round.freed.bytes.0,
        missing_bytes: round.remaining.bytes.0,
        items: items.collect(),
    };
    print(&document, args.output)?;
    Ok(if document.missing_bytes > 0 { ExitCode::from(crate::cli::UNREACHED) } else { ExitCode::SUCCESS })
}

/// The filesystem that is meant.
fn choose(
    mut all: Vec<node::Filesystem>,
    directory: Option<&std::path::Path>,
) -> anyhow::Result<node::Filesystem> {
    let known = || all.iter().flat_map(node::Filesystem::directories).collect::<Vec<_>>().join(", ");
    let place = match directory {
        Some(path) => all
            .iter()
            .position(|it| it.inventory.directories.iter().any(|directory| directory == path))
            .ok_or_else(|| {
                Misconfigured::new(format!("--directory: {path:?} is not watched; watched are {}", known()))
            })?,
        None if all.len() == 1 => 0,
        None if all.is_empty() => {
            return Err(Misconfigured::new("none of the configured directories exists").into());
        }
        None => {
            let message = format!(
                "the watched directories lie on several filesystems; choose with --directory: {}",
                known()
            );
            return Err(Misconfigured::new(message).into());
        }
    };
    Ok(all.swap_remove(place))
}

fn print(document: &Document, output: Output) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if output == Output::Json {
        serde_json::to_writer_pretty(&mut out, document)?;
        writeln!(out)?;
        return Ok(());
    }
    for item in &document.items {
        let why = item.error.as_deref().unwrap_or(&item.reason);
        writeln!(out, "{}  {}  {}  {why}", item.outcome, Bytes(item.freed_bytes), item.checkpoint.name)?;
    }
    let freed = Bytes(document.freed_bytes);
    match document.missing_bytes {
        0 => writeln!(out, "freed {freed}")?,
        missing => writeln!(out, "freed {freed}; {} could not be freed", Bytes(missing))?,
    }
    Ok(())
}

/// The audit log, where there is one.
struct Recorded<'a>(&'a RefCell<Option<AuditLog>>);

impl Journal for Recorded<'_> {
    fn intent(&mut self, intent: &Intent<'_>) -> u64 {
        self.0.borrow_mut().as_mut().map_or(0, |audit| audit.intent(intent))
    }

    fn outcome(&mut self, intent: &Intent<'_>, outcome: &Outcome) {
        if let Some(audit) = &mut *self.0.borrow_mut() {
            audit.outcome(intent, outcome);
        }
    }
}
