//! One turn's deciding and acting: pressure first, then retention.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::act::executor::{Context, Ended, Round, execute};
use crate::act::journal::{Intent, Outcome, Verdict};
use crate::act::refusal::Refused;
use crate::agent::braking;
use crate::agent::clock::{monotonic, wall};
use crate::agent::filesystem::Filesystem;
use crate::agent::naming::Held;
use crate::agent::notify;
use crate::agent::shared::reaction;
use crate::agent::showing::subject;
use crate::decide::brake::{Race, Reclaim};
use crate::decide::outlook::{self, Outlook};
use crate::decide::{self, Request, protection, staging, threshold};
use crate::model::{
    Bytes, Checkpoint, Cluster, Kind, Level, Monotonic, Need, Observation, Plan, States, Trigger, Victim,
};
use crate::observe::filesystem::observe;
use crate::observe::holders;
use crate::report::events::{About, Deleted, Notice};
use crate::report::metrics::{FailureCause, RefusalCause};

/// A plan whose victims were refused or freed too little is replaced by a new one at once; so often at most before
/// the loop turns and takes in what has happened meanwhile.
const PLANS_MAX: usize = 32;
/// While a need cannot be met, it is tried again after this long even if nothing has changed: young checkpoints come
/// of age, readers close what they had open.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// While a need cannot be met, those whose deletion failed are tried again after this long, without waiting for a scan: each
/// try of an undeletable one costs two lines in the log.
const FORGIVE_AFTER: Duration = Duration::from_secs(10);
/// Retention runs when a checkpoint is completed and when the configuration changes, and this often for `max-age`.
const RETAIN_EVERY: Duration = Duration::from_secs(60);

/// What is remembered from turn to turn.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The need could not be met.
    stuck: Option<Stuck>,
    /// It has been said, in this episode, that the need cannot be met.
    said: bool,
    /// Room for what is on its way could not be made; until then it is not tried again.
    unprepared: Monotonic,
    /// That has been said, of what is on its way now.
    said_unprepared: bool,
    /// Deleting against the writers, at critical.
    race: Race,
    /// The catalog or the configuration is not what it was when retention was last decided.
    retain: bool,
    retain_due: Monotonic,
}

/// When a need could not be met.
#[derive(Clone, Copy, Debug)]
struct Stuck {
    level: Level,
    /// Nothing more may be deleted; else the round was broken off.
    hopeless: bool,
    missing: Need,
    again: Monotonic,
    /// When those whose deletion failed are tried again.
    forgive: Monotonic,
}

impl State {
    /// Checkpoints came, went, or turned out to be something else.
    pub(super) fn catalog_changed(&mut self) {
        self.retain = true;
        self.unprepared = Monotonic::default();
        if let Some(stuck) = &mut self.stuck {
            stuck.again = Monotonic::default();
        }
    }

    /// Other rules hold.
    pub(super) fn configuration_changed(&mut self) {
        *self = State { retain: true, ..State::default() };
    }

    /// Whether a need is waiting for something to change.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    /// What deleting has come to at critical.
    pub(super) fn reclaim(&self) -> Reclaim {
        match self.stuck {
            Some(Stuck { level: Level::Critical, hopeless: true, .. }) => Reclaim::Helpless,
            _ if self.race.is_lost() => Reclaim::Outrun,
            _ => Reclaim::Works,
        }
    }

    /// When to try again what could not be done.
    pub(super) fn deadline(&self) -> Option<Monotonic> {
        self.stuck.map(|stuck| stuck.again)
    }

    /// What is missing and cannot be reclaimed.
    pub(super) fn unreclaimable(&self) -> Need {
        self.stuck.map(|stuck| stuck.missing).unwrap_or_default()
    }

    /// Whether it is time to try those again whose deletion failed; then not again for a while.
    fn has_to_forgive(&mut self, now: Monotonic) -> bool {
        let Some(stuck) = self.stuck.as_mut().filter(|stuck| now >= stuck.forgive) else { return false };
        stuck.forgive = Monotonic(now.0 + FORGIVE_AFTER);
        true
    }

