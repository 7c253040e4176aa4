//! What a crash left behind, or a failure.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::libc;
use nix::sys::stat::{fstat, fstatat};

use super::archive::Unused;
use super::aside::{Aside, PREFIX, PRIVATE, is_twin, parse_private_name};
use super::{CheckpointDir, Removed, freed_by, id_of, is_one_component, is_type, pod, walk};
use crate::act::refusal::{Changed, Pin, Refused};
use crate::model::FileId;

/// One checkpoint that a crash or a failure left on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The audit line that announced its deletion.
    pub id: u64,
    /// Its name before; `None` when the audit log does not know it any more.
    pub name: Option<OsString>,
    /// Its name now.
    pub left_as: OsString,
    /// Whether it is gone now. [`Refused::Pinned`]: it has its name back.
    pub outcome: Result<Removed, Refused>,
}

/// A leftover that may be finished another time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unfinished {
    id: u64,
    name: Option<OsString>,
    left_as: OsString,
    /// Why not the last time.
    refused: Refused,
}

/// The directory could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot look for unfinished deletions: {call}: {errno}")]
pub struct LeftoverError {
    /// The system call.
    pub call: &'static str,
    /// Its error.
    pub errno: Errno,
}

impl CheckpointDir {
    /// Finishes deletions that a crash interrupted. For the start, and cheap enough for any time.
    ///
    /// Finished rather than undone: they were announced, and every check had passed or was about to be made again.
    /// Here they are made again as far as they can be: the inode is the one in the private name, nobody has it
    /// open, nothing is mounted below it. An archive, which is whole, gets its name back when it has been pinned
    /// meanwhile; a pod checkpoint may be half empty and does not.
    ///
    /// `name_of` tells the name that the audit log has for an id. Without one, nobody can say whether it has been pinned: it
    /// is left alone while a marker lies there whose checkpoint does not. Somebody else's file, slipped in at the instant
    /// of the rename, has another inode, and is left alone and reported as [`Changed::File`].
    pub fn finish_leftovers(
        &self,
        name_of: &dyn Fn(u64) -> Option<OsString>,
    ) -> Result<Vec<Leftover>, LeftoverError> {
        let mut found = Vec::new();
        let private = self.open_private_place().map(Arc::new);
        for place in [Some(self.fd.clone()), private.clone()].into_iter().flatten() {
            let mut names = walk::entries(&place).map_err(|(call, errno)| LeftoverError { call, errno })?;
            names.retain(|name| !self.drop_twin(&place, name));
            for left_as in names {
                if let Some((id, inode)) = parse_private_name(&left_as) {
                    let name = name_of(id).filter(|name| is_one_component(name));
                    found.push((place.clone(), id, inode, name, left_as));
                }
            }
        }
        let known: Vec<_> = found.iter().filter_map(|(.., name, _)| name.clone()).collect();
        let mut finished = Vec::new();
        for (place, id, inode, name, left_as) in found {
            let outcome = self.finish_leftover(&place, &left_as, inode, name.as_deref(), &known);
            if let Err(refused) = &outcome {
                self.note_unfinished(id, name.as_deref(), left_as.clone(), refused);
            }
            finished.push(Leftover { id, name, left_as, outcome });
        }
        if private.is_some() {
            // Empty now, unless something was left alone.
            let _ = super::unlink(&self.fd, OsStr::new(PRIVATE), nix::unistd::UnlinkatFlags::RemoveDir);
        }
        if finished.iter().any(|leftover| leftover.outcome.is_ok()) {
            self.show_freed_space_at_last();
        }
        Ok(finished)
    }

    /// Takes up again what this process could not finish: whoever had made it immutable, the disk, or whoever had it open, may
    /// have changed his mind. For any time but during a deletion. The result are those of which there is news.
    pub fn retry_leftovers(&self) -> Vec<Leftover> {
        let unfinished = std::mem::take(&mut *self.unfinished());
        let known: Vec<_> = unfinished.iter().filter_map(|it| it.name.clone()).collect();
        let mut news = Vec::new();
        for Unfinished { id, name, left_as, refused } in unfinished {
            let Some((_, inode)) = parse_private_name(&left_as) else { continue };
            let private = self.open_private_place().map(Arc::new);
            let has = |place: &Arc<OwnedFd>| fstatat(place, &*left_as, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
            // Somebody has finished it for us.
            let places = [private, Some(self.fd.clone())];
            let Some(place) = places.into_iter().flatten().find(has) else { continue };
            let outcome = self.finish_leftover(&place, &left_as, inode, name.as_deref(), &known);
            if let Err(refused) = &outcome {
                self.note_unfinished(id, name.as_deref(), left_as.clone(), refused);
            }
            if outcome.as_ref().err() != Some(&refused) {
                news.push(Leftover { id, name, left_as, outcome });
            }
        }
        news
    }

    /// Remembers a leftover that may be finished another time: not one that has its name back, nor one that is not ours.
    pub(super) fn note_unfinished<'n>(
        &self,
        id: u64,
        name: impl Into<Option<&'n OsStr>>,
        left_as: OsString,
        refused: &Refused,
    ) {
        let may_end = match refused {
            Refused::Failed { .. } | Refused::Partly { .. } | Refused::InUse { .. } => true,
            Refused::CannotProve(_) | Refused::Linked | Refused::Pinned(Pin::Nameless | Pin::Doubt(_)) => {
                true
            }
            Refused::Gone | Refused::Changed(_) | Refused::Pinned(Pin::Marker) => false,
            Refused::NotACheckpoint(_) | Refused::CommandFailed(_) => false,
        };
        if may_end {
            let (name, refused) = (name.into().map(OsStr::to_owned), refused.clone());
            self.unfinished().push(Unfinished { id, name, left_as, refused });
        }
    }

