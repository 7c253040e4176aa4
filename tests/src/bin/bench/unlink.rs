//! `unlink`: how long giving a large checkpoint's space back takes, and whether anybody has to wait for it.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use guard::model::Bytes;
use jiff::{SignedDuration, Timestamp};
use nix::fcntl::{FallocateFlags, fallocate};
use tests::archives::Archive;
use tests::daemon::Daemon;
use tests::loopfs::Filesystem;
use tests::setting::read_audit;

use crate::Options;
use crate::document::Section;
use crate::scene::Scene;
use crate::table::Table;
use tests::statistics::{Times, show};

const HARD: Bytes = Bytes::mib(128);
const MINIMUM_RECLAIM: Bytes = Bytes::mib(8);
/// What crosses the threshold again and again on the other filesystem.
const SMALL: Bytes = Bytes::mib(16);
/// Twice this is written to bring the large one's filesystem below hard: little, so that it takes no time of its own.
const STEP: Bytes = Bytes::mib(8);
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run(options: &Options) -> Result<Section> {
    let sizes: &[u64] = if options.quick { &[4] } else { &[1, 4, 16] };
    let mut table = Table::new([
        "",
        "name gone after",
        "space back after",
        "other directory, before",
        "meanwhile",
        "worst, before",
        "worst, meanwhile",
    ]);
    let mut most_later = Duration::ZERO;
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs] {
        for &gibibytes in sizes {
            eprintln!("{gibibytes} GiB on {}", filesystem.as_str());
            let Measured { gone, back, before, meanwhile } = measure(filesystem, Bytes::gib(gibibytes))?;
            if let (Some(before), Some(meanwhile)) = (before.max(), meanwhile.max()) {
                most_later = most_later.max(meanwhile.saturating_sub(before));
            }
            table.row([
                format!("{}, {gibibytes} GiB", filesystem.as_str()),
                show(Some(gone)),
                show(Some(back)),
                before.tell(),
                meanwhile.tell(),
                show(before.max()),
                show(meanwhile.max()),
            ]);
        }
    }
    let mut section = Section::new("Unlink: giving the space of a large checkpoint back");
    section.say(format!(
        "One archive of the size in the first column, all of it allocated, on a loop device; its filesystem is brought below hard by one \
         write(2), and what is measured begins there. Meanwhile a second directory, on a filesystem of its own (ext4), crosses hard \
         with archives of {SMALL} all the time: its own reactions (from the write to the first name gone, by the kernel's clock) before \
         and while the large one is given back."
    ));
    section.show(&table);
    section.say(format!(
        "Goal: nothing else waits more than 5 ms longer; the worst meanwhile was {} longer than the worst before.",
        show(Some(most_later))
    ));
    Ok(section)
}

struct Measured {
    gone: Duration,
    back: Duration,
    before: Times,
    meanwhile: Times,
}

fn measure(filesystem: Filesystem, size: Bytes) -> Result<Measured> {
    let large = Scene::new(filesystem, size + Bytes::gib(2), HARD, MINIMUM_RECLAIM)?;
    let small = Scene::new(Filesystem::Ext4, Bytes::mib(400), HARD, MINIMUM_RECLAIM)?;
    let at: Timestamp = "2026-01-01T00:00:00Z".parse().context("a time")?;
    let archive = Archive::new("team", "large", "main", at, size.0);
    let victim = large.directory().join(archive.kubelet_name());
    let file = File::create(&victim)?;
    archive.write_sparse(&file)?;
    let len = file.metadata()?.len();
    fallocate(&file, FallocateFlags::empty(), 0, i64::try_from(len)?)?;
    file.sync_all()?;
    drop(file);
    let settings = format!(
        "{}\n[eviction]\nmin-age = \"0s\"\nkeep-last = 0\n[[directory]]\npath = {:?}\n",
        large.settings(),
        small.directory()
    );
    let mut daemon = Daemon::start(&large.directory(), &settings)?;
    let stop = AtomicBool::new(false);
    let measured = std::thread::scope(|scope| {
        let writer = scope.spawn(|| cross(&small, at, &stop));
        std::thread::sleep(Duration::from_secs(3));
        let measured = give_back(&large, &victim, size);
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap_or_else(|_| bail!("the other writer panicked"))?;
        measured
    });
    daemon.check_running()?;
    let (began, gone, back) = measured.with_context(|| daemon.log())?;
    daemon.terminate()?;
    let (mut before, mut meanwhile) = (Vec::new(), Vec::new());
    let small = small.directory().display().to_string();
    for record in read_audit(&daemon.audit_log()).iter().filter(|record| record["directory"] == *small) {
        let (Some(micros), Some(at)) = (record["reactionMicros"].as_u64(), record["time"].as_str()) else {
            continue;
        };
        let at: Timestamp = at.parse().context("a record has a time")?;
        if at < began {
            before.push(Duration::from_micros(micros));
        } else if at <= began + SignedDuration::try_from(back)? {
            meanwhile.push(Duration::from_micros(micros));
        }
    }
    Ok(Measured { gone, back, before: Times::new(before), meanwhile: Times::new(meanwhile) })
}

/// When it crossed, how long until the name was gone, and until the space was back.
#[expect(clippy::disallowed_methods, reason = "measuring time is what this is for")]
fn give_back(large: &Scene, victim: &Path, size: Bytes) -> Result<(Timestamp, Duration, Duration)> {
    // In the watched directory, so that the wake comes from what is written.
    let mut filler = File::create(large.directory().join("filler"))?;
    let almost = large.available()?.saturating_sub(HARD + STEP);
    fallocate(&filler, FallocateFlags::FALLOC_FL_KEEP_SIZE, 1 << 30, i64::try_from(almost.0)?)?;
    std::thread::sleep(Duration::from_millis(500));
    let last = vec![1; 2 * STEP.0 as usize];
    let (at, began) = (Timestamp::now(), Instant::now());
    filler.write_all(&last)?;
    let wait = |what: &str, is_so: &dyn Fn() -> Result<bool>| {
        while !is_so()? {
            ensure!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(began.elapsed())
    };
    let gone = wait("the deletion", &|| Ok(!victim.exists()))?;
    let back = wait("the space", &|| Ok(large.available()?.0 >= size.0 / 100 * 95))?;
    Ok((at, gone, back))
}

/// Writes small archives one after the other, each of which crosses hard once there is no more room.
fn cross(small: &Scene, first: Timestamp, stop: &AtomicBool) -> Result<()> {
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let at = first + SignedDuration::from_secs(number);
        Archive::new("team", "small", "main", at, SMALL.0).write_in(&small.directory())?;
        // So that there is one deletion for each, and not one ahead of a flood.
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
