//! Replays one node: simulated time, the real pressure, the real plans.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::decide::{Pressure, Request, retention, victims};
use crate::model::{
    Bytes, Certainty, Checkpoint, FileId, Identity, Inventory, Kind, Monotonic, Need, Observation, Owner,
    Plan, Policy, Signal, States, Trigger,
};
use crate::simulate::Outcome;
use crate::simulate::trace::{Trace, What};

/// Who chooses what goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chooser {
    /// The product, by its policy.
    Guard,
    /// Somebody who has read the whole trace: what nobody will ask for goes first, then what is worth least per byte.
    /// Bound to nothing but the target: no min-age, no keep-last, no protection.
    Clairvoyant,
}

/// Replays `trace` under `policy`.
pub fn replay(trace: &Trace, policy: &Policy, chooser: Chooser) -> Outcome {
    let mut node = Node::new(trace, policy, chooser);
    for event in &trace.events {
        // A grace or transition period may end before the next thing happens.
        while let Some(deadline) = node.pressure.next_deadline(&policy.pressure).filter(|at| at.0 < event.at)
        {
            node.look(deadline.0);
        }
        node.take(event.at, event.what);
        node.look(event.at);
    }
    node.outcome.survived = node.inventory.checkpoints.len() as u64;
    node.outcome
}

struct Node<'a> {
    trace: &'a Trace,
    policy: &'a Policy,
    chooser: Chooser,
    pressure: Pressure,
    inventory: Inventory,
    held: Bytes,
    foreign: i64,
    arrived: Bytes,
    /// By owner: what its checkpoints share.
    identities: Vec<Arc<Identity>>,
    /// By owner: its checkpoints ever, oldest first, as serial numbers.
    history: Vec<Vec<u32>>,
    /// By serial number: whether it is there.
    is_there: Vec<bool>,
    /// By serial number: when it will be asked for, and for what it is worth.
    future: Vec<Vec<(Duration, u32)>>,
    /// By owner, and by namespace how many there are.
    namespaces: Vec<usize>,
    counts: Vec<u32>,
    is_starved: Vec<bool>,
    outcome: Outcome,
}