    fn unfinished(&self) -> MutexGuard<'_, Vec<Unfinished>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a marker lies there whose checkpoint does not, nor is one of the leftovers whose names are known. In doubt, yes.
    fn has_orphaned_marker(&self, known: &[OsString]) -> bool {
        let Ok(names) = walk::entries(&self.fd) else { return true };
        names.iter().any(|marker| {
            let pinned = marker.as_encoded_bytes().strip_suffix(b".keep").filter(|pinned| !pinned.is_empty());
            pinned.map(OsStr::from_bytes).is_some_and(|pinned| {
                !known.iter().any(|known| known == pinned)
                    && fstatat(&self.fd, pinned, AtFlags::AT_SYMLINK_NOFOLLOW).is_err()
            })
        })
    }

    /// Whether an archive has a second name in the private place because the disk failed when that should have gone. While it
    /// has, deleting it would free nothing.
    pub fn has_second_names(&self) -> bool {
        self.has_second_names.load(Ordering::Relaxed)
    }

    /// Takes such names away; true when none is left.
    pub fn drop_second_names(&self) -> bool {
        let names = self.open_private_place().map(|place| walk::entries(&place).map(|names| (place, names)));
        let Some(Ok((place, names))) = names else { return false };
        let is_gone = names.iter().filter(|name| is_twin(name)).all(|name| self.drop_twin(&place, name));
        self.has_second_names.store(!is_gone, Ordering::Relaxed);
        is_gone
    }

    /// Takes the second name of something away ([`Aside::open_by_twin`]); true when that is done. Content that has another
    /// name loses nothing by it.
    fn drop_twin(&self, place: &OwnedFd, name: &OsStr) -> bool {
        let is_second = || {
            let stat = fstatat(place, name, AtFlags::AT_SYMLINK_NOFOLLOW);
            stat.is_ok_and(|stat| is_type(&stat, libc::S_IFREG) && stat.st_nlink > 1)
        };
        is_twin(name)
            && is_second()
            && super::unlink(place, name, nix::unistd::UnlinkatFlags::NoRemoveDir).is_ok()
    }

    fn finish_leftover(
        &self,
        place: &Arc<OwnedFd>,
        left_as: &OsStr,
        inode: u64,
        name: Option<&OsStr>,
        known: &[OsString],
    ) -> Result<Removed, Refused> {
        debug_assert!(left_as.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
        let original = name.unwrap_or(left_as).to_owned();
        let aside = Aside::left_over(self, place.clone(), left_as.to_owned(), original);
        let stat = aside.stat().map_err(Refused::failed("fstatat"))?;
        let expected = FileId { dev: self.id.dev, ino: inode };
        if id_of(&stat) != expected {
            return Err(Refused::Changed(Changed::File));
        }
        if name.is_none() && self.has_orphaned_marker(known) {
            return Err(Refused::Pinned(Pin::Nameless));
        }
        if is_type(&stat, libc::S_IFDIR) {
            let root = walk::open_directory(place, left_as).map_err(Refused::failed("openat2"))?;
            let removed = pod::check_below(&root)?.removed;
            return pod::finish(aside, root, removed);
        }
        if !is_type(&stat, libc::S_IFREG) {
            return Err(Refused::NotACheckpoint("a link or a special file"));
        }
        let file = aside.open(OFlag::empty()).map_err(Refused::failed("openat"))?;
        let unused = Unused::prove(&file, expected)?;
        if name.is_some_and(|name| self.refuse_pinned(name).is_err()) {
            aside.put_back();
            return Err(Refused::Pinned(Pin::Marker));
        }
        let stat = fstat(&file).map_err(Refused::failed("fstat"))?;
        if stat.st_nlink > 1 {
            return Err(Refused::Linked);
        }
        if aside.stat().map(|stat| id_of(&stat)) != Ok(expected) {
            return Err(Refused::Changed(Changed::File));
        }
        unused.check()?;
        aside
            .unlink()
            .map(|()| Removed { allocated: freed_by(&stat), inodes: 1 })
            .map_err(|(_, errno)| Refused::Failed { call: "unlinkat", errno })
    }
}
