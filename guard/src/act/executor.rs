//! Carrying out a plan: delete, measure, and stop as soon as it is enough.
//!
//! What counts is the filesystem, not the sum of sizes: after each deletion it is looked at again (kubernetes#99094,
//! #92925), and where its numbers come late, no second checkpoint dies for a number that is about to change
//! (kubernetes#41032, #46789, #130663). A victim that cannot be deleted is passed over; the plan is not made here,
//! so what replaces it is the next plan's business.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;

use crate::act::checkpoint_dir::{CheckpointDir, Expected, Removed};
use crate::act::journal::{Intent, Journal, Outcome, Verdict};
use crate::act::refusal::Refused;
use crate::model::{
    Bytes, Checkpoint, FileId, Inodes, Inventory, Monotonic, Need, Observation, Plan, Protection, Trigger,
    Victim,
};
use crate::observe::holders;

/// What the executor needs from outside.
pub struct Context<'a> {
    /// Looks at the filesystem ([`crate::observe::filesystem::observe`]).
    pub observe: &'a mut dyn FnMut() -> Result<Observation, Errno>,
    /// Where deletions are recorded.
    pub journal: &'a mut dyn Journal,
    /// The monotonic clock.
    pub clock: &'a dyn Fn() -> Monotonic,
    /// The protection that the rules give a checkpoint, for the record.
    pub protection: &'a dyn Fn(&Checkpoint) -> Protection,
    /// When set, the deletion in hand is the last.
    pub stop: &'a AtomicBool,
    /// Called after each deletion that was tried, when it has been recorded.
    pub on_outcome: &'a mut dyn FnMut(&Outcome),
    /// Who asked, for a reclaim by hand.
    pub requested_by: Option<&'a str>,
    /// Delete nothing, record nothing.
    pub dry_run: bool,
    /// How long to wait for the filesystem's numbers to show a deletion; `None`: as long as this filesystem may
    /// need ([`CheckpointDir::lag_max`]).
    pub patience: Option<Duration>,
}

/// Why a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// What was needed is there, and every victim of a retention rule was tried.
    Done,
    /// The plan is used up and it is not enough. Make a new one.
    Short,
    /// Somebody set `stop`.
    Stopped,
    /// The filesystem does not answer. Nothing is deleted blindly.
    Unmeasurable(Errno),
}

/// What carrying out a plan came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// What was tried, in order; those in use last.
    pub outcomes: Vec<Outcome>,
    /// The sum of what was freed.
    pub freed: Need,
    /// What of the need is still missing, as measured.
    pub remaining: Need,
    /// Why it ended.
    pub ended: Ended,
    /// The last look at the filesystem.
    pub seen: Option<Observation>,
}

