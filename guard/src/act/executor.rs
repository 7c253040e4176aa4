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
use crate::act::freeing::Freeing;
use crate::act::journal::{Intent, Journal, Outcome, Verdict};
use crate::act::refusal::Refused;
use crate::decide::slow::{self, Goal, SoFar, UnderWay};
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
    /// Called before a deletion is announced, and may take its time; an error speaks against the deletion.
    pub before: Option<&'a mut Before<'a>>,
    /// The monotonic clock.
    pub clock: &'a dyn Fn() -> Monotonic,
    /// The protection that the rules give a checkpoint, for the record.
    pub protection: &'a dyn Fn(&Checkpoint) -> Protection,
    /// When set, the deletion in hand is the last.
    pub stop: &'a AtomicBool,
    /// Called after each deletion that was tried, when it has been recorded.
    pub on_outcome: &'a mut dyn FnMut(&Outcome),
    /// The look that the plan was made for: its need counts from there, whatever others have freed since. `None`: from the
    /// start of the round.
    pub planned_at: Option<Observation>,
    /// Available below which waiting for slow deletions is worse than one checkpoint too many: the hard threshold. Zero:
    /// always wait.
    pub hard: Bytes,
    /// Who asked, for a reclaim by hand.
    pub requested_by: Option<&'a str>,
    /// Delete nothing, record nothing.
    pub dry_run: bool,
    /// How long to wait for the filesystem's numbers to show a deletion; `None`: as long as this filesystem may
    /// need ([`CheckpointDir::lag_max`]).
    pub patience: Option<Duration>,
    /// Find out who has those open that are in use, at the end of the round: 50 to 150 ms. Where something waits for the
    /// round, somebody else does that later.
    pub names_holders: bool,
}

/// See [`Context::before`].
pub type Before<'a> = dyn FnMut(&Intent<'_>) -> Result<(), Objection> + 'a;

/// What speaks against a deletion, or against going on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objection {
    /// This one is spared.
    Spare(Refused),
    /// The round ends here: something else is more urgent.
    Stop,
}

/// Why a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// What was needed is there, and every victim of a retention rule was tried.
    Done,
    /// The plan is used up and it is not enough. Make a new one.
    Short,
    /// Somebody set `stop`, or what is done before a deletion said so.
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
/// the filesystem shows `plan.need` more than it did when the plan was made.
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
    let now = match (ctx.observe)() {
        Ok(now) => now,
        Err(errno) => return Round { ended: Ended::Unmeasurable(errno), ..round },
    };
    round.seen = Some(now);
    let start = ctx.planned_at.unwrap_or(now);
    let assumed = Need::default();
    let began = (ctx.clock)();
    let mut execution = Execution {
        plan,
        inventory,
        dirs,
        ctx,
        start,
        began,
        round,
        assumed,
        under_way: Vec::new(),
        in_use: Vec::new(),
    };
    for (n, victim) in plan.victims.iter().enumerate() {
        if let Err(ended) = execution.attempt(victim, execution.next_after(n)) {
            execution.round.ended = ended;
            break;
        }
    }
    execution.finish()
}

/// A round under way.
struct Execution<'e, 'ctx> {
    plan: &'e Plan,
    inventory: &'e Inventory,
    dirs: &'e [CheckpointDir],
    ctx: &'e mut Context<'ctx>,
    start: Observation,
    /// When it began.
    began: Monotonic,
    round: Round,
    /// A dry run frees nothing, so what it would have freed is added to what is seen.
    assumed: Need,
    /// Deletions whose space has not come back yet.
    under_way: Vec<Begun<'e>>,
    /// Those that somebody has open: who, is found out at the end.
    in_use: Vec<(&'e Victim, Outcome)>,
}

impl<'e> Execution<'e, '_> {
    /// What the victim after the `n`th holds; those in reserve come after the others. `None`: there is none.
    fn next_after(&self, n: usize) -> Option<Bytes> {
        let next = self.plan.victims.iter().chain(&self.plan.reserve).nth(n + 1)?;
        Some(self.inventory.checkpoints[next.index as usize].allocated)
    }

