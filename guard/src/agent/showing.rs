//! What a loop keeps to be looked at, and the snapshot it makes of that when somebody looks.
//!
//! Without anybody looking this costs one comparison a turn and a number a second. The plan costs more the more checkpoints
//! there are, so it is made anew only after so many times as long as it takes.

mod growth;

use std::collections::VecDeque;
use std::time::Duration;

use crate::act::journal::{Outcome, Verdict};
use crate::agent::braking;
use crate::agent::clock::{monotonic, wall};
use crate::agent::filesystem::Filesystem;
use crate::decide::{self, Request, threshold};
use crate::model::{
    Bytes, Checkpoint, Inventory, Level, Monotonic, Observation, PressurePolicy, Signal, Trigger, Victim,
};
use crate::report::snapshot::{
    DeletionSnapshot, FilesystemSnapshot, History, InodesSnapshot, NextVictims, Subject, ThresholdSnapshot,
    VictimSnapshot,
};

/// So many victims, writers and deletions are shown.
const SHOWN_MAX: usize = 20;
/// At the most often.
const RENEW_EVERY: Duration = Duration::from_millis(900);
/// Planning for those who look may take this share of the time.
const SHARE: u32 = 100;

/// What is kept from turn to turn.
#[derive(Debug, Default)]
pub(super) struct Showing {
    history: History,
    deletions: VecDeque<DeletionSnapshot>,
    /// The asking that was answered last.
    answered: u64,
    next: Option<NextVictims>,
    next_due: Monotonic,
}

impl Showing {
    /// Takes note of what is available.
    pub(super) fn note(&mut self, available: Bytes, now: Monotonic) {
        self.history.note(available, now);
    }

    /// Takes note of a deletion, or of one that a dry run left out.
    pub(super) fn deleted(&mut self, of: Subject, outcome: &Outcome, victim: &Victim) {
        let dry_run = matches!(outcome.verdict, Verdict::WouldBeDeleted);
        // A dry run finds the same ones turn after turn.
        if dry_run && self.deletions.iter().any(|known| known.dry_run && known.of == of) {
            return;
        }
        self.deletions.truncate(SHOWN_MAX - 1);
        self.deletions.push_front(DeletionSnapshot {
            time: wall(),
            of,
            freed_bytes: if dry_run { outcome.promised.bytes.0 } else { outcome.freed.bytes.0 },
            trigger: victim.trigger.to_string(),
            reason: victim.reason.to_string(),
            dry_run,
        });
    }
}

/// Publishes a snapshot when somebody looks, or when it is `due` with the gauges.
pub(super) fn publish(fs: &mut Filesystem, seen: &Observation, is_due: bool) {
    let asked = fs.shared.view.asked();
    let is_asked = asked != fs.showing.answered;
    if !is_asked && !is_due {
        return;
    }
    if is_asked {
        renew_next(fs, seen);
    }
    fs.showing.answered = asked;
    let snapshot = snapshot(fs, seen);
    fs.shared.view.publish(&fs.label, asked, snapshot);
}

fn snapshot(fs: &Filesystem, seen: &Observation) -> FilesystemSnapshot {
    let now = monotonic();
    let inventory = fs.catalog.inventory();
    FilesystemSnapshot {
        filesystem: fs.label.as_str().to_owned(),
        directories: fs.directory_names(),
        observed_at: wall(),
        level: fs.pressure.level(),
        size_bytes: seen.capacity.0,
        available_bytes: seen.available.0,
        inodes: seen.inodes.map(|it| InodesSnapshot { total: it.total, free: it.free }),
        thresholds: thresholds(&fs.thresholds, seen, |left| {
            fs.forecast.until(left.saturating_sub(fs.on_its_way()), now)
        }),
        headroom_bytes: threshold::headroom(&fs.thresholds, Signal::Available, seen),
        fill_bytes_per_second: fs.forecast.rate(now).0,
        unreclaimable_bytes: fs.relief.unreclaimable().bytes.0,
        checkpoints: inventory.checkpoints.len() as u64,
        checkpoint_bytes: inventory.allocated().0,
        history: fs.showing.history.snapshot(),
        growth: fs.watched.as_ref().map(|_| growth::told(fs.shared.growths.now())),
        next: fs.showing.next.clone(),
        deletions: fs.showing.deletions.iter().cloned().collect(),
        brake: braking::snapshot(fs),
    }
}

