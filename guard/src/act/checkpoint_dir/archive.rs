//! Deleting one archive.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::libc;
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::unistd::ftruncate;

use super::aside::{Aside, MoveError};
use super::farewell::Farewell;
use super::unlinked::{Content, WORTH_TRUNCATING};
use super::{CheckpointDir, Expected, Removed, freed_by, id_of, is_type};
use crate::act::refusal::{Changed, Refused};
use crate::model::FileId;
use crate::observe::holders;
use crate::observe::lease::{Lease, NoLease};

/// Unlinks the archive `expected`. The steps are told in the parent's text. The content is what is left of it, where there is
/// still any.
pub(super) fn remove(
    dir: &CheckpointDir,
    expected: &Expected<'_>,
    id: u64,
) -> Result<(Removed, Option<Content>), Refused> {
    let mut file = open_expected(dir, expected)?;
    let unused = Unused::prove(&file, expected.file)?;
    dir.refuse_pinned(expected.name)?;
    let aside = match Aside::take(dir, expected.name, expected.file.ino, id) {
        Ok(aside) => aside,
        Err(MoveError::Refused(refused)) => return Err(refused),
        Err(MoveError::NoSpace(_)) => {
            drop(unused);
            drop(file);
            return remove_where_nothing_can_be_renamed(dir, expected, id).map(|removed| (removed, None));
        }
    };
    let mut farewell = None;
    let emptying = if expected.len >= WORTH_TRUNCATING { dir.emptying() } else { None };
    // Where a second name could not be taken away, no other one is given.
    let unlinked = if emptying.is_some() && !dir.has_second_names() {
        drop(unused);
        match dir.farewells.prepare(&aside) {
            Ok(Some((other, hears))) => {
                // The old descriptor, which holds on to the name, is closed here.
                file = other;
                farewell = Some(hears);
            }
            Ok(None) => {}
            Err(errno) => {
                dir.has_second_names.store(true, Ordering::Relaxed);
                aside.put_back();
                return Err(Refused::Failed { call: "unlinkat", errno });
            }
        }
        match Unused::prove(&file, expected.file) {
            Ok(unused) => unlink_proved(dir, expected, &file, unused, aside),
            Err(refused) => {
                aside.put_back();
                Err(refused)
            }
        }
    } else {
        unlink_proved(dir, expected, &file, unused, aside)
    };
    match unlinked? {
        Gone::Unlinked(removed) => {
            let has_come = farewell.is_some_and(Farewell::has_come);
            // A name that somebody gave it at the last instant keeps its content.
            let is_unreachable = has_come && !removed.allocated.is_zero();
            let emptying = emptying.filter(|_| is_unreachable);
            Ok((removed, Some(Content { file, len: expected.len, emptying })))
        }
        Gone::NoSpace(aside) => {
            drop(file);
            let file = aside.open(OFlag::O_RDWR).map_err(Refused::failed("openat"));
            match file.and_then(|file| truncate(dir, expected, file)) {
                Ok(removed) => unlink_emptied(expected, aside, removed).map(|removed| (removed, None)),
                Err(refused) => {
                    aside.put_back();
                    Err(refused)
                }
            }
        }
    }
}

/// How far unlinking came.
enum Gone<'d> {
    /// The name is gone.
    Unlinked(Removed),
    /// The filesystem is too full even for that.
    NoSpace(Aside<'d>),
}

/// The last checks, and the unlink.
fn unlink_proved<'d>(
    dir: &CheckpointDir,
    expected: &Expected<'_>,
    file: &OwnedFd,
    unused: Unused<'_>,
    aside: Aside<'d>,
) -> Result<Gone<'d>, Refused> {
    let removed = match check_aside(dir, expected, file, &unused, &aside) {
        Ok(removed) => removed,
        Err(refused) => {
            // While the lease still holds: whoever waits for it finds the file under its name.
            aside.put_back();
            return Err(refused);
        }
    };
    match aside.unlink() {
        // Whoever waits for the lease, which ends here, gets all of the content.
        Ok(()) => Ok(Gone::Unlinked(after_unlink(file, removed))),
        Err((aside, Errno::ENOSPC)) => Ok(Gone::NoSpace(aside)),
        Err((aside, errno)) => {
            aside.put_back();
            Err(Refused::Failed { call: "unlinkat", errno })
        }
    }
}

/// On a copy-on-write filesystem so full that rename(2) finds no space, content goes before the name.
fn remove_where_nothing_can_be_renamed(
    dir: &CheckpointDir,
    expected: &Expected<'_>,
    id: u64,
) -> Result<Removed, Refused> {
    let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = openat(&dir.fd, expected.name, flags, Mode::empty());
    let removed = truncate(dir, expected, file.map_err(Refused::failed("openat"))?)?;
    match Aside::take(dir, expected.name, expected.file.ino, id) {
        Ok(aside) => unlink_emptied(expected, aside, removed),
        Err(MoveError::NoSpace(errno)) => Err(emptied(errno)),
        Err(MoveError::Refused(refused)) => Err(refused),
    }
}

