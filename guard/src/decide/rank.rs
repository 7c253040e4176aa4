//! The order in which candidates go: a chain of named comparators, first key first, total in the end.
//!
//! A million candidates must be sorted within some 100 ms, and a chain that looks each value up anew at each
//! comparison takes a second. So every key is a number, smaller first; as many keys as fit are packed into 128 bits
//! beforehand (all of the default order), and only their ties are compared key by key.

use std::cmp::Ordering;
use std::time::Duration;

use crate::decide::census::{Census, Follows};
use crate::decide::chain::{Chains, Unit};
use crate::decide::loss;
use crate::model::{Inventory, Need, OrderKey, Signal, States};

/// What is taken or left as one: a checkpoint, or a chain of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// The leading keys, packed.
    packed: u128,
    instant: i64,
    /// Of a chain, the member that goes last stands for it.
    pub(crate) unit: Unit,
}

/// Everything the keys are computed from.
pub(crate) struct Ranking<'a> {
    pub(crate) inventory: &'a Inventory,
    pub(crate) census: &'a Census<'a>,
    pub(crate) chains: &'a Chains,
    pub(crate) order: &'a [OrderKey],
    /// What is short: sizes are compared by it.
    pub(crate) scarce: Signal,
    age_bucket: u64,
    now: i128,
    /// How many keys of `order` are packed.
    packed: usize,
    /// By checkpoint: how much its namespace holds when its turn comes. Empty until [`crate::decide::share`] ran.
    pub(crate) held: Vec<u64>,
}

