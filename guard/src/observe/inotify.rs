//! Names as they come and go: inotify(7) on the watched directories.
//!
//! Tells which entries to look at again; how many bytes were written is the probes' business. `IN_MODIFY` is asked
//! for only where no probe counts, since it makes each write of a watched file 1.4 to 2.2 times as expensive
//! (KERNEL.md, section 4).

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Look at this entry again: it appeared, vanished, or a writer closed it.
    Entry {
        /// The directory's index, as given to [`Watcher::add`].
        directory: u16,
        /// One component.
        name: OsString,
        /// A writer closed it.
        closed: bool,
    },
    /// Something was written; only with [`Detail::Writes`].
    Written,
    /// The directory itself was moved, removed or unmounted.
    DirectoryGone {
        /// Its index.
        directory: u16,
    },
    /// The kernel dropped events (`fs.inotify.max_queued_events`): everything must be scanned again (go#16392).
    Overflow,
}

/// How much to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Entries that come, go, and are closed by a writer.
    Entries,
    /// Each write as well: the wake-up where no probe works.
    Writes,
}

/// One inotify instance.
#[derive(Debug)]
pub struct Watcher {
    inotify: Inotify,
    directories: HashMap<WatchDescriptor, u16>,
}

impl Watcher {
    /// A new instance.
    ///
    /// # Errors
    /// `EMFILE` when `fs.inotify.max_user_instances` is used up: the guard goes on with its timer (operator 646a06bd).
    pub fn new() -> Result<Watcher, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        Ok(Watcher { inotify, directories: HashMap::new() })
    }

    /// Watches `dir`, of which events will carry `directory`.
    pub fn add(&mut self, dir: BorrowedFd<'_>, directory: u16, detail: Detail) -> Result<(), Errno> {
        let mut flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        if detail == Detail::Writes {
            flags |= AddWatchFlags::IN_MODIFY;
        }
        // By descriptor, not by path: what was opened is what is watched, whatever the path names by now.
        let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
        let watch = self.inotify.add_watch(path.as_str(), flags)?;
        self.directories.insert(watch, directory);
        Ok(())
    }

    /// No longer watches `directory`.
    pub fn remove(&mut self, directory: u16) {
        let watches: Vec<_> = self
            .directories
            .iter()
            .filter(|(_, index)| **index == directory)
            .map(|(watch, _)| *watch)
            .collect();
        for watch in watches {
            // EINVAL when the kernel removed it with its directory: it is gone either way.
            let _ = self.inotify.rm_watch(watch);
            self.directories.remove(&watch);
        }
    }

    /// Everything that happened since the last call, each entry once; never blocks.
    pub fn drain(&mut self) -> Vec<Event> {
        let mut events: Vec<Event> = Vec::new();
        // Created, closed, renamed: one look answers for all of them. By entry, whether it was closed.
        let mut entries: HashMap<(u16, OsString), bool> = HashMap::new();
        let mut written = false;
        // Each read takes what fits in nix's buffer; the kernel's queue is bounded, so is this.
        for _ in 0..READS_MAX {
            let Ok(batch) = self.inotify.read_events() else { break };
            for event in batch {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    return vec![Event::Overflow];
                }
                let Some(&directory) = self.directories.get(&event.wd) else { continue };
                let gone = AddWatchFlags::IN_DELETE_SELF
                    | AddWatchFlags::IN_MOVE_SELF
                    | AddWatchFlags::IN_UNMOUNT
                    | AddWatchFlags::IN_IGNORED;
                if event.mask.intersects(gone) {
                    events.push(Event::DirectoryGone { directory });
                } else if event.mask.contains(AddWatchFlags::IN_MODIFY) {
                    written = true;
                } else if let Some(name) = event.name {
                    let closed = event.mask.contains(AddWatchFlags::IN_CLOSE_WRITE);
                    *entries.entry((directory, name)).or_default() |= closed;
                }
            }
        }
        let entries = entries.into_iter();
        events.extend(entries.map(|((directory, name), closed)| Event::Entry { directory, name, closed }));
        if written {
            events.push(Event::Written);
        }
        events
    }
}

/// The default queue of 16,384 events in nix's 4 KiB reads of about 30 each.
const READS_MAX: usize = 1024;

impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
