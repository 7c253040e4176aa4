//! `checkpoint-guard brake-helper`: the process that answers permission events. The guard starts it; nobody else does.

use std::os::fd::AsFd;
use std::process::ExitCode;

use crate::act::brake::helper;
use crate::agent::{clock, priority};

/// Arguments of `brake-helper`. The socket to the guard is the standard input.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The guard's process id, whose threads are never refused.
    #[arg(long)]
    guard: u32,
}

/// Answers until the guard is gone.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Somebody waits for each of our answers.
    priority::raise();
    helper::run(std::io::stdin().as_fd(), args.guard, clock::monotonic)
        .map_err(|errno| anyhow::anyhow!("the brake's helper ends: {errno}; writers are not refused"))?;
    Ok(ExitCode::SUCCESS)
}