    fn must_wait(&self, level: Level, now: Monotonic) -> bool {
        self.stuck.is_some_and(|stuck| level <= stuck.level && now < stuck.again)
    }
}

/// Reclaims until nothing is needed or nothing more may go. `woken` is when the write happened that used the budget
/// up. The result is the last look at the filesystem, if anything was tried.
pub(super) fn relieve(
    fs: &mut Filesystem,
    mut seen: Observation,
    mut woken: Option<Monotonic>,
) -> Option<Observation> {
    let mut tried = None;
    for _ in 0..PLANS_MAX {
        let crossed = fs.pressure.need(&seen, &fs.thresholds);
        if crossed.is_met() {
            fs.relief.stuck = None;
            fs.relief.said = false;
            fs.relief.race = Race::default();
        }
        // Ahead only when a wake tells that somebody is writing right now.
        let ahead = match woken {
            Some(_) => threshold::ahead(&fs.thresholds, &seen, fs.lead(&seen)),
            None => Need::default(),
        };
        // After `seen` was measured, see there.
        let announced = fs.announced(&seen);
        fs.relief.said_unprepared &= announced.is_some();
        let on_its_way = announced.as_ref().filter(|_| monotonic() >= fs.relief.unprepared);
        let coming = on_its_way.map_or(Need::default(), |it| staging::need(&fs.thresholds, &seen, it.bytes));
        let need = crossed.max(ahead).max(coming);
        if need.is_met() {
            return tried;
        }
        let level = if crossed.is_met() { Level::Hard } else { fs.pressure.need_level(&fs.thresholds) };
        if fs.relief.must_wait(level, monotonic()) || fs.shared.stop.load(Ordering::Relaxed) {
            return tried;
        }
        if fs.relief.is_stuck() {
            fs.look_again();
            if fs.relief.has_to_forgive(monotonic()) {
                fs.catalog.forgive();
            }
        }
        fs.drop_second_names();
        let began = monotonic();
        let request = Request { need, trigger: Trigger::Pressure(level) };
        let mut plan = decide::victims(fs.catalog.inventory(), &request, &fs.config.policy, wall());
        if let Some(announced) = on_its_way.filter(|_| need != crossed.max(ahead)) {
            staging::explain(&mut plan, announced);
        }
        let now = monotonic();
        let until = |left| fs.forecast.until(left, now);
        if let Some(outlook) = Outlook::after(level, &fs.thresholds, &seen, fs.forecast.rate(now), until) {
            outlook::explain(&mut plan, &outlook);
        }
        fs.shared.metrics.planned(now.since(began));
        let round = carry_out(fs, &plan, Some(seen), &mut woken);
        let progress = round.outcomes.iter().any(|outcome| matches!(outcome.verdict, Verdict::Deleted(_)));
        take_in(fs, &plan, &round);
        if let Some(after) = round.seen {
            match level {
                Level::Critical if progress => {
                    fs.relief.race.round(seen.available, after.available, monotonic());
                }
                Level::Critical => {}
                _ => fs.relief.race = Race::default(),
            }
            seen = after;
            tried = Some(after);
            fs.note(&after);
        }
        let missing = fs.pressure.need(&seen, &fs.thresholds);
        let is_over = matches!(round.ended, Ended::Stopped | Ended::Unmeasurable(_)) || fs.shared.dry_run;
        // Refused victims are marked by now, so the next plan is another one; it ends when nobody is left.
        let hopeless = plan.victims.is_empty() || (!progress && round.outcomes.is_empty());
        if !missing.is_met() && (hopeless || is_over) {
            let again = Monotonic(monotonic().0 + TRY_AGAIN);
            let missing = plan.shortfall.max(missing);
            let forgive = Monotonic(monotonic().0 + FORGIVE_AFTER);
            let forgive = fs.relief.stuck.map_or(forgive, |before| before.forgive);
            let hopeless_now = hopeless && !is_over;
            fs.relief.stuck = Some(Stuck { level, hopeless: hopeless_now, missing, again, forgive });
            if hopeless {
                say_unreachable(fs, level, &request, &seen);
            }
            return tried;
        }
        if missing.is_met() && ahead.is_met() && (hopeless || is_over) {
            fs.relief.unprepared = Monotonic(monotonic().0 + TRY_AGAIN);
            say_unprepared(fs, announced.as_ref(), &plan);
            return tried;
        }
        braking::follow(fs, &seen);
        fs.catch_up();
    }
    tried
}