impl<'a> Node<'a> {
    fn new(trace: &'a Trace, policy: &'a Policy, chooser: Chooser) -> Node<'a> {
        let mut ids = HashMap::new();
        let namespaces: Vec<usize> = trace
            .owners
            .iter()
            .map(|owner| {
                let next = ids.len();
                *ids.entry(&owner.namespace).or_insert(next)
            })
            .collect();
        let exact = |owner: &Owner| Identity {
            owner: owner.clone(),
            certainty: Certainty::Exact,
            ..Identity::default()
        };
        Node {
            trace,
            policy,
            chooser,
            pressure: Pressure::new(),
            inventory: Inventory { directories: vec!["/simulated".into()], ..Inventory::default() },
            held: Bytes::ZERO,
            foreign: 0,
            arrived: Bytes::ZERO,
            identities: trace.owners.iter().map(|owner| exact(owner).into()).collect(),
            history: vec![Vec::new(); trace.owners.len()],
            is_there: Vec::new(),
            future: if chooser == Chooser::Clairvoyant { future(trace) } else { Vec::new() },
            counts: vec![0; ids.len()],
            is_starved: vec![false; ids.len()],
            namespaces,
            outcome: Outcome::default(),
        }
    }

    fn take(&mut self, at: Duration, what: What) {
        match what {
            What::Arrival { owner, size } => self.arrive(at, owner, size),
            What::ForeignGrowth { bytes } => {
                // What does not fit any more fails for its writer as well.
                let room = i64::try_from(self.available().0).unwrap_or(i64::MAX);
                self.foreign = (self.foreign + bytes.min(room)).max(0);
            }
            What::Restore { owner, back, value } => {
                let wanted = self.history[owner as usize].iter().rev().nth(back as usize);
                if let Some(serial) = wanted {
                    self.outcome.value_asked += u64::from(value);
                    if self.is_there[*serial as usize] {
                        self.outcome.value_served += u64::from(value);
                    }
                }
            }
            What::PodGone { owner } => {
                let gone = &self.trace.owners[owner as usize];
                let same = |checkpoint: &&mut Checkpoint| {
                    let owner = &checkpoint.identity.owner;
                    owner.namespace == gone.namespace && owner.pod == gone.pod
                };
                for orphan in self.inventory.checkpoints.iter_mut().filter(same) {
                    orphan.states |= States::ORPHAN;
                }
            }
        }
        self.note_needed();
    }

    fn arrive(&mut self, at: Duration, owner: u32, size: Bytes) {
        let serial = self.is_there.len() as u32;
        let fits = size <= self.available();
        self.history[owner as usize].push(serial);
        self.is_there.push(fits);
        self.outcome.arrivals += 1;
        self.arrived += size;
        if !fits {
            self.outcome.refused += 1;
            return;
        }
        self.held += size;
        self.counts[self.namespaces[owner as usize]] += 1;
        let created = time(at);
        self.inventory.checkpoints.push(Checkpoint {
            directory: 0,
            kind: Kind::Archive,
            states: States::empty(),
            name: std::ffi::OsStr::new("").into(),
            // The inode tells everything about it: its serial number, and (as a device) whose it is.
            file: FileId { dev: owner.into(), ino: serial.into() },
            created,
            modified: created,
            len: size,
            allocated: size,
            inodes: 1,
            identity: self.identities[owner as usize].clone(),
        });
        if !self.policy.retention.is_empty() && self.chooser == Chooser::Guard {
            let plan = retention(&self.inventory, self.policy, created);
            self.delete(plan.victims.iter().map(|victim| victim.index).collect());
        }
    }

    /// Looks at the filesystem, and reclaims until nothing is needed or nothing is left to take.
    fn look(&mut self, at: Duration) {
        loop {
            let seen = self.observation();
            self.pressure.observe(&seen, &self.policy.pressure, Monotonic(at));
            let need = self.pressure.need(&seen, &self.policy.pressure);
            if need.is_met() {
                return;
            }
            let (victims, is_reached) = self.choose(need, at);
            self.outcome.unreachable += u64::from(!is_reached);
            if victims.is_empty() {
                return;
            }
            self.outcome.reclaims += 1;
            self.outcome.deleted += victims.len() as u64;
            let before = self.held;
            // Nobody is left to be hungry where the pods themselves are gone.
            let alive = victims.iter().map(|index| &self.inventory.checkpoints[*index as usize]);
            let alive = alive.filter(|checkpoint| !checkpoint.states.contains(States::ORPHAN));
            let owners: Vec<u64> = alive.map(|checkpoint| checkpoint.file.dev).collect();
            self.delete(victims);
            self.outcome.deleted_bytes += before.saturating_sub(self.held).0;
            for owner in owners {
                let namespace = self.namespaces[owner as usize];
                if self.counts[namespace] == 0 && !std::mem::replace(&mut self.is_starved[namespace], true) {
                    self.outcome.starved += 1;
                }
            }
        }
    }

    fn choose(&self, need: Need, at: Duration) -> (Vec<u32>, bool) {
        match self.chooser {
            Chooser::Guard => {
                let trigger = Trigger::Pressure(self.pressure.need_level(&self.policy.pressure));
                let Plan { victims, shortfall, .. } =
                    victims(&self.inventory, &Request { need, trigger }, self.policy, time(at));
                (victims.iter().map(|victim| victim.index).collect(), shortfall.is_met())
            }
            Chooser::Clairvoyant => self.choose_knowing_the_future(need, at),
        }
    }

    fn choose_knowing_the_future(&self, need: Need, at: Duration) -> (Vec<u32>, bool) {
        let worth = |checkpoint: &Checkpoint| {
            let asked = &self.future[checkpoint.file.ino as usize];
            let value: u64 =
                asked.iter().filter(|(when, _)| *when >= at).map(|(_, value)| u64::from(*value)).sum();
            (value << 40) / checkpoint.allocated.0.max(1)
        };
        let mut ranked: Vec<_> = (0u32..)
            .zip(&self.inventory.checkpoints)
            .map(|(index, one)| (worth(one), one.file.ino, index))
            .collect();
        ranked.sort_unstable();
        let (mut left, mut victims) = (need, Vec::new());
        for (_, _, index) in ranked {
            if left.is_met() {
                break;
            }
            left = left.less(self.inventory.checkpoints[index as usize].gain());
            victims.push(index);
        }
        (victims, left.is_met())
    }

    fn delete(&mut self, mut victims: Vec<u32>) {
        victims.sort_unstable();
        // From the end, so that the indices before stay what they are.
        for index in victims.into_iter().rev() {
            let gone = self.inventory.checkpoints.swap_remove(index as usize);
            self.held = self.held.saturating_sub(gone.allocated);
            self.is_there[gone.file.ino as usize] = false;
            self.counts[self.namespaces[gone.file.dev as usize]] -= 1;
        }
    }

    fn available(&self) -> Bytes {
        self.trace.capacity.saturating_sub(self.held).saturating_sub(Bytes(self.foreign.unsigned_abs()))
    }

    fn observation(&self) -> Observation {
        Observation { capacity: self.trace.capacity, available: self.available(), inodes: None }
    }

    /// Whoever keeps above the first threshold has deleted at least what arrived and does not fit above it.
    fn note_needed(&mut self) {
        let capacity = self.trace.capacity;
        let levels = [&self.policy.pressure.soft, &self.policy.pressure.hard, &self.policy.pressure.critical];
        let amounts =
            levels.into_iter().flatten().filter_map(|threshold| threshold.amount(Signal::Available));
        let threshold = amounts.map(|amount| amount.resolve(capacity.0)).max().unwrap_or(0);
        let room = capacity.0.saturating_sub(threshold).saturating_sub(self.foreign.unsigned_abs());
        self.outcome.needed_bytes = self.outcome.needed_bytes.max(self.arrived.0.saturating_sub(room));
    }
}

