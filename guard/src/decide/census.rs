//! [`Census`]: what follows of each checkpoint from the others, the policy and the time.
//!
//! Ambiguous identities get here what FORMAT.md demands: nobody gains and nobody loses by one. It neither supersedes
//! another checkpoint nor takes another's keep-last place. It counts as superseded only when that is true whichever
//! of its readings is, and it shares a keep-last place with those of exactly the same readings.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::decide::protection::{self, Protected};
use crate::model::{Bytes, Certainty, Checkpoint, Inventory, Kind, Need, Owner, Policy, Protection, States};

/// What is never told of a checkpoint that could be restored by itself.
const NOT_RESTORABLE: States = States::BEING_WRITTEN.union(States::INCOMPLETE).union(States::PRE_CHECKPOINT);

bitflags::bitflags! {
    /// What follows of a checkpoint.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Follows: u8 {
        /// There is a newer complete one of the same container (or pod, for pod checkpoints). One that is unproven, which
        /// may be no checkpoint at all, supersedes only where none is proven; the same holds below.
        const SUPERSEDED = 1;
        /// It is among the newest `keep-last` complete ones of its container (or pod), which is not known to be gone.
        const LAST = 1 << 1;
        /// It is younger than `min-age`.
        const YOUNG = 1 << 2;
        /// It is the newest complete one of its container (or pod).
        const NEWEST = 1 << 3;
    }
}

/// What follows of every checkpoint of an inventory, by its index there.
#[derive(Debug)]
pub struct Census<'a> {
    inventory: &'a Inventory,
    now: Timestamp,
    /// `now` in nanoseconds.
    present: i64,
    parties: Vec<Party<'a>>,
    facts: Vec<Facts>,
    extremes: Extremes,
}

/// The bounds of what a whole inventory holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extremes {
    /// The smallest [`Census::instant`], at most now.
    pub(crate) oldest: i64,
    /// The most bytes that one frees, and the most inodes.
    pub(crate) most_gain: Need,
    /// What all free together.
    pub(crate) total: Need,
}

impl Extremes {
    fn note(&mut self, instant: i64, gain: Need) {
        self.oldest = self.oldest.min(instant);
        self.most_gain = self.most_gain.max(gain);
        self.total = self.total.plus(gain);
    }
}

/// Those whose checkpoints are told apart by nothing but time: one container's archives, one pod's checkpoints; or
/// the checkpoints whose identity has exactly the same doubtful readings.
#[derive(Debug)]
pub struct Party<'a> {
    /// Archives or pod checkpoints.
    pub kind: Kind,
    /// The reading that quotas count against.
    pub owner: &'a Owner,
    /// The other readings.
    pub alternatives: &'a [Owner],
    /// Whether there is no doubt about the owner.
    pub is_certain: bool,
    /// Its protection: the highest of all readings.
    pub protected: Protected,
    newest: Option<u32>,
}

/// Everything that a decision asks for again and again, in 32 bytes: there may be a million of them, and walking the
/// large records in any order but their own is a cache miss each.
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// [`Checkpoint::instant`] in nanoseconds; beyond the years 1677 and 2262 the nearest that fits.
    instant: i64,
    allocated: Bytes,
    inodes: u32,
    party: u32,
    follows: Follows,
    states: States,
    protection: Protection,
}

impl<'a> Census<'a> {
    /// Counts `inventory` as it stands at `now`. Linear in the number of checkpoints.
    pub fn new(inventory: &'a Inventory, policy: &Policy, now: Timestamp) -> Census<'a> {
        let mut registry = Registry::default();
        let min_age = i64::try_from(policy.eviction.min_age.as_nanos()).unwrap_or(i64::MAX);
        let present = nanoseconds(now);
        let mut extremes = Extremes { oldest: present, ..Extremes::default() };
        let facts = inventory.checkpoints.iter().map(|checkpoint| {
            let instant = nanoseconds(checkpoint.instant(now));
            // One whose every witness lies in the future is not young: it would stay so until then.
            let is_young = instant <= present && present.saturating_sub(instant) < min_age;
            let party = registry.party_of(checkpoint, policy);
            extremes.note(instant, checkpoint.gain());
            Facts {
                instant,
                allocated: checkpoint.allocated,
                inodes: checkpoint.inodes,
                party,
                follows: if is_young { Follows::YOUNG } else { Follows::empty() },
                states: checkpoint.states,
                protection: registry.parties[party as usize].protected.protection,
            }
        });
        let facts = facts.collect();
        let mut census = Census { inventory, now, present, parties: registry.parties, facts, extremes };
        census.find_newest(policy.eviction.keep_last as usize);
        census.find_superseded(&registry.certain);
        census
    }

    /// How many checkpoints there are.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.facts.len() as u32
    }

