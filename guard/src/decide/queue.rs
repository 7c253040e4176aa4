//! The candidates in the order in which they go, as far as anybody wants to know it.
//!
//! Who goes first among a million is known long before the last two are told apart. So candidates are sorted up to where
//! the need is met and a little further; only somebody who asks why each is spared pays for the rest.

use crate::decide::census::BLOCK;
use crate::decide::rank::{Candidate, Key, Ranking};
use crate::decide::rules::Rules;
use crate::decide::share;
use crate::model::{Need, OrderKey};

/// Candidates. Those up to [`Queue::sorted`] stand in their order, and none of the others comes before any of them.
pub(crate) struct Queue {
    some: Vec<Candidate>,
    sorted: usize,
    is_all_sorted: bool,
}

/// How far to sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// To the end.
    All,
    /// At least so many, and until the need is met.
    Needed(usize),
}

impl Queue {
    /// Whoever may go at all, in order as far as `extent` says.
    pub(crate) fn new(ranking: &Ranking<'_>, rules: &Rules<'_>, need: Need, extent: Extent) -> Queue {
        let (mut some, is_all) = match extent {
            Extent::All => (all(ranking, rules), true),
            Extent::Needed(least) => first(ranking, rules, need, least),
        };
        let sorted = match extent {
            Extent::All => some.len(),
            Extent::Needed(least) => select(ranking, &mut some, need, least),
        };
        let head = &mut some[..sorted];
        head.sort_unstable_by_key(Candidate::key);
        settle_ties(ranking, head);
        if !ranking.holders().is_empty() {
            share::settle(ranking, head);
            // Stable, because that sort knows runs: among equals by the keys before stand the holders one after the
            // other, each in its order, and to merge them is all that is left to do.
            head.sort_by_key(Candidate::key);
            settle_ties(ranking, head);
        }
        let is_all_sorted = is_all && sorted == some.len();
        Queue { some, sorted, is_all_sorted }
    }

    /// The candidates that are sorted, first to go first.
    pub(crate) fn sorted(&self) -> &[Candidate] {
        &self.some[..self.sorted]
    }

    /// Whether there is no other.
    pub(crate) fn is_all_sorted(&self) -> bool {
        self.is_all_sorted
    }
}

/// Whether the checkpoint at `index` is a candidate of its own.
#[inline]
fn is_alone(ranking: &Ranking<'_>, rules: &Rules<'_>, index: u32) -> bool {
    ranking.chains.of(index).is_none() && rules.may_go(index)
}

fn chains<'r>(ranking: &'r Ranking<'_>, rules: &'r Rules<'_>) -> impl Iterator<Item = Candidate> + 'r {
    let free = ranking.chains.all().filter(|chain| !rules.chain_stays(*chain));
    free.map(|chain| ranking.chain_candidate(chain))
}

fn all(ranking: &Ranking<'_>, rules: &Rules<'_>) -> Vec<Candidate> {
    let mut all = Vec::with_capacity(ranking.census.len() as usize);
    let alone = (0..ranking.census.len()).filter(|index| is_alone(ranking, rules, *index));
    all.extend(alone.map(|index| ranking.candidate(index)));
    all.extend(chains(ranking, rules));
    all
}

/// At most so many bits of the leading keys tell who is far from going.
const LEAD_BITS: u32 = 12;