/// Simulated time begins at the epoch.
fn time(at: Duration) -> Timestamp {
    SignedDuration::try_from(at)
        .ok()
        .and_then(|at| Timestamp::UNIX_EPOCH.checked_add(at).ok())
        .unwrap_or(Timestamp::MAX)
}

/// By serial number: when each checkpoint will be asked for, and what that is worth.
fn future(trace: &Trace) -> Vec<Vec<(Duration, u32)>> {
    let mut history: Vec<Vec<usize>> = vec![Vec::new(); trace.owners.len()];
    let mut future: Vec<Vec<(Duration, u32)>> = Vec::new();
    for event in &trace.events {
        match event.what {
            What::Arrival { owner, .. } => {
                history[owner as usize].push(future.len());
                future.push(Vec::new());
            }
            What::Restore { owner, back, value } => {
                if let Some(serial) = history[owner as usize].iter().rev().nth(back as usize) {
                    future[*serial].push((event.at, value));
                }
            }
            What::ForeignGrowth { .. } | What::PodGone { .. } => {}
        }
    }
    future
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::trace;
    use crate::simulate::{fleet, sample_policy};

    /// 100 GiB; lines of `arrive|restore minute container [GiB|back]`.
    #[track_caller]
    fn check(story: &str, chooser: Chooser, expect: impl Fn(&Outcome) -> bool) {
        let mut lines =
            format!("{{\"kind\":\"Node\",\"name\":\"n\",\"capacityBytes\":{}}}\n", Bytes::gib(100).0);
        for line in story.lines().filter(|line| !line.trim().is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            let at = number(1) * 60;
            let owner = || {
                let (namespace, container) = words[2].split_once('/').unwrap();
                format!("\"namespace\":\"{namespace}\",\"pod\":\"p\",\"container\":\"{container}\"")
            };
            let rest = match words[0] {
                "arrive" => {
                    format!("\"kind\":\"Arrival\",{},\"sizeBytes\":{}", owner(), Bytes::gib(number(3)).0)
                }
                "restore" => format!("\"kind\":\"Restore\",{},\"back\":{}", owner(), number(3)),
                "grow" => format!("\"kind\":\"ForeignGrowth\",\"bytes\":{}", Bytes::gib(number(2)).0),
                word => panic!("{word}"),
            };
            lines += &format!("{{\"atSeconds\":{at},{rest}}}\n");
        }
        let traces = trace::read(lines.as_bytes()).unwrap();
        let outcome = replay(&traces[0], &sample_policy(), chooser);
        assert!(expect(&outcome), "{outcome:#?}");
    }

    const FILLING: &str = "
        arrive 0 a/c 30
        arrive 60 a/c 30
        arrive 120 b/c 30
        restore 180 a/c 0
        restore 190 b/c 0
        restore 200 a/c 1";

    #[test]
    fn the_superseded_one_goes_and_the_newest_are_there_when_asked_for() {
        check(FILLING, Chooser::Guard, |outcome| {
            outcome.deleted == 1
                && outcome.value_asked == 3
                && outcome.value_served == 2
                && outcome.starved == 0
        });
    }

    #[test]
    fn what_had_to_be_deleted_is_what_arrived_and_does_not_fit() {
        let expect = |outcome: &Outcome| outcome.needed_bytes == Bytes::gib(10).0;
        check(FILLING, Chooser::Guard, expect);
        check(FILLING, Chooser::Clairvoyant, expect);
    }

    #[test]
    fn somebody_who_knows_the_future_keeps_what_is_asked_for() {
        let story = format!("{FILLING}\narrive 10000 c/c 5");
        check(&story, Chooser::Clairvoyant, |outcome| outcome.value_served >= 2);
        let never_asked = "
            arrive 0 a/c 30
            arrive 60 a/c 30
            arrive 120 b/c 30
            restore 200 a/c 1";
        check(never_asked, Chooser::Clairvoyant, |outcome| outcome.value_served == 1);
        check(never_asked, Chooser::Guard, |outcome| outcome.value_served == 0);
    }

    #[test]
    fn softs_grace_period_runs_out_between_events() {
        let story = "
            arrive 0 a/c 41
            arrive 60 a/c 41
            restore 61 a/c 1";
        check(story, Chooser::Guard, |outcome| outcome.deleted == 1 && outcome.value_served == 0);
    }

    #[test]
    fn foreign_growth_alone_starves_nobody_and_is_reported_as_missed() {
        let story = "
            arrive 0 a/c 10
            grow 60 76";
        check(story, Chooser::Guard, |outcome| outcome.unreachable > 0 && outcome.survived == 1);
    }

    #[test]
    fn the_default_order_meets_its_goals_on_every_fleet() {
        let policy = sample_policy();
        for fleet in &fleet::FLEETS {
            let (mut guard, mut best) = (Outcome::default(), Outcome::default());
            for node in 0..2 {
                let trace = fleet.trace(node, 4, 7);
                guard = guard.plus(replay(&trace, &policy, Chooser::Guard));
                best = best.plus(replay(&trace, &policy, Chooser::Clairvoyant));
            }
            let name = fleet.name;
            assert!(guard.value_against(&best) >= 0.95, "{name}: {guard:#?} {best:#?}");
            assert!(guard.deleted_against_needed() <= 1.05, "{name}: {guard:#?}");
            assert_eq!(guard.starved, 0, "{name}: {guard:#?}");
        }
    }
}
