//! Running other programs; a failure shows the whole command, ready to be tried by hand.

use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Runs `command` with our terminal, and fails when it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| failed(command))?;
    ensure!(status.success(), "{}: {status}", failed(command));
    Ok(())
}

/// cargo, as it would run from a terminal. What `cargo run` says of us to ourselves is left out: build scripts look at it
/// (ring's does), and would have everything above them compiled anew each time that somebody builds without us.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo
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

/// What `command` prints, without the white space around; fails when it fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| failed(command))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}\n{errors}", failed(command), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The command as one would type it: environment, program, arguments.
pub(crate) fn line(command: &Command) -> String {
    let mut line = String::new();
    for (name, value) in command.get_envs() {
        let name = name.to_string_lossy();
        let _ = match value {
            Some(value) => write!(line, "{name}={} ", quoted(value)),
            None => write!(line, "env -u {name} "),
        };
    }
    line.push_str(&quoted(command.get_program()));
    for argument in command.get_args() {
        let _ = write!(line, " {}", quoted(argument));
    }
    line
}

fn failed(command: &Command) -> String {
    format!("this failed: {}", line(command))
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("sh");
        command.env("WHAT", "two words").args(["-c", "exit 3"]);
        let error = run(&mut command).unwrap_err().to_string();
        assert_eq!(error, "this failed: WHAT='two words' sh -c 'exit 3': exit status: 3");
    }
}
