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
use self::party::{Address, Newest, Registry};
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
    /// What was observed of any.
    pub(crate) states: States,
}

impl Extremes {
    fn note(&mut self, instant: i64, gain: Need, states: States) {
        self.oldest = self.oldest.min(instant);
        self.most_gain = self.most_gain.max(gain);
        self.total = self.total.plus(gain);
        self.states |= states;
    }
}

/// Everything that a decision asks for again and again, in 32 bytes: there may be a million of them, and walking the
/// large records in any order but their own is a cache miss each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// [`Checkpoint::instant`] in nanoseconds; beyond the years 1677 and 2262 the nearest that fits.
    pub(crate) instant: i64,
    allocated: Bytes,
    inodes: u32,
    party: u32,
    pub(crate) follows: Follows,
    pub(crate) states: States,
    pub(crate) protection: Protection,
}

impl Facts {
    /// What deleting it frees.
    #[inline]
    pub(crate) fn gain(&self) -> Need {
        Need { bytes: self.allocated, inodes: self.inodes.into() }
    }
}

impl Newest {
    fn new(facts: &Facts, index: u32) -> Newest {
        Newest { is_proven: !facts.states.contains(States::UNPROVEN), instant: facts.instant, index }
    }
}

/// How many records are read before anything is looked up for them. The processor fetches records side by side as long
/// as nothing depends on what was found for the one before: a million are read in a third of the time.
pub(crate) const BLOCK: usize = 64;

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
                extremes.note(instant, checkpoint.gain(), checkpoint.states);
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
            let indices = start as u32..;
            let block = facts[start..].iter_mut().zip(block).zip(&addresses).zip(indices);
            for (((facts, checkpoint), address), index) in block {
                facts.party = registry.party_of(checkpoint, *address, policy);
                let party = &mut registry.parties[facts.party as usize];
                facts.protection = party.protected.protection;
                party.count += 1;
                party.holds = party.holds.plus(facts.gain());
                let this = Newest::new(facts, index);
                if party.is_somebody
                    && !facts.states.intersects(NOT_RESTORABLE)
                    && party.newest.is_none_or(|other| by_worth(inventory, now, &other, &this).is_lt())
                {
                    party.newest = Some(this);
                }
            }
        }
        let mut census = Census { inventory, now, present, parties: registry.parties, facts, extremes };
        census.mark_newest(policy.eviction.keep_last as usize);
        census.find_superseded(&registry.certain);
        census
    }

    /// How many checkpoints there are.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.facts.len() as u32
    }

    /// What is known of each checkpoint, by index.
    #[inline]
    pub(crate) fn facts(&self) -> &[Facts] {
        &self.facts
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
        self.instant(a).cmp(&self.instant(b)).then_with(|| by_name(self.inventory, self.now, a, b))
    }

    /// Marks the newest restorable one of each party, and the newest `keep_last`.
    fn mark_newest(&mut self, keep_last: usize) {
        for party in 0..self.parties.len() {
            if let Some(Newest { index, .. }) = self.parties[party].newest {
                self.facts[index as usize].follows |= Follows::NEWEST;
                self.keep(&[index][..keep_last.min(1)]);
            }
        }
        if keep_last > 1 {
            self.find_last(keep_last);
        }
    }

    /// Marks the newest `keep_last` restorable ones of each party.
    fn find_last(&mut self, keep_last: usize) {
        let (mut members, ends) = self.restorable_by_party();
        let mut start = 0;
        for end in ends {
            let members = &mut members[start..end];
            start = end;
            let count = keep_last.min(members.len());
            if 0 < count && count < members.len() {
                let worth = |index: &u32| Newest::new(&self.facts[*index as usize], *index);
                let later_first = |a: &u32, b: &u32| by_worth(self.inventory, self.now, &worth(b), &worth(a));
                members.select_nth_unstable_by(count - 1, later_first);
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
    fn restorable_by_party(&self) -> (Vec<u32>, Vec<usize>) {
        let is_somebody: Vec<bool> = self.parties.iter().map(|party| party.is_somebody).collect();
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
        // Older than the earliest is nobody.
        const NOBODY: (i64, u32) = (i64::MIN, u32::MAX);
        let bounds: Vec<(i64, u32)> =
            self.parties.iter().map(|party| self.bound(party, certain).unwrap_or(NOBODY)).collect();
        let (inventory, now) = (self.inventory, self.now);
        for (facts, index) in self.facts.iter_mut().zip(0u32..) {
            let (instant, newest) = bounds[facts.party as usize];
            let is_tied = facts.instant == instant && index != newest && newest != NOBODY.1;
            if facts.instant < instant || is_tied && by_name(inventory, now, index, newest).is_lt() {
                facts.follows |= Follows::SUPERSEDED;
            }
        }
    }

    /// The checkpoint that all superseded ones of `party` are older than, and its instant: the oldest of the newest, since
    /// superseded by every reading is whoever is older than each reading's newest.
    fn bound(&self, party: &Party<'a>, certain: &HashMap<(Kind, &Owner), u32>) -> Option<(i64, u32)> {
        let newest_of = |owner: &Owner| {
            let newest = if party.is_certain {
                party.newest
            } else {
                certain.get(&(party.kind, owner)).and_then(|party| self.parties[*party as usize].newest)
            };
            newest.map(|newest| (newest.instant, newest.index))
        };
        let mut bound = newest_of(party.owner)?;
        for alternative in party.alternatives {
            let newest = newest_of(alternative)?;
            if self.by_time(newest.1, bound.1).is_lt() {
                bound = newest;
            }
        }
        Some(bound)
    }
}

/// Unproven ones first, then older first. In a format that this version does not know, all are unproven, and time decides
/// alone.
#[inline]
fn by_worth(inventory: &Inventory, now: Timestamp, a: &Newest, b: &Newest) -> Ordering {
    let key = |newest: &Newest| (newest.is_proven, newest.instant);
    key(a).cmp(&key(b)).then_with(|| by_name(inventory, now, a.index, b.index))
}

/// Tells those apart whose instants are equal as far as 64 bits hold them.
#[cold]
fn by_name(inventory: &Inventory, now: Timestamp, a: u32, b: u32) -> Ordering {
    let key = |index: u32| {
        let checkpoint = &inventory.checkpoints[index as usize];
        (
            checkpoint.instant(now),
            checkpoint.modified,
            &checkpoint.name,
            checkpoint.directory,
            checkpoint.file,
        )
    };
    key(a).cmp(&key(b))
}

fn nanoseconds(instant: Timestamp) -> i64 {
    let nanoseconds = i64::from(instant.subsec_nanosecond());
    instant.as_second().saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

#[cfg(test)]
mod tests;
