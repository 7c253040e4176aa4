//! The order in which candidates go: a chain of named comparators, first key first, total in the end.
//!
//! A million candidates must be sorted within some 100 ms, and a chain that looks each value up anew at each
//! comparison takes a second. So every key is a number, smaller first; as many keys as fit are packed into 128 bits
//! beforehand (all of the default order), and only their ties are compared key by key.

use std::cmp::Ordering;
use std::time::Duration;

use crate::decide::census::{Census, Follows};
use crate::decide::chain::Chains;
use crate::decide::loss;
use crate::model::{Need, OrderKey, Signal, States};

/// What is taken or left as one: a checkpoint, or a chain of them. Twenty-four bytes, since there may be a million.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// The leading keys, packed: high half, low half. One `u128` would be aligned to sixteen bytes.
    packed: [u64; 2],
    /// The checkpoint; of a chain the member that goes last stands for it.
    pub(crate) index: u32,
}

/// Everything the keys are computed from.
pub(crate) struct Ranking<'a> {
    pub(crate) census: &'a Census<'a>,
    pub(crate) chains: &'a Chains,
    pub(crate) order: &'a [OrderKey],
    /// What is short: sizes are compared by it.
    pub(crate) scarce: Signal,
    age_bucket: u64,
    now: i128,
    /// The largest of what [`Ranking::value`] is computed from.
    most_buckets: u64,
    most_gain: u64,
    total: u64,
    /// How many keys of `order` are packed.
    packed: usize,
    /// By checkpoint: how much its namespace holds when its turn comes. Empty until [`crate::decide::share`] ran.
    pub(crate) held: Vec<u64>,
}

impl<'a> Ranking<'a> {
    pub(crate) fn new(
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
            census,
            chains,
            order: &eviction.order,
            scarce,
            age_bucket,
            now: now.as_nanosecond(),
            most_buckets: 0,
            most_gain: 0,
            total: 0,
            packed: 0,
            held: Vec::new(),
        };
        let extremes = census.extremes();
        ranking.most_buckets = ranking.buckets(extremes.oldest);
        ranking.most_gain = ranking.scarce_of(extremes.most_gain);
        ranking.total = ranking.scarce_of(extremes.total);
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

    /// The checkpoint at `index`, or of a chain that member of it.
    pub(crate) fn candidate(&self, index: u32) -> Candidate {
        self.with_key(Candidate { packed: [0; 2], index })
    }

    /// The whole chain, as valuable as its most valuable member.
    pub(crate) fn chain_candidate(&self, chain: u32) -> Candidate {
        let members = self.chains.members(chain).iter().map(|index| self.candidate(*index));
        members.max_by(|a, b| self.compare(a, b)).expect("a chain has at least two members")
    }

    fn with_key(&self, candidate: Candidate) -> Candidate {
        let packed = self.order[..self.packed].iter().fold(0u128, |packed, key| {
            // A single key of 64 bits never overflows; that the sum of all fits has been seen to.
            packed << self.width(*key) | u128::from(self.value(*key, &candidate))
        });
        Candidate { packed: [(packed >> 64) as u64, packed as u64], ..candidate }
    }

    /// `candidate` with its share, which is the only value that was not known when its keys were computed. To compute
    /// them all anew would walk the large records in the order of candidates, a cache miss each.
    pub(crate) fn with_share(&self, candidate: Candidate) -> Candidate {
        let keys = &self.order[..self.packed];
        let Some(place) = keys.iter().position(|key| *key == OrderKey::FairShare) else {
            return candidate;
        };
        let after: u32 = keys[place + 1..].iter().map(|key| self.width(*key)).sum();
        let share = u128::from(self.value(OrderKey::FairShare, &candidate)) << after;
        let [high, low] = candidate.packed;
        Candidate { packed: [high | (share >> 64) as u64, low | share as u64], ..candidate }
    }

    /// The checkpoints that `candidate` stands for, in the order of deletion.
    pub(crate) fn members<'c>(&'c self, candidate: &'c Candidate) -> &'c [u32] {
        self.chains.with(&candidate.index)
    }

    /// What deleting `candidate` frees.
    pub(crate) fn gain(&self, candidate: &Candidate) -> Need {
        let gains = self.members(candidate).iter().map(|index| self.census.gain(*index));
        gains.fold(Need::default(), |all, one| all.plus(one))
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
            .then_with(|| self.census.by_time(a.index, b.index))
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
        let states = || self.census.states(candidate.index);
        let follows = || self.census.follows(candidate.index);
        match key {
            OrderKey::Incomplete => (!states().contains(States::INCOMPLETE)).into(),
            OrderKey::LeastProtected => self.census.protection(candidate.index).get().into(),
            OrderKey::Orphan => (!states().contains(States::ORPHAN)).into(),
            OrderKey::Superseded => (!follows().contains(Follows::SUPERSEDED)).into(),
            OrderKey::Oldest => self.most_buckets - self.buckets(self.census.instant(candidate.index)),
            OrderKey::Largest => self.most(key) - self.scarce_of(self.gain(candidate)),
            OrderKey::SmallestLoss => {
                let loss = self.members(candidate).iter().map(|index| self.loss(*index)).sum();
                loss::per_unit(loss, self.scarce_of(self.gain(candidate)))
            }
            OrderKey::FairShare => {
                self.held.get(candidate.index as usize).map_or(0, |held| self.total - held)
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

    /// How many age buckets old.
    fn buckets(&self, instant: i64) -> u64 {
        let age = self.age(instant);
        age.checked_div(self.age_bucket).unwrap_or(age)
    }

    fn age(&self, instant: i64) -> u64 {
        u64::try_from((self.now - i128::from(instant)).max(0)).unwrap_or(u64::MAX)
    }

    /// The largest value of `key` here. Few bits hold it: that is how the usual orders fit into 128.
    fn most(&self, key: OrderKey) -> u64 {
        match key {
            OrderKey::Incomplete | OrderKey::Orphan | OrderKey::Superseded => 1,
            OrderKey::LeastProtected => 100,
            OrderKey::Oldest => self.most_buckets,
            // A chain may hold as much as all.
            OrderKey::Largest if self.chains.is_empty() => self.most_gain,
            OrderKey::Largest | OrderKey::FairShare => self.total,
            OrderKey::SmallestLoss => u64::MAX,
        }
    }

    fn width(&self, key: OrderKey) -> u32 {
        u64::BITS - self.most(key).leading_zeros()
    }
}
