//! [`Aside`]: a checkpoint under a private name, between its last check and its end.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, RenameFlags, openat, renameat2};
use nix::libc;
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, linkat};

use super::{CheckpointDir, unlink};
use crate::act::refusal::Refused;

/// Whatever begins so is ours, on its way out, and no checkpoint.
pub const PREFIX: &str = ".evicting-";

/// The subdirectory that only we enter. With it, nobody who renames things in the checkpoint directory can
/// exchange what we have just looked at: our descriptor leads into it wherever it goes.
pub(super) const PRIVATE: &str = ".evicting-guard";

/// Ends the second name that a private name may have for a moment.
const TWIN: &str = "-twin";

/// How many private names are tried. They are made of the audit id and the inode, so that one is taken only when
/// audit ids repeat because the log was lost.
const NAMES: u32 = 16;

/// A checkpoint that has been renamed to `.evicting-<audit id>-<inode>`: in the private subdirectory, or beside
/// its old name where none can be made.
///
/// A crash leaves it there. The inode in the name is the one that all checks were made for; a file of another
/// inode under it was slipped in by somebody at the instant of the rename, and is not deleted ([`super::leftovers`]).
#[derive(Debug)]
pub(super) struct Aside<'d> {
    dir: &'d CheckpointDir,
    place: Arc<OwnedFd>,
    name: OsString,
    original: OsString,
}

/// Why a checkpoint could not be renamed.
pub(super) enum MoveError {
    /// The filesystem is too full for that.
    NoSpace(Errno),
    /// Any other reason.
    Refused(Refused),
}

impl From<MoveError> for Refused {
    fn from(error: MoveError) -> Refused {
        match error {
            MoveError::NoSpace(errno) => Refused::Failed { call: "renameat2", errno },
            MoveError::Refused(refused) => refused,
        }
    }
}

impl<'d> Aside<'d> {
    /// Renames `original`. Never replaces anything.
    pub(super) fn take(
        dir: &'d CheckpointDir,
        original: &OsStr,
        inode: u64,
        id: u64,
    ) -> Result<Aside<'d>, MoveError> {
        let places = dir.private_place().into_iter().chain([dir.fd.clone()]);
        let mut last = Errno::EEXIST;
        for place in places {
            for attempt in 0..NAMES {
                let name = private_name(id, inode, attempt);
                match renameat2(&dir.fd, original, &place, &*name, RenameFlags::RENAME_NOREPLACE) {
                    Ok(()) => return Ok(Aside { dir, place, name, original: original.to_owned() }),
                    Err(Errno::EEXIST) => continue,
                    Err(errno) => last = errno,
                }
                break;
            }
        }
        Err(match last {
            errno @ (Errno::ENOSPC | Errno::EDQUOT) => MoveError::NoSpace(errno),
            Errno::EINVAL | Errno::ENOSYS => MoveError::Refused(Refused::CannotProve(
                "the filesystem cannot rename without replacing (renameat2, RENAME_NOREPLACE)".into(),
            )),
            errno => MoveError::Refused(Refused::failed("renameat2")(errno)),
        })
    }

    /// What a crash left under a private name in `place`.
    pub(super) fn left_over(
        dir: &'d CheckpointDir,
        place: Arc<OwnedFd>,
        name: OsString,
        original: OsString,
    ) -> Aside<'d> {
        Aside { dir, place, name, original }
    }

    /// Its private name.
    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// What is under the private name now.
    pub(super) fn stat(&self) -> Result<FileStat, Errno> {
        fstatat(&self.place, &*self.name, AtFlags::AT_SYMLINK_NOFOLLOW)
    }

    /// Opens it, with `flags` beside the ones that make this safe.
    pub(super) fn open(&self, flags: OFlag) -> Result<OwnedFd, Errno> {
        let always = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        openat(&self.place, &*self.name, flags | always, Mode::empty())
    }

    /// Opens it by a second name that it has for this moment only, in the private place; `None` where there is none, or when
    /// it cannot be had.
    ///
    /// # Errors
    /// The second name could not be taken away again.
    pub(super) fn open_by_twin(&self, flags: OFlag) -> Result<Option<OwnedFd>, Errno> {
        if Arc::ptr_eq(&self.place, &self.dir.fd) {
            return Ok(None);
        }
        let mut twin = self.name.clone();
        twin.push(TWIN);
        if linkat(&self.place, &*self.name, &self.place, &*twin, AtFlags::empty()).is_err() {
            return Ok(None);
        }
        let always = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = openat(&self.place, &*twin, flags | always, Mode::empty());
        unlink(&self.place, &twin, UnlinkatFlags::NoRemoveDir)?;
        Ok(file.ok())
    }

    /// Deletes it. On failure it is still there.
    pub(super) fn unlink(self) -> Result<(), (Aside<'d>, Errno)> {
        self.finish(UnlinkatFlags::NoRemoveDir)
    }

    /// Deletes it when it is an empty directory. On failure it is still there.
    pub(super) fn remove_empty_directory(self) -> Result<(), (Aside<'d>, Errno)> {
        self.finish(UnlinkatFlags::RemoveDir)
    }

    fn finish(self, flags: UnlinkatFlags) -> Result<(), (Aside<'d>, Errno)> {
        match unlink(&self.place, &self.name, flags) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err((self, errno)),
        }
    }

    /// Gives it its name back. Should that have been taken within these microseconds, it gets
    /// `<name>.spared-<private name>`, which is no checkpoint's and so is never touched again.
    pub(super) fn put_back(self) {
        let rename =
            |to: &OsStr| renameat2(&self.place, &*self.name, &self.dir.fd, to, RenameFlags::RENAME_NOREPLACE);
        let mut spared = OsString::from("spared-");
        spared.push(self.name.to_string_lossy().trim_start_matches(PREFIX));
        let mut full = self.original.clone();
        full.push(".");
        full.push(&spared);
        let mut last = Errno::ENOENT;
        for (place, name) in [&self.original, &full, &spared].into_iter().enumerate() {
            match rename(name) {
                Ok(()) if place == 0 => return,
                Ok(()) => {
                    tracing::error!(
                        directory = %self.dir.path.display(), checkpoint = ?self.original, now = ?name,
                        "spared, but its name was taken while it was being checked; it is kept under another"
                    );
                    return;
                }
                Err(errno) => last = errno,
            }
        }
        tracing::error!(
            directory = %self.dir.path.display(), checkpoint = ?self.original, left_as = ?self.name, errno = %last,
            "spared, but it could not get its name back"
        );
    }
}