    /// What follows of the checkpoint at `index`.
    #[inline]
    pub fn follows(&self, index: u32) -> Follows {
        self.facts[index as usize].follows
    }

    /// The bounds of what the inventory holds.
    pub(crate) fn extremes(&self) -> Extremes {
        self.extremes
    }

    /// What was observed of it.
    #[inline]
    pub(crate) fn states(&self, index: u32) -> States {
        self.facts[index as usize].states
    }

    /// How much it is worth keeping.
    #[inline]
    pub fn protection(&self, index: u32) -> Protection {
        self.facts[index as usize].protection
    }

    /// Whose it is.
    #[inline]
    pub fn party(&self, index: u32) -> &Party<'a> {
        &self.parties[self.party_index(index)]
    }

    /// Index of whose it is, for tables beside [`Census::parties`].
    #[inline]
    pub fn party_index(&self, index: u32) -> usize {
        self.facts[index as usize].party as usize
    }

    /// Everybody who has a checkpoint.
    pub fn parties(&self) -> &[Party<'a>] {
        &self.parties
    }

    /// How old it is, as [`Checkpoint::age`] says.
    pub fn age(&self, index: u32) -> Duration {
        Duration::from_nanos(self.nanoseconds_since(self.instant(index)))
    }

    /// How long ago `instant` was; zero when it lies in the future.
    #[inline]
    pub(crate) fn nanoseconds_since(&self, instant: i64) -> u64 {
        self.present.saturating_sub(instant).max(0).unsigned_abs()
    }

    /// What deleting it frees.
    #[inline]
    pub(crate) fn gain(&self, index: u32) -> Need {
        let Facts { allocated, inodes, .. } = self.facts[index as usize];
        Need { bytes: allocated, inodes: inodes.into() }
    }

    /// Its instant in nanoseconds, for sorting; ties are real or beyond what 64 bits hold, see [`Census::by_time`].
    #[inline]
    pub(crate) fn instant(&self, index: u32) -> i64 {
        self.facts[index as usize].instant
    }

    /// Older first; a total order: instant, mtime, name, directory, inode.
    #[inline]
    pub fn by_time(&self, a: u32, b: u32) -> Ordering {
        self.instant(a).cmp(&self.instant(b)).then_with(|| self.by_name(a, b))
    }

    /// Unproven ones first, then [`Census::by_time`]. In a format that this version does not know, all are unproven, and time
    /// decides alone.
    fn by_worth(&self, a: u32, b: u32) -> Ordering {
        let is_proven = |index: u32| !self.states(index).contains(States::UNPROVEN);
        is_proven(a).cmp(&is_proven(b)).then_with(|| self.by_time(a, b))
    }

    #[cold]
    fn by_name(&self, a: u32, b: u32) -> Ordering {
        let key = |index: u32| {
            let checkpoint = &self.inventory.checkpoints[index as usize];
            let file = checkpoint.file;
            (checkpoint.instant(self.now), checkpoint.modified, &checkpoint.name, checkpoint.directory, file)
        };
        key(a).cmp(&key(b))
    }

    /// Marks the newest restorable one of each party, and the newest `keep_last`.
    fn find_newest(&mut self, keep_last: usize) {
        let is_somebody: Vec<bool> = self.parties.iter().map(Party::is_somebody).collect();
        let mut newest: Vec<Option<u32>> = vec![None; self.parties.len()];
        for (facts, index) in self.facts.iter().zip(0u32..) {
            let party = facts.party as usize;
            if facts.states.intersects(NOT_RESTORABLE) || !is_somebody[party] {
                continue;
            }
            if newest[party].is_none_or(|other| self.by_worth(other, index).is_lt()) {
                newest[party] = Some(index);
            }
        }
        for (party, newest) in newest.into_iter().enumerate() {
            self.parties[party].newest = newest;
            if let Some(index) = newest {
                self.facts[index as usize].follows |= Follows::NEWEST;
                self.keep(&[index][..keep_last.min(1)]);
            }
        }
        if keep_last > 1 {
            self.find_last(keep_last, &is_somebody);
        }
    }

    /// Marks the newest `keep_last` restorable ones of each party.
    fn find_last(&mut self, keep_last: usize, is_somebody: &[bool]) {
        let (mut members, ends) = self.restorable_by_party(is_somebody);
        let mut start = 0;
        for end in ends {
            let members = &mut members[start..end];
            start = end;
            let count = keep_last.min(members.len());
            if 0 < count && count < members.len() {
                members.select_nth_unstable_by(count - 1, |a, b| self.by_worth(*b, *a));
            }
            self.keep(&members[..count]);
        }
    }

    /// Marks them as among the last of their container. A pod that is gone makes no newer ones: kept for that reason,
    /// its last would stay for ever, and pods that come and go (CI jobs) fill the disk with them. `orphan` in the order
    /// decides instead.
    fn keep(&mut self, last: &[u32]) {
        for index in last {
            let facts = &mut self.facts[*index as usize];
            if !facts.states.contains(States::ORPHAN) {
                facts.follows |= Follows::LAST;
            }
        }
    }

    /// A counting sort: the restorable ones of parties with a container, party after party, and where each ends.
    fn restorable_by_party(&self, is_somebody: &[bool]) -> (Vec<u32>, Vec<usize>) {
        let restorable = || {
            let all =
                self.facts.iter().zip(0u32..).map(|(facts, index)| (facts, facts.party as usize, index));
            all.filter(|(facts, party, _)| !facts.states.intersects(NOT_RESTORABLE) && is_somebody[*party])
                .map(|(_, party, index)| (party, index))
        };
        let mut ends = vec![0; self.parties.len()];
        for (party, _) in restorable() {
            ends[party] += 1;
        }
        let mut total = 0;
        for end in &mut ends {
            total += *end;
            *end = total - *end;
        }
        let mut members = vec![0; total];
        for (party, index) in restorable() {
            members[ends[party]] = index;
            ends[party] += 1;
        }
        (members, ends)
    }

    fn find_superseded(&mut self, certain: &HashMap<(Kind, &Owner), u32>) {
        // The oldest of the newest: superseded by every reading is whoever is older than each reading's newest.
        let bounds: Vec<Option<u32>> = self.parties.iter().map(|party| self.bound(party, certain)).collect();
        for index in 0..self.facts.len() as u32 {
            let bound = bounds[self.party_index(index)];
            if bound.is_some_and(|newest| self.by_time(index, newest).is_lt()) {
                self.facts[index as usize].follows |= Follows::SUPERSEDED;
            }
        }
    }

    /// The checkpoint that all superseded ones of `party` are older than.
    fn bound(&self, party: &Party<'a>, certain: &HashMap<(Kind, &Owner), u32>) -> Option<u32> {
        let newest_of = |owner: &Owner| {
            certain.get(&(party.kind, owner)).and_then(|party| self.parties[*party as usize].newest)
        };
        let mut bound = newest_of(party.owner)?;
        for alternative in party.alternatives {
            let newest = newest_of(alternative)?;
            if self.by_time(newest, bound).is_lt() {
                bound = newest;
            }
        }
        Some(bound)
    }
}

