//! `fair-share`: whoever holds the most pays next.

use std::collections::HashMap;

use crate::decide::census::Census;
use crate::decide::rank::{Candidate, Ranking};
use crate::model::{Inventory, Need, OrderKey};

/// Whose holdings are counted together: a namespace, or (`None`) all whose owner is in doubt. Those pay as one, so
/// that nobody pays for a checkpoint that may not be theirs.
type Holder<'a> = Option<&'a str>;

fn holder<'a>(census: &Census<'a>, index: u32) -> Holder<'a> {
    let party = census.party(index);
    party.owner.namespace.as_deref().filter(|_| party.is_certain)
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
pub(crate) fn settle(ranking: &mut Ranking<'_>, inventory: &Inventory, candidates: &[Candidate]) {
    let census = ranking.census;
    let mut holdings: HashMap<Holder<'_>, Holding> = HashMap::new();
    for (checkpoint, index) in inventory.checkpoints.iter().zip(0u32..) {
        let holding = holdings.entry(holder(census, index)).or_default();
        let amount = ranking.scarce_of(checkpoint.gain());
        holding.amount = holding.amount.saturating_add(amount);
        holding.count += 1;
    }
    let mut held = vec![0; inventory.checkpoints.len()];
    for candidate in candidates {
        let (count, gain) = (ranking.members(candidate).len() as u64, ranking.gain(candidate));
        let holding = holdings.entry(holder(census, candidate.unit.index)).or_default();
        let is_all_that_is_left = holding.count <= count;
        held[candidate.unit.index as usize] = if is_all_that_is_left { 0 } else { holding.amount };
        holding.amount = holding.amount.saturating_sub(ranking.scarce_of(gain));
        holding.count -= count.min(holding.count);
    }
    ranking.held = held;
}

/// Whether `order` asks for it, and for anything at all.
pub(crate) fn is_wanted(order: &[OrderKey], need: Need) -> bool {
    order.contains(&OrderKey::FairShare) && !need.is_met()
}