/// Carries out `plan`: every victim of a retention rule, and those of pressure (or of a reclaim by hand) until
/// the filesystem shows `plan.need` more than it did at the start.
///
/// `dirs[n]` is `inventory.directories[n]`. Blocks: on the disk, and on filesystems whose numbers lag.
pub fn execute(plan: &Plan, inventory: &Inventory, dirs: &[CheckpointDir], ctx: &mut Context<'_>) -> Round {
    let mut round = Round {
        outcomes: Vec::new(),
        freed: Need::default(),
        remaining: plan.need,
        ended: Ended::Done,
        seen: None,
    };
    let start = match (ctx.observe)() {
        Ok(start) => start,
        Err(errno) => return Round { ended: Ended::Unmeasurable(errno), ..round },
    };
    round.seen = Some(start);
    // A dry run frees nothing, so what it would have freed is added to what is seen.
    let mut assumed = Need::default();
    let mut in_use: Vec<(&Victim, Outcome)> = Vec::new();
    for victim in &plan.victims {
        if ctx.stop.load(Ordering::Relaxed) {
            round.ended = Ended::Stopped;
            break;
        }
        let before = match (ctx.observe)() {
            Ok(seen) => plus(seen, assumed),
            Err(errno) => {
                round.ended = Ended::Unmeasurable(errno);
                break;
            }
        };
        round.see(plan, &start, before);
        if round.remaining.is_met() && ends_when_met(&victim.trigger) {
            continue;
        }
        let checkpoint = &inventory.checkpoints[victim.index as usize];
        let intent = intent(victim, checkpoint, inventory, ctx);
        let outcome = if ctx.dry_run {
            assumed = sum(assumed, promised(checkpoint));
            would_delete(victim, checkpoint, before, (ctx.clock)())
        } else {
            delete(victim, checkpoint, &dirs[usize::from(checkpoint.directory)], &intent, before, ctx)
        };
        if let Some(seen) = outcome.after {
            round.see(plan, &start, seen);
        }
        if matches!(outcome.refused(), Some(Refused::InUse { holders, .. }) if holders.is_empty()) {
            in_use.push((victim, outcome));
        } else {
            round.record(outcome, &intent, ctx);
        }
    }
    // Who has them open is for people to read: found in one walk for all, when nothing waits for us any more.
    name_holders(&mut in_use);
    for (victim, outcome) in in_use {
        let intent = intent(victim, &inventory.checkpoints[victim.index as usize], inventory, ctx);
        round.record(outcome, &intent, ctx);
    }
    if round.ended == Ended::Done && !round.remaining.is_met() {
        round.ended = Ended::Short;
    }
    round
}

impl Round {
    fn see(&mut self, plan: &Plan, start: &Observation, seen: Observation) {
        self.seen = Some(seen);
        self.remaining = plan.need.less(gain(start, &seen));
    }

    fn record(&mut self, outcome: Outcome, intent: &Intent<'_>, ctx: &mut Context<'_>) {
        if !ctx.dry_run {
            ctx.journal.outcome(intent, &outcome);
        }
        if outcome.fell_short() {
            tracing::warn!(
                checkpoint = %intent.checkpoint.display_name(), promised = %outcome.promised.bytes,
                freed = %outcome.freed.bytes, "deleting it freed less than it promised"
            );
        }
        (ctx.on_outcome)(&outcome);
        self.freed = sum(self.freed, outcome.freed);
        self.outcomes.push(outcome);
    }
}

/// Whether victims of this trigger die for the need alone. Retention wants each of its victims gone.
fn ends_when_met(trigger: &Trigger) -> bool {
    match trigger {
        Trigger::Pressure(_) | Trigger::Manual => true,
        Trigger::Retention(_) | Trigger::Orphan => false,
    }
}

fn intent<'i, 'ctx: 'i>(
    victim: &'i Victim,
    checkpoint: &'i Checkpoint,
    inventory: &'i Inventory,
    ctx: &Context<'ctx>,
) -> Intent<'i> {
    Intent {
        checkpoint,
        directory: inventory.directory_of(checkpoint),
        protection: (ctx.protection)(checkpoint),
        trigger: &victim.trigger,
        reason: victim.reason.to_string(),
        requested_by: ctx.requested_by,
    }
}

fn delete(
    victim: &Victim,
    checkpoint: &Checkpoint,
    dir: &CheckpointDir,
    intent: &Intent<'_>,
    before: Observation,
    ctx: &mut Context<'_>,
) -> Outcome {
    let began = (ctx.clock)();
    let id = ctx.journal.intent(intent);
    let mut unlinked = None;
    let removed = dir.remove_telling(&Expected::from(checkpoint), id, &mut || unlinked = Some((ctx.clock)()));
    let removed_at = unlinked.unwrap_or_else(|| (ctx.clock)());
    let patience = ctx.patience.unwrap_or_else(|| dir.lag_max());
    let (verdict, freed, after) = match removed {
        Ok(removed) => {
            let after = measure(dir, &before, removed, patience, ctx);
            let freed = after.map_or(Need::default(), |after| at_most(gain(&before, &after), removed));
            (Verdict::Deleted(removed), freed, after)
        }
        Err(Refused::Gone) => (Verdict::Gone, Need::default(), (ctx.observe)().ok()),
        Err(refused) => (Verdict::Refused(refused), Need::default(), (ctx.observe)().ok()),
    };
    let promised = promised(checkpoint);
    Outcome {
        index: victim.index,
        id,
        verdict,
        promised,
        freed,
        before,
        after,
        began,
        removed_at,
        ended: (ctx.clock)(),
    }
}

