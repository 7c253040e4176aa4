//! A guard reduced to its dangerous part, to be killed: finishes what a crash left in a directory, then deletes
//! every checkpoint there, and says so in an audit log.
//!
//! `reclaim_everything DIRECTORY AUDIT [traced]`; `traced` stops before the first step and lets the parent count
//! system calls (ptrace). Only the thread that deletes is traced.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context as _, Result};
use guard::act::checkpoint_dir::CheckpointDir;
use guard::act::executor::{Context, execute};
use guard::model::{Bytes, Inventory, Monotonic, Protection, Trigger};
use guard::observe::filesystem::observe;
use guard::report::audit::{AuditLog, AuditSettings};
use tests::checkpoints::{checkpoint_at, plan_with};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let (directory, audit) = (Path::new(&arguments[1]), Path::new(&arguments[2]));
    if arguments.len() > 3 {
        nix::sys::ptrace::traceme()?;
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP)?;
    }
    #[expect(clippy::disallowed_methods, reason = "a program of its own, whose main asks the clock")]
    let now = jiff::Timestamp::now;
    // Small, so that it is rotated while it is being killed.
    let settings = AuditSettings { path: audit.to_owned(), max_size: Bytes(16 << 10), keep: 20 };
    let mut log = AuditLog::open(settings, now);
    let dir = CheckpointDir::open(directory)?;
    for leftover in dir.finish_leftovers(&|id| log.name_of(id))? {
        log.record_leftover(directory, &leftover);
    }
    let mut names: Vec<_> = std::fs::read_dir(directory)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .filter(|path| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"checkpoint-"))
        })
        .filter(|path| path.extension().is_none_or(|extension| extension != "keep"))
        .collect();
    names.sort();
    let inventory = Inventory {
        directories: vec![directory.to_owned()],
        checkpoints: names.iter().map(|path| checkpoint_at(path)).collect(),
        foreign: 0,
    };
    let plan = plan_with(&inventory, Bytes::ZERO, &Trigger::Orphan);
    let mut context = Context {
        observe: &mut || observe(&dir),
        journal: &mut log,
        before: None,
        clock: &|| Monotonic(Duration::ZERO),
        protection: &|_| Protection::default(),
        stop: &AtomicBool::new(false),
        on_outcome: &mut |_| {},
        planned_at: None,
        hard: Bytes::ZERO,
        requested_by: None,
        dry_run: false,
        patience: None,
        names_holders: true,
    };
    let copy = CheckpointDir::open(directory)?;
    execute(&plan, &inventory, &[copy], &mut context);
    log.problem().map_or(Ok(()), |problem| Err(anyhow::anyhow!("{problem}"))).context("the audit log")
}
