//! [`CheckpointDir`]: a watched directory by its descriptor, and the one door through which anything is deleted.
//!
//! A deletion is a proof in steps, and the order of the steps is the point:
//!
//! 1. the watched path still leads to this directory; the name is one component;
//! 2. the file is opened without following links, and is what was planned: inode, size, mtime;
//! 3. nobody else has it open: a [`crate::observe::lease`] says so, and from here on whoever opens it waits;
//! 4. no `<name>.keep`;
//! 5. it is renamed into our private place ([`aside`]), where nobody else's rename(2) can slip another file under
//!    our hands; there it must still be the file of step 2, with one link, its lease intact, still without a pin.
//!    If not, it gets its name back;
//! 6. only then it is unlinked, from the private place.
//!
//! unlink(2) takes a name and not a descriptor, so without step 5 a rename between the last check and the unlink
//! would delete a file that nobody has looked at. Whoever was waiting in open(2) gets all of the content: nothing
//! is truncated, except what provably nobody can get at any more ([`farewell`]), and where a full copy-on-write
//! filesystem leaves no other way ([`archive`]).

mod archive;
mod aside;
mod commit;
mod farewell;
mod leftovers;
mod pod;
mod refused;
mod unlinked;
mod walk;

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, open, openat};
use nix::libc;
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, TMPFS_MAGIC, XFS_SUPER_MAGIC, fstatfs};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::UnlinkatFlags;

pub use self::aside::PREFIX as EVICTING_PREFIX;
use self::commit::{Ask, Commits};
use self::farewell::Farewells;
use self::leftovers::Unfinished;
pub use self::leftovers::{Leftover, LeftoverError};
use self::unlinked::Emptying;
pub use self::unlinked::Unlinked;
use crate::act::refusal::{Changed, Pin, Refused};
use crate::model::{Bytes, Checkpoint, FileId, Kind};

/// A watched directory, held open. Every name it is asked about is a single component below it.
#[derive(Debug)]
pub struct CheckpointDir {
    fd: Arc<OwnedFd>,
    id: FileId,
    path: PathBuf,
    filesystem: FsType,
    /// Made when first needed; `None` until then, or where it cannot be made.
    private: Mutex<Option<Arc<OwnedFd>>>,
    commits: Commits,
    farewells: Farewells,
    /// One could not be taken away; see [`CheckpointDir::drop_second_names`].
    has_second_names: AtomicBool,
    /// What is left of deletions that could not be finished; see [`CheckpointDir::retry_leftovers`].
    unfinished: Mutex<Vec<Unfinished>>,
}

/// Why a directory cannot be watched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Not there.
    #[error("directory {0:?} does not exist; create it, or set `optional = true` if it may appear later")]
    Missing(PathBuf),
    /// A file, a device.
    #[error("{0:?} is not a directory")]
    NotADirectory(PathBuf),
    /// A link could be turned to another target at any time. Links above it are the administrator's business.
    #[error("{path:?} is a symbolic link; configure its target, {target:?}, instead")]
    Link {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// Not for us.
    #[error(
        "cannot read directory {0:?}: permission denied; the guard runs as root, or needs CAP_DAC_OVERRIDE"
    )]
    Unreadable(PathBuf),
    /// Anything else.
    #[error("cannot open directory {path:?}: {errno}")]
    Failed {
        /// The directory.
        path: PathBuf,
        /// The error of openat(2) or fstat(2).
        errno: Errno,
    },
}

/// What a checkpoint must still be in order to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected<'n> {
    /// Its name.
    pub name: &'n OsStr,
    /// Archive or pod checkpoint.
    pub kind: Kind,
    /// Its inode.
    pub file: FileId,
    /// `st_size`; for a pod checkpoint the sum below it.
    pub len: Bytes,
    /// `st_mtim`, to the nanosecond; for a pod checkpoint the newest in it.
    pub modified: Timestamp,
}

impl<'n> From<&'n Checkpoint> for Expected<'n> {
    fn from(checkpoint: &'n Checkpoint) -> Expected<'n> {
        Expected {
            name: &checkpoint.name,
            kind: checkpoint.kind,
            file: checkpoint.file,
            len: checkpoint.len,
            modified: checkpoint.modified,
        }
    }
}

/// What a deletion gave back, by `st_blocks` right before it. Blocks shared with a reflink copy are counted here
/// and not given back; only statfs knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// `st_blocks × 512`.
    pub allocated: Bytes,
    /// Inodes.
    pub inodes: u64,
}

