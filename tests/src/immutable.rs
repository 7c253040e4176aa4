//! [`Immutable`]: what the filesystem lets nobody change.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file or directory that nobody may change, by `chattr +i`, until dropped.
#[derive(Debug)]
pub struct Immutable(PathBuf);

impl Immutable {
    /// Makes it so.
    #[track_caller]
    pub fn new(path: PathBuf) -> Immutable {
        chattr("+i", &path);
        Immutable(path)
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        chattr("-i", &self.0);
    }
}

#[track_caller]
fn chattr(flag: &str, path: &Path) {
    let status = Command::new("chattr").arg(flag).arg(path).status().expect("e2fsprogs is installed");
    assert!(status.success(), "chattr {flag} {}", path.display());
}
