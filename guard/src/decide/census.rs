//! [`Census`]: what follows of each checkpoint from the others, the policy and the time.
//!
//! Ambiguous identities get here what FORMAT.md demands: nobody gains and nobody loses by one. It neither supersedes
//! another checkpoint nor takes another's keep-last place. It counts as superseded only when that is true whichever
//! of its readings is, and it shares a keep-last place with those of exactly the same readings.

mod party;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

pub use self::party::Party;
use self::party::{Address, Registry};
use crate::model::{Bytes, Inventory, Kind, Need, Owner, Policy, Protection, States};

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

impl Facts {
    #[inline]
    fn gain(&self) -> Need {
        Need { bytes: self.allocated, inodes: self.inodes.into() }
    }
}

/// How many records are read before anything is looked up for them. The processor fetches records side by side as long
/// as nothing depends on what was found for the one before: a million are read in a third of the time.
const BLOCK: usize = 64;

impl<'a> Census<'a> {
    /// Counts `inventory` as it stands at `now`. Linear in the number of checkpoints.
    pub fn new(inventory: &'a Inventory, policy: &Policy, now: Timestamp) -> Census<'a> {
        let mut registry = Registry::default();
        let min_age = i64::try_from(policy.eviction.min_age.as_nanos()).unwrap_or(i64::MAX);
        let present = nanoseconds(now);
        let mut extremes = Extremes { oldest: present, ..Extremes::default() };
        let mut facts: Vec<Facts> = Vec::with_capacity(inventory.checkpoints.len());
        let mut addresses = Vec::with_capacity(BLOCK);
        for block in inventory.checkpoints.chunks(BLOCK) {
            let start = facts.len();
            facts.extend(block.iter().map(|checkpoint| {
                let instant = nanoseconds(checkpoint.instant(now));
                // One whose every witness lies in the future is not young: it would stay so until then.
                let is_young = instant <= present && present.saturating_sub(instant) < min_age;
                extremes.note(instant, checkpoint.gain());
                Facts {
                    instant,
                    allocated: checkpoint.allocated,
                    inodes: checkpoint.inodes,
                    party: 0,
                    follows: if is_young { Follows::YOUNG } else { Follows::empty() },
                    states: checkpoint.states,
                    protection: Protection::NEVER,
                }
            }));
            addresses.clear();
            addresses.extend(block.iter().map(Address::of));
            for ((facts, checkpoint), address) in facts[start..].iter_mut().zip(block).zip(&addresses) {
                facts.party = registry.party_of(checkpoint, *address, policy);
                let party = &mut registry.parties[facts.party as usize];
                facts.protection = party.protected.protection;
                party.count += 1;
                party.holds = party.holds.plus(facts.gain());
            }
        }
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
        self.facts[index as usize].gain()
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
            if bound.is_some_and(|newest| index != newest && self.by_time(index, newest).is_lt()) {
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

fn nanoseconds(instant: Timestamp) -> i64 {
    let nanoseconds = i64::from(instant.subsec_nanosecond());
    instant.as_second().saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

#[cfg(test)]
mod tests;
