//! `reaction`: from the write that uses the budget up until the first name is gone.
//!
//! The guard tells it by itself (`reactionMicros` in the audit log: from the kernel's timestamp of that write). So that
//! this is not only its own word, a real-time thread looks from outside whether the victim's name is still there, and
//! the writer notes the clock before each write: what this gives includes the write itself and up to one look too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guard::model::Bytes;
use tests::crossings::Crossings;
use tests::daemon::Daemon;
use tests::loopfs::Filesystem;
use tests::reaction::{self, Row};
use tests::setting::read_audit;
use tests::statistics::{Times, ratio, show};

use crate::Options;
use crate::document::Section;
use crate::rivals::{Rhythm, Rival};
use crate::scene::Scene;
use crate::table::Table;

const POLL: Duration = Duration::from_secs(10);
const QUIET: Duration = Duration::from_secs(1);
/// The first crossings find cold caches.
const WARM_UP: usize = 5;

pub(crate) fn run(options: &Options) -> Result<Section> {
    let guard = measure_guard("guard, eBPF", "", options.times(250, 40), Duration::from_millis(500))?;
    let busy = {
        let _burners = Burners::start();
        measure_guard("guard, eBPF, all cores busy", "", options.times(100, 20), Duration::from_millis(500))?
    };
    let off = "[probe]\nmode = \"off\"\n";
    let inotify = measure_guard("guard, without eBPF", off, options.times(100, 20), Duration::from_secs(3))?;
    let debounce = measure_rival(options.times(10, 2), |_, _| Rhythm::Debounce(QUIET))?;
    let poll = measure_rival(options.times(10, 2), |number, of| {
        // Where in the interval the disk fills up is chance; here each part of the interval has its turn.
        let first = POLL.mul_f64((number as f64 + 0.5) / of as f64);
        Rhythm::Poll { interval: POLL, first }
    })?;

    let own = guard.own.median();
    let mut table = Table::new(["", "n", "p50", "p90", "p99", "max", "ratio of p50"]);
    let mut row = |name: &str, times: &Times| {
        let [p50, p90, p99] = [50, 90, 99].map(|percent| show(times.percentile(percent)));
        let ratio = ratio(times.median(), own);
        table.row([name.to_owned(), times.count().to_string(), p50, p90, p99, show(times.max()), ratio]);
    };
    row("guard, by the kernel's clock", &guard.own);
    row("guard, seen from outside", &guard.outside);
    row("guard, all cores busy, by the kernel's clock", &busy.own);
    row("guard, all cores busy, from outside", &busy.outside);
    row("guard without eBPF (inotify), from outside", &inotify.outside);
    row("inotify and 1 s of quiet, oldest first", &debounce);
    row("a look every 10 s, oldest first", &poll);

    let mut section = Section::new("Reaction: from the write that uses the budget up to the first name gone");
    section.say(
        "ext4 on a loop device, archives of about 16 MiB, writes of 64 KiB; each crossing is one deletion, and the next \
         begins when space is back. The rivals know threshold and target and ask nobody; quiet comes at once here, \
         because the writer stops; one that goes on keeps it waiting for ever \
         (see storm). The 10 s poll has its turns spread evenly over the interval.",
    );
    section.show(&table);
    let verdict = |met: bool| if met { "met" } else { "missed" };
    let met = own.is_some_and(|p50| p50 <= Duration::from_millis(1))
        && guard.own.percentile(99).is_some_and(|p99| p99 <= Duration::from_millis(5));
    section.say(format!(
        "Goal on an idle machine: p50 ≤ 1 ms and p99 ≤ 5 ms by the kernel's clock; here (the last line tells how busy it \
         was): {}. {} of {} crossings were dealt with by a wake, {} by the timer.",
        verdict(met),
        guard.own.count(),
        guard.crossings,
        guard.by_timer
    ));
    by_kernel(&mut section)?;
    Ok(section)
}

