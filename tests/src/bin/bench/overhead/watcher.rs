//! Somebody who watches, and what that takes of them.

use std::fs::OpenOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::fcntl::AT_FDCWD;
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags as FanotifyFlags, MarkFlags, MaskFlags};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::time::{ClockId, clock_gettime};
use tests::daemon::Daemon;
use tests::footprint::Footprint;

use crate::scene::Scene;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watcher {
    Nobody,
    /// Whatever differs from [`Watcher::Nobody`] is noise.
    NobodyAgain,
    Guard,
    /// Somebody who is told of each write by inotify, as a daemon without eBPF is.
    Inotify,
    /// The same by a mark on the mount, which also covers subdirectories.
    Fanotify,
    /// The guard while its brake refuses writers in the watched directory.
    Brake,
}

impl Watcher {
    pub(super) const ALL: [Watcher; 6] = [
        Watcher::Nobody,
        Watcher::NobodyAgain,
        Watcher::Guard,
        Watcher::Inotify,
        Watcher::Fanotify,
        Watcher::Brake,
    ];
}

/// A watcher, until dropped.
pub(super) enum AtWork {
    Nobody,
    Guard(Daemon),
    Reader(Reader),
}

/// A thread that takes events as they come.
pub(super) struct Reader {
    stop: Arc<AtomicBool>,
    /// Its processor time in ns.
    busy: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// How long a reader sleeps after each look.
const PAUSE: Duration = Duration::from_millis(1);

impl AtWork {
    pub(super) fn start(watcher: Watcher, scene: &Scene) -> Result<AtWork> {
        Ok(match watcher {
            Watcher::Nobody | Watcher::NobodyAgain => AtWork::Nobody,
            Watcher::Guard => AtWork::Guard(Daemon::start(&scene.directory(), &scene.settings())?),
            Watcher::Brake => AtWork::Guard(start_braking(scene)?),
            Watcher::Inotify => {
                let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
                let events =
                    AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE;
                inotify.add_watch(&scene.directory(), events)?;
                AtWork::Reader(Reader::start(move || drop(inotify.read_events())))
            }
            Watcher::Fanotify => {
                let flags =
                    FanotifyFlags::FAN_CLASS_NOTIF | FanotifyFlags::FAN_NONBLOCK | FanotifyFlags::FAN_CLOEXEC;
                let group = Fanotify::init(flags, EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC)?;
                let mark = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_MOUNT;
                group.mark(mark, MaskFlags::FAN_MODIFY, AT_FDCWD, Some(scene.root()))?;
                AtWork::Reader(Reader::start(move || drop(group.read_events())))
            }
        })
    }

    /// Its processor time so far.
    pub(super) fn busy(&self) -> Result<Duration> {
        Ok(match self {
            AtWork::Nobody => Duration::ZERO,
            AtWork::Guard(daemon) => Footprint::of(daemon.pid())?.busy,
            AtWork::Reader(reader) => Duration::from_nanos(reader.busy.load(Ordering::Relaxed)),
        })
    }

    /// Lets it take note of what was done last.
    pub(super) fn settle(&self) {
        match self {
            AtWork::Nobody => {}
            AtWork::Guard(_) => std::thread::sleep(Duration::from_millis(50)),
            AtWork::Reader(_) => std::thread::sleep(3 * PAUSE),
        }
    }
}

/// A guard that finds less than is critical and nothing that it may delete.
#[expect(clippy::disallowed_methods, reason = "waits for another process, so it measures time")]
fn start_braking(scene: &Scene) -> Result<Daemon> {
    const ABOVE_ALL: &str = "[pressure]\nsoft = false\nhard = { available = \"1010MiB\" }\n\
         critical = { available = \"1000MiB\" }\nkubelet-config = \"off\"\n";
    let mut daemon = Daemon::start(&scene.directory(), ABOVE_ALL)?;
    let began = Instant::now();
    while OpenOptions::new().append(true).open(scene.directory().join(super::OVER)).is_ok() {
        daemon.check_running()?;
        ensure!(began.elapsed() < Duration::from_secs(20), "nobody brakes:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(daemon)
}

impl Reader {
    /// Each `look` takes what there is; EAGAIN, when nothing was written, is nothing.
    fn start(look: impl Fn() + Send + 'static) -> Reader {
        let (stop, busy) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, told) = (stop.clone(), busy.clone());
        let work = move || {
            while !stopped.load(Ordering::Relaxed) {
                look();
                let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
                told.store(time.unwrap_or_default().as_nanos() as u64, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
        };
        Reader { stop, busy, thread: Some(std::thread::spawn(work)) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Err: it panicked, and has said so on stderr.
            let _ = thread.join();
        }
    }
}
