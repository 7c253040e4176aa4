//! `decide`: a plan over many checkpoints; how its time and memory grow.

use std::time::Duration;

use anyhow::Result;
use guard::decide::{Request, plan};
use guard::model::{Bytes, Inventory, Level, Need, OrderKey, Trigger};
use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};
use tests::counting::{held, peak_of};
use tests::crowd::{inventory, policy};

use crate::Options;
use crate::document::Section;
use crate::statistics::Times;
use crate::table::Table;

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
        "plan, bytes each",
        "catalog, bytes each",
    ]);
    for (count, times) in [(1_000, 51), (10_000, 21), (100_000, 9), (1_000_000, 5)] {
        eprintln!("{count} checkpoints");
        let before = held();
        let inventory = inventory(count, now);
        let catalog = (held() - before) as u64 / count;
        let measure = |divisor: u64| {
            let need = Need { bytes: Bytes(inventory.allocated().0 / divisor), inodes: 0 };
            let request = Request { need, trigger: Trigger::Pressure(Level::Hard) };
            repeat(&inventory, &request, &policy, now, options.times(times, times.div_ceil(3)))
        };
        let (little, half) = (measure(100), measure(2));
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
            (half.peak as u64 / count).to_string(),
            catalog.to_string(),
        ]);
    }
    let mut section = Section::new("Decide: a plan over many checkpoints");
    section.say(
        "The default order over 40 namespaces, 5,000 containers, ages over a month, 1 % pinned; processor time of the \
         planning thread, memory at the peak of one plan. One core plans; nothing is kept from plan to plan.",
    );
    section.show(&table);
    Ok(section)
}

struct Measured {
    times: Times,
    peak: usize,
    victims: usize,
}

fn repeat(
    inventory: &Inventory,
    request: &Request,
    policy: &guard::model::Policy,
    now: Timestamp,
    times: usize,
) -> Measured {
    let (mut peak, mut victims) = (0, 0);
    let run = |_| {
        let start = cpu_time();
        let (plan, at_peak) = peak_of(|| plan(inventory, request, policy, now));
        (peak, victims) = (at_peak, plan.victims.len());
        cpu_time() - start
    };
    let times = Times::new((0..times).map(run).collect());
    Measured { times, peak, victims }
}

/// What this thread has used of a processor: others on the machine do not count.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every kernel has it").into()
}