/// Those candidates that may be among the first `least` or those that meet `need`, and whether that is all of them.
///
/// Most candidates are far from going, and a few bits of their leading keys show it. Only for the others are all keys
/// worked out and kept: that is most of the time and memory of a plan.
fn first(ranking: &Ranking<'_>, rules: &Rules<'_>, need: Need, least: usize) -> (Vec<Candidate>, bool) {
    let lead = ranking.lead(ranking.census.len().checked_ilog2().unwrap_or(0).min(LEAD_BITS));
    let mut at_place = vec![(0usize, Need::default()); 1 << lead.bits];
    let mut note = |place: usize, gain: Need| {
        let (count, gains) = &mut at_place[place];
        (*count, *gains) = (*count + 1, gains.plus(gain));
    };
    const NO_PLACE: u16 = u16::MAX;
    let mut places = vec![0; ranking.census.len() as usize];
    let mut index = 0;
    for (places, facts) in places.chunks_mut(BLOCK).zip(ranking.census.facts().chunks(BLOCK)) {
        ranking.places(lead, facts, places);
        for (place, facts) in places.iter_mut().zip(facts) {
            if is_alone(ranking, rules, index) {
                note(usize::from(*place), facts.gain());
            } else {
                *place = NO_PLACE;
            }
            index += 1;
        }
    }
    let chains: Vec<Candidate> = chains(ranking, rules).collect();
    for chain in &chains {
        note(ranking.place_of(lead, chain), chain.gain());
    }
    let (mut count, mut left, mut last) = (0, need, 0);
    for (place, (there, gains)) in at_place.iter().enumerate() {
        if count >= least && left.is_met() {
            break;
        }
        (count, left, last) = (count + there, left.less(*gains), place);
    }
    let mut some = Vec::with_capacity(count);
    let near = (0u32..).zip(&places).filter(|(_, place)| usize::from(**place) <= last);
    some.extend(near.map(|(index, _)| ranking.candidate(index)));
    some.extend(chains.into_iter().filter(|chain| ranking.place_of(lead, chain) <= last));
    let is_all = at_place[last + 1..].iter().all(|(there, _)| *there == 0);
    (some, is_all)
}

/// Brings to the front of `all` those that go first, `least` or more of them and enough to meet `need`; how many they are.
fn select(ranking: &Ranking<'_>, all: &mut [Candidate], need: Need, least: usize) -> usize {
    // As many as would do if all were alike, and some more.
    let alike = ranking.census.len() as u128 * u128::from(ranking.scarce_of(need))
        / u128::from(ranking.total().max(1));
    let mut step = usize::try_from(alike + alike / 8).unwrap_or(usize::MAX).max(least).max(1);
    let (mut done, mut left) = (0, need);
    while done < all.len() && (done < least || !left.is_met()) {
        let rest = &mut all[done..];
        let count = step.min(rest.len());
        if count < rest.len() {
            rest.select_nth_unstable_by(count - 1, |a, b| ranking.compare(a, b));
        }
        left = rest[..count].iter().fold(left, |left, candidate| left.less(candidate.gain()));
        done += count;
        step = step.saturating_mul(2);
    }
    complete_group(ranking, all, done)
}

/// `fair-share` and `smallest-loss` weigh against each other all that are equal by the keys before them: the equals of
/// the last of the first `count`, which are selected, are brought behind it; how many there are then.
fn complete_group(ranking: &Ranking<'_>, all: &mut [Candidate], count: usize) -> usize {
    let weighs = |key: &Key| matches!(key, Key::Order(OrderKey::FairShare | OrderKey::SmallestLoss));
    let Some(key) = ranking.order.iter().position(weighs).filter(|_| 0 < count && count < all.len()) else {
        return count;
    };
    let last = all[count - 1];
    let leading = ranking.leading(key);
    let mut end = count;
    for place in count..all.len() {
        let is_equal = match leading {
            Some(shift) => last.key().unbounded_shr(shift) == all[place].key().unbounded_shr(shift),
            None => ranking.by_keys(&ranking.order[..key], &last, &all[place]).is_none(),
        };
        if is_equal {
            all.swap(end, place);
            end += 1;
        }
    }
    end
}

/// Puts those with equal [`Candidate::key`], which stand side by side, in their order.
fn settle_ties(ranking: &Ranking<'_>, candidates: &mut [Candidate]) {
    for tied in candidates.chunk_by_mut(|a, b| a.key() == b.key()).filter(|tied| tied.len() > 1) {
        tied.sort_unstable_by(|a, b| ranking.compare_tied(a, b));
    }
}
