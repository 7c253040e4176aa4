//! A plan over a million checkpoints, as the daemon asks for it: how long it takes and how much memory.
//!
//! `cargo test --release -p tests --test decide_scale -- --ignored --nocapture`

use std::time::Duration;

use guard::decide::{Request, victims};
use guard::model::*;
use jiff::Timestamp;
use tests::counting::{Counting, held, peak_of};
use tests::crowd::{inventory, policy};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const COUNT: u64 = 1_000_000;

/// What this thread has used of a processor: others on the machine do not count.
fn cpu_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every kernel has it").into()
}

#[test]
#[ignore = "measures; needs --release"]
fn a_million_checkpoints_are_planned_within_150_ms_and_250_bytes_each() {
    let now: Timestamp = "2026-06-01T12:00:00Z".parse().expect("a time");
    let inventory = inventory(COUNT, now);
    println!("inventory: {} bytes each", held() as u64 / COUNT);
    let mut slowest = Duration::ZERO;
    let without_fair_share = OrderKey::DEFAULT.into_iter().filter(|key| *key != OrderKey::FairShare);
    for (name, order) in
        [("default", OrderKey::DEFAULT.to_vec()), ("less fair-share", without_fair_share.collect())]
    {
        let policy = policy(order);
        for (share, divisor) in [("1 %", 100), ("half", 2), ("all", 1)] {
            let need = Need { bytes: Bytes(inventory.allocated().0 / divisor), inodes: 0 };
            let request = Request { need, trigger: Trigger::Pressure(Level::Hard) };
            let (took, peak, victims) = measure(&inventory, &request, &policy, now);
            println!("{name}, {share}: {took:?}, {victims} victims, {peak} bytes each");
            assert!(peak <= 250, "{name}, {share}: {peak} bytes each");
            slowest = slowest.max(took);
        }
    }
    assert!(slowest <= Duration::from_millis(150), "{slowest:?}");
}

/// The fastest of five: processor time, bytes at the peak for each checkpoint, victims.
fn measure(
    inventory: &Inventory,
    request: &Request,
    policy: &Policy,
    now: Timestamp,
) -> (Duration, u64, usize) {
    let runs = (0..5).map(|_| {
        let start = cpu_time();
        let (plan, peak) = peak_of(|| victims(inventory, request, policy, now));
        (cpu_time() - start, peak as u64 / COUNT, plan.victims.len())
    });
    runs.min().expect("five runs")
}