fn thresholds(
    policy: &PressurePolicy,
    seen: &Observation,
    until: impl Fn(Bytes) -> Option<Duration>,
) -> Vec<ThresholdSnapshot> {
    let levels = Level::ALL.into_iter().filter_map(|level| Some((level, policy.threshold(level)?)));
    levels
        .map(|(level, threshold)| {
            let value = |signal| Some(threshold.amount(signal)?.resolve(seen.total(signal)?));
            let left = threshold::until(threshold, Signal::Available, seen);
            ThresholdSnapshot {
                level,
                available_bytes: value(Signal::Available),
                inodes_free: value(Signal::InodesFree),
                seconds_until: left.and_then(|left| until(Bytes(left))).map(|until| until.as_secs_f64()),
            }
        })
        .collect()
}

/// Decides anew what would go next, unless that was just done.
fn renew_next(fs: &mut Filesystem, seen: &Observation) {
    let began = monotonic();
    if began < fs.showing.next_due {
        return;
    }
    let needed = fs.pressure.need(seen, &fs.thresholds);
    let crossing = if needed.is_met() { next_crossing(&fs.thresholds, seen) } else { None };
    let (level, need) = match crossing {
        Some((level, crossed)) => (level, threshold::missing(&fs.thresholds, level, &crossed)),
        None => (fs.pressure.need_level(&fs.thresholds), needed),
    };
    let request = Request { need, trigger: Trigger::Pressure(level) };
    let now = wall();
    let inventory = fs.catalog.inventory();
    let plan = decide::plan(inventory, &request, &fs.config.policy, now);
    let doomed = plan.victims.iter().take(SHOWN_MAX).map(|victim| (victim, false));
    let reserve = plan.reserve.iter().map(|victim| (victim, true));
    let victims = doomed.chain(reserve).zip(1..).map(|((victim, is_reserve), place)| {
        let checkpoint = &inventory.checkpoints[victim.index as usize];
        let beyond = if is_reserve { plan.victims.len().saturating_sub(SHOWN_MAX) as u64 } else { 0 };
        VictimSnapshot {
            rank: place + beyond,
            is_reserve,
            of: subject(inventory, checkpoint),
            age_seconds: checkpoint.age(now).as_secs(),
            size_bytes: checkpoint.allocated.0,
            reason: victim.reason.to_string(),
        }
    });
    fs.showing.next = Some(NextVictims {
        level,
        is_forecast: crossing.is_some(),
        need_bytes: need.bytes.0,
        frees_bytes: plan.frees.bytes.0,
        shortfall_bytes: plan.shortfall.bytes.0,
        count: plan.victims.len() as u64,
        victims: victims.collect(),
    });
    fs.showing.next_due = due(began);
}

/// The level that begins next as available shrinks, and the filesystem as it is then.
fn next_crossing(policy: &PressurePolicy, seen: &Observation) -> Option<(Level, Observation)> {
    let values = Level::ALL.into_iter().filter_map(|level| {
        let value = policy.threshold(level)?.amount(Signal::Available)?.resolve(seen.capacity.0);
        (value > 0 && value <= seen.available.0).then_some((value, level))
    });
    let (value, level) = values.max()?;
    Some((level, Observation { available: Bytes(value - 1), ..*seen }))
}

/// When to do again what began at `began` and ends now.
fn due(began: Monotonic) -> Monotonic {
    let now = monotonic();
    Monotonic(now.0 + RENEW_EVERY.max(now.since(began) * SHARE))
}

/// A checkpoint and whose it is, for records.
pub(super) fn subject(inventory: &Inventory, checkpoint: &Checkpoint) -> Subject {
    let text = |part: &Option<std::sync::Arc<str>>| part.as_deref().map(str::to_owned);
    let owner = &checkpoint.identity.owner;
    Subject {
        directory: inventory.directory_of(checkpoint).display().to_string(),
        name: checkpoint.display_name().into_owned(),
        namespace: text(&owner.namespace),
        pod: text(&owner.pod),
        container: text(&owner.container),
    }
}

#[cfg(test)]
#[path = "showing_tests.rs"]
mod tests;
