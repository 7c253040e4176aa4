//! One wake when a filesystem's budget is used up. Root only.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;

use guard::model::{Bytes, Monotonic};
use guard::observe::probe::{Armed, Wake, Wakes};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tests::loopfs::{Filesystem, LoopMount};
use tests::watching::Watching;

const CHUNK: Bytes = Bytes(64 << 10);

fn watching(filesystem: Filesystem) -> Watching {
    Watching::new(LoopMount::new(filesystem, Bytes::mib(512)))
}

#[track_caller]
fn arm(watching: &Watching, budget: Bytes) {
    assert_eq!(watching.probe.arm(Watching::SLOT, budget).unwrap(), Armed::Waiting);
}

/// The wakes that come within `milliseconds`; returns at the first.
fn wait(wakes: &mut Wakes, milliseconds: u16) -> Vec<Wake> {
    let mut fds = [PollFd::new(wakes.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(milliseconds)).unwrap();
    wakes.drain().collect()
}

/// Now, on the clock that wakes are told by.
fn monotonic() -> Monotonic {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    Monotonic(now.into())
}

fn write_chunks(path: &Path, chunks: u64) {
    let mut file = File::options().append(true).create(true).open(path).unwrap();
    for _ in 0..chunks {
        file.write_all(&vec![1; CHUNK.0 as usize]).unwrap();
    }
}

#[test]
fn the_write_that_uses_the_budget_up_wakes_once_and_none_before() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs] {
        let mut watching = watching(filesystem);
        let path = watching.path().join("a");
        arm(&watching, Bytes(10 * CHUNK.0));
        write_chunks(&path, 9);
        assert_eq!(wait(&mut watching.wakes, 0), [], "{filesystem:?}");
        let before = monotonic();
        write_chunks(&path, 1);
        let wakes = wait(&mut watching.wakes, 1000);
        assert_eq!(wakes.len(), 1, "{filesystem:?}");
        assert_eq!((wakes[0].slot, wakes[0].pid), (Watching::SLOT, std::process::id()));
        assert!(
            before < wakes[0].at && wakes[0].at < monotonic(),
            "{filesystem:?}: not the time of the write"
        );
        write_chunks(&path, 20);
        assert_eq!(wait(&mut watching.wakes, 20), [], "{filesystem:?}: one wake for one budget");
    }
}

#[test]
fn of_two_hundred_crossings_none_is_lost() {
    let mut watching = watching(Filesystem::Ext4);
    let path = watching.path().join("a");
    for crossing in 0..200 {
        // Never a multiple of the chunk, and not always the same.
        arm(&watching, Bytes(3 * CHUNK.0 + 4096 * (crossing % 7) + 1));
        write_chunks(&path, 3);
        assert_eq!(wait(&mut watching.wakes, 0), [], "crossing {crossing} came early");
        write_chunks(&path, 1);
        assert_eq!(wait(&mut watching.wakes, 1000).len(), 1, "crossing {crossing}");
    }
    assert_eq!(watching.probe.lost().unwrap().wakes_dropped, 0);
}

#[test]
fn a_wake_comes_with_the_write_that_uses_the_budget_up_not_with_a_later_one() {
    let mut watching = watching(Filesystem::Ext4);
    let mut file = File::create(watching.path().join("a")).unwrap();
    let mut latencies = Vec::new();
    for _ in 0..200 {
        arm(&watching, CHUNK);
        // The wake lies in the ring buffer when the write returns: nobody can write more before it is there.
        file.write_all(&vec![1; CHUNK.0 as usize]).unwrap();
        let wakes: Vec<Wake> = watching.wakes.drain().collect();
        assert_eq!(wakes.len(), 1);
        // A reader that sleeps gets it later by what waking a thread takes.
        arm(&watching, CHUNK);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let wakes = wait(&mut watching.wakes, 1000);
                (wakes[0].at, monotonic())
            });
            std::thread::sleep(std::time::Duration::from_micros(300));
            file.write_all(&vec![1; CHUNK.0 as usize]).unwrap();
            let (told, woken) = waiting.join().unwrap();
            latencies.push(woken.since(told));
        });
    }
    latencies.sort();
    println!("from the kernel to a sleeping reader: p50 {:?}, p99 {:?}", latencies[100], latencies[198]);
}

#[test]
fn what_is_freed_goes_back_to_the_budget() {
    let mut watching = watching(Filesystem::Ext4);
    arm(&watching, Bytes(10 * CHUNK.0));
    for _ in 0..5 {
        let file = File::create(watching.path().join("a")).unwrap();
        write_chunks(&watching.path().join("a"), 8);
        drop(file);
    }
    assert_eq!(wait(&mut watching.wakes, 20), [], "rewriting one file of 8 chunks needs 8 chunks");
    write_chunks(&watching.path().join("a"), 2);
    assert_eq!(wait(&mut watching.wakes, 1000).len(), 1);
}

#[test]
fn a_budget_of_nothing_is_used_up_at_once() {
    let mut watching = watching(Filesystem::Ext4);
    assert_eq!(watching.probe.arm(Watching::SLOT, Bytes::ZERO).unwrap(), Armed::UsedUp);
    write_chunks(&watching.path().join("a"), 2);
    assert_eq!(wait(&mut watching.wakes, 20), [], "it was told already");
}

#[test]
fn a_disarmed_budget_is_silent() {
    let mut watching = watching(Filesystem::Ext4);
    arm(&watching, CHUNK);
    watching.probe.disarm(Watching::SLOT).unwrap();
    write_chunks(&watching.path().join("a"), 5);
    assert_eq!(wait(&mut watching.wakes, 20), []);
    arm(&watching, CHUNK);
    write_chunks(&watching.path().join("a"), 1);
    assert_eq!(wait(&mut watching.wakes, 1000).len(), 1);
}

#[test]
fn budgets_armed_while_writers_run_lose_no_crossing() {
    let mut watching = watching(Filesystem::Ext4);
    let path = watching.path().to_owned();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let path = path.join(format!("writer-{writer}"));
                scope.spawn(move || write_chunks(&path, (200 << 20) / CHUNK.0))
            })
            .collect();
        let mut crossings = 0;
        // Tiny budgets: most are used up while they are being armed or right after.
        loop {
            let budget = Bytes(1 + crossings % 3 * CHUNK.0);
            let armed = watching.probe.arm(Watching::SLOT, budget).unwrap();
            let wakes = wait(&mut watching.wakes, if armed == Armed::UsedUp { 0 } else { 1000 });
            match armed {
                Armed::UsedUp => assert_eq!(wakes, [], "crossing {crossings} was told twice"),
                Armed::Waiting if wakes.is_empty() && writers.iter().all(|writer| writer.is_finished()) => {
                    break;
                }
                Armed::Waiting => assert_eq!(wakes.len(), 1, "crossing {crossings} was lost"),
            }
            crossings += 1;
        }
        assert!(crossings > 100, "only {crossings} crossings while the writers ran");
    });
}
