//! Deleting one pod checkpoint: a directory with archives and other files below it.
//!
//! It goes whole or not at all, as far as a person can see: everything below it is checked before its name is
//! taken away, and again afterwards, when nobody can reach it by path any more; only then is it emptied, from the
//! leaves up, beneath its descriptor. A crash in between leaves it under its private name, half empty perhaps, to
//! be finished at the next start and never to be listed; what the kernel refuses is tried again ([`super::leftovers`]).

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};

use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::libc;
use nix::sys::stat::{FileStat, fstat, fstatat};
use nix::unistd::UnlinkatFlags;

use super::archive::{Unused, is_regular};
use super::aside::Aside;
use super::walk::{Step, Walk, open_directory};
use super::{CheckpointDir, Expected, Removed, freed_by, id_of, is_type, unlink};
use crate::act::refusal::{Changed, Refused};
use crate::model::Bytes;
use crate::observe::host::attributes::{Attributes, attributes};
use crate::observe::scan::Stat;

/// How often a directory is read again because somebody put something into it while it was being emptied.
const PASSES_MAX: usize = 3;

/// Deletes the pod checkpoint `expected`.
pub(super) fn remove(dir: &CheckpointDir, expected: &Expected<'_>, id: u64) -> Result<Removed, Refused> {
    let named =
        fstatat(&dir.fd, expected.name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(Refused::failed("fstatat"))?;
    check_unchanged(&named, expected)?;
    let root = open_directory(&dir.fd, expected.name).map_err(|errno| match errno {
        Errno::EXDEV => Refused::NotACheckpoint("something is mounted on it"),
        errno => Refused::failed("openat2")(errno),
    })?;
    check_unchanged(&fstat(&root).map_err(Refused::failed("fstat"))?, expected)?;
    let before = check_below(&root)?;
    before.check_unchanged(expected)?;
    dir.refuse_pinned(expected.name)?;
    let aside = Aside::take(dir, expected.name, expected.file.ino, id)?;
    let checked = match aside.stat() {
        Ok(stat) if id_of(&stat) == expected.file => {
            dir.refuse_pinned(expected.name).and_then(|()| check_below(&root)).and_then(|below| {
                if below.content == before.content {
                    Ok(below)
                } else {
                    Err(Refused::Changed(Changed::Content))
                }
            })
        }
        _ => Err(Refused::Changed(Changed::File)),
    };
    match checked {
        Ok(below) => {
            let left_as = aside.name().to_owned();
            let finished = finish(aside, root, below.removed);
            finished.inspect_err(|refused| dir.note_unfinished(id, expected.name, left_as, refused))
        }
        Err(refused) => {
            aside.put_back();
            Err(refused)
        }
    }
}

/// Empties and removes what has been checked and lies aside.
///
/// Whoever has a descriptor of the directory can still put something into it, though nobody finds it by a path: then it
/// is emptied once more.
pub(super) fn finish(mut aside: Aside<'_>, root: OwnedFd, removed: Removed) -> Result<Removed, Refused> {
    let partly = |call| move |errno| Refused::Partly { call, errno };
    for _ in 0..=PASSES_MAX {
        let copy = root.try_clone().map_err(|_| partly("dup")(Errno::EMFILE))?;
        empty(copy).map_err(|(call, errno)| partly(call)(errno))?;
        match aside.remove_empty_directory() {
            Ok(()) => return Ok(removed),
            Err((same, Errno::ENOTEMPTY)) => aside = same,
            Err((_, errno)) => return Err(partly("unlinkat")(errno)),
        }
    }
    Err(partly("unlinkat")(Errno::ENOTEMPTY))
}

fn check_unchanged(stat: &FileStat, expected: &Expected<'_>) -> Result<(), Refused> {
    if !is_type(stat, libc::S_IFDIR) {
        return Err(Refused::NotACheckpoint("a file or a link where a pod checkpoint's directory was"));
    }
    if id_of(stat) != expected.file {
        return Err(Refused::Changed(Changed::File));
    }
    Ok(())
}

/// What lies below a directory.
pub(super) struct Below {
    /// What deleting it frees, the directory itself included.
    pub(super) removed: Removed,
    /// What cannot stay the same when something below it is written: the sum of `st_size` of the files, and the newest
    /// `st_mtim`. The directory's own is apart: whether renaming it changes that is the filesystem's affair.
    content: (Bytes, Timestamp),
    own_modified: Timestamp,
}

impl Below {
    /// Refuses when it is not what was planned for: a tree that somebody writes to is not open all the time.
    fn check_unchanged(&self, expected: &Expected<'_>) -> Result<(), Refused> {
        let (len, modified) = self.content;
        match (len, modified.max(self.own_modified)) == (expected.len, expected.modified) {
            true => Ok(()),
            false => Err(Refused::Changed(Changed::Content)),
        }
    }
}

/// Adds up what lies below `root`, and refuses when somebody has one of the files open, when something is mounted
/// below it, when it is deeper than any pod checkpoint, or when something in it could not be deleted.
pub(super) fn check_below(root: &OwnedFd) -> Result<Below, Refused> {
    let own = fstat(root).map_err(Refused::failed("fstat"))?;
    let own_modified = Stat::from(&own).modified;
    let (mut len, mut modified) = (Bytes::ZERO, Timestamp::UNIX_EPOCH);
    let mut removed = Removed { allocated: allocated_to_directory(&own), inodes: 1 };
    let failed = |(call, errno)| match (call, errno) {
        (_, Errno::EXDEV) => Refused::NotACheckpoint("something is mounted beneath it"),
        (_, Errno::ELOOP) => Refused::NotACheckpoint("more than 64 directories lie in one another"),
        (call, errno) => Refused::Failed { call, errno },
    };
    let root = root.try_clone().map_err(|_| Refused::Failed { call: "dup", errno: Errno::EMFILE })?;
    let mut walk = Walk::new(root).map_err(failed)?;
    check_attributes(walk.directory())?;
    while let Some(step) = walk.step() {
        let Step::Entry(name) = step else { continue };
        let stat = match fstatat(walk.directory(), &*name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::ENOENT) => continue,
            Err(errno) => return Err(Refused::Failed { call: "fstatat", errno }),
        };
        if is_type(&stat, libc::S_IFDIR) {
            removed.inodes += 1;
            removed.allocated += allocated_to_directory(&stat);
            modified = modified.max(Stat::from(&stat).modified);
            walk.enter(name).map_err(failed)?;
            check_attributes(walk.directory())?;
        } else {
            removed.inodes += u64::from(stat.st_nlink == 1);
            removed.allocated += freed_by(&stat);
            if is_regular(&stat) {
                let seen = Stat::from(&stat);
                (len, modified) = (len + seen.len, modified.max(seen.modified));
                check_file(walk.directory(), &name, &stat)?;
            }
        }
    }
    Ok(Below { removed, content: (len, modified), own_modified })
}

