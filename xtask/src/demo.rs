//! `cargo xtask demo`: builds what is needed and shows the guard at work (`tests/src/bin/demo`).

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;

/// Shows the guard keeping a small disk of its own above the thresholds while checkpoints arrive at full speed.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// For the demo itself; `cargo xtask demo -- --help` lists them (--without-guard, --filesystem, --seconds, …).
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Sets up, builds in release mode, and becomes the demo: signals and exit code are the demo's own.
pub(crate) fn run(options: Options, root: &Path) -> Result<()> {
    command::xtask("setup", root)?;
    command::xtask("build-ebpf", root)?;
    let build = ["build", "--release", "--quiet", "--package", "guard", "--package", "tests", "--bins"];
    command::run(command::cargo().args(build).current_dir(root))?;
    let demo = command::target_directory()?.join("release/demo");
    let error = Command::new(&demo).args(options.arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", demo.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Task {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn what_follows_the_task_goes_to_the_demo() {
        let task = Task::parse_from(["demo", "--without-guard", "--filesystem", "xfs"]);
        assert_eq!(task.options.arguments, ["--without-guard", "--filesystem", "xfs"]);
        let task = Task::parse_from(["demo", "--", "--help"]);
        assert_eq!(task.options.arguments, ["--help"]);
    }
}