/// Says that there will not be enough room for what is on its way: once for each.
fn say_unprepared(fs: &mut Filesystem, announced: Option<&staging::Announced>, plan: &Plan) {
    let Some(announced) = announced.filter(|_| !fs.shared.dry_run && !fs.relief.said_unprepared) else {
        return;
    };
    fs.relief.said_unprepared = true;
    tracing::warn!(
        filesystem = fs.label.as_str(), %announced, missing = %plan.shortfall.bytes,
        "nothing more may be deleted to make room for it; the thresholds will act when it is there"
    );
}

/// Says that eviction cannot help: once per episode, not every round.
fn say_unreachable(fs: &mut Filesystem, level: Level, request: &Request, seen: &Observation) {
    // Content that is still being read may turn out to be evictable: not yet hopeless.
    if fs.relief.said || fs.catalog.has_unread() {
        return;
    }
    fs.relief.said = true;
    let inventory = fs.catalog.inventory();
    // The same plan once more, with the reason of each that stays.
    let plan = &decide::plan(inventory, request, &fs.config.policy, wall());
    let mut blockers: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for spared in &plan.spared {
        let checkpoint = &inventory.checkpoints[spared.index as usize];
        blockers.entry(spared.reason.of_many()).or_default().push(checkpoint);
    }
    let spared: Vec<_> = blockers.iter_mut().map(|(reason, those)| sentence_of(reason, those)).collect();
    let foreign = inventory.foreign;
    let reason = format!(
        "pressure is not from checkpoints: need {}, can free {}; spared: {}; {foreign} other entries are never touched",
        plan.need,
        plan.frees,
        if spared.is_empty() { "none, there are no checkpoints".to_owned() } else { spared.join("; ") },
    );
    tracing::error!(filesystem = fs.label.as_str(), %level, available = %seen.available, "{reason}");
    fs.shared.record_unreachable(&fs.directory_names(), plan, &reason);
    let held = plan.spared.iter().map(|spared| &inventory.checkpoints[spared.index as usize]);
    let held = held.filter(|it| it.states.intersects(States::IN_USE | States::BEING_WRITTEN));
    let held = held.flat_map(|checkpoint| {
        let files = match checkpoint.kind {
            Kind::Archive => vec![checkpoint.file],
            Kind::PodCheckpoint => {
                let dir = &fs.dirs[usize::from(checkpoint.directory)];
                holders::open_below(dir, &checkpoint.name, NAMED_MAX)
            }
        };
        files.into_iter().map(|file| Held {
            directory: inventory.directory_of(checkpoint).to_owned(),
            name: checkpoint.name.clone().into(),
            file,
        })
    });
    fs.naming.ask(&fs.shared, held.collect());
}

/// How many blockers a message names for each reason; the others it counts.
const NAMED_MAX: usize = 3;

/// How many are spared for one reason, and the names of those that hold most.
fn sentence_of(reason: &str, those: &mut [&Checkpoint]) -> String {
    those.sort_by_key(|checkpoint| std::cmp::Reverse(checkpoint.allocated));
    let named: Vec<_> = those.iter().take(NAMED_MAX).map(|checkpoint| checkpoint.display_name()).collect();
    let more = if those.len() > NAMED_MAX { ", …" } else { "" };
    format!("{} {reason} ({}{more})", those.len(), named.join(", "))
}

