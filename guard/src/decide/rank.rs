//! The order in which candidates go: a chain of named comparators, first key first, total in the end.
//!
//! A million candidates must be ordered within some 100 ms, and a chain that looks each value up anew at each
//! comparison takes a second. So every key is a number, smaller first; as many keys as fit are packed into 128 bits
//! beforehand (all of the default order), and only their ties are compared key by key. `queue` sorts by them.

use std::cmp::Ordering;
use std::time::Duration;

use crate::decide::census::{Census, Facts, Follows};
use crate::decide::chain::Chains;
use crate::decide::{loss, share};
use crate::model::{Bytes, Need, OrderKey, Signal, States};

/// What min-age and keep-last spare below critical.
const SPARED_BELOW: Follows = Follows::YOUNG.union(Follows::LAST);

/// What is taken or left as one: a checkpoint, or a chain of them. Forty bytes, since there may be a million; with
/// everything in it that is asked for in the order of deletion, where looking it up is a cache miss each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// The leading keys, packed: high half, low half. One `u128` would be aligned to sixteen bytes.
    packed: [u64; 2],
    /// The value of `fair-share`; until [`crate::decide::share`] ran, [`Candidate::holder`].
    share: u64,
    frees: Bytes,
    frees_inodes: u32,
    /// The checkpoint; of a chain the member that goes last stands for it.
    pub(crate) index: u32,
}

impl Candidate {
    /// Until it is known how much that one holds when its turn comes: whose share it is of.
    #[inline]
    pub(crate) fn holder(&self) -> usize {
        self.share as usize
    }

    /// Its leading keys as one number; smaller goes first.
    #[inline]
    pub(crate) fn key(&self) -> u128 {
        u128::from(self.packed[0]) << 64 | u128::from(self.packed[1])
    }

    /// What deleting it frees.
    #[inline]
    pub(crate) fn gain(&self) -> Need {
        Need { bytes: self.frees, inodes: self.frees_inodes.into() }
    }
}

/// What tells two candidates apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// A key of the configured order.
    Order(OrderKey),
    /// At critical: whom min-age or keep-last would spare at any other level goes after the others.
    SparedBelow,
}

/// The keys of a plan. At critical the young and the last ones go too, but not before anybody else of the same
/// protection; when the order does not begin with the protection, not before anybody else at all.
fn keys(order: &[OrderKey], is_critical: bool) -> Vec<Key> {
    let mut keys: Vec<_> = order.iter().copied().map(Key::Order).collect();
    if is_critical {
        let leads = |key: &&OrderKey| matches!(key, OrderKey::Incomplete | OrderKey::LeastProtected);
        keys.insert(order.iter().take_while(leads).count(), Key::SparedBelow);
    }
    keys
}

/// The leading bits of the packed keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lead {
    /// So many keys.
    keys: usize,
    /// So many bits they have.
    pub(crate) bits: u32,
    /// When the last of `cut` more is left out.
    cut: u32,
}

/// Everything the keys are computed from.
pub(crate) struct Ranking<'a> {
    pub(crate) census: &'a Census<'a>,
    pub(crate) chains: &'a Chains,
    /// First key first.
    pub(crate) order: Vec<Key>,
    /// What is short: sizes are compared by it.
    pub(crate) scarce: Signal,
    age_bucket: u64,
    /// The largest of what [`Ranking::value`] is computed from.
    most_buckets: u64,
    most_gain: u64,
    total: u64,
    /// How many keys of `order` are packed, and how many bits each takes.
    packed: usize,
    widths: Vec<u32>,
    /// By party: whose share its checkpoints are of; empty when nobody asks for `fair-share`.
    holders: Vec<u32>,
}