impl<'a> Party<'a> {
    /// The owner and the alternatives.
    pub fn readings(&self) -> impl Iterator<Item = &'a Owner> + use<'a> {
        std::iter::once(self.owner).chain(self.alternatives)
    }

    /// Whether its checkpoints are certainly of one container (or pod).
    pub(crate) fn is_one(&self) -> bool {
        self.is_certain && self.is_somebody()
    }

    /// Whether it is known well enough whose it is to speak of "the last one of its container".
    fn is_somebody(&self) -> bool {
        match self.kind {
            Kind::Archive => self.owner.container.is_some(),
            Kind::PodCheckpoint => self.owner.pod.is_some(),
        }
    }
}

/// Finds the party of a checkpoint without comparing strings where scans have shared them.
#[derive(Default)]
struct Registry<'a> {
    parties: Vec<Party<'a>>,
    certain: HashMap<(Kind, &'a Owner), u32>,
    doubtful: HashMap<(Kind, &'a Owner, &'a [Owner]), u32>,
    by_address: HashMap<[usize; 4], u32, foldhash::fast::FixedState>,
    previous: Option<([usize; 4], u32)>,
}

impl<'a> Registry<'a> {
    fn party_of(&mut self, checkpoint: &'a Checkpoint, policy: &Policy) -> u32 {
        let identity = &checkpoint.identity;
        // Ambiguous without another reading: the tenant's own words contradict the engine's. Doubtful, his checkpoints would
        // no longer be superseded by his newer ones, and somebody else's would have to go in their place.
        let is_certain = identity.alternatives.is_empty() && identity.certainty != Certainty::Unknown;
        if !identity.alternatives.is_empty() {
            return self.register(checkpoint, is_certain, policy);
        }
        let address =
            |part: &Option<std::sync::Arc<str>>| part.as_ref().map_or(0, |part| part.as_ptr() as usize);
        let (kind, owner) = (checkpoint.kind, &identity.owner);
        let tag = usize::from(kind == Kind::PodCheckpoint) << 1 | usize::from(is_certain);
        let key = [address(&owner.namespace), address(&owner.pod), address(&owner.container), tag];
        // Scans list a directory by name, and names begin with the pod.
        if let Some((previous, party)) = self.previous
            && previous == key
        {
            return party;
        }
        let party = match self.by_address.get(&key) {
            Some(party) => *party,
            None => {
                let party = self.register(checkpoint, is_certain, policy);
                self.by_address.insert(key, party);
                party
            }
        };
        self.previous = Some((key, party));
        party
    }