/// Keeps every owner within its retention rules. Not under pressure: then the plan decides.
pub(super) fn retain(fs: &mut Filesystem) {
    let now = monotonic();
    if fs.config.policy.retention.is_empty() || !(fs.relief.retain || now >= fs.relief.retain_due) {
        return;
    }
    fs.relief.retain = false;
    fs.relief.retain_due = Monotonic(now.0 + RETAIN_EVERY);
    // A clock that is wrong for one run would have everything deleted.
    let policy = match fs.shared.tells_age() {
        true => Cow::Borrowed(&fs.config.policy),
        false => Cow::Owned(fs.config.policy.without_age_limits()),
    };
    let plan = decide::retention(fs.catalog.inventory(), &policy, wall());
    if plan.victims.is_empty() {
        return;
    }
    let round = carry_out(fs, &plan, None, &mut None);
    take_in(fs, &plan, &round);
    // Only what others did calls for another run; refused ones wait for the timer.
    fs.relief.retain = false;
}

/// Runs the executor on a plan.
fn carry_out(
    fs: &Filesystem,
    plan: &Plan,
    planned_at: Option<Observation>,
    woken: &mut Option<Monotonic>,
) -> Round {
    let measured = &fs.dirs[fs.measured()];
    let policy = &fs.config.policy.protection;
    let woken = Cell::from_mut(woken);
    let mut on_outcome = |outcome: &Outcome| {
        if let Some(reaction) = reaction(outcome, woken.get()) {
            fs.shared.metrics.reacted(reaction);
            woken.set(None);
        }
    };
    let worst = Cell::new(Level::Normal);
    let mut first = |intent: &Intent<'_>| notify::before(fs, intent, &worst);
    let mut context = Context {
        observe: &mut || observe(measured),
        journal: &mut fs.shared.journal(woken),
        before: fs.shared.notify.has_command().then_some(&mut first),
        clock: &monotonic,
        protection: &|checkpoint| protection::of_readings(policy, checkpoint.identity.readings()).protection,
        stop: &fs.shared.stop,
        on_outcome: &mut on_outcome,
        planned_at,
        hard: planned_at.map_or(Bytes::ZERO, |seen| threshold::hard(&fs.thresholds, &seen)),
        requested_by: None,
        dry_run: fs.shared.dry_run,
        patience: None,
        names_holders: false,
    };
    execute(plan, fs.catalog.inventory(), &fs.dirs, &mut context)
}

/// Lets the catalog, the metrics and the log follow what has happened.
fn take_in(fs: &mut Filesystem, plan: &Plan, round: &Round) {
    let victims: HashMap<u32, _> =
        plan.victims.iter().chain(&plan.reserve).map(|victim| (victim.index, victim)).collect();
    // Taken together before anything is removed: the outcomes' indices are the inventory's of before.
    let tried: Vec<_> = round
        .outcomes
        .iter()
        .filter_map(|outcome| {
            let checkpoint = &fs.catalog.inventory().checkpoints[outcome.index as usize];
            Some((
                outcome,
                *victims.get(&outcome.index)?,
                checkpoint.directory,
                checkpoint.name.clone(),
                subject(fs.catalog.inventory(), checkpoint),
            ))
        })
        .collect();
    let told: Vec<_> = tried.iter().map(|(outcome, victim, ..)| (*outcome, *victim)).collect();
    tell_round(fs, &told);
    notify::tell(fs, &told, round.seen);
    for (outcome, victim, directory, name, of) in tried {
        let path = fs.path_of(directory).join(&*name);
        let (checkpoint, freed, trigger) = (path.display(), outcome.freed.bytes, &victim.trigger);
        match &outcome.verdict {
            Verdict::Deleted(_) => {
                tracing::info!(%checkpoint, %freed, %trigger, reason = %victim.reason, "deleted");
                fs.shared.metrics.filesystem(&fs.label).deleted(trigger, of.namespace.as_deref(), freed);
                fs.showing.deleted(of, outcome, victim);
                fs.catalog.remove(directory, &name);
            }
            Verdict::WouldBeDeleted => {
                tracing::info!(%checkpoint, %freed, %trigger, reason = %victim.reason, "would be deleted (dry run)");
                fs.showing.deleted(of, outcome, victim);
            }
            Verdict::Gone => {
                fs.shared.metrics.deletion_refused(RefusalCause::Gone);
                fs.catalog.remove(directory, &name);
            }
            Verdict::Refused(refused) => {
                tracing::warn!(%checkpoint, %refused, "not deleted");
                if let Refused::InUse { file, .. } = refused {
                    let directory = fs.path_of(directory).to_owned();
                    let held = Held { directory, name: name.clone().into(), file: *file };
                    fs.naming.ask(&fs.shared, vec![held]);
                }
                match FailureOrRefusal::of(refused) {
                    FailureOrRefusal::Failure(cause) => fs.shared.metrics.deletion_failed(cause),
                    FailureOrRefusal::Refusal(cause) => fs.shared.metrics.deletion_refused(cause),
                }
                match refused {
                    // Into what, no event needs to have told.
                    Refused::Changed(_) => fs.refresh(directory, name.into(), None),
                    _ => fs.catalog.set_states(directory, &name, state_after(refused)),
                }
            }
        }
    }
}

