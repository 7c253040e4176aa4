//! `overhead`: what a write(2) costs more because somebody watches.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use guard::model::Bytes;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tests::daemon::Daemon;
use tests::loopfs::Filesystem;

use crate::Options;
use crate::document::Section;
use crate::scene::Scene;
use crate::statistics::{Times, ratio};
use crate::table::Table;

/// Somebody who watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watcher {
    Nobody,
    Guard,
    /// Somebody who is told of each write by inotify, as a daemon without eBPF is.
    Inotify,
}

const WATCHERS: [Watcher; 3] = [Watcher::Nobody, Watcher::Guard, Watcher::Inotify];
const PLACES: [&str; 3] = ["another filesystem", "the same filesystem", "the watched directory"];
/// So much is written for one measurement; it stays in the page cache.
const BYTES: usize = 64 << 20;
const SIZES: [(&str, usize); 2] = [("4 KiB", 4 << 10), ("1 MiB", 1 << 20)];

pub(crate) fn run(options: &Options) -> Result<Section> {
    let watched = Scene::new(Filesystem::Ext4, Bytes::gib(1), Bytes::mib(16), Bytes::mib(1))?;
    let unrelated = Scene::new(Filesystem::Ext4, Bytes::gib(1), Bytes::mib(16), Bytes::mib(1))?;
    let places = [unrelated.directory(), watched.root().to_owned(), watched.directory()];
    // By watcher, place and size.
    let mut times = vec![Vec::new(); WATCHERS.len() * PLACES.len() * SIZES.len()];
    let rounds = options.times(15, 5);
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for turn in 0..WATCHERS.len() {
            // Another one is first in each round.
            let watcher = (round + turn) % WATCHERS.len();
            let _at_work = AtWork::start(WATCHERS[watcher], &watched)?;
            for (place, directory) in places.iter().enumerate() {
                for (size, (_, bytes)) in SIZES.iter().enumerate() {
                    let took = write(directory, *bytes)?;
                    times[(watcher * PLACES.len() + place) * SIZES.len() + size].push(took);
                }
            }
        }
    }
    let mut table =
        Table::new(["write(2)", "nobody watches", "guard", "ratio", "inotify, told of each write", "ratio"]);
    for (size, (size_name, _)) in SIZES.iter().enumerate() {
        for (place, place_name) in PLACES.iter().enumerate() {
            let of = |watcher: usize| {
                Times::new(times[(watcher * PLACES.len() + place) * SIZES.len() + size].clone())
            };
            let [nobody, guard, inotify] = [0, 1, 2].map(of);
            table.row([
                format!("{size_name} to {place_name}"),
                nobody.tell(),
                guard.tell(),
                ratio(guard.median(), nobody.median()),
                inotify.tell(),
                ratio(inotify.median(), nobody.median()),
            ]);
        }
    }
    let mut section = Section::new("Overhead: what a write costs more");
    section.say(format!(
        "ext4 on loop devices, {} written into a fresh file for each measurement, one write(2) on average; {rounds} rounds, \
         all in turns. No pressure: what is measured is watching. (inotify watches the directory only.)",
        Bytes(BYTES as u64)
    ));
    section.show(&table);
    Ok(section)
}

/// The time of one write(2) of `size` on average.
#[expect(
    clippy::disallowed_methods,
    reason = "measuring time is what this is for; and the file goes after it"
)]
fn write(directory: &Path, size: usize) -> Result<Duration> {
    let path = directory.join("written");
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    let piece = vec![0x5a; size];
    let count = BYTES / size;
    let began = Instant::now();
    for _ in 0..count {
        file.write_all(&piece)?;
    }
    let took = began.elapsed();
    drop(file);
    std::fs::remove_file(path)?;
    Ok(took / count as u32)
}

/// A watcher, until dropped.
enum AtWork {
    Nobody,
    Guard { _daemon: Daemon },
    Inotify { stop: Arc<AtomicBool>, thread: Option<JoinHandle<()>> },
}

impl AtWork {
    fn start(watcher: Watcher, scene: &Scene) -> Result<AtWork> {
        Ok(match watcher {
            Watcher::Nobody => AtWork::Nobody,
            Watcher::Guard => {
                AtWork::Guard { _daemon: Daemon::start(&scene.directory(), &scene.settings())? }
            }
            Watcher::Inotify => {
                let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
                let events =
                    AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE;
                inotify.add_watch(&scene.directory(), events)?;
                let stop = Arc::new(AtomicBool::new(false));
                let stopped = stop.clone();
                let drain = move || {
                    while !stopped.load(Ordering::Relaxed) {
                        // EAGAIN: nothing was written.
                        let _ = inotify.read_events();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                };
                AtWork::Inotify { stop, thread: Some(std::thread::spawn(drain)) }
            }
        })
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        if let AtWork::Inotify { stop, thread } = self {
            stop.store(true, Ordering::Relaxed);
            if let Some(thread) = thread.take() {
                // Err: it panicked, and has said so on stderr.
                let _ = thread.join();
            }
        }
    }
}