/// `st_blocks` of a directory, whose link count says nothing about other names.
fn allocated_to_directory(stat: &FileStat) -> Bytes {
    Bytes(u64::try_from(stat.st_blocks).unwrap_or(0) * 512)
}

/// Refuses what the kernel would not delete, or not delete from: found out half-way, a part would be gone.
fn check_attributes(opened: &OwnedFd) -> Result<(), Refused> {
    match attributes(opened.as_fd()) {
        Attributes { is_immutable: false, is_append_only: false } => Ok(()),
        _ => Err(Refused::Failed { call: "unlinkat", errno: Errno::EPERM }),
    }
}

/// Refuses when somebody has this file open. The lease is given back at once: a descriptor for each file of a
/// large checkpoint would be more than there are.
fn check_file(parent: &OwnedFd, name: &OsStr, stat: &FileStat) -> Result<(), Refused> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS);
    match openat2(parent, name, how) {
        Ok(file) => {
            check_attributes(&file)?;
            Unused::prove(&file, id_of(stat))?.check()
        }
        Err(Errno::ENOENT) => Ok(()),
        Err(Errno::EWOULDBLOCK) => Err(Refused::InUse { file: id_of(stat), holders: Vec::new() }),
        Err(Errno::EXDEV) => Err(Refused::NotACheckpoint("something is mounted beneath it")),
        Err(errno) => Err(Refused::Failed { call: "openat2", errno }),
    }
}

/// Deletes everything below `root`. Links are deleted, not followed; a mount stops it.
fn empty(root: OwnedFd) -> Result<(), (&'static str, Errno)> {
    let mut passes = 0;
    let mut walk = Walk::new(root)?;
    while let Some(step) = walk.step() {
        match step {
            Step::Entry(name) => match unlink(walk.directory(), &name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(Errno::EISDIR) => walk.enter(name)?,
                Err(errno) => return Err(("unlinkat", errno)),
            },
            Step::Left(name) => match unlink(walk.directory(), &name, UnlinkatFlags::RemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(Errno::ENOTEMPTY) if passes < PASSES_MAX => {
                    passes += 1;
                    walk.enter(name)?;
                }
                Err(errno) => return Err(("unlinkat", errno)),
            },
        }
    }
    Ok(())
}