impl CheckpointDir {
    /// Opens the directory `path`. Links on the way to it are followed, once, now; `path` itself must not be one.
    pub fn open(path: &Path) -> Result<CheckpointDir, OpenError> {
        // Without trailing slashes, which would make the kernel follow a link.
        let path: PathBuf = path.components().collect();
        let failed = |errno| OpenError::Failed { path: path.clone(), errno };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = open(&path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::ENOENT => OpenError::Missing(path.clone()),
            Errno::ENOTDIR | Errno::ELOOP => match std::fs::read_link(&path) {
                Ok(target) => OpenError::Link { path: path.clone(), target },
                Err(_) => OpenError::NotADirectory(path.clone()),
            },
            Errno::EACCES | Errno::EPERM => OpenError::Unreadable(path.clone()),
            errno => failed(errno),
        })?;
        let id = id_of(&fstat(&fd).map_err(failed)?);
        let filesystem = fstatfs(&fd).map_err(failed)?.filesystem_type();
        Ok(CheckpointDir {
            fd: Arc::new(fd),
            id,
            path,
            filesystem,
            private: Mutex::default(),
            commits: Commits::default(),
            farewells: Farewells::default(),
            has_second_names: AtomicBool::new(false),
            unfinished: Mutex::default(),
        })
    }

    /// The path it was opened by. For messages: nothing is ever looked up beneath it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it really lies, links on the way resolved. For messages.
    pub fn resolved(&self) -> PathBuf {
        std::fs::read_link(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
            .unwrap_or_else(|_| self.path.clone())
    }

    /// Device and inode.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Whether `path` leads to this directory and not to another that was moved, linked or mounted there since
    /// (opentmpfiles#4, node_exporter#474).
    pub fn is_still_at(&self, path: &Path) -> bool {
        let path: PathBuf = path.components().collect();
        fstatat(AT_FDCWD, &path, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok_and(|stat| id_of(&stat) == self.id)
    }

    /// How long statfs(2) may go on showing what was before a deletion; see [`CheckpointDir::remove`].
    ///
    /// Measured on 6.18: ext4 and tmpfs show freed space when the last descriptor is closed; so does xfs when the file could
    /// be truncated, else its worker frees it 0.4 ms later on an idle machine; btrfs is told in [`commit`]. Of other
    /// filesystems (overlay, FUSE, zfs) nothing is known.
    pub fn lag_max(&self) -> Duration {
        match self.filesystem {
            EXT4_SUPER_MAGIC | TMPFS_MAGIC => Duration::ZERO,
            XFS_SUPER_MAGIC => Duration::from_millis(20),
            BTRFS_SUPER_MAGIC => Duration::from_millis(250),
            _ => Duration::from_millis(100),
        }
    }

    /// Whether this filesystem sets space aside beyond the end of growing files, in large steps (xfs's speculative
    /// preallocation), so that what is available may fall by more than is written.
    pub fn sets_aside(&self) -> bool {
        self.filesystem == XFS_SUPER_MAGIC
    }

    /// How long it usually does. Where writers use up space faster than a deletion gives back, looking longer shows nothing.
    pub fn lag_usual(&self) -> Duration {
        match self.filesystem {
            EXT4_SUPER_MAGIC | TMPFS_MAGIC => Duration::ZERO,
            BTRFS_SUPER_MAGIC => Duration::from_millis(12),
            _ => Duration::from_millis(1),
        }
    }

    /// Deletes the checkpoint `expected`, if everything about it is still as planned; see the module's text.
    ///
    /// `id` is the audit line that announced it; it makes private names unique. When it returns, statfs(2) shows
    /// the space within [`CheckpointDir::lag_max`].
    pub fn remove(&self, expected: &Expected<'_>, id: u64) -> Result<Removed, Refused> {
        self.unlink(expected, id).map(Unlinked::free)
    }

    /// The first half of [`CheckpointDir::remove`]: afterwards the name is gone for good, and the space comes back with
    /// [`Unlinked::free`].
    pub fn unlink(&self, expected: &Expected<'_>, id: u64) -> Result<Unlinked, Refused> {
        if !is_one_component(expected.name) {
            return Err(Refused::NotACheckpoint("its name is not one path component"));
        }
        if !self.is_still_at(&self.path) {
            return Err(Refused::Changed(Changed::Directory));
        }
        let (removed, content) = match expected.kind {
            Kind::Archive => archive::remove(self, expected, id)?,
            Kind::PodCheckpoint => (pod::remove(self, expected, id)?, None),
        };
        let commits = (self.filesystem == BTRFS_SUPER_MAGIC).then(|| (self.fd.clone(), self.commits.clone()));
        Ok(Unlinked::new(removed, content, commits))
    }

    /// Removes `<name>.keep`. `ENOENT`: there is none. `EFBIG`: what bears the name is larger than any marker, and
    /// might be a checkpoint.
    pub(super) fn remove_marker(&self, name: &OsStr) -> Result<(), Errno> {
        const MARKER_LEN_MAX: i64 = 64 << 10;
        if !is_one_component(name) {
            return Err(Errno::EINVAL);
        }
        let marker = marker_of(name);
        if fstatat(&self.fd, &*marker, AtFlags::AT_SYMLINK_NOFOLLOW)?.st_size > MARKER_LEN_MAX {
            return Err(Errno::EFBIG);
        }
        unlink(&self.fd, &marker, UnlinkatFlags::NoRemoveDir)
    }

    /// Refuses when `<name>.keep` exists, whatever it is, or when that cannot be found out.
    fn refuse_pinned(&self, name: &OsStr) -> Result<(), Refused> {
        match fstatat(&self.fd, &*marker_of(name), AtFlags::AT_SYMLINK_NOFOLLOW) {
            // A name so long that its marker's would not fit cannot have one.
            Err(Errno::ENOENT | Errno::ENAMETOOLONG) => Ok(()),
            Ok(_) => Err(Refused::Pinned(Pin::Marker)),
            Err(errno) => Err(Refused::Pinned(Pin::Doubt(errno))),
        }
    }

    /// Asks the filesystem to show what was freed, when it still does not show it. Every 20 ms or so.
    pub(super) fn show_freed_space_at_last(&self) {
        if self.filesystem == BTRFS_SUPER_MAGIC {
            self.commits.begin(&self.fd, Ask::StartSync);
        }
    }

    /// How space comes back sooner than by closing, where it does. Mounted `sync`, each step would be a commit of its own.
    fn emptying(&self) -> Option<Emptying> {
        let emptying = match self.filesystem {
            XFS_SUPER_MAGIC => Emptying::AtOnce,
            EXT4_SUPER_MAGIC => Emptying::FromTheEnd,
            _ => return None,
        };
        let is_sync = fstatvfs(&self.fd).is_ok_and(|shown| shown.flags().contains(FsFlags::ST_SYNCHRONOUS));
        (!is_sync).then_some(emptying)
    }

    /// Opens `name` without following a link or waiting for anybody.
    fn open_entry(&self, name: &OsStr) -> Result<OwnedFd, Errno> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        openat(&self.fd, name, flags, Mode::empty())
    }
}

