//! Pins: marker files `<checkpoint>.keep` (the checkpoint-restore-operator's convention).

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstatat};

use crate::act::checkpoint_dir::{CheckpointDir, EVICTING_PREFIX, is_one_component, list, marker_of};

/// Why a pin could not be set or taken away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// A path, or nothing.
    #[error("{0:?} is not a checkpoint's name: give the name alone, without a path")]
    NotAName(OsString),
    /// A marker, or something of ours.
    #[error("{0:?} is not a checkpoint but a marker of its own")]
    NotACheckpoint(OsString),
    /// Nothing there to keep.
    #[error("no checkpoint {name:?} in {directory:?}; `checkpoint-guard list` shows what there is")]
    NoSuchCheckpoint {
        /// What was asked for.
        name: OsString,
        /// Where.
        directory: std::path::PathBuf,
    },
    /// What bears the marker's name is larger than any marker.
    #[error("{0:?} is too large for a marker; look at it and remove it by hand")]
    NotAMarker(OsString),
    /// The kernel refused.
    #[error("cannot {what} {marker:?} in {directory:?}: {errno}")]
    Failed {
        /// `create` or `remove`.
        what: &'static str,
        /// The marker.
        marker: OsString,
        /// Where.
        directory: std::path::PathBuf,
        /// The error.
        errno: Errno,
    },
}

/// Pins the checkpoint `name`; false when it was pinned already.
///
/// The marker is made first and the checkpoint looked for afterwards, because a deletion looks for the marker after
/// it has taken the checkpoint's name away: whichever comes first, one of the two sees the other.
pub fn pin(dir: &CheckpointDir, name: &OsStr) -> Result<bool, PinError> {
    check_name(name)?;
    let marker = marker_of(name);
    let missing = || PinError::NoSuchCheckpoint { name: name.to_owned(), directory: dir.path().to_owned() };
    if !exists(dir, name) {
        return Err(missing());
    }
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let created = match openat(dir, &*marker, flags, Mode::S_IRUSR | Mode::S_IWUSR) {
        Ok(_) => true,
        Err(Errno::EEXIST) => false,
        Err(errno) => return Err(failed("create", dir, marker, errno)),
    };
    // A deletion that sees the marker at its last look gives the name back within microseconds.
    let mut looks = 0;
    while !exists(dir, name) {
        looks += 1;
        if looks > 10 {
            if created {
                let _ = dir.remove_marker(name);
            }
            return Err(missing());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // So that it outlives a power failure. A filesystem that cannot do it has pinned it all the same.
    let _ = nix::unistd::fsync(dir);
    Ok(created)
}

/// Removes the pin of `name`, whether that still exists or not; false when there was none.
pub fn unpin(dir: &CheckpointDir, name: &OsStr) -> Result<bool, PinError> {
    check_name(name)?;
    match dir.remove_marker(name) {
        Ok(()) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(Errno::EFBIG) => Err(PinError::NotAMarker(marker_of(name))),
        Err(errno) => Err(failed("remove", dir, marker_of(name), errno)),
    }
}

/// Markers whose checkpoint is gone: forgotten pins, or a name that was misspelt when it was pinned.
pub fn orphaned_markers(dir: &CheckpointDir) -> Result<Vec<OsString>, Errno> {
    let names = list(dir)?;
    let mut orphaned: Vec<_> = names
        .into_iter()
        .filter(|marker| {
            let bytes = marker.as_encoded_bytes();
            bytes.strip_suffix(b".keep").is_some_and(|name| {
                use std::os::unix::ffi::OsStrExt;
                !name.is_empty() && !exists(dir, OsStr::from_bytes(name))
            })
        })
        .collect();
    orphaned.sort();
    Ok(orphaned)
}

/// The name of the marker that pins `name`.
pub fn marker_name(name: &OsStr) -> OsString {
    marker_of(name)
}

fn check_name(name: &OsStr) -> Result<(), PinError> {
    if !is_one_component(name) {
        return Err(PinError::NotAName(name.to_owned()));
    }
    let bytes = name.as_encoded_bytes();
    if bytes.ends_with(b".keep") || bytes.starts_with(EVICTING_PREFIX.as_bytes()) {
        return Err(PinError::NotACheckpoint(name.to_owned()));
    }
    Ok(())
}

fn exists(dir: &CheckpointDir, name: &OsStr) -> bool {
    fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
}

fn failed(what: &'static str, dir: &CheckpointDir, marker: OsString, errno: Errno) -> PinError {
    PinError::Failed { what, marker, directory: dir.path().to_owned(), errno }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn directory() -> (tempfile::TempDir, CheckpointDir) {
        let directory = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::open(directory.path()).unwrap();
        fs::write(directory.path().join("a.tar"), "a").unwrap();
        (directory, dir)
    }

    #[test]
    fn a_pin_is_a_private_marker_beside_the_checkpoint() {
        use std::os::unix::fs::PermissionsExt;
        let (directory, dir) = directory();
        let name = OsStr::new("a.tar");
        assert_eq!(pin(&dir, name), Ok(true));
        assert_eq!(pin(&dir, name), Ok(false), "twice is once");
        let marker = fs::metadata(directory.path().join("a.tar.keep")).unwrap();
        assert_eq!(marker.permissions().mode() & 0o777, 0o600);
        assert_eq!(unpin(&dir, name), Ok(true));
        assert_eq!(unpin(&dir, name), Ok(false));
        assert!(directory.path().join("a.tar").exists());
    }

    #[test]
    fn only_checkpoints_of_this_directory_can_be_pinned() {
        let (directory, dir) = directory();
        for name in ["../a.tar", "/etc/passwd", "", ".", "..", "a.tar/"] {
            assert_eq!(pin(&dir, OsStr::new(name)), Err(PinError::NotAName(name.into())));
            assert_eq!(unpin(&dir, OsStr::new(name)), Err(PinError::NotAName(name.into())));
        }
        let missing = pin(&dir, OsStr::new("b.tar"));
        assert!(matches!(missing, Err(PinError::NoSuchCheckpoint { .. })), "{missing:?}");
        assert!(!directory.path().join("b.tar.keep").exists());
        assert!(matches!(pin(&dir, OsStr::new("a.tar.keep")), Err(PinError::NotACheckpoint(_))));
    }

    #[test]
    fn unpinning_never_removes_what_may_be_a_checkpoint() {
        let (directory, dir) = directory();
        fs::write(directory.path().join("a.tar.keep"), vec![0; 1 << 20]).unwrap();
        assert_eq!(unpin(&dir, OsStr::new("a.tar")), Err(PinError::NotAMarker("a.tar.keep".into())));
        assert!(directory.path().join("a.tar.keep").exists());
    }

    #[test]
    fn forgotten_markers_are_found() {
        let (directory, dir) = directory();
        pin(&dir, OsStr::new("a.tar")).unwrap();
        fs::write(directory.path().join("gone.tar.keep"), "").unwrap();
        assert_eq!(orphaned_markers(&dir), Ok(vec![OsString::from("gone.tar.keep")]));
    }
}