    /// Deletes `victim`, if it is needed and nothing speaks against it; the one after it holds `next`. `Err`: no further one.
    fn attempt(&mut self, victim: &'e Victim, next: Option<Bytes>) -> Result<(), Ended> {
        if self.ctx.stop.load(Ordering::Relaxed) {
            return Err(Ended::Stopped);
        }
        let before = plus((self.ctx.observe)().map_err(Ended::Unmeasurable)?, self.assumed);
        self.see(before);
        if self.round.remaining.is_met() && ends_when_met(&victim.trigger) {
            return Ok(());
        }
        let checkpoint = &self.inventory.checkpoints[victim.index as usize];
        let outcome = if self.ctx.dry_run {
            self.assumed = sum(self.assumed, promised(checkpoint));
            would_delete(victim, checkpoint, before, (self.ctx.clock)())
        } else {
            let dir = &self.dirs[usize::from(checkpoint.directory)];
            let intent =
                intent(victim, checkpoint, self.inventory, self.ctx.protection, self.ctx.requested_by);
            let mut before = before;
            if let Some(first) = &mut self.ctx.before {
                let objection = first(&intent).err();
                if objection == Some(Objection::Stop) || self.ctx.stop.load(Ordering::Relaxed) {
                    return Err(Ended::Stopped);
                }
                // Time has passed: it may be enough by now.
                before = (self.ctx.observe)().map_err(Ended::Unmeasurable)?;
                self.see(before);
                if self.round.remaining.is_met() && ends_when_met(&victim.trigger) {
                    return Ok(());
                }
                if let Some(Objection::Spare(refused)) = objection {
                    let id = self.ctx.journal.intent(&intent);
                    let outcome = spared(victim, checkpoint, id, refused, before, (self.ctx.clock)());
                    self.take(victim, outcome);
                    return Ok(());
                }
            }
            match begin(victim, checkpoint, dir, &intent, before, self.ctx) {
                Ok(begun) => {
                    self.under_way.push(begun);
                    self.wait(next);
                    return Ok(());
                }
                Err(outcome) => *outcome,
            }
        };
        self.take(victim, outcome);
        Ok(())
    }

    /// Waits until all space has come back, or until the next victim is due although those under way may turn out to have
    /// been enough: because they are slow, and writers use up what is left meanwhile.
    fn wait(&mut self, next: Option<Bytes>) {
        let mut waited = Duration::ZERO;
        loop {
            self.settle_those(|begun| begun.freeing.is_done());
            if self.under_way.is_empty() || self.ctx.stop.load(Ordering::Relaxed) {
                return;
            }
            if waited >= slow::SLOW_AFTER && next.is_some_and(|next| self.is_next_due(next)) {
                return;
            }
            std::thread::sleep(STEP);
            waited += STEP;
        }
    }

    /// Whether those under way will not be enough; see [`slow::is_next_due`].
    fn is_next_due(&mut self, next: Bytes) -> bool {
        let held = || self.under_way.iter().map(|begun| begun.removed.allocated);
        // Before the look, so that nothing is counted by neither.
        let left = self.under_way.iter().map(|begun| begun.freeing.left()).sum();
        let under_way = UnderWay { held: held().sum(), largest: held().max().unwrap_or_default(), left };
        let Ok(seen) = (self.ctx.observe)() else { return false };
        let goal = Goal { start: self.start, need: self.plan.need.bytes, hard: self.ctx.hard };
        let elapsed = (self.ctx.clock)().since(self.began);
        let so_far = SoFar { freed: self.round.freed.bytes, elapsed };
        slow::is_next_due(&goal, under_way, so_far, &seen, next)
    }

    /// Measures those under way of which `is_ready` is so.
    fn settle_those(&mut self, is_ready: impl Fn(&Begun<'_>) -> bool) {
        let (ready, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.under_way).into_iter().partition(is_ready);
        self.under_way = rest;
        for begun in ready {
            let (victim, outcome) = (begun.victim, begun.settle(self.ctx));
            self.take(victim, outcome);
        }
    }

    fn finish(mut self) -> Round {
        // The plan is used up, something is slow, and writers do not wait for it.
        let mut reserves = self.plan.reserve.iter().zip(self.plan.victims.len()..);
        while !self.under_way.is_empty() && !self.ctx.stop.load(Ordering::Relaxed) {
            match reserves.next().map(|(reserve, n)| self.attempt(reserve, self.next_after(n))) {
                Some(Ok(())) => {}
                Some(Err(ended)) => {
                    self.round.ended = ended;
                    break;
                }
                None => {
                    std::thread::sleep(STEP);
                    self.settle_those(|begun| begun.freeing.is_done());
                }
            }
        }
        self.settle_those(|_| true);
        // Who has them open is for people to read: found in one walk for all, when nothing waits for us any more.
        let mut in_use = std::mem::take(&mut self.in_use);
        if !in_use.is_empty() {
            name_holders(&mut in_use);
        }
        for (victim, outcome) in in_use {
            self.record(victim, outcome);
        }
        if self.round.ended == Ended::Done && !self.round.remaining.is_met() {
            self.round.ended = Ended::Short;
        }
        self.round
    }

    fn see(&mut self, seen: Observation) {
        self.round.seen = Some(seen);
        self.round.remaining = self.plan.need.less(gain(&self.start, &seen));
    }

    fn take(&mut self, victim: &'e Victim, outcome: Outcome) {
        if let Some(seen) = outcome.after {
            self.see(seen);
        }
        let is_unnamed =
            matches!(outcome.refused(), Some(Refused::InUse { holders, .. }) if holders.is_empty());
        if self.ctx.names_holders && is_unnamed {
            self.in_use.push((victim, outcome));
        } else {
            self.record(victim, outcome);
        }
    }

    fn record(&mut self, victim: &Victim, outcome: Outcome) {
        let checkpoint = &self.inventory.checkpoints[victim.index as usize];
        if !self.ctx.dry_run {
            let intent =
                intent(victim, checkpoint, self.inventory, self.ctx.protection, self.ctx.requested_by);
            self.ctx.journal.outcome(&intent, &outcome);
        }
        if outcome.fell_short() {
            tracing::warn!(
                checkpoint = %checkpoint.display_name(), promised = %outcome.promised.bytes,
                freed = %outcome.freed.bytes, "deleting it freed less than it promised"
            );
        }
        (self.ctx.on_outcome)(&outcome);
        self.round.freed = sum(self.round.freed, outcome.freed);
        self.round.outcomes.push(outcome);
    }
}

/// Whether victims of this trigger die for the need alone. Retention wants each of its victims gone.
fn ends_when_met(trigger: &Trigger) -> bool {
    match trigger {
        Trigger::Pressure(_) | Trigger::Manual => true,
        Trigger::Retention(_) | Trigger::Orphan => false,
    }
}

fn intent<'i>(
    victim: &'i Victim,
    checkpoint: &'i Checkpoint,
    inventory: &'i Inventory,
    protection: &dyn Fn(&Checkpoint) -> Protection,
    requested_by: Option<&'i str>,
) -> Intent<'i> {
    Intent {
        checkpoint,
        directory: inventory.directory_of(checkpoint),
        protection: protection(checkpoint),
        trigger: &victim.trigger,
        reason: victim.reason.to_string(),
        requested_by,
    }
}

