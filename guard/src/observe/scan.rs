//! What lies in a directory: names and stat, nothing of the content.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use jiff::Timestamp;
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};

use crate::model::{Bytes, FileId};

/// The part of a stat(2) that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Device and inode.
    pub file: FileId,
    /// What sort of entry.
    pub sort: Sort,
    /// `st_size`.
    pub len: Bytes,
    /// `st_blocks × 512`.
    pub allocated: Bytes,
    /// `st_mtim`.
    pub modified: Timestamp,
    /// `st_ctim`, which nobody can set.
    pub changed: Timestamp,
    /// `st_nlink`.
    pub links: u64,
    /// The permission bits of `st_mode`.
    pub mode: u32,
}

/// What sort of directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, socket, device, FIFO: never a checkpoint.
    Other,
}

impl Stat {
    /// Looks at `name` in `dir` without following a link.
    pub fn at(dir: BorrowedFd<'_>, name: &OsStr) -> Result<Stat, Errno> {
        fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW).map(|stat| Stat::from(&stat))
    }
}

impl From<&FileStat> for Stat {
    fn from(stat: &FileStat) -> Stat {
        let sort = match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFREG => Sort::File,
            SFlag::S_IFDIR => Sort::Directory,
            _ => Sort::Other,
        };
        // Out of jiff's range means a broken filesystem; the epoch makes it the oldest, not the youngest.
        let instant = |seconds, nanoseconds| {
            let nanoseconds = i32::try_from(nanoseconds).unwrap_or(0);
            Timestamp::new(seconds, nanoseconds).unwrap_or(Timestamp::UNIX_EPOCH)
        };
        Stat {
            file: FileId { dev: stat.st_dev, ino: stat.st_ino },
            sort,
            len: Bytes(stat.st_size.try_into().unwrap_or(0)),
            allocated: Bytes(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)),
            modified: instant(stat.st_mtime, stat.st_mtime_nsec),
            changed: instant(stat.st_ctime, stat.st_ctime_nsec),
            links: stat.st_nlink,
            mode: stat.st_mode & 0o7777,
        }
    }
}

/// Calls `each` with every entry of `dir` but `.` and `..`, in the directory's own order.
///
/// An entry that vanishes between readdir(3) and stat(2) is passed over; any other error of one entry too, but
/// counted in the result. Memory does not grow with the directory.
///
/// # Errors
/// `dir` cannot be read at all.
pub fn scan(dir: BorrowedFd<'_>, mut each: impl FnMut(&OsStr, Stat)) -> Result<usize, Errno> {
    // A descriptor of its own: the offset of a shared one would move under other readers.
    let mut entries = Dir::from_fd(reopen(dir)?)?;
    let mut unreadable = 0;
    for entry in entries.iter() {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let name = OsStr::from_bytes(name.to_bytes());
        // Links, sockets and devices are told by readdir itself on most filesystems: no stat for them.
        if matches!(
            entry.file_type(),
            Some(Type::Symlink | Type::Socket | Type::Fifo | Type::CharacterDevice | Type::BlockDevice)
        ) {
            each(name, NOT_A_CHECKPOINT);
            continue;
        }
        match Stat::at(dir, name) {
            Ok(stat) => each(name, stat),
            Err(Errno::ENOENT) => {}
            Err(_) => unreadable += 1,
        }
    }
    Ok(unreadable)
}

/// What [`scan`] gives for entries that need no stat.
const NOT_A_CHECKPOINT: Stat = Stat {
    file: FileId { dev: 0, ino: 0 },
    sort: Sort::Other,
    len: Bytes::ZERO,
    allocated: Bytes::ZERO,
    modified: Timestamp::UNIX_EPOCH,
    changed: Timestamp::UNIX_EPOCH,
    links: 1,
    mode: 0,
};

/// The directory behind `dir` once more, with an offset of its own.
fn reopen(dir: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    openat(dir, c".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
}

/// What a directory tree below a checkpoint directory takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The sum of `st_size` of its files.
    pub len: Bytes,
    /// The sum of `st_blocks × 512` of everything in it; files with other hard links free nothing and count zero.
    pub allocated: Bytes,
    /// How many inodes it takes.
    pub inodes: u32,
    /// How many of them are files.
    pub files: u32,
    /// The newest `st_mtim` of it and of what lies in it, links and special files apart.
    pub modified: Timestamp,
    /// The newest `st_mtim` or `st_ctim`; of the tree itself only the former, since renaming it is no change in it.
    pub changed: Timestamp,
    /// Somebody has a file in it open for writing, or that could not be found out.
    pub being_written: bool,
    /// Not everything was looked at: unreadable, too deep, or too much.
    pub partial: bool,
}

