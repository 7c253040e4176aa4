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
//! What is left: who reopens *our* descriptor through `/proc/<our pid>/fd`, who opens the second name in the
//! private place, mode 0700, within the microseconds of its life, and who has the file's handle (name_to_handle_at(2),
//! nfsd). None of them comes by a way that leads to a checkpoint.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::OFlag;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::aside::Aside;

/// Hears when the last reference to a file's name is gone.
#[derive(Debug)]
pub(super) struct Farewell(Inotify);

impl Farewell {
    /// A descriptor of what lies aside that holds no reference to its name, open for writing, and what tells of the
    /// end of that name. `None` when that cannot be had here: no private place, no inotify instance, no space.
    ///
    /// No lease of ours may be on the file. A second name that could not be taken away again makes every further
    /// check say that the file is linked; the next start takes it away.
    pub(super) fn prepare(aside: &Aside<'_>) -> Option<(OwnedFd, Farewell)> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
        let file = aside.open_by_twin(OFlag::O_RDWR)?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        inotify.add_watch(path.as_str(), AddWatchFlags::IN_DELETE_SELF).ok()?;
        Some((file, Farewell(inotify)))
    }

    /// Whether the name and everybody's references to it are gone. To be asked after unlink(2), and once.
    pub(super) fn has_come(self) -> bool {
        let events = self.0.read_events().unwrap_or_default();
        events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_DELETE_SELF))
    }
}
