//! `fair-share`: whoever holds the most pays next.

use std::collections::HashMap;

use crate::decide::census::Census;
use crate::decide::rank::{Candidate, Ranking};
use crate::model::{Need, OrderKey};

/// By party, whose holdings its checkpoints count among: its namespace's, or, for all whose owner is in doubt, those
/// of one holder together. So nobody pays for a checkpoint that may not be theirs.
fn holders(census: &Census<'_>) -> Vec<usize> {
    let mut ids: HashMap<Option<&str>, usize> = HashMap::new();
    let parties = census.parties().iter();
    parties
        .map(|party| {
            let next = ids.len();
            let namespace = party.owner.namespace.as_deref().filter(|_| party.is_certain);
            *ids.entry(namespace).or_insert(next)
        })
        .collect()
}

#[derive(Clone, Copy, Default)]
struct Holding {
    amount: u64,
    count: u64,
}

/// Fills [`Ranking::held`]: for each candidate how much its namespace holds when its turn comes; zero for the only
/// checkpoint that is left of a namespace, which therefore goes after everybody else's.
///
/// That is max-min fairness: a namespace pays as long as it holds more than any other that could pay, hence the one
/// that floods pays first, and in the end all that paid hold the same. Within a namespace the other keys decide, so
/// `candidates` come sorted by those.
pub(crate) fn settle(ranking: &mut Ranking<'_>, candidates: &[Candidate]) {
    let census = ranking.census;
    let holders = holders(census);
    let holder = |index: u32| holders[census.party_index(index)];
    let mut holdings = vec![Holding::default(); holders.iter().max().map_or(0, |most| most + 1)];
    // What each frees, until its turn comes and what its namespace holds is written over it.
    let mut held: Vec<u64> = (0..census.len()).map(|index| ranking.scarce_of(census.gain(index))).collect();
    for (gain, index) in held.iter().zip(0u32..) {
        let holding = &mut holdings[holder(index)];
        holding.amount = holding.amount.saturating_add(*gain);
        holding.count += 1;
    }
    for candidate in candidates {
        let members = ranking.members(candidate);
        let (count, gain) = (members.len() as u64, members.iter().map(|index| held[*index as usize]).sum());
        let holding = &mut holdings[holder(candidate.index)];
        let is_all_that_is_left = holding.count <= count;
        held[candidate.index as usize] = if is_all_that_is_left { 0 } else { holding.amount };
        holding.amount = holding.amount.saturating_sub(gain);
        holding.count -= count.min(holding.count);
    }
    ranking.held = held;
}

/// Whether `order` asks for it, and for anything at all.
pub(crate) fn is_wanted(order: &[OrderKey], need: Need) -> bool {
    order.contains(&OrderKey::FairShare) && !need.is_met()
}