/// Deeper than this nobody nests a checkpoint; KEP-5823 has one level of subdirectories.
const DEPTH_MAX: usize = 32;
/// A pod checkpoint has some files per container. More is not one, and walking it would stall the loop.
const ENTRIES_MAX: u32 = 100_000;

/// Measures the tree at `name` in `dir`, never following a link nor leaving the filesystem.
///
/// `is_written` is asked for every regular file: whether somebody has it open for writing.
pub fn measure(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    is_written: &mut dyn FnMut(BorrowedFd<'_>, &OsStr) -> bool,
) -> Result<Tree, Errno> {
    let top = Stat::at(dir, name)?;
    let (modified, allocated) = (top.modified, top.allocated);
    let mut tree = Tree { inodes: 1, allocated, modified, changed: modified, ..Tree::default() };
    walk(open_directory(dir, name)?.as_fd(), top.file.dev, DEPTH_MAX, &mut tree, is_written)?;
    Ok(tree)
}

/// The regular files below each subdirectory of `dir`, by that subdirectory: which pod checkpoint a file belongs to. At most
/// as much as [`measure`] looks at is looked at.
///
/// # Errors
/// `dir` cannot be read. What vanishes meanwhile is not there.
pub fn files_by_subdirectory(dir: BorrowedFd<'_>) -> Result<HashMap<FileId, FileId>, Errno> {
    let mut tops = Vec::new();
    scan(dir, |name, stat| {
        if stat.sort == Sort::Directory {
            tops.push((name.to_owned(), stat.file));
        }
    })?;
    let mut found = HashMap::new();
    for (name, top) in tops {
        let mut below: Vec<OwnedFd> = open_directory(dir, &name).into_iter().collect();
        while let Some(fd) = below.pop().filter(|_| found.len() < ENTRIES_MAX as usize) {
            // An error is a directory that has vanished, or one that tells nothing.
            let _ = scan(fd.as_fd(), |name, stat| match stat.sort {
                Sort::File => {
                    found.insert(stat.file, top);
                }
                Sort::Directory if below.len() < OPEN_MAX && stat.file.dev == top.dev => {
                    below.extend(open_directory(fd.as_fd(), name));
                }
                _ => {}
            });
        }
    }
    Ok(found)
}

/// So many subdirectories of one checkpoint are held open; KEP-5823 has one for each container.
const OPEN_MAX: usize = 64;

/// Adds what lies in `dir`, at most `depth` levels of it, so at most `depth` descriptors are open at a time.
fn walk(
    dir: BorrowedFd<'_>,
    dev: u64,
    depth: usize,
    tree: &mut Tree,
    is_written: &mut dyn FnMut(BorrowedFd<'_>, &OsStr) -> bool,
) -> Result<(), Errno> {
    let mut below = Vec::new();
    let unreadable = scan(dir, |name, stat| {
        tree.inodes = tree.inodes.saturating_add(1);
        if stat.sort != Sort::Other {
            tree.modified = tree.modified.max(stat.modified);
            tree.changed = tree.changed.max(stat.modified).max(stat.changed);
        }
        match stat.sort {
            Sort::Directory if stat.file.dev != dev => tree.partial = true,
            Sort::Directory => {
                tree.allocated += stat.allocated;
                below.push(name.to_owned());
            }
            Sort::File => {
                tree.files += 1;
                tree.len += stat.len;
                if stat.links <= 1 {
                    tree.allocated += stat.allocated;
                }
                tree.being_written |= is_written(dir, name);
            }
            Sort::Other => {}
        }
    })?;
    tree.partial |= unreadable > 0 || (depth == 0 && !below.is_empty());
    for name in below.into_iter().take_while(|_| depth > 0) {
        if tree.inodes > ENTRIES_MAX {
            tree.partial = true;
            break;
        }
        match open_directory(dir, &name) {
            Ok(fd) => walk(fd.as_fd(), dev, depth - 1, tree, is_written)?,
            Err(Errno::ENOENT) => {}
            Err(_) => tree.partial = true,
        }
    }
    Ok(())
}

pub(super) fn open_directory(dir: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(dir, name, flags, Mode::empty())
}

/// Opens a regular file for reading, never following a link nor blocking on a FIFO.
pub fn open_file(dir: BorrowedFd<'_>, name: &OsStr) -> Result<std::fs::File, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOATIME;
    match openat(dir, name, flags, Mode::empty()) {
        // O_NOATIME is for the owner and CAP_FOWNER; `list` must work for others as well.
        Err(Errno::EPERM) => openat(dir, name, flags & !OFlag::O_NOATIME, Mode::empty()),
        other => other,
    }
    .map(std::fs::File::from)
}

/// What `fstat` says of an open file.
pub fn stat_of(file: &std::fs::File) -> Result<Stat, Errno> {
    nix::sys::stat::fstat(file).map(|stat| Stat::from(&stat))
}
