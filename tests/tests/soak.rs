//! Ten minutes of 1,000 arrivals a second into a directory of 100,000 checkpoints, with a guard that keeps it at that.
//!
//! `cargo xtask test --soak`, or `cargo test -p tests --test soak -- --ignored --nocapture`; `CHECKPOINT_GUARD_SOAK_SECONDS=60`
//! for less, `CHECKPOINT_GUARD` for a binary of another profile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guard::model::Bytes;
use tests::footprint::{Footprint, write_small};
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::Scene;

const CHECKPOINTS: u64 = 100_000;
const ARRIVALS: u64 = 1000;
const HARD: Bytes = Bytes::mib(96);
/// What arrives while one turn of the loop takes its time, at the worst.
const BELOW_MAX: Bytes = Bytes::mib(32);
const RESIDENT_MAX: Bytes = Bytes::mib(64);
/// Noise of an allocator, over nine minutes.
const GROWTH_MAX: Bytes = Bytes::mib(3);

#[test]
#[ignore = "takes ten minutes"]
#[expect(clippy::disallowed_methods, reason = "a test that runs for a time")]
fn a_hundred_thousand_checkpoints_and_a_thousand_more_each_second() {
    let seconds = std::env::var("CHECKPOINT_GUARD_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(600));
    let mount = LoopMount::with_options(
        Filesystem::Ext4,
        Bytes::mib(700),
        &["-N", "160000", "-O", "^has_journal"],
        "",
    )
    .unwrap();
    let scene = Scene::on(mount);
    for number in 0..CHECKPOINTS {
        write_small(&scene.directory(), number).unwrap();
    }
    scene.configure_fully(
        "[pressure]\nsoft = false\nhard = { available = \"96MiB\" }\ncritical = { available = \"32MiB\" }\n\
         minimum-reclaim = { available = \"8MiB\" }\nkubelet-config = false\n[eviction]\nmin-age = \"0s\"",
    );
    let mut daemon = scene.setting.start();
    let pid = daemon.pid().as_raw();
    // So many fit above the threshold, and what comes after makes the guard work.
    scene.leave(HARD + Bytes::mib(24));
    daemon.keeps_running_for(Duration::from_secs(5));
    let (over, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    let (mut lowest, mut highest) = (Bytes(u64::MAX), Footprint::default());
    let mut by_minute: Vec<Bytes> = Vec::new();
    let first = Footprint::of(pid).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let began = Instant::now();
            while !over.load(Ordering::Relaxed) {
                let due = began.elapsed().as_millis() as u64 * ARRIVALS / 1000;
                for number in arrived.load(Ordering::Relaxed)..due {
                    if write_small(&scene.directory(), CHECKPOINTS + number).is_err() {
                        // Out of space: the threshold was missed by far, which the other thread sees.
                        return;
                    }
                    arrived.store(number + 1, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        while began.elapsed() < time {
            std::thread::sleep(Duration::from_millis(100));
            let Ok(now) = Footprint::of(pid) else { break };
            lowest = lowest.min(scene.available());
            highest.resident = highest.resident.max(now.resident);
            highest.descriptors = highest.descriptors.max(now.descriptors);
            let minute = began.elapsed().as_secs() as usize / 60;
            by_minute.resize(by_minute.len().max(minute + 1), Bytes::ZERO);
            by_minute[minute] = by_minute[minute].max(now.resident);
        }
        over.store(true, Ordering::Relaxed);
    });
    let arrived = arrived.into_inner();
    let deleted = daemon.metric("checkpoint_guard_deletions_total").unwrap_or(0.0);
    let unattributed = daemon.metric("checkpoint_guard_lost_events_total{kind=\"ledger\"}");
    println!(
        "{arrived} arrived in {:?}, {deleted} deleted; lowest {lowest} ({HARD} is hard); resident at most {}, by minute {by_minute:?}; \
         descriptors {} at first, {} at most",
        began.elapsed(),
        highest.resident,
        first.descriptors,
        highest.descriptors
    );
    daemon.keeps_running_for(Duration::ZERO);
    assert!(
        arrived > ARRIVALS * time.as_secs() / 2,
        "this machine is too slow for a soak: {arrived} arrived"
    );
    assert!(deleted > 0.0, "{}", daemon.log());
    assert_eq!(unattributed, Some(0.0), "files that the ledger has had no room for");
    assert!(lowest + BELOW_MAX >= HARD, "{lowest} was available at the least");
    assert!(highest.resident <= RESIDENT_MAX, "{} resident", highest.resident);
    if let [_, second, .., last] = by_minute.as_slice() {
        assert!(*last <= *second + GROWTH_MAX, "it grows: {by_minute:?}");
    }
    assert!(
        highest.descriptors <= first.descriptors + 8,
        "{} descriptors at first, {} at most",
        first.descriptors,
        highest.descriptors
    );
    assert!(daemon.stop() < Duration::from_secs(5));
}
