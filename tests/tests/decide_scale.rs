//! A plan over a million checkpoints: how long it takes and how much memory.
//!
//! `cargo test --release -p tests --test decide_scale -- --ignored --nocapture`

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use guard::decide::{Request, plan};
use guard::model::*;
use jiff::{SignedDuration, Timestamp};

/// Counts what is allocated, so that the peak of one call can be told.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; the counters touch no memory of its.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` came from `alloc` above with this `layout`, hence from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const COUNT: u64 = 1_000_000;

/// 40 namespaces, 5,000 containers, ages over a month, sizes from 16 MiB to 4 GiB; the same in every run.
fn inventory(now: Timestamp) -> Inventory {
    let owners: Vec<Owner> = (0..5_000)
        .map(|n| Owner::new(&format!("ns-{}", n % 40), &format!("pod-{}", n / 4), &format!("c-{}", n % 4)))
        .collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let checkpoints = (0..COUNT).map(|n| {
        let created = now - SignedDuration::from_secs(random(30 * 86_400) as i64);
        let owner = owners[random(5_000) as usize].clone();
        Checkpoint {
            directory: 0,
            kind: Kind::Archive,
            states: if random(100) == 0 { States::PINNED } else { States::empty() },
            name: std::ffi::OsString::from(format!("checkpoint-{owner}-{n}.tar").replace('/', "_")).into(),
            file: FileId { dev: 1, ino: n },
            created,
            modified: created,
            len: Bytes::gib(4),
            allocated: Bytes::mib(16 + random(4080)),
            inodes: 1,
            identity: Identity { owner, certainty: Certainty::Exact, ..Identity::default() },
        }
    });
    Inventory { directories: vec!["/checkpoints".into()], checkpoints: checkpoints.collect(), foreign: 0 }
}

fn policy() -> Policy {
    let namespace = |pattern: &str, protection| ProtectionRule {
        owner: OwnerPattern { namespace: Pattern::new(pattern).ok(), ..OwnerPattern::default() },
        protection: Protection::new(protection).expect("at most 100"),
        source: format!("protection.namespaces.{pattern}"),
    };
    Policy {
        pressure: PressurePolicy {
            soft: None,
            hard: None,
            critical: None,
            minimum_reclaim: MinimumReclaim::default(),
            transition_period: Duration::from_secs(60),
        },
        eviction: EvictionPolicy {
            order: OrderKey::ALL[..6].to_vec(),
            age_bucket: Duration::from_secs(3600),
            min_age: Duration::from_secs(120),
            keep_last: 1,
            keep_together: true,
        },
        protection: ProtectionPolicy {
            default: Protection::new(50).expect("at most 100"),
            rules: vec![namespace("ns-1*", 5), namespace("ns-2", 100), namespace("ns-3?", 80)],
        },
        retention: Vec::new(),
    }
}

/// What this thread has used of a processor: others on the machine do not count.
fn cpu_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every kernel has it").into()
}

#[test]
#[ignore = "measures; needs --release"]
fn a_million_checkpoints_are_planned_within_150_ms_and_250_bytes_each() {
    let now: Timestamp = "2026-06-01T12:00:00Z".parse().expect("a time");
    let (inventory, policy) = (inventory(now), policy());
    println!("inventory: {} bytes each", HELD.load(Ordering::Relaxed) as u64 / COUNT);
    for (share, divisor) in [("1 %", 100), ("half", 2), ("all", 1)] {
        let need = Need { bytes: Bytes(inventory.allocated().0 / divisor), inodes: 0 };
        let request = Request { need, trigger: Trigger::Pressure(Level::Hard) };
        let mut fastest = Duration::MAX;
        for _ in 0..5 {
            let before = HELD.load(Ordering::Relaxed);
            PEAK.store(before, Ordering::Relaxed);
            let start = cpu_time();
            let plan = plan(&inventory, &request, &policy, now);
            let took = cpu_time() - start;
            fastest = fastest.min(took);
            let peak = (PEAK.load(Ordering::Relaxed) - before) as u64 / COUNT;
            println!("{share}: {took:?}, {} victims, peak {peak} bytes each", plan.victims.len());
            assert!(peak <= 250, "{share}: {peak} bytes each");
        }
        assert!(fastest <= Duration::from_millis(150), "{share}: {fastest:?}");
    }
}
