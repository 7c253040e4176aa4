//! Names as they come and go: inotify(7) on the watched directories.
//!
//! Tells which entries to look at again; how many bytes were written is the probes' business. `IN_MODIFY` is asked
//! for only where no probe counts, since it makes each write of a watched file 1.4 to 2.2 times as expensive
//! (KERNEL.md, section 4). Even `IN_CLOSE_WRITE` costs each write something when it is asked of a directory: the kernel
//! then asks for the parent of every file that is written (`__fsnotify_parent`). So it is asked of single files, of
//! those that somebody is writing.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::path::Path;

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
    /// Entries that come and go. Whether a writer has closed one is asked with [`Watcher::await_close`].
    Entries,
    /// Entries that are closed by a writer as well.
    Closes,
    /// Each write as well: the wake-up where no probe works.
    Writes,
}

/// One inotify instance.
#[derive(Debug)]
pub struct Watcher {
    inotify: Inotify,
    directories: HashMap<WatchDescriptor, u16>,
    /// Files whose writers are awaited.
    files: HashMap<WatchDescriptor, (u16, OsString)>,
}

impl Watcher {
    /// A new instance.
    ///
    /// # Errors
    /// `EMFILE` when `fs.inotify.max_user_instances` is used up: the guard goes on with its timer (operator 646a06bd).
    pub fn new() -> Result<Watcher, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        Ok(Watcher { inotify, directories: HashMap::new(), files: HashMap::new() })
    }

    /// Watches `dir`, of which events will carry `directory`.
    pub fn add(&mut self, dir: BorrowedFd<'_>, directory: u16, detail: Detail) -> Result<(), Errno> {
        let mut flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        if detail != Detail::Entries {
            flags |= AddWatchFlags::IN_CLOSE_WRITE;
        }
        if detail == Detail::Writes {
            flags |= AddWatchFlags::IN_MODIFY;
        }
        // By descriptor, not by path: what was opened is what is watched, whatever the path names by now.
        let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
        let watch = self.inotify.add_watch(path.as_str(), flags)?;
        self.directories.insert(watch, directory);
        Ok(())
    }

    /// Tells once when a writer closes `name` in `dir`, which is the directory with the index `directory`. It may have
    /// been closed before this returns: look again then. The result is whether that was not awaited already.
    ///
    /// # Errors
    /// `ENOSPC`: `fs.inotify.max_user_watches` is used up. `ENOENT`: it is gone. `EACCES`: we may not read it.
    pub fn await_close(&mut self, dir: BorrowedFd<'_>, directory: u16, name: &OsStr) -> Result<bool, Errno> {
        let flags = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_ONESHOT | AddWatchFlags::IN_DONT_FOLLOW;
        let path = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
        let watch = self.inotify.add_watch(&path, flags)?;
        Ok(self.files.insert(watch, (directory, name.to_owned())).is_none())
    }

    /// Awaits no writer of `name` any more.
    pub fn forget(&mut self, directory: u16, name: &OsStr) {
        self.forget_those(|of| of.0 == directory && of.1 == name);
    }

    fn forget_those(&mut self, is_meant: impl Fn(&(u16, OsString)) -> bool) {
        // As many as there are writers: a handful.
        for (watch, _) in self.files.extract_if(|_, of| is_meant(of)) {
            // EINVAL when it has ended by itself.
            let _ = self.inotify.rm_watch(watch);
        }
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
        self.forget_those(|of| of.0 == directory);
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
                    // The ends of some may be among what was lost; a scan finds those that are written still.
                    self.files.clear();
                    return vec![Event::Overflow];
                }
                if event.mask.contains(AddWatchFlags::IN_IGNORED) && self.files.remove(&event.wd).is_some() {
                    continue;
                }
                if let Some(closed) = self.files.get(&event.wd) {
                    entries.insert(closed.clone(), true);
                    continue;
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

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    /// Watches a fresh directory.
    fn watching(detail: Detail) -> (tempfile::TempDir, File, Watcher) {
        let path = tempfile::tempdir().unwrap();
        let dir = File::open(path.path()).unwrap();
        let mut watcher = Watcher::new().unwrap();
        watcher.add(dir.as_fd(), 3, detail).unwrap();
        (path, dir, watcher)
    }

    fn entry(name: &str, closed: bool) -> Event {
        Event::Entry { directory: 3, name: name.into(), closed }
    }

    #[test]
    fn a_writer_that_is_awaited_is_told_once() {
        let (path, dir, mut watcher) = watching(Detail::Entries);
        let file = File::create(path.path().join("a")).unwrap();
        assert_eq!(watcher.drain(), [entry("a", false)]);
        assert_eq!(watcher.await_close(dir.as_fd(), 3, "a".as_ref()), Ok(true));
        assert_eq!(watcher.await_close(dir.as_fd(), 3, "a".as_ref()), Ok(false));
        drop(file);
        assert_eq!(watcher.drain(), [entry("a", true)]);
        drop(File::options().append(true).open(path.path().join("a")).unwrap());
        assert_eq!(watcher.drain(), []);
        assert!(watcher.files.is_empty());
    }

    #[test]
    fn a_writer_is_told_by_the_latest_name_of_its_file() {
        let (path, dir, mut watcher) = watching(Detail::Entries);
        let file = File::create(path.path().join("a")).unwrap();
        watcher.await_close(dir.as_fd(), 3, "a".as_ref()).unwrap();
        fs::rename(path.path().join("a"), path.path().join("b")).unwrap();
        assert_eq!(watcher.await_close(dir.as_fd(), 3, "b".as_ref()), Ok(false));
        watcher.forget(3, "a".as_ref());
        watcher.drain();
        drop(file);
        assert_eq!(watcher.drain(), [entry("b", true)]);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "somebody else deletes it")]
    fn a_file_that_is_deleted_or_forgotten_is_awaited_no_longer() {
        let (path, dir, mut watcher) = watching(Detail::Entries);
        for name in ["deleted", "forgotten"] {
            let file = File::create(path.path().join(name)).unwrap();
            watcher.await_close(dir.as_fd(), 3, name.as_ref()).unwrap();
            if name == "deleted" {
                fs::remove_file(path.path().join(name)).unwrap();
            } else {
                watcher.forget(3, name.as_ref());
            }
            drop(file);
            assert!(watcher.drain().iter().all(|event| *event == entry(name, name == "deleted")));
            assert!(watcher.files.is_empty(), "{name}");
        }
        assert_eq!(watcher.await_close(dir.as_fd(), 3, "deleted".as_ref()), Err(Errno::ENOENT));
    }

    #[test]
    fn a_link_is_not_followed() {
        let (path, dir, mut watcher) = watching(Detail::Entries);
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), path.path().join("link")).unwrap();
        watcher.drain();
        watcher.await_close(dir.as_fd(), 3, "link".as_ref()).unwrap();
        drop(File::options().append(true).open(elsewhere.path()).unwrap());
        assert_eq!(watcher.drain(), []);
    }

    #[test]
    fn without_being_awaited_a_writer_is_told_where_that_is_asked_of_the_directory() {
        for (detail, expect) in [(Detail::Entries, false), (Detail::Closes, true)] {
            let (path, _dir, mut watcher) = watching(detail);
            fs::write(path.path().join("a"), "1").unwrap();
            assert_eq!(watcher.drain(), [entry("a", expect)]);
        }
    }
}