impl<'a> Ranking<'a> {
    pub(crate) fn new(
        census: &'a Census<'a>,
        chains: &'a Chains,
        eviction: &crate::model::EvictionPolicy,
        need: Need,
        is_critical: bool,
    ) -> Ranking<'a> {
        // Where only inodes are short, the largest is the one with most of them (kubernetes#21546).
        let scarce =
            if need.bytes.is_zero() && need.inodes > 0 { Signal::InodesFree } else { Signal::Available };
        let age_bucket = u64::try_from(eviction.age_bucket.as_nanos()).unwrap_or(u64::MAX);
        let mut ranking = Ranking {
            census,
            chains,
            order: keys(&eviction.order, is_critical),
            scarce,
            age_bucket,
            most_buckets: 0,
            most_gain: 0,
            total: 0,
            packed: 0,
            widths: Vec::new(),
            holders: if share::is_wanted(&eviction.order, need) {
                share::holders(census)
            } else {
                Vec::new()
            },
        };
        let extremes = census.extremes();
        ranking.most_buckets = ranking.buckets(census.nanoseconds_since(extremes.oldest));
        ranking.most_gain = ranking.scarce_of(extremes.most_gain);
        ranking.total = ranking.scarce_of(extremes.total);
        ranking.pack_as_many_as_fit();
        ranking
    }

    fn pack_as_many_as_fit(&mut self) {
        self.widths = self.order.iter().map(|key| u64::BITS - self.most(*key).leading_zeros()).collect();
        let mut bits = 0;
        let fits = self.widths.iter().take_while(|width| {
            bits += **width;
            bits <= u128::BITS
        });
        self.packed = fits.count();
    }

    /// The keys that are packed, each with its bits.
    fn packed_keys(&self) -> impl Iterator<Item = (Key, u32)> + '_ {
        self.order.iter().copied().zip(self.widths.iter().copied()).take(self.packed)
    }

    /// The checkpoint at `index`, or of a chain that member of it.
    #[inline]
    pub(crate) fn candidate(&self, index: u32) -> Candidate {
        self.with_key(self.without_key(index))
    }

    #[inline]
    fn without_key(&self, index: u32) -> Candidate {
        let share = match &self.holders[..] {
            [] => 0,
            holders => holders[self.census.party_index(index)].into(),
        };
        let gains = self.chains.with(&index).iter().map(|index| self.census.gain(*index));
        let gain = gains.fold(Need::default(), |all, one| all.plus(one));
        let frees_inodes = u32::try_from(gain.inodes).unwrap_or(u32::MAX);
        Candidate { packed: [0; 2], share, frees: gain.bytes, frees_inodes, index }
    }

    /// Into `places` the place by `lead` alone of each of `facts`, as a candidate of its own. Key by key, so that which key
    /// it is, is not asked anew for each.
    #[inline]
    pub(crate) fn places(&self, lead: Lead, facts: &[Facts], places: &mut [u16]) {
        places.fill(0);
        for (number, (key, width)) in self.packed_keys().take(lead.keys).enumerate() {
            let cut = if number + 1 == lead.keys { lead.cut } else { 0 };
            for (place, facts) in places.iter_mut().zip(facts) {
                *place = place.unbounded_shl(width - cut) | (self.own_value(key, facts) >> cut) as u16;
            }
        }
    }

    /// The same of a candidate whose keys are all known.
    pub(crate) fn place_of(&self, lead: Lead, candidate: &Candidate) -> usize {
        let packed: u32 = self.widths[lead.keys..self.packed].iter().sum();
        candidate.key().unbounded_shr(packed + lead.cut) as usize
    }

    /// The keys that `bits` bits can tell apart: the first ones, as far as candidates are not weighed against each other.
    pub(crate) fn lead(&self, bits: u32) -> Lead {
        let weighs = |key: &Key| matches!(key, Key::Order(OrderKey::FairShare | OrderKey::SmallestLoss));
        let mut lead = Lead { keys: 0, bits: 0, cut: 0 };
        for (_, width) in self.packed_keys().take_while(|(key, _)| !weighs(key)) {
            lead.keys += 1;
            lead.bits += width;
            if lead.bits >= bits {
                lead.cut = lead.bits - bits;
                lead.bits = bits;
                break;
            }
        }
        lead
    }

    /// By party: whose share its checkpoints are of. Empty when nobody asks for `fair-share`.
    pub(crate) fn holders(&self) -> &[u32] {
        &self.holders
    }

    /// The whole chain, as valuable as its most valuable member.
    pub(crate) fn chain_candidate(&self, chain: u32) -> Candidate {
        let members = self.chains.members(chain).iter().map(|index| self.candidate(*index));
        members.max_by(|a, b| self.compare(a, b)).expect("a chain has at least two members")
    }

    #[inline]
    fn with_key(&self, candidate: Candidate) -> Candidate {
        let packed = self.packed_keys().fold(0u128, |packed, (key, width)| {
            // A single key of 64 bits never overflows; that the sum of all fits has been seen to.
            packed << width | u128::from(self.value(key, &candidate))
        });
        Candidate { packed: [(packed >> 64) as u64, packed as u64], ..candidate }
    }

    /// `candidate` as one whose holder holds so much when its turn comes. That is the only value that was not known
    /// when its keys were computed, and computing them all anew would be a cache miss or two each.
    #[inline]
    pub(crate) fn with_share(&self, candidate: Candidate, held: u64) -> Candidate {
        let share = self.total - held.min(self.total);
        let Some((place, (_, width))) =
            self.packed_keys().enumerate().find(|(_, (key, _))| *key == Key::Order(OrderKey::FairShare))
        else {
            return Candidate { share, ..candidate };
        };
        let after: u32 = self.widths[place + 1..self.packed].iter().sum();
        let slot = u128::MAX.unbounded_shr(u128::BITS - width).unbounded_shl(after);
        let packed = candidate.key() & !slot | u128::from(share).unbounded_shl(after);
        Candidate { packed: [(packed >> 64) as u64, packed as u64], share, ..candidate }
    }

    /// The checkpoints that `candidate` stands for, in the order of deletion.
    #[inline]
    pub(crate) fn members<'c>(&'c self, candidate: &'c Candidate) -> &'c [u32] {
        self.chains.with(&candidate.index)
    }

    /// What `amount` is of the scarce signal.
    #[inline]
    pub(crate) fn scarce_of(&self, amount: Need) -> u64 {
        match self.scarce {
            Signal::Available => amount.bytes.0,
            Signal::InodesFree => amount.inodes,
        }
    }

    /// What all checkpoints together free of the scarce signal.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// By how many bits to shift [`Candidate::key`] to the right so that only the first `count` keys are left; `None`
    /// when not all of these are packed.
    pub(crate) fn leading(&self, count: usize) -> Option<u32> {
        self.widths[..self.packed].get(count..).map(|rest| rest.iter().sum())
    }

    /// Smaller goes first. A total order: the keys, then instant, mtime, name, directory, inode.
    #[inline]
    pub(crate) fn compare(&self, a: &Candidate, b: &Candidate) -> Ordering {
        a.key().cmp(&b.key()).then_with(|| self.compare_tied(a, b))
    }

    /// The same for two whose [`Candidate::key`] is equal.
    pub(crate) fn compare_tied(&self, a: &Candidate, b: &Candidate) -> Ordering {
        let by_rest = self.by_keys(&self.order[self.packed..], a, b);
        by_rest.map_or(Ordering::Equal, |(_, by)| by).then_with(|| self.census.by_time(a.index, b.index))
    }

    /// The first of `keys` that tells the two apart.
    pub(crate) fn by_keys(&self, keys: &[Key], a: &Candidate, b: &Candidate) -> Option<(Key, Ordering)> {
        let compared = keys.iter().map(|key| (*key, self.value(*key, a).cmp(&self.value(*key, b))));
        compared.into_iter().find(|(_, order)| order.is_ne())
    }

    /// Smaller goes first.
    #[inline]
    fn value(&self, key: Key, candidate: &Candidate) -> u64 {
        let own = || self.own_value(key, &self.census.facts()[candidate.index as usize]);
        match key {
            Key::Order(OrderKey::FairShare) => candidate.share,
            _ if self.chains.of(candidate.index).is_none() => own(),
            // One member that would have been spared would have spared its whole chain.
            Key::SparedBelow => {
                let mut members = self.members(candidate).iter();
                members.any(|index| self.census.follows(*index).intersects(SPARED_BELOW)).into()
            }
            Key::Order(OrderKey::Largest) => self.most(key) - self.scarce_of(candidate.gain()),
            Key::Order(OrderKey::SmallestLoss) => {
                loss::per_unit(self.whole_loss(candidate), self.scarce_of(candidate.gain()))
            }
            Key::Order(_) => own(),
        }
    }

    /// The same of one checkpoint that goes alone, but for `fair-share`, of which it knows nothing itself.
    #[inline(always)]
    fn own_value(&self, key: Key, facts: &Facts) -> u64 {
        let Key::Order(key) = key else { return facts.follows.intersects(SPARED_BELOW).into() };
        match key {
            OrderKey::Incomplete => (!facts.states.contains(States::INCOMPLETE)).into(),
            OrderKey::LeastProtected => facts.protection.get().into(),
            OrderKey::Orphan => (!facts.states.contains(States::ORPHAN)).into(),
            OrderKey::Superseded => (!facts.follows.contains(Follows::SUPERSEDED)).into(),
            OrderKey::Oldest => {
                self.most_buckets - self.buckets(self.census.nanoseconds_since(facts.instant))
            }
            OrderKey::Largest => self.most(Key::Order(key)) - self.scarce_of(facts.gain()),
            OrderKey::SmallestLoss => loss::per_unit(self.loss(facts), self.scarce_of(facts.gain())),
            OrderKey::FairShare => 0,
        }
    }

    /// What losing all that `candidate` stands for costs.
    pub(crate) fn whole_loss(&self, candidate: &Candidate) -> u64 {
        self.members(candidate).iter().map(|index| self.loss(&self.census.facts()[*index as usize])).sum()
    }

    /// What losing one checkpoint costs.
    fn loss(&self, facts: &Facts) -> u64 {
        let is_incomplete = facts.states.contains(States::INCOMPLETE);
        let age = Duration::from_nanos(self.census.nanoseconds_since(facts.instant));
        loss::of(is_incomplete, facts.protection, facts.follows, age)
    }

    /// How many age buckets that is.
    #[inline]
    fn buckets(&self, nanoseconds: u64) -> u64 {
        nanoseconds.checked_div(self.age_bucket).unwrap_or(nanoseconds)
    }

    /// The largest value of `key` here. Few bits hold it: that is how the usual orders fit into 128.
    #[inline]
    fn most(&self, key: Key) -> u64 {
        let Key::Order(key) = key else { return 1 };
        match key {
            OrderKey::Incomplete | OrderKey::Orphan | OrderKey::Superseded => 1,
            OrderKey::LeastProtected => 100,
            OrderKey::Oldest => self.most_buckets,
            // A chain may hold as much as all.
            OrderKey::Largest if self.chains.is_empty() => self.most_gain,
            OrderKey::Largest => self.total,
            OrderKey::FairShare => self.total.max(self.holders.len() as u64),
            OrderKey::SmallestLoss => u64::MAX,
        }
    }
}