    fn register(&mut self, checkpoint: &'a Checkpoint, is_certain: bool, policy: &Policy) -> u32 {
        let (kind, identity) = (checkpoint.kind, &checkpoint.identity);
        let (owner, alternatives) = (&identity.owner, &*identity.alternatives);
        let next = self.parties.len() as u32;
        let party = if is_certain {
            *self.certain.entry((kind, owner)).or_insert(next)
        } else {
            *self.doubtful.entry((kind, owner, alternatives)).or_insert(next)
        };
        if party == next {
            let protected = protection::of_readings(&policy.protection, identity.readings());
            self.parties.push(Party { kind, owner, alternatives, is_certain, protected, newest: None });
        }
        party
    }
}

fn nanoseconds(instant: Timestamp) -> i64 {
    let nanoseconds = i64::from(instant.subsec_nanosecond());
    instant.as_second().saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::fixture::{archive, inventory, now, policy};
    use jiff::SignedDuration;

    #[track_caller]
    fn check(checkpoints: Vec<Checkpoint>, keep_last: u32, expect: &[&str]) {
        let mut policy = policy();
        policy.eviction.keep_last = keep_last;
        let inventory = inventory(checkpoints);
        let census = Census::new(&inventory, &policy, now());
        let words = |index: u32| {
            let follows = census.follows(index);
            let words =
                [(Follows::SUPERSEDED, "superseded"), (Follows::LAST, "last"), (Follows::YOUNG, "young")];
            words
                .iter()
                .filter(|(flag, _)| follows.contains(*flag))
                .map(|(_, word)| *word)
                .collect::<Vec<_>>()
        };
        let got: Vec<_> =
            (0..inventory.checkpoints.len() as u32).map(|index| words(index).join(" ")).collect();
        assert_eq!(got, expect);
    }

    #[test]
    fn the_newest_complete_one_supersedes_all_older_ones_of_its_container() {
        check(
            vec![
                archive("a/p/c", 60, 1),
                archive("a/p/c", 10, 1),
                archive("a/p/c", 30, 1),
                archive("a/p/d", 99, 1),
            ],
            1,
            &["superseded", "last", "superseded", "last"],
        );
    }

    #[test]
    fn keep_last_counts_complete_ones_only() {
        check(
            vec![
                archive("a/p/c", 5, 1).with(States::INCOMPLETE),
                archive("a/p/c", 4, 1).with(States::BEING_WRITTEN),
                archive("a/p/c", 3, 1).with(States::PRE_CHECKPOINT),
                archive("a/p/c", 10, 1),
                archive("a/p/c", 20, 1),
                archive("a/p/c", 30, 1),
                archive("a/p/c", 40, 1).with(States::INCOMPLETE),
            ],
            2,
            &["", "", "", "last", "superseded last", "superseded", "superseded"],
        );
        check(vec![archive("a/p/c", 10, 1)], 0, &[""]);
    }

    #[test]
    fn what_may_be_no_checkpoint_takes_no_place_of_one_that_is() {
        let unproven = |minutes| archive("a/p/c", minutes, 1).with(States::UNPROVEN);
        check(vec![unproven(5), archive("a/p/c", 30, 1), unproven(60)], 1, &["", "last", "superseded"]);
        check(vec![unproven(5), archive("a/p/c", 30, 1), unproven(60)], 2, &["last", "last", "superseded"]);
        // A format to come.
        check(vec![unproven(5), unproven(30), unproven(60)], 1, &["last", "superseded", "superseded"]);
        check(vec![unproven(5), unproven(30), unproven(60)], 2, &["last", "superseded last", "superseded"]);
    }

    #[test]
    fn a_container_that_is_gone_has_no_last_one_to_keep() {
        check(vec![archive("a/p/c", 10, 1).with(States::ORPHAN), archive("a/q/c", 10, 1)], 1, &["", "last"]);
    }

    #[test]
    fn case_10_containers_of_team_and_team_prod_are_counted_apart() {
        check(
            vec![archive("team/x/prod-app", 60, 1), archive("team-prod/x/app", 10, 1)],
            1,
            &["last", "last"],
        );
    }

    #[test]
    fn an_ambiguous_one_supersedes_nobody_and_takes_nobodys_place() {
        check(vec![archive("a/p/c", 60, 1), archive("a/p/c", 10, 1).or(&["b/p/c"])], 1, &["last", "last"]);
    }

    #[test]
    fn an_ambiguous_one_is_superseded_only_when_it_is_by_every_reading() {
        let doubtful = || archive("a/p/c", 60, 1).or(&["b/p/c"]);
        check(vec![doubtful(), archive("a/p/c", 10, 1)], 0, &["", ""]);
        check(vec![doubtful(), archive("a/p/c", 10, 1), archive("b/p/c", 70, 1)], 0, &["", "", ""]);
        check(vec![doubtful(), archive("a/p/c", 10, 1), archive("b/p/c", 20, 1)], 0, &["superseded", "", ""]);
    }

    #[test]
    fn nobody_knows_the_last_one_of_nobody() {
        let mut unknown = archive("?/?/?", 60, 1);
        unknown.identity.certainty = Certainty::Unknown;
        check(vec![unknown.clone(), unknown], 1, &["", ""]);
    }

    #[test]
    fn case_02_equal_times_are_told_apart_by_mtime_then_by_name() {
        let mut earlier = archive("a/p/c", 10, 1);
        earlier.modified -= SignedDuration::from_nanos(1);
        check(vec![archive("a/p/c", 10, 1), earlier], 1, &["last", "superseded"]);
        let mut z = archive("a/p/c", 10, 1);
        z.name = std::ffi::OsString::from("z.tar").into();
        check(vec![archive("a/p/c", 10, 1), z], 1, &["superseded", "last"]);
    }

    #[test]
    fn case_39_one_dated_2039_is_neither_young_for_ever_nor_the_newest_for_ever() {
        let mut dated = archive("a/p/c", 60, 1);
        dated.created = "2039-01-01T00:00:00Z".parse().unwrap();
        check(vec![dated.clone(), archive("a/p/c", 10, 1)], 1, &["superseded", "last"]);
        dated.modified = "2038-01-01T00:00:00Z".parse().unwrap();
        check(vec![dated], 0, &[""]);
        check(vec![archive("a/p/c", 1, 1)], 0, &["young"]);
    }
}
