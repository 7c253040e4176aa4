//! What a node has without the guard: looking every so often, or waiting until the directory is quiet.
//!
//! Both are as good as they can be made: they run in a thread of their own, know the threshold and the target, list the
//! directory only when they must, take the oldest first, and ask nobody (no pins, no open files, no audit). What they
//! are slow at is the rhythm alone. The kubelet looks every 10 s (`monitoringInterval`, pkg/kubelet/eviction); the
//! checkpoint-restore-operator's collector acts once nothing has happened in the directory for 1 s.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use guard::model::Bytes;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::scene::available;

/// When to look.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rhythm {
    /// Every `interval`; the first time after `first`.
    Poll { interval: Duration, first: Duration },
    /// Once nothing has happened in the directory for so long.
    Debounce(Duration),
}

/// A deleter, at work until dropped.
#[derive(Debug)]
pub(crate) struct Rival {
    stop: Arc<AtomicBool>,
    deleted: Arc<AtomicU64>,
    freed: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Rival {
    /// Deletes from `directory` down to `target` available whenever less than `hard` is.
    pub(crate) fn start(directory: &Path, hard: Bytes, target: Bytes, rhythm: Rhythm) -> Result<Rival> {
        let stop = Arc::new(AtomicBool::new(false));
        let (deleted, freed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let work = Work {
            directory: directory.to_owned(),
            hard,
            target,
            stop: stop.clone(),
            deleted: deleted.clone(),
            freed: freed.clone(),
        };
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let events = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE;
        inotify.add_watch(directory, events)?;
        let thread = std::thread::Builder::new().name("rival".to_owned()).spawn(move || match rhythm {
            Rhythm::Poll { interval, first } => work.poll(interval, first),
            Rhythm::Debounce(quiet) => work.debounce(&inotify, quiet),
        })?;
        Ok(Rival { stop, deleted, freed, thread: Some(thread) })
    }

    /// So far.
    pub(crate) fn deleted(&self) -> u64 {
        self.deleted.load(Ordering::Relaxed)
    }

    /// What those held.
    pub(crate) fn freed(&self) -> Bytes {
        Bytes(self.freed.load(Ordering::Relaxed))
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Err: it panicked, and has said so on stderr.
            let _ = thread.join();
        }
    }
}

struct Work {
    directory: PathBuf,
    hard: Bytes,
    target: Bytes,
    stop: Arc<AtomicBool>,
    deleted: Arc<AtomicU64>,
    freed: Arc<AtomicU64>,
}

/// How long ending may take.
const STEP: Duration = Duration::from_millis(20);

impl Work {
    #[expect(clippy::disallowed_methods, reason = "a rhythm needs a clock")]
    fn poll(&self, interval: Duration, first: Duration) {
        let mut next = Instant::now() + first;
        while !self.stop.load(Ordering::Relaxed) {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.reclaim();
                next += interval;
            }
            std::thread::sleep(left.min(STEP));
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a rhythm needs a clock")]
    fn debounce(&self, inotify: &Inotify, quiet: Duration) {
        let mut due: Option<Instant> = None;
        while !self.stop.load(Ordering::Relaxed) {
            let left = due.map_or(STEP, |due| due.saturating_duration_since(Instant::now()).min(STEP));
            let mut fds = [PollFd::new(std::os::fd::AsFd::as_fd(inotify), PollFlags::POLLIN)];
            // EINTR is a look too many, no more.
            let _ = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO));
            if inotify.read_events().is_ok() {
                due = Some(Instant::now() + quiet);
            } else if due.is_some_and(|due| due <= Instant::now()) {
                due = None;
                self.reclaim();
            }
        }
    }

    /// The oldest go until their blocks make up for what is missing. Err of any step: somebody else was faster.
    #[expect(clippy::disallowed_methods, reason = "a rival deletes by itself")]
    fn reclaim(&self) {
        let seen = available(&self.directory).unwrap_or_default();
        if seen >= self.hard {
            return;
        }
        let mut missing = self.target.saturating_sub(seen);
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut archives: Vec<_> = entries
            .filter_map(|entry| {
                let metadata = entry.metadata().ok()?;
                Some((metadata.mtime(), metadata.mtime_nsec(), entry.path(), Bytes(metadata.blocks() * 512)))
            })
            .collect();
        archives.sort();
        for (.., path, allocated) in archives {
            if missing == Bytes::ZERO {
                return;
            }
            if fs::remove_file(path).is_ok() {
                self.deleted.fetch_add(1, Ordering::Relaxed);
                self.freed.fetch_add(allocated.0, Ordering::Relaxed);
                missing = missing.saturating_sub(allocated);
            }
        }
    }
}