/// A deletion whose name is gone and whose space is on its way.
struct Begun<'i> {
    victim: &'i Victim,
    checkpoint: &'i Checkpoint,
    dir: &'i CheckpointDir,
    id: u64,
    before: Observation,
    began: Monotonic,
    removed_at: Monotonic,
    removed: Removed,
    freeing: Freeing,
}

/// Looks are this far apart while something is awaited.
const STEP: Duration = Duration::from_micros(200);

impl Begun<'_> {
    /// Measures what it gave.
    fn settle(self, ctx: &mut Context<'_>) -> Outcome {
        let patience = ctx.patience.unwrap_or_else(|| self.dir.lag_max());
        let after = measure(self.dir, &self.before, self.removed, patience, ctx);
        let freed = after.map_or(Need::default(), |after| at_most(gain(&self.before, &after), self.removed));
        Outcome {
            index: self.victim.index,
            id: self.id,
            verdict: Verdict::Deleted(self.removed),
            promised: promised(self.checkpoint),
            freed,
            before: self.before,
            after,
            began: self.began,
            removed_at: self.removed_at,
            ended: (ctx.clock)(),
        }
    }
}

/// Announces and unlinks; refused, gone or failed is an outcome already.
fn begin<'i>(
    victim: &'i Victim,
    checkpoint: &'i Checkpoint,
    dir: &'i CheckpointDir,
    intent: &Intent<'_>,
    before: Observation,
    ctx: &mut Context<'_>,
) -> Result<Begun<'i>, Box<Outcome>> {
    let began = (ctx.clock)();
    let id = ctx.journal.intent(intent);
    let unlinked = dir.unlink(&Expected::from(checkpoint), id);
    let removed_at = (ctx.clock)();
    match unlinked {
        Ok(unlinked) => {
            let removed = unlinked.removed();
            let freeing = Freeing::start(unlinked);
            Ok(Begun { victim, checkpoint, dir, id, before, began, removed_at, removed, freeing })
        }
        Err(refused) => Err(Box::new(Outcome {
            index: victim.index,
            id,
            verdict: match refused {
                Refused::Gone => Verdict::Gone,
                refused => Verdict::Refused(refused),
            },
            promised: promised(checkpoint),
            freed: Need::default(),
            before,
            after: (ctx.observe)().ok(),
            began,
            removed_at,
            ended: (ctx.clock)(),
        })),
    }
}

/// What is not even tried.
fn spared(
    victim: &Victim,
    checkpoint: &Checkpoint,
    id: u64,
    refused: Refused,
    seen: Observation,
    now: Monotonic,
) -> Outcome {
    Outcome {
        index: victim.index,
        id,
        verdict: Verdict::Refused(refused),
        promised: promised(checkpoint),
        freed: Need::default(),
        before: seen,
        after: Some(seen),
        began: now,
        removed_at: now,
        ended: now,
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
    const STEPS_BETWEEN_REMINDERS: u128 = 100;
    let mut seen = (ctx.observe)().ok()?;
    // Counted in steps and not by the clock, so that it ends whatever the clock does.
    for step in 1..=patience.as_nanos() / STEP.as_nanos() {
        let shown = gain(before, &seen).bytes.0;
        if shown >= removed.allocated.0 - removed.allocated.0 / 16 || ctx.stop.load(Ordering::Relaxed) {
            break;
        }
        let waited = STEP.saturating_mul(u32::try_from(step - 1).unwrap_or(u32::MAX));
        if waited >= dir.lag_usual() && slow::is_losing(before, &seen) {
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
