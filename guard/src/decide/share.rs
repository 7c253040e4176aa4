//! `fair-share`: whoever holds the most pays next.

use std::collections::HashMap;

use crate::decide::census::Census;
use crate::decide::rank::{Candidate, Ranking};
use crate::model::{Need, OrderKey};

/// By party, whose holdings its checkpoints count among: its namespace's, or, for all whose owner is in doubt, those
/// of one holder together. So nobody pays for a checkpoint that may not be theirs.
pub(crate) fn holders(census: &Census<'_>) -> Vec<u32> {
    let mut ids: HashMap<Option<&str>, u32> = HashMap::new();
    let parties = census.parties().iter();
    parties
        .map(|party| {
            let next = ids.len() as u32;
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

/// Gives each of `candidates` its share: how much its namespace holds when its turn comes; nothing for the only
/// checkpoint that is left of a namespace, which therefore goes after everybody else's.
///
/// That is max-min fairness: a namespace pays as long as it holds more than any other that could pay, hence the one
/// that floods pays first, and in the end all that paid hold the same. Within a namespace the other keys decide, so
/// the candidates of each come sorted by those, and those that are not here come after all that are.
pub(crate) fn settle(ranking: &Ranking<'_>, candidates: &mut [Candidate]) {
    let count = ranking.holders().iter().max().map_or(0, |most| *most as usize + 1);
    let mut holdings = vec![Holding::default(); count];
    for (party, holder) in ranking.census.parties().iter().zip(ranking.holders()) {
        let holding = &mut holdings[*holder as usize];
        holding.amount = holding.amount.saturating_add(ranking.scarce_of(party.holds));
        holding.count += party.count;
    }
    for candidate in candidates {
        let count = ranking.members(candidate).len() as u64;
        let gain = ranking.scarce_of(candidate.gain());
        let holding = &mut holdings[candidate.holder()];
        let is_all_that_is_left = holding.count <= count;
        *candidate = ranking.with_share(*candidate, if is_all_that_is_left { 0 } else { holding.amount });
        holding.amount = holding.amount.saturating_sub(gain);
        holding.count -= count.min(holding.count);
    }
}

/// Whether `order` asks for it, and for anything at all.
pub(crate) fn is_wanted(order: &[OrderKey], need: Need) -> bool {
    order.contains(&OrderKey::FairShare) && !need.is_met()
}