/// Tells the Node, and those pods that exist, which checkpoints are gone.
fn tell_round(fs: &Filesystem, tried: &[(&Outcome, &Victim)]) {
    if !fs.shared.has_readers() {
        return;
    }
    let deleted = tried.iter().filter(|(outcome, _)| matches!(outcome.verdict, Verdict::Deleted(_)));
    let deleted: Vec<_> = deleted
        .map(|(outcome, victim)| {
            let checkpoint = &fs.catalog.inventory().checkpoints[outcome.index as usize];
            Deleted {
                name: checkpoint.display_name().into_owned(),
                freed: outcome.freed.bytes,
                trigger: victim.trigger.clone(),
                pod: pod_of(fs.catalog.cluster(), checkpoint),
                object: object_of(fs.catalog.cluster(), checkpoint),
            }
        })
        .collect();
    for notice in Notice::of_round(&fs.directory_names().join(", "), &deleted) {
        fs.shared.leave(notice);
    }
}

/// The pod of a checkpoint, when it is on this node.
fn pod_of(cluster: &Cluster, checkpoint: &Checkpoint) -> Option<About> {
    let owner = &checkpoint.identity.owner;
    let (namespace, name) = (owner.namespace.clone()?, owner.pod.clone()?);
    let uid = cluster.pods.get(&namespace, &name)?.here.as_ref()?.first()?.clone();
    Some(About::Pod { namespace, name, uid })
}

/// The PodCheckpoint object of a checkpoint, when it is still there.
fn object_of(cluster: &Cluster, checkpoint: &Checkpoint) -> Option<About> {
    let declared = cluster.declared(checkpoint).filter(|it| !it.gone)?;
    Some(About::PodCheckpoint {
        api_version: declared.api_version.clone(),
        namespace: declared.namespace.clone(),
        name: declared.name.clone(),
        uid: declared.uid.clone(),
    })
}

/// What the next plan is told about a checkpoint whose deletion was refused.
fn state_after(refused: &Refused) -> States {
    match refused {
        Refused::Pinned(_) => States::PINNED,
        Refused::InUse { .. } => States::IN_USE,
        Refused::Linked => States::LINKED,
        Refused::Changed(_)
        | Refused::Gone
        | Refused::NotACheckpoint(_)
        | Refused::CannotProve(_)
        | Refused::CommandFailed(_)
        | Refused::Failed { .. }
        | Refused::Partly { .. } => States::REFUSED,
    }
}

/// What a refusal counts as.
enum FailureOrRefusal {
    Failure(FailureCause),
    Refusal(RefusalCause),
}

impl FailureOrRefusal {
    fn of(refused: &Refused) -> FailureOrRefusal {
        FailureOrRefusal::Refusal(match refused {
            Refused::Failed { errno, .. } | Refused::Partly { errno, .. } => {
                return FailureOrRefusal::Failure(FailureCause::from_errno(*errno));
            }
            Refused::Gone => RefusalCause::Gone,
            Refused::Changed(_) => RefusalCause::Changed,
            Refused::Pinned(_) => RefusalCause::Pinned,
            Refused::InUse { .. } => RefusalCause::InUse,
            Refused::NotACheckpoint(_) => RefusalCause::NotACheckpoint,
            Refused::Linked => RefusalCause::Linked,
            Refused::CannotProve(_) => RefusalCause::CannotProve,
            Refused::CommandFailed(_) => RefusalCause::CommandFailed,
        })
    }
}
