//! `checkpoint-guard pin`: keep a checkpoint whatever happens.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use crate::act::checkpoint_dir::CheckpointDir;
use crate::act::pin;

/// Keep checkpoints: write the marker `<checkpoint>.keep` beside each of them.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Names as `list` shows them, or paths.
    #[arg(required = true, value_name = "CHECKPOINT")]
    pub checkpoints: Vec<PathBuf>,
}

/// Pins each, going on after a failure. `directories` are the configured ones, searched for bare names.
pub fn run(args: &Args, directories: &[PathBuf]) -> anyhow::Result<ExitCode> {
    for_each(&args.checkpoints, directories, |dir, name| {
        Ok(if pin::pin(dir, name)? { "pinned" } else { "was pinned already" })
    })
}

/// Carries `act` out on each checkpoint, and says what it says.
pub(super) fn for_each(
    checkpoints: &[PathBuf],
    directories: &[PathBuf],
    act: impl Fn(&CheckpointDir, &OsStr) -> anyhow::Result<&'static str>,
) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for checkpoint in checkpoints {
        let done = locate(checkpoint, directories)
            .and_then(|(directory, name)| act(&CheckpointDir::open(&directory)?, &name));
        match done {
            Ok(done) => println!("{}: {done}", checkpoint.display()),
            Err(error) => {
                eprintln!("checkpoint-guard: {}: {error:#}", checkpoint.display());
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

/// The directory and the name that are meant: a path says it, a bare name is looked for in `directories`.
fn locate(checkpoint: &Path, directories: &[PathBuf]) -> anyhow::Result<(PathBuf, OsString)> {
    let name = checkpoint.file_name().context("this is no checkpoint's name")?.to_owned();
    if let Some(parent) = checkpoint.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        return Ok((parent.to_owned(), name));
    }
    let bears = |directory: &&PathBuf| {
        let marker = pin::marker_name(&name);
        [name.as_os_str(), &marker].iter().any(|name| directory.join(name).symlink_metadata().is_ok())
    };
    let found: Vec<&PathBuf> = directories.iter().filter(bears).collect();
    match found.as_slice() {
        [directory] => Ok(((*directory).clone(), name)),
        [] => bail!("not in any of the watched directories; `checkpoint-guard list` shows what there is"),
        several => bail!("in several directories ({several:?}); give its path"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_are_found_in_the_one_directory_that_has_them() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let directories = [one.path().to_owned(), two.path().to_owned()];
        fs::write(two.path().join("a.tar"), "").unwrap();
        let locate = |name: &str| locate(Path::new(name), &directories).map_err(|error| error.to_string());
        assert_eq!(locate("a.tar"), Ok((directories[1].clone(), "a.tar".into())));
        assert!(locate("b.tar").unwrap_err().contains("not in any"));
        assert_eq!(locate("/x/b.tar"), Ok(("/x".into(), "b.tar".into())));
        fs::write(one.path().join("a.tar.keep"), "").unwrap();
        assert!(locate("a.tar").unwrap_err().contains("give its path"));
        assert!(locate("..").is_err());
    }
}