/// What the VMs showed when they were tried last.
fn by_kernel(section: &mut Section) -> Result<()> {
    let mut table = Table::new([
        "kernel",
        "backend",
        "n",
        "by a wake",
        "p50",
        "p90",
        "p50 from outside",
        "p90 from outside",
        "ratio",
    ]);
    for (series, rows) in reaction::records()? {
        let inotify = rows.iter().find(|row| row.mode == "off").map(|row| row.outside.0);
        for row in &rows {
            let Row { mode, crossings, by_wake, own, outside } = row;
            let backend = if mode == "off" { "inotify" } else { mode };
            table.row([
                series.clone(),
                backend.to_owned(),
                crossings.to_string(),
                by_wake.to_string(),
                show(own.map(|it| it.0)),
                show(own.map(|it| it.1)),
                show(Some(outside.0)),
                show(Some(outside.1)),
                ratio(Some(outside.0), inotify),
            ]);
        }
    }
    section.say(
        "The same on other kernels, in an emulator without kvm (`cargo xtask vm-test --program vm_reaction --bless`, recorded in \
         tests/fixtures/reaction): its times are many times those of a real processor, so only those of one kernel can be \
         compared. The ratio is that of the medians from outside, to inotify's on the same kernel.",
    );
    section.show(&table);
    Ok(())
}

/// What was measured of the guard.
struct Measured {
    crossings: usize,
    own: Times,
    outside: Times,
    /// Deletions that no wake caused.
    by_timer: usize,
}

fn measure_guard(name: &str, more: &str, count: usize, limit: Duration) -> Result<Measured> {
    let scene = scene()?;
    let mut crossings = Crossings::prepare(&scene.directory(), scene.hard)?;
    let settings = format!("{}\n[eviction]\nmin-age = \"0s\"\n{more}", scene.settings());
    let mut daemon = Daemon::start(&scene.directory(), &settings)?;
    let mut outside = Vec::new();
    for number in 0..WARM_UP + count {
        daemon.check_running()?;
        let took = crossings.next(limit).with_context(|| daemon.log())?;
        outside.push(took);
        if number % 25 == 0 {
            eprintln!("{name}: {number} of {}, the last one {}", WARM_UP + count, show(Some(took)));
        }
    }
    daemon.terminate()?;
    let records = read_audit(&daemon.audit_log());
    let deletions: Vec<_> = records.iter().filter(|record| record["outcome"] == "deleted").collect();
    ensure!(
        deletions.len() == WARM_UP + count,
        "{} crossings, but {} deletions:\n{}",
        WARM_UP + count,
        deletions.len(),
        daemon.log()
    );
    let own: Vec<_> = deletions[WARM_UP..].iter().map(|it| it["reactionMicros"].as_u64()).collect();
    let by_timer = own.iter().filter(|it| it.is_none()).count();
    let own = own.into_iter().flatten().map(Duration::from_micros).collect();
    Ok(Measured {
        crossings: count,
        own: Times::new(own),
        outside: Times::new(outside.split_off(WARM_UP)),
        by_timer,
    })
}

fn measure_rival(count: usize, rhythm: impl Fn(usize, usize) -> Rhythm) -> Result<Times> {
    let scene = scene()?;
    let mut crossings = Crossings::prepare(&scene.directory(), scene.hard)?;
    let mut times = Vec::new();
    for number in 0..count {
        let rhythm = rhythm(number, count);
        let start = || Rival::start(&scene.directory(), scene.hard, scene.target(), rhythm);
        let took = crossings.next_against(2 * POLL, start)?;
        eprintln!("{rhythm:?}: {} of {count} took {}", number + 1, show(Some(took)));
        times.push(took);
    }
    Ok(Times::new(times))
}

fn scene() -> Result<Scene> {
    Scene::new(Filesystem::Ext4, Bytes::mib(300), Bytes::mib(64), Bytes::mib(1))
}

/// A thread of pure computing on each core.
struct Burners {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Burners {
    fn start() -> Burners {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let burn = |_| {
            let stop = stop.clone();
            std::thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        };
        Burners { threads: (0..cores).map(burn).collect(), stop }
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // Err: it panicked, and has said so on stderr.
            let _ = thread.join();
        }
    }
}