/// Opens the file, if it is the one that was planned.
fn open_expected(dir: &CheckpointDir, expected: &Expected<'_>) -> Result<OwnedFd, Refused> {
    // By name first: opening a device or a pipe can have effects of its own.
    let named =
        fstatat(&dir.fd, expected.name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(Refused::failed("fstatat"))?;
    check_unchanged(&named, expected)?;
    let file = dir.open_entry(expected.name).map_err(|errno| match errno {
        Errno::ELOOP => Refused::NotACheckpoint("a symbolic link"),
        // Somebody holds a lease of his own on it: another guard, or samba.
        Errno::EWOULDBLOCK => Refused::InUse { file: expected.file, holders: Vec::new() },
        errno => Refused::failed("openat")(errno),
    })?;
    check_unchanged(&fstat(&file).map_err(Refused::failed("fstat"))?, expected)?;
    Ok(file)
}

fn check_unchanged(stat: &FileStat, expected: &Expected<'_>) -> Result<(), Refused> {
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => {}
        libc::S_IFLNK => return Err(Refused::NotACheckpoint("a symbolic link")),
        libc::S_IFDIR => return Err(Refused::NotACheckpoint("a directory where an archive was")),
        _ => return Err(Refused::NotACheckpoint("a special file")),
    }
    if id_of(stat) != expected.file {
        return Err(Refused::Changed(Changed::File));
    }
    let modified = Timestamp::new(stat.st_mtime, stat.st_mtime_nsec as i32).ok();
    if u64::try_from(stat.st_size) != Ok(expected.len.0) || modified != Some(expected.modified) {
        return Err(Refused::Changed(Changed::Content));
    }
    if stat.st_nlink > 1 {
        return Err(Refused::Linked);
    }
    Ok(())
}

/// The checks that count: the file has left its name, so nobody can reach it but through what he has open.
fn check_aside(
    dir: &CheckpointDir,
    expected: &Expected<'_>,
    file: &OwnedFd,
    unused: &Unused<'_>,
    aside: &Aside<'_>,
) -> Result<Removed, Refused> {
    if aside.stat().map(|stat| id_of(&stat)) != Ok(expected.file) {
        return Err(Refused::Changed(Changed::File));
    }
    let stat = fstat(file).map_err(Refused::failed("fstat"))?;
    check_unchanged(&stat, expected)?;
    // Again: between the first look and the rename somebody may have pinned it. From now on pinning finds no
    // checkpoint to pin.
    dir.refuse_pinned(expected.name)?;
    unused.check()?;
    Ok(Removed { allocated: freed_by(&stat), inodes: 1 })
}

/// What was really freed: nothing, when a hard link was made through a descriptor at the last instant.
fn after_unlink(file: &OwnedFd, removed: Removed) -> Removed {
    match fstat(file) {
        Ok(stat) if stat.st_nlink > 0 => Removed::default(),
        _ => removed,
    }
}

/// Frees an archive's content before its name, on a copy-on-write filesystem so full that even rename(2) or
/// unlink(2) find no space for the new metadata (borgbackup#2557).
///
/// This is the one place where content is destroyed that somebody might still get at, because it has a name. Everything was checked, and is checked
/// again here, on a descriptor that can write and under its own lease; it is the victim that the plan chose.
fn truncate(dir: &CheckpointDir, expected: &Expected<'_>, file: OwnedFd) -> Result<Removed, Refused> {
    let stat = fstat(&file).map_err(Refused::failed("fstat"))?;
    check_unchanged(&stat, expected)?;
    let unused = Unused::prove(&file, expected.file)?;
    dir.refuse_pinned(expected.name)?;
    unused.check()?;
    ftruncate(&file, 0).map_err(|errno| Refused::Failed { call: "ftruncate", errno })?;
    dir.show_freed_space_at_last();
    Ok(Removed { allocated: freed_by(&stat), inodes: 1 })
}

/// Unlinks what [`truncate`] has emptied.
fn unlink_emptied(expected: &Expected<'_>, aside: Aside<'_>, removed: Removed) -> Result<Removed, Refused> {
    if aside.stat().map(|stat| id_of(&stat)) != Ok(expected.file) {
        aside.put_back();
        return Err(Refused::Changed(Changed::File));
    }
    aside.unlink().map(|()| removed).map_err(|(_, errno)| emptied(errno))
}

/// The content is gone and the name is left.
fn emptied(errno: Errno) -> Refused {
    Refused::Partly { call: "unlinkat", errno }
}

/// Proof that nobody else has a file open.
pub(super) enum Unused<'f> {
    /// The kernel's.
    Lease(Lease<'f>, FileId),
    /// That of a complete walk through `/proc`, where the filesystem has no leases.
    Walk(FileId),
}

impl<'f> Unused<'f> {
    /// Proves it, or says why that cannot be.
    pub(super) fn prove(file: &'f impl AsFd, id: FileId) -> Result<Unused<'f>, Refused> {
        match Lease::exclusive(file) {
            Ok(lease) => Ok(Unused::Lease(lease, id)),
            Err(NoLease::Held) => Err(Refused::InUse { file: id, holders: Vec::new() }),
            Err(NoLease::Unsupported(errno)) => {
                let walk = Unused::Walk(id);
                walk.check().map_err(|refused| match refused {
                    Refused::CannotProve(why) => {
                        Refused::CannotProve(format!("no lease ({errno}), and {why}"))
                    }
                    refused => refused,
                })?;
                Ok(walk)
            }
        }
    }

    /// Whether it still holds.
    pub(super) fn check(&self) -> Result<(), Refused> {
        match self {
            Unused::Lease(lease, _) if lease.is_intact() => Ok(()),
            Unused::Lease(_, id) => Err(Refused::InUse { file: *id, holders: Vec::new() }),
            Unused::Walk(id) => {
                let mut scan = holders::find(&[*id]);
                match scan.holders.remove(id) {
                    Some(holders) => Err(Refused::InUse { file: *id, holders }),
                    None if scan.complete => Ok(()),
                    None => Err(Refused::CannotProve("/proc does not show every process of the node".into())),
                }
            }
        }
    }
}

/// Whether an entry of a pod checkpoint can be open at all in a way that matters.
pub(super) fn is_regular(stat: &FileStat) -> bool {
    is_type(stat, libc::S_IFREG)
}
