//! One command after the other: each is printed in full when it fails.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// Runs another task of this program.
pub(crate) fn xtask(task: &str, root: &Path) -> Result<()> {
    let this = std::env::current_exe().context("where is this program?")?;
    run(Command::new(this).arg(task).current_dir(root))
}

/// Where cargo puts what it builds: this program lies in `<target>/<profile>/xtask`.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let this = std::env::current_exe().context("where is this program?")?;
    let target = this.ancestors().nth(2).context("this program does not lie in cargo's target directory")?;
    Ok(target.to_owned())
}
