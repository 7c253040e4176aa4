//! `decide`: a plan over many checkpoints, how its time and memory grow; and a week of many simulated nodes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use guard::decide::{Request, plan, victims};
use guard::model::{Bytes, Inventory, Level, Need, OrderKey, Plan, Policy, Trigger};
use guard::simulate::{Chooser, Outcome, fleet::FLEETS, replay, sample_policy};
use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};
use tests::counting::{held, peak_of};
use tests::crowd::{inventory, policy};

use crate::Options;
use crate::document::Section;
use crate::table::Table;
use tests::statistics::Times;

pub(crate) fn run(options: &Options) -> Result<Section> {
    let now: Timestamp = "2026-06-01T12:00:00Z".parse().expect("a time");
    let policy = policy(OrderKey::DEFAULT.to_vec());
    let mut table = Table::new([
        "checkpoints",
        "need 1 %",
        "each",
        "need half",
        "each",
        "victims (half)",
        "bytes each",
        "and why each stays",
        "bytes each",
        "catalog, bytes each",
    ]);
    for (count, times) in [(1_000, 51), (10_000, 21), (100_000, 9), (1_000_000, 5)] {
        eprintln!("{count} checkpoints");
        let before = held();
        let inventory = inventory(count, now);
        let catalog = (held() - before) as u64 / count;
        let measure = |decide: Decide, divisor: u64| {
            let need = Need { bytes: Bytes(inventory.allocated().0 / divisor), inodes: 0 };
            let request = Request { need, trigger: Trigger::Pressure(Level::Hard) };
            repeat(|| decide(&inventory, &request, &policy, now), options.times(times, times.div_ceil(3)))
        };
        let (little, half, whole) = (measure(victims, 100), measure(victims, 2), measure(plan, 100));
        let each = |times: &Times| {
            let nanos = times.median().unwrap_or_default().as_nanos() as f64 / count as f64;
            format!("{nanos:.0} ns")
        };
        table.row([
            count.to_string(),
            little.times.tell(),
            each(&little.times),
            half.times.tell(),
            each(&half.times),
            half.victims.to_string(),
            (little.peak.max(half.peak) as u64 / count).to_string(),
            whole.times.tell(),
            (whole.peak as u64 / count).to_string(),
            catalog.to_string(),
        ]);
    }
    let mut section = Section::new("Decide: a plan over many checkpoints");
    section.say(
        "The default order over 40 namespaces, 5,000 containers, ages over a month, 1 % pinned; processor time of the \
         planning thread, memory at the peak of one plan. One core plans; nothing is kept from plan to plan. What the \
         daemon asks for under pressure is who goes; `checkpoint-guard plan` also wants a reason and a rank for each that \
         stays.",
    );
    section.show(&table);
    simulate(&mut section, if options.quick { 200 } else { 10_000 });
    Ok(section)
}

/// A week of `nodes` nodes, spread over the fleets, by the default order.
#[expect(clippy::disallowed_methods, reason = "measures how long it takes")]
fn simulate(section: &mut Section, nodes: u64) {
    eprintln!("{nodes} simulated nodes");
    let (policy, next) = (sample_policy(), AtomicU64::new(0));
    let work = || {
        let mut sum = Outcome::default();
        loop {
            let node = next.fetch_add(1, Ordering::Relaxed);
            if node >= nodes {
                return sum;
            }
            let fleet = &FLEETS[(node % FLEETS.len() as u64) as usize];
            sum = sum.plus(replay(&fleet.trace(node, 7, 1), &policy, Chooser::Guard));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (began, used) = (Instant::now(), processor_time(ClockId::CLOCK_PROCESS_CPUTIME_ID));
    let sum = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let parts = workers.into_iter().map(|worker| worker.join().expect("replaying does not panic"));
        parts.fold(Outcome::default(), Outcome::plus)
    });
    section.say(format!(
        "A week of {nodes} simulated nodes, spread over the six fleets: {:.1} s on {threads} threads, {:.1} s of \
         processor time, for {} checkpoints that arrived and {} plans. Goal for 10,000: 60 s.",
        began.elapsed().as_secs_f64(),
        (processor_time(ClockId::CLOCK_PROCESS_CPUTIME_ID) - used).as_secs_f64(),
        sum.arrivals,
        sum.reclaims + sum.unreachable,
    ));
}

struct Measured {
    times: Times,
    peak: usize,
    victims: usize,
}

type Decide = fn(&Inventory, &Request, &Policy, Timestamp) -> Plan;

fn repeat(decide: impl Fn() -> Plan, times: usize) -> Measured {
    let (mut peak, mut victims) = (0, 0);
    let run = |_| {
        let start = processor_time(ClockId::CLOCK_THREAD_CPUTIME_ID);
        let (plan, at_peak) = peak_of(&decide);
        (peak, victims) = (at_peak, plan.victims.len());
        processor_time(ClockId::CLOCK_THREAD_CPUTIME_ID) - start
    };
    let times = Times::new((0..times).map(run).collect());
    Measured { times, peak, victims }
}

/// What this thread (or process) has used of a processor: others on the machine do not count.
fn processor_time(of: ClockId) -> Duration {
    clock_gettime(of).expect("every kernel has it").into()
}
