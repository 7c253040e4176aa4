//! `overhead`: what a write(2) costs more because somebody watches.
//!
//! The goals are smaller than the noise of a shared machine, so: processor time of the writing thread, which is held on
//! one processor, not time on the wall; many short measurements in turns; and nobody watching a second time, as somebody
//! whose cost is known to be none.

mod watcher;

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use guard::model::Bytes;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use tests::loopfs::Filesystem;

use self::watcher::{AtWork, Watcher};
use crate::Options;
use crate::document::Section;
use crate::scene::Scene;
use crate::table::Table;
use tests::statistics::{Times, show};

/// What is done; each as often as makes some milliseconds.
#[derive(Clone, Copy, Debug)]
struct Work {
    name: &'static str,
    place: Place,
    size: usize,
    /// So many writes are one measurement.
    count: usize,
    /// At most so many times as long with the guard.
    goal: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A filesystem of another kind: tmpfs.
    Elsewhere,
    /// Another filesystem of the same kind.
    Unrelated,
    /// The filesystem of the watched directory, beside it.
    Beside,
    /// A new file in the watched directory.
    Watched,
    /// Over what a file in the watched directory holds already.
    Over,
}

const WORKS: [Work; 8] = [
    Work::small("4 KiB to a tmpfs", Place::Elsewhere, 1.02),
    Work::small("4 KiB to another ext4", Place::Unrelated, 1.02),
    Work::small("4 KiB to the same filesystem", Place::Beside, 1.06),
    Work::small("4 KiB to the watched directory", Place::Watched, 1.10),
    Work::small("4 KiB over what is there", Place::Over, 1.03),
    Work::large("1 MiB to another ext4", Place::Unrelated),
    Work::large("1 MiB to the same filesystem", Place::Beside),
    Work::large("1 MiB to the watched directory", Place::Watched),
];

impl Place {
    fn is_watched(self) -> bool {
        matches!(self, Place::Watched | Place::Over)
    }
}

impl Work {
    const fn small(name: &'static str, place: Place, goal: f64) -> Work {
        Work { name, place, size: 4 << 10, count: 1024, goal: Some(goal) }
    }

    const fn large(name: &'static str, place: Place) -> Work {
        Work { name, place, size: 1 << 20, count: 16, goal: None }
    }
}

/// The file that is written over.
const OVER: &str = "over";

/// So many measurements of each work while one of them watches.
const MEASUREMENTS: usize = 6;

/// All measurements of one work while one of them watched.
#[derive(Clone, Debug, Default)]
struct Measured {
    /// What a write took of the writer's processor time.
    writer: Vec<Duration>,
    /// What it took of the watcher's, by round.
    watcher: Vec<Duration>,
}

pub(crate) fn run(options: &Options) -> Result<Section> {
    let watched = Scene::new(Filesystem::Ext4, Bytes::gib(1), Bytes::mib(16), Bytes::mib(1))?;
    let unrelated = Scene::new(Filesystem::Ext4, Bytes::gib(1), Bytes::mib(16), Bytes::mib(1))?;
    let elsewhere = Scene::new(Filesystem::Tmpfs, Bytes::mib(256), Bytes::mib(16), Bytes::mib(1))?;
    let over = prepare_over(&watched)?;
    let rounds = options.times(60, 10);
    // By watcher and work.
    let mut measured = vec![vec![Measured::default(); WORKS.len()]; Watcher::ALL.len()];
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for turn in 0..Watcher::ALL.len() {
            // Another one is first in each round.
            let watcher = (round + turn) % Watcher::ALL.len();
            let at_work = AtWork::start(Watcher::ALL[watcher], &watched)?;
            for (work, measured) in WORKS.iter().zip(&mut measured[watcher]) {
                if Watcher::ALL[watcher] == Watcher::Brake && work.place.is_watched() {
                    continue;
                }
                let directory = match work.place {
                    Place::Elsewhere => elsewhere.directory(),
                    Place::Unrelated => unrelated.directory(),
                    Place::Beside => watched.root().to_owned(),
                    Place::Watched | Place::Over => watched.directory(),
                };
                let before = at_work.busy()?;
                measured.writer.extend(measure(*work, &directory, &over)?);
                at_work.settle();
                let writes = (MEASUREMENTS * work.count) as u32;
                measured.watcher.push(at_work.busy()?.saturating_sub(before) / writes);
            }
        }
    }
    Ok(tell(&measured, rounds))
}

/// The file that is written over: as long as one measurement writes, and on the disk.
fn prepare_over(watched: &Scene) -> Result<File> {
    let path = watched.directory().join(OVER);
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
    let size = WORKS.iter().filter(|work| work.place == Place::Over).map(|work| work.size * work.count).max();
    file.write_all(&vec![0x5a; size.unwrap_or_default()])?;
    file.sync_all()?;
    Ok(file)
}

