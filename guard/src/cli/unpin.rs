//! `checkpoint-guard unpin`: let a checkpoint go again.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::act::pin;
use crate::cli::pin::for_each;

/// Let checkpoints go again: remove the marker `<checkpoint>.keep`. The checkpoints themselves stay.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Names as `list` shows them, or paths. The checkpoint may be gone already.
    #[arg(required = true, value_name = "CHECKPOINT")]
    pub checkpoints: Vec<PathBuf>,
}

/// Unpins each, going on after a failure. `directories` are the configured ones, searched for bare names.
pub fn run(args: &Args, directories: &[PathBuf]) -> anyhow::Result<ExitCode> {
    for_each(&args.checkpoints, directories, |dir, name| {
        Ok(if pin::unpin(dir, name)? { "unpinned" } else { "was not pinned" })
    })
}
