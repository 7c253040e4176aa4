//! Taking a checkpoint, or the directory of checkpoints, away from the eyes of others.
//!
//! By descriptor from beginning to end: what is changed is what was looked at, and no link is followed. Only what is
//! ours to change: `root` could change anything, but what belongs to somebody else has its mode for his reasons.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat};
use nix::unistd::geteuid;

use crate::model::{FileId, Kind};

/// Mode of an archive that only its owner may read.
pub const FILE_MODE: u32 = 0o600;
/// Mode of a directory that only its owner may enter.
pub const DIRECTORY_MODE: u32 = 0o700;

/// What became of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// Nobody else could read it.
    Already,
    /// It had this mode before.
    Changed {
        /// Permission bits.
        from: u32,
        /// Permission bits.
        to: u32,
    },
}

/// Why it stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsealed {
    /// It is somebody else's.
    #[error("it belongs to user {uid}, who may have reasons; chmod it by hand")]
    NotOurs {
        /// Its owner.
        uid: u32,
    },
    /// It has other names, perhaps outside of the directory.
    #[error("it has {links} names, and the others may be meant to be read")]
    Linked {
        /// How many.
        links: u64,
    },
    /// It is no longer there.
    #[error("it has gone meanwhile")]
    Gone,
    /// It is no longer the one that was looked at, or not a checkpoint at all.
    #[error("it has been replaced meanwhile; look again")]
    Replaced,
    /// The kernel refuses.
    #[error("{what}: {errno}")]
    Failed {
        /// What was tried.
        what: &'static str,
        /// What it said.
        errno: Explained,
    },
}

/// An errno in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explained(pub Errno);

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.desc())
    }
}

/// Seals the checkpoint `name` in `dir`, if it still is the one known as `file`.
///
/// # Errors
/// [`Unsealed`]: then nothing was changed.
pub fn seal(dir: BorrowedFd<'_>, name: &OsStr, kind: Kind, file: FileId) -> Result<Sealed, Unsealed> {
    let directory = if kind == Kind::PodCheckpoint { OFlag::O_DIRECTORY } else { OFlag::empty() };
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | directory;
    let opened = openat(dir, name, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::ENOENT => Unsealed::Gone,
        Errno::ELOOP | Errno::ENOTDIR => Unsealed::Replaced,
        errno => Unsealed::Failed { what: "cannot open it", errno: Explained(errno) },
    })?;
    let stat = stat(opened.as_fd())?;
    let sort = match kind {
        Kind::Archive => SFlag::S_IFREG,
        Kind::PodCheckpoint => SFlag::S_IFDIR,
    };
    let is_sort = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == sort;
    if !is_sort || (FileId { dev: stat.st_dev, ino: stat.st_ino }) != file {
        return Err(Unsealed::Replaced);
    }
    if kind == Kind::Archive && stat.st_nlink > 1 {
        return Err(Unsealed::Linked { links: stat.st_nlink });
    }
    change(opened.as_fd(), &stat, if kind == Kind::Archive { FILE_MODE } else { DIRECTORY_MODE })
}

/// Seals the open directory itself.
///
/// # Errors
/// [`Unsealed`]: then nothing was changed.
pub fn seal_directory(dir: BorrowedFd<'_>) -> Result<Sealed, Unsealed> {
    change(dir, &stat(dir)?, DIRECTORY_MODE)
}

fn stat(fd: BorrowedFd<'_>) -> Result<FileStat, Unsealed> {
    fstat(fd).map_err(|errno| Unsealed::Failed { what: "cannot examine it", errno: Explained(errno) })
}

/// Takes every right of others away; what the owner himself has denied himself stays denied.
fn change(fd: BorrowedFd<'_>, stat: &FileStat, most: u32) -> Result<Sealed, Unsealed> {
    let from = stat.st_mode & 0o7777;
    if from & 0o077 == 0 {
        return Ok(Sealed::Already);
    }
    if stat.st_uid != geteuid().as_raw() {
        return Err(Unsealed::NotOurs { uid: stat.st_uid });
    }
    let to = from & most;
    fchmod(fd, Mode::from_bits_truncate(to))
        .map_err(|errno| Unsealed::Failed { what: "cannot change its mode", errno: Explained(errno) })?;
    Ok(Sealed::Changed { from, to })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::path::Path;

    use super::*;

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn id(path: &Path) -> FileId {
        let it = std::fs::metadata(path).unwrap();
        FileId { dev: it.dev(), ino: it.ino() }
    }

    fn seal_in(dir: &Path, name: &str, kind: Kind, file: FileId) -> Result<Sealed, Unsealed> {
        seal(std::fs::File::open(dir).unwrap().as_fd(), OsStr::new(name), kind, file)
    }

    #[test]
    fn files_and_directories_lose_every_right_of_others_and_gain_none() {
        let scratch = tempfile::tempdir().unwrap();
        let (file, tree) = (scratch.path().join("a.tar"), scratch.path().join("pod"));
        std::fs::write(&file, "x").unwrap();
        std::fs::create_dir(&tree).unwrap();
        set(&file, 0o4464);
        set(&tree, 0o2755);
        let sealed = seal_in(scratch.path(), "a.tar", Kind::Archive, id(&file));
        assert_eq!(sealed, Ok(Sealed::Changed { from: 0o4464, to: 0o400 }));
        let sealed = seal_in(scratch.path(), "pod", Kind::PodCheckpoint, id(&tree));
        assert_eq!(sealed, Ok(Sealed::Changed { from: 0o2755, to: 0o700 }));
        assert_eq!((mode(&file), mode(&tree)), (0o400, 0o700));
        assert_eq!(seal_in(scratch.path(), "a.tar", Kind::Archive, id(&file)), Ok(Sealed::Already));
    }

    #[test]
    fn links_other_names_and_replaced_files_stay_as_they_are() {
        let scratch = tempfile::tempdir().unwrap();
        let (outside, dir) = (scratch.path().join("passwd"), scratch.path().join("c"));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(&outside, "root").unwrap();
        set(&outside, 0o644);
        symlink(&outside, dir.join("link.tar")).unwrap();
        assert_eq!(seal_in(&dir, "link.tar", Kind::Archive, id(&outside)), Err(Unsealed::Replaced));
        std::fs::write(dir.join("other.tar"), "x").unwrap();
        set(&dir.join("other.tar"), 0o644);
        assert_eq!(seal_in(&dir, "other.tar", Kind::Archive, id(&outside)), Err(Unsealed::Replaced));
        std::fs::hard_link(&outside, dir.join("hard.tar")).unwrap();
        let linked = seal_in(&dir, "hard.tar", Kind::Archive, id(&outside));
        assert_eq!(linked, Err(Unsealed::Linked { links: 2 }));
        assert_eq!(seal_in(&dir, "hard.tar", Kind::PodCheckpoint, id(&outside)), Err(Unsealed::Replaced));
        assert_eq!((mode(&outside), mode(&dir.join("other.tar"))), (0o644, 0o644));
    }
}
