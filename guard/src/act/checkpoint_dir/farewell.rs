//! [`Farewell`]: proof that nobody can get at a deleted file any more.
//!
//! A lease shows who has a file open. It does not show who could open it: somebody who found the name before it was
//! gone and has not arrived in open(2) yet, or who holds an `O_PATH` descriptor, as container runtimes do, and opens
//! it through `/proc/self/fd` when he likes. Either keeps a reference to the *name* in the kernel's cache (a dentry).
//! So the archive gets a second name, through which we alone hold it, and loses it again before the first one goes.
//! With the first one the last link goes; and when nobody has a reference to that name, the kernel says so within
//! unlink(2): `d_delete` lets go of the inode at once and sends `IN_DELETE_SELF` (`fsnotify_inoderemove`, fs/dcache.c).
//! While anybody has one, nothing is sent. No link can be made to a file that has none (`vfs_link` says `ENOENT`).
//!
//! What is left: who reopens *our* descriptor through `/proc/<our pid>/fd`; who opens the second name in the private
//! place, mode 0700, within the microseconds of its life; who has the file's handle (name_to_handle_at(2), nfsd); and who
//! has an `O_PATH` descriptor of *another* name, a hard link that was removed before we looked: the kernel tells of each
//! name by itself, and how many references an inode has it tells nobody. None of them holds a name that leads to a
//! checkpoint, and all of them find a file that ends early.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use super::aside::Aside;

/// What tells a directory's deletions that nobody else holds on. One for all of them: giving an inotify instance back
/// waits for the kernel's grace period, 14 ms beside writers at full speed.
#[derive(Debug, Default)]
pub(super) struct Farewells(OnceLock<Option<Arc<Inotify>>>);

/// Hears when the last reference to a file's name is gone.
#[derive(Debug)]
pub(super) struct Farewell {
    inotify: Arc<Inotify>,
    watch: WatchDescriptor,
}

impl Farewells {
    /// A descriptor of what lies aside that holds no reference to its name, open for writing, and what tells of the
    /// end of that name. `None` when that cannot be had here: no private place, no inotify instance, no space.
    ///
    /// No lease of ours may be on the file.
    ///
    /// # Errors
    /// It has a second name now that could not be taken away; [`super::CheckpointDir::drop_second_names`] will.
    pub(super) fn prepare(&self, aside: &Aside<'_>) -> Result<Option<(OwnedFd, Farewell)>, Errno> {
        let make = || Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok().map(Arc::new);
        let Some(inotify) = self.0.get_or_init(make).clone() else { return Ok(None) };
        let Some(file) = aside.open_by_twin(OFlag::O_RDWR)? else { return Ok(None) };
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let watch = inotify.add_watch(path.as_str(), AddWatchFlags::IN_DELETE_SELF);
        Ok(watch.ok().map(|watch| (file, Farewell { inotify, watch })))
    }
}

impl Farewell {
    /// Whether the name and everybody's references to it are gone. To be asked after unlink(2), and once. What another
    /// deletion of the same directory has heard in our place counts as not heard.
    pub(super) fn has_come(self) -> bool {
        let events = self.inotify.read_events().unwrap_or_default();
        let is_ours = |flag| events.iter().any(|event| event.wd == self.watch && event.mask.contains(flag));
        if !is_ours(AddWatchFlags::IN_IGNORED) {
            // Err: it went meanwhile.
            let _ = self.inotify.rm_watch(self.watch);
        }
        is_ours(AddWatchFlags::IN_DELETE_SELF)
    }
}