fn would_delete(victim: &Victim, checkpoint: &Checkpoint, before: Observation, now: Monotonic) -> Outcome {
    let promised = promised(checkpoint);
    Outcome {
        index: victim.index,
        id: 0,
        verdict: Verdict::WouldBeDeleted,
        promised,
        freed: promised,
        before,
        after: Some(plus(before, promised)),
        began: now,
        removed_at: now,
        ended: now,
    }
}

/// Looks until the filesystem shows what was removed, for `patience` at most.
///
/// Writers may use up what was freed as fast as we look; so half of it is enough once a look shows no more than
/// the one before. `None` when the filesystem does not answer.
fn measure(
    dir: &CheckpointDir,
    before: &Observation,
    removed: Removed,
    patience: Duration,
    ctx: &mut Context<'_>,
) -> Option<Observation> {
    const STEP: Duration = Duration::from_micros(200);
    const STEPS_BETWEEN_REMINDERS: u128 = 100;
    let mut seen = (ctx.observe)().ok()?;
    // Counted in steps and not by the clock, so that it ends whatever the clock does.
    for step in 1..=patience.as_nanos() / STEP.as_nanos() {
        let shown = gain(before, &seen).bytes.0;
        if shown >= removed.allocated.0 - removed.allocated.0 / 16 || ctx.stop.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(STEP);
        if step % STEPS_BETWEEN_REMINDERS == 0 {
            dir.show_freed_space_at_last();
        }
        let later = (ctx.observe)().ok()?;
        let rises = later.available > seen.available;
        seen = later;
        if !rises && shown >= removed.allocated.0 / 2 {
            break;
        }
    }
    Some(seen)
}

/// Fills in who has the files open.
fn name_holders(in_use: &mut [(&Victim, Outcome)]) {
    let file_of = |outcome: &Outcome| match outcome.refused() {
        Some(Refused::InUse { file, .. }) => Some(*file),
        _ => None,
    };
    let files: Vec<FileId> = in_use.iter().filter_map(|(_, outcome)| file_of(outcome)).collect();
    let mut scan = holders::find(&files);
    for (_, outcome) in in_use {
        if let Verdict::Refused(Refused::InUse { file, holders }) = &mut outcome.verdict {
            *holders = scan.holders.remove(file).unwrap_or_default();
        }
    }
}

/// What deleting `checkpoint` was planned to free.
fn promised(checkpoint: &Checkpoint) -> Need {
    Need { bytes: checkpoint.allocated, inodes: checkpoint.inodes.into() }
}

/// What `after` shows beyond `before`.
fn gain(before: &Observation, after: &Observation) -> Need {
    let inodes = |seen: &Observation| seen.inodes.map_or(0, |inodes| inodes.free);
    Need {
        bytes: after.available.saturating_sub(before.available),
        inodes: inodes(after).saturating_sub(inodes(before)),
    }
}

fn at_most(gain: Need, removed: Removed) -> Need {
    Need { bytes: gain.bytes.min(removed.allocated), inodes: gain.inodes.min(removed.inodes) }
}

fn sum(one: Need, other: Need) -> Need {
    Need { bytes: one.bytes + other.bytes, inodes: one.inodes.saturating_add(other.inodes) }
}

/// `seen` with `freed` added to what is left.
fn plus(seen: Observation, freed: Need) -> Observation {
    let available = Bytes((seen.available + freed.bytes).0.min(seen.capacity.0));
    let inodes =
        seen.inodes.map(|inodes| Inodes { free: inodes.free.saturating_add(freed.inodes), ..inodes });
    Observation { available, inodes, ..seen }
}