/// `.evicting-<id>-<inode>`, and a third number from the second attempt on.
fn private_name(id: u64, inode: u64, attempt: u32) -> OsString {
    match attempt {
        0 => format!("{PREFIX}{id}-{inode}").into(),
        attempt => format!("{PREFIX}{id}-{inode}-{attempt}").into(),
    }
}

/// Whether this is the second name of something, which a crash left.
pub(super) fn is_twin(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| {
        name.strip_suffix(TWIN).is_some_and(|first| parse_private_name(OsStr::new(first)).is_some())
    })
}

/// The audit id and the inode that a private name tells of.
pub(super) fn parse_private_name(name: &OsStr) -> Option<(u64, u64)> {
    let name = name.to_str()?.strip_prefix(PREFIX)?;
    let mut numbers = name.strip_suffix(TWIN).unwrap_or(name).split('-');
    let (id, inode) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    numbers.next().is_none_or(|attempt| attempt.parse::<u32>().is_ok()).then_some((id, inode))
}

impl CheckpointDir {
    /// The private subdirectory, made when there is none; `None` when that fails (a filesystem without a free
    /// inode) or when what bears its name is not ours alone.
    fn private_place(&self) -> Option<Arc<OwnedFd>> {
        let mut private = self.private.lock().unwrap_or_else(PoisonError::into_inner);
        // Another guard (`checkpoint-guard reclaim` beside the daemon) may have taken it away.
        if private.as_ref().is_none_or(|place| fstat(place).map_or(0, |stat| stat.st_nlink) == 0) {
            *private = match mkdirat(&self.fd, PRIVATE, Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => self.open_private_place().map(Arc::new),
                Err(_) => None,
            };
        }
        private.clone()
    }

    /// The private subdirectory if there is one: a directory, not a link, on our filesystem, only for us.
    pub(super) fn open_private_place(&self) -> Option<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let place = openat(&self.fd, PRIVATE, flags, Mode::empty()).ok()?;
        let stat = fstat(&place).ok()?;
        let ours = stat.st_dev == self.id.dev
            && stat.st_uid == geteuid().as_raw()
            && stat.st_mode & (libc::S_IRWXG | libc::S_IRWXO) == 0;
        ours.then_some(place)
    }
}

impl Drop for CheckpointDir {
    /// Takes the private subdirectory away again. When something is left in it, it stays.
    fn drop(&mut self) {
        let private = self.private.get_mut().unwrap_or_else(PoisonError::into_inner);
        if private.take().is_some() {
            let _ = unlink(&self.fd, OsStr::new(PRIVATE), UnlinkatFlags::RemoveDir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_names_tell_their_audit_id_and_inode() {
        for attempt in [0, 1, 15] {
            let mut name = private_name(7, 1234, attempt);
            assert_eq!(parse_private_name(&name), Some((7, 1234)));
            assert!(!is_twin(&name));
            name.push(TWIN);
            assert_eq!(parse_private_name(&name), Some((7, 1234)));
            assert!(is_twin(&name));
        }
        assert!(!is_twin(OsStr::new("a-twin")) && !is_twin(OsStr::new(".evicting-twin")));
        for other in [PRIVATE, ".evicting-", ".evicting-7", ".evicting-7-x", ".evicting-7-8-9x", "a.tar"] {
            assert_eq!(parse_private_name(OsStr::new(other)), None, "{other}");
        }
    }
}
