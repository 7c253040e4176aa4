//! [`Walk`]: through a directory tree that somebody may be changing, by descriptors alone.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// How many directories may lie in one another. A pod checkpoint has two or three; each level costs a descriptor.
const DEPTH_MAX: usize = 64;

/// A step of a walk. [`Walk::directory`] is the one that the name lies in.
pub(super) enum Step {
    /// An entry; a directory is walked through when [`Walk::enter`] is called for it now.
    Entry(OsString),
    /// A directory that was entered has been walked through.
    Left(OsString),
}

/// A walk in depth, without recursion, without following links and without crossing mounts.
pub(super) struct Walk {
    root: OwnedFd,
    /// From the root down; empty once the root itself is walked through.
    open: Vec<Level>,
}

struct Level {
    /// `None`: the root.
    below: Option<(OwnedFd, OsString)>,
    /// What is still to be visited.
    entries: Vec<OsString>,
}

/// The system call that failed, and how.
type Failure = (&'static str, Errno);

impl Walk {
    /// Begins at `root`.
    pub(super) fn new(root: OwnedFd) -> Result<Walk, Failure> {
        let entries = entries(&root)?;
        Ok(Walk { root, open: vec![Level { below: None, entries }] })
    }

    /// The directory that the walk is in.
    pub(super) fn directory(&self) -> &OwnedFd {
        match self.open.last() {
            Some(Level { below: Some((directory, _)), .. }) => directory,
            _ => &self.root,
        }
    }

    /// The next entry, or the end of a directory; `None` at the end of the root.
    pub(super) fn step(&mut self) -> Option<Step> {
        let level = self.open.last_mut()?;
        match level.entries.pop() {
            Some(name) => Some(Step::Entry(name)),
            None => self.open.pop()?.below.map(|(_, name)| Step::Left(name)),
        }
    }

    /// Walks through the subdirectory `name` of [`Walk::directory`] next. `ELOOP` when it lies too deep, `EXDEV` when
    /// something is mounted on it.
    pub(super) fn enter(&mut self, name: OsString) -> Result<(), Failure> {
        if self.open.len() >= DEPTH_MAX {
            return Err(("openat2", Errno::ELOOP));
        }
        let directory = open_directory(self.directory(), &name).map_err(|errno| ("openat2", errno))?;
        let entries = entries(&directory)?;
        self.open.push(Level { below: Some((directory, name)), entries });
        Ok(())
    }
}

/// Opens the subdirectory `name` of `parent`: no link, and on the same mount (bind mounts of the same filesystem
/// are refused too, with `EXDEV`). Linux 5.6.
pub(super) fn open_directory(parent: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS);
    openat2(parent, name, how)
}

/// The names in a directory, read at once: what is deleted while it is being read would make readdir(3) skip some.
pub(super) fn entries(directory: &OwnedFd) -> Result<Vec<OsString>, Failure> {
    // A description of its own, for its own position.
    let copy = nix::fcntl::openat(
        directory,
        ".",
        OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        nix::sys::stat::Mode::empty(),
    )
    .map_err(|errno| ("openat", errno))?;
    let mut names = Vec::new();
    for entry in Dir::from_fd(copy).map_err(|errno| ("fdopendir", errno))?.into_iter() {
        let entry = entry.map_err(|errno| ("getdents64", errno))?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}