impl AsFd for CheckpointDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The door: nothing else in the product deletes anything. Callers have proved what they delete.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
fn unlink(directory: impl AsFd, name: &OsStr, flags: UnlinkatFlags) -> Result<(), Errno> {
    debug_assert!(is_one_component(name), "{name:?}");
    nix::unistd::unlinkat(directory, name, flags)
}

/// The names in the directory.
pub(super) fn list(dir: &CheckpointDir) -> Result<Vec<OsString>, Errno> {
    walk::entries(&dir.fd).map_err(|(_, errno)| errno)
}

/// `<name>.keep`, the marker of a pin (the checkpoint-restore-operator's convention).
pub(super) fn marker_of(name: &OsStr) -> OsString {
    let mut marker = name.to_owned();
    marker.push(".keep");
    marker
}

/// Whether `name` can only mean an entry of the directory itself.
pub(super) fn is_one_component(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    !bytes.is_empty() && bytes != b"." && bytes != b".." && !bytes.contains(&b'/') && !bytes.contains(&0)
}

fn id_of(stat: &FileStat) -> FileId {
    FileId { dev: stat.st_dev, ino: stat.st_ino }
}

/// `st_blocks × 512`, zero while another hard link holds the data.
fn freed_by(stat: &FileStat) -> Bytes {
    if stat.st_nlink > 1 { Bytes::ZERO } else { Bytes(u64::try_from(stat.st_blocks).unwrap_or(0) * 512) }
}

fn is_type(stat: &FileStat, wanted: libc::mode_t) -> bool {
    stat.st_mode & libc::S_IFMT == wanted
}

#[cfg(test)]
mod tests;