/// What one write(2) of each of [`MEASUREMENTS`] takes of the processor: on a processor of its own, which the watcher, who
/// was started before, is not held on.
fn measure(work: Work, directory: &Path, over: &File) -> Result<Vec<Duration>> {
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<Vec<Duration>> {
            let processors = std::thread::available_parallelism()?.get();
            let mut last = CpuSet::new();
            last.set(processors - 1)?;
            // Where it may not run there, it runs where it may.
            let _ = sched_setaffinity(Pid::from_raw(0), &last);
            let piece = vec![0x5a; work.size];
            // The first one warms up, and is none.
            (0..=MEASUREMENTS).map(|_| write(work, directory, over, &piece)).skip(1).collect()
        });
        writer.join().ok().context("the writer panicked")?
    })
}

#[expect(clippy::disallowed_methods, reason = "the file goes after the measurement")]
fn write(work: Work, directory: &Path, over: &File, piece: &[u8]) -> Result<Duration> {
    if work.place == Place::Over {
        return write_into(over, work.count, piece);
    }
    let path = directory.join("written");
    let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    let took = write_into(&file, work.count, piece);
    drop(file);
    std::fs::remove_file(path)?;
    took
}

fn write_into(mut file: &File, count: usize, piece: &[u8]) -> Result<Duration> {
    file.rewind()?;
    let before = busy()?;
    for _ in 0..count {
        ensure!(file.write(piece)? == piece.len(), "a write was cut short");
    }
    Ok(busy()?.saturating_sub(before) / count as u32)
}

/// Processor time of this thread.
fn busy() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

fn tell(measured: &[Vec<Measured>], rounds: usize) -> Section {
    let mut table = Table::new([
        "write(2)",
        "nobody watches",
        "nobody, again",
        "guard",
        "inotify",
        "fanotify",
        "guard, braking",
        "watchers' own: guard, inotify, fanotify",
    ]);
    let mut verdicts = Vec::new();
    for (at, work) in WORKS.iter().enumerate() {
        let times: Vec<Times> = measured.iter().map(|works| Times::new(works[at].writer.clone())).collect();
        let (nobody, ratio) = (&times[0], |watcher: usize| tell_ratio(&times[watcher], &times[0]));
        let own = measured[2..5].iter().map(|works| show(Times::new(works[at].watcher.clone()).median()));
        let own: Vec<String> = own.collect();
        table.row([
            work.name.to_owned(),
            nobody.tell(),
            ratio(1),
            ratio(2),
            ratio(3),
            ratio(4),
            ratio(5),
            own.join(", "),
        ]);
        let ratios: Vec<f64> = times[1..].iter().map(|times| quotient(times, nobody, 50)).collect();
        verdicts.extend(verdict(*work, &ratios));
    }
    let mut section = Section::new("Overhead: what a write costs more");
    section.say(format!(
        "ext4 on loop devices. Processor time of the writing thread for one write(2): the median (and the middle half) while \
         nobody watches; then how many times as long it takes while somebody does, by the medians and, in parentheses, by \
         the tenth percentiles, which a busy machine hardly touches. {rounds} rounds in turns, {MEASUREMENTS} measurements \
         each. No pressure but for the last: what is measured is watching. inotify (IN_MODIFY on the directory) and fanotify \
         (FAN_MODIFY on the mount) are read by a thread that sleeps a millisecond after each time. \"Nobody, again\" is the \
         noise of all this. Watchers' own: what a write takes of the watcher's processor time."
    ));
    section.show(&table);
    section.say(format!("Goals: {}.", verdicts.join("; ")));
    section
}

fn tell_ratio(times: &Times, nobody: &Times) -> String {
    if times.count() == 0 {
        return "-".to_owned();
    }
    format!("{:.3} ({:.3})", quotient(times, nobody, 50), quotient(times, nobody, 10))
}

/// What came of the goals; the ratios are those of everybody but nobody.
fn verdict(work: Work, ratios: &[f64]) -> Vec<String> {
    let [again, guard, inotify, fanotify, _] = *ratios else { return Vec::new() };
    let word = |met: bool| if met { "met" } else { "not met" };
    let mut verdicts = Vec::new();
    if let Some(goal) = work.goal {
        let noise = again - 1.0;
        verdicts.push(format!(
            "{} at most {goal:.2}, here {guard:.3} with a noise of {noise:+.3}: {}",
            work.name,
            word(guard <= goal)
        ));
    }
    if work.place == Place::Watched {
        let less = guard < inotify && guard < fanotify;
        verdicts.push(format!("{} less than inotify and fanotify: {}", work.name, word(less)));
    }
    verdicts
}

/// How many times as long `times` took as `of`, at that percentile.
fn quotient(times: &Times, of: &Times, percent: usize) -> f64 {
    let seconds = |times: &Times| times.percentile(percent).unwrap_or_default().as_secs_f64();
    seconds(times) / seconds(of)
}
