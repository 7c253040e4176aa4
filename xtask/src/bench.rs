//! `cargo xtask bench`: builds what is needed and measures the guard beside its alternatives (`tests/src/bin/bench`).

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;

/// Measures storm, reaction, overhead, footprint, unlink, scan, identify, decide and quality, each beside what one would have
/// otherwise.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The cargo profile to build with: `release`, or `try`, which is nearly as fast and built sooner. Before the others.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Names of benchmarks, `--quick`, `--write` (into docs/BENCHMARKS.md); `cargo xtask bench -- --help` tells more.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Sets up, builds, and becomes the benchmarks: signals and exit code are their own.
pub(crate) fn run(options: Options, root: &Path) -> Result<()> {
    command::xtask("setup", root)?;
    command::xtask("build-ebpf", root)?;
    let build = ["build", "--quiet", "--package", "guard", "--package", "tests", "--bins", "--profile"];
    command::run(command::cargo().args(build).arg(&options.profile).current_dir(root))?;
    let bench = command::target_directory()?.join(&options.profile).join("bench");
    // Where docs/ lies.
    let error = Command::new(&bench).args(options.arguments).current_dir(root).exec();
    Err(error).with_context(|| format!("cannot start {}", bench.display()))
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
    fn what_is_not_for_the_build_goes_to_the_benchmarks() {
        let task = Task::parse_from(["bench", "--profile", "try", "reaction", "--quick"]);
        assert_eq!(task.options.profile, "try");
        assert_eq!(task.options.arguments, ["reaction", "--quick"]);
        let task = Task::parse_from(["bench", "--quick", "--write"]);
        assert_eq!(task.options.profile, "release");
        assert_eq!(task.options.arguments, ["--quick", "--write"]);
    }
}
