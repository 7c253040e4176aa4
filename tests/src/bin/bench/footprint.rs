//! `footprint`: what a guard takes of its node, idle and while checkpoints arrive.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use guard::model::Bytes;
use tests::daemon::Daemon;
use tests::footprint::{Footprint, write_small};

use crate::Options;
use crate::document::Section;
use crate::scene::Scene;
use crate::table::Table;

/// So many arrive each second of the storm.
const ARRIVALS: u64 = 1000;

pub(crate) fn run(options: &Options) -> Result<Section> {
    let idle = Duration::from_secs(options.times(60, 10) as u64);
    let storm = Duration::from_secs(options.times(60, 5) as u64);
    let counts: &[u64] = if options.quick { &[0, 10_000] } else { &[0, 10_000, 100_000] };
    let mut table = Table::new([
        "checkpoints",
        "resident",
        "allocated",
        "of a core",
        "wakes a second",
        "threads",
        "descriptors",
    ]);
    for &count in counts {
        eprintln!("{count} checkpoints");
        let scene = Scene::with_inodes(Bytes::gib(2), 400_000, Bytes::mib(16), Bytes::mib(1))?;
        for number in 0..count {
            write_small(&scene.directory(), number)?;
        }
        let daemon = Daemon::start(&scene.directory(), &scene.settings())?;
        settle(&daemon)?;
        let (before, began) = (Footprint::of(daemon.pid())?, now());
        std::thread::sleep(idle);
        tell(&mut table, format!("{count}, idle"), before, Footprint::of(daemon.pid())?, began.elapsed());
        let (before, began) = (Footprint::of(daemon.pid())?, now());
        let mut arrived = 0;
        while began.elapsed() < storm {
            let due = (began.elapsed().as_millis() as u64 * ARRIVALS / 1000).min(ARRIVALS * storm.as_secs());
            for number in arrived..due {
                write_small(&scene.directory(), count + number)?;
            }
            arrived = due;
            std::thread::sleep(Duration::from_millis(1));
        }
        let rate = arrived / began.elapsed().as_secs();
        tell(
            &mut table,
            format!("and {rate} more each second"),
            before,
            Footprint::of(daemon.pid())?,
            began.elapsed(),
        );
    }
    let mut section = Section::new("Footprint: what a guard takes of its node");
    section.say(format!(
        "Small archives in one directory on ext4, no pressure. Idle for {} s after everything has been read; then {} s with \
         {ARRIVALS} new archives each second, or as many as this machine writes. Resident counts the mapped parts of the \
         program too; a wake is a thread that stopped waiting.",
        idle.as_secs(),
        storm.as_secs()
    ));
    section.show(&table);
    Ok(section)
}

#[expect(clippy::disallowed_methods, reason = "measuring time is what this is for")]
fn now() -> Instant {
    Instant::now()
}

/// Waits until it has read everything and does nothing any more.
fn settle(daemon: &Daemon) -> Result<()> {
    let began = now();
    let mut before = Footprint::of(daemon.pid())?.busy;
    loop {
        std::thread::sleep(Duration::from_secs(2));
        let busy = Footprint::of(daemon.pid())?.busy;
        if busy.saturating_sub(before) < Duration::from_millis(20) {
            return Ok(());
        }
        before = busy;
        ensure!(began.elapsed() < Duration::from_secs(300), "still busy after five minutes");
    }
}

fn tell(table: &mut Table, what: String, before: Footprint, after: Footprint, time: Duration) {
    let share = after.busy.saturating_sub(before.busy).as_secs_f64() / time.as_secs_f64();
    let wakes = after.wakes.saturating_sub(before.wakes) as f64 / time.as_secs_f64();
    let mib = |bytes: Bytes| format!("{:.1} MiB", bytes.0 as f64 / f64::from(1 << 20));
    table.row([
        what,
        mib(after.resident),
        mib(after.anonymous),
        format!("{:.3} %", share * 100.0),
        format!("{wakes:.1}"),
        after.threads.to_string(),
        after.descriptors.to_string(),
    ]);
}