impl<'a> Ranking<'a> {
    pub(crate) fn new(
        inventory: &'a Inventory,
        census: &'a Census<'a>,
        chains: &'a Chains,
        eviction: &'a crate::model::EvictionPolicy,
        need: Need,
        now: jiff::Timestamp,
    ) -> Ranking<'a> {
        // Where only inodes are short, the largest is the one with most of them (kubernetes#21546).
        let scarce =
            if need.bytes.is_zero() && need.inodes > 0 { Signal::InodesFree } else { Signal::Available };
        let age_bucket = u64::try_from(eviction.age_bucket.as_nanos()).unwrap_or(u64::MAX);
        let mut ranking = Ranking {
            inventory,
            census,
            chains,
            order: &eviction.order,
            scarce,
            age_bucket,
            now: now.as_nanosecond(),
            packed: 0,
            held: Vec::new(),
        };
        ranking.pack_as_many_as_fit();
        ranking
    }

    fn pack_as_many_as_fit(&mut self) {
        let mut bits = 0;
        let fits = self.order.iter().take_while(|key| {
            bits += self.width(**key);
            bits <= u128::BITS
        });
        self.packed = fits.count();
    }

    /// The checkpoint at `index` by itself.
    pub(crate) fn candidate(&self, index: u32) -> Candidate {
        self.unit_candidate(Unit::single(index))
    }

    /// The whole chain, as valuable as its most valuable member.
    pub(crate) fn chain_candidate(&self, chain: u32) -> Candidate {
        let members = self.chains.members(chain).iter();
        let candidates = members.map(|index| self.unit_candidate(Unit::chain(chain, *index)));
        candidates.max_by(|a, b| self.compare(a, b)).expect("a chain has at least two members")
    }

    fn unit_candidate(&self, unit: Unit) -> Candidate {
        self.with_key(Candidate { packed: 0, instant: self.census.instant(unit.index), unit })
    }

    /// `candidate` with its keys computed anew.
    pub(crate) fn with_key(&self, candidate: Candidate) -> Candidate {
        let packed = self.order[..self.packed].iter().fold(0u128, |packed, key| {
            // A single key of 64 bits never overflows; that the sum of all fits has been seen to.
            packed << self.width(*key) | u128::from(self.value(*key, &candidate))
        });
        Candidate { packed, ..candidate }
    }

    /// The checkpoints that `candidate` stands for, in the order of deletion.
    pub(crate) fn members<'c>(&'c self, candidate: &'c Candidate) -> &'c [u32] {
        self.chains.members_of(&candidate.unit)
    }

    /// What deleting `candidate` frees.
    pub(crate) fn gain(&self, candidate: &Candidate) -> Need {
        let gain = |index: &u32| self.inventory.checkpoints[*index as usize].gain();
        self.members(candidate).iter().map(gain).fold(Need::default(), |all, one| all.plus(one))
    }

    /// What `amount` is of the scarce signal.
    pub(crate) fn scarce_of(&self, amount: Need) -> u64 {
        match self.scarce {
            Signal::Available => amount.bytes.0,
            Signal::InodesFree => amount.inodes,
        }
    }

    #[inline]
    /// Smaller goes first. A total order: the keys, then instant, mtime, name, directory, inode.
    pub(crate) fn compare(&self, a: &Candidate, b: &Candidate) -> Ordering {
        a.packed
            .cmp(&b.packed)
            .then_with(|| {
                self.by_keys(&self.order[self.packed..], a, b).map_or(Ordering::Equal, |(_, by)| by)
            })
            .then(a.instant.cmp(&b.instant))
            .then_with(|| self.census.by_time(a.unit.index, b.unit.index))
    }

    /// The first of `keys` that tells the two apart.
    pub(crate) fn by_keys(
        &self,
        keys: &[OrderKey],
        a: &Candidate,
        b: &Candidate,
    ) -> Option<(OrderKey, Ordering)> {
        let compared = keys.iter().map(|key| (*key, self.value(*key, a).cmp(&self.value(*key, b))));
        compared.into_iter().find(|(_, order)| order.is_ne())
    }

    /// Smaller goes first.
    fn value(&self, key: OrderKey, candidate: &Candidate) -> u64 {
        let states = || self.census.states(candidate.unit.index);
        let follows = || self.census.follows(candidate.unit.index);
        match key {
            OrderKey::Incomplete => (!states().contains(States::INCOMPLETE)).into(),
            OrderKey::LeastProtected => self.census.protection(candidate.unit.index).get().into(),
            OrderKey::Orphan => (!states().contains(States::ORPHAN)).into(),
            OrderKey::Superseded => (!follows().contains(Follows::SUPERSEDED)).into(),
            OrderKey::Oldest => self.youth(candidate.instant),
            OrderKey::Largest => u64::MAX - self.scarce_of(self.gain(candidate)),
            OrderKey::SmallestLoss => {
                let loss = self.members(candidate).iter().map(|index| self.loss(*index)).sum();
                loss::per_unit(loss, self.scarce_of(self.gain(candidate)))
            }
            OrderKey::FairShare => {
                self.held.get(candidate.unit.index as usize).map_or(0, |held| u64::MAX - held)
            }
        }
    }

    /// What losing the checkpoint at `index` costs.
    pub(crate) fn loss(&self, index: u32) -> u64 {
        let is_incomplete = self.census.states(index).contains(States::INCOMPLETE);
        let follows = self.census.follows(index);
        let protection = self.census.protection(index);
        loss::of(
            is_incomplete,
            protection,
            follows,
            Duration::from_nanos(self.age(self.census.instant(index))),
        )
    }

    /// Smaller is older, by age bucket.
    fn youth(&self, instant: i64) -> u64 {
        let buckets = self.age(instant).checked_div(self.age_bucket).unwrap_or(self.age(instant));
        let most = if self.width(OrderKey::Oldest) == 40 { (1 << 40) - 1 } else { u64::MAX };
        most - buckets
    }

    fn age(&self, instant: i64) -> u64 {
        u64::try_from((self.now - i128::from(instant)).max(0)).unwrap_or(u64::MAX)
    }

    /// How many bits hold every value of `key`.
    fn width(&self, key: OrderKey) -> u32 {
        match key {
            OrderKey::Incomplete | OrderKey::Orphan | OrderKey::Superseded => 1,
            OrderKey::LeastProtected => 7,
            // 2^64 ns in buckets of a second and more are fewer than 2^35.
            OrderKey::Oldest if self.age_bucket >= 1_000_000_000 => 40,
            OrderKey::Oldest | OrderKey::Largest | OrderKey::SmallestLoss | OrderKey::FairShare => 64,
        }
    }
}
