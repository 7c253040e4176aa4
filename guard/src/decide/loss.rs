//! What losing a checkpoint costs, and the choice that costs least.

use std::time::Duration;

use crate::decide::census::Follows;
use crate::decide::rank::{Candidate, Ranking};
use crate::model::{Need, Protection};

/// The newest of its container is worth so many times what a superseded one of equal age is.
const NEWEST_FACTOR: u64 = 8;
/// One made just now is worth so many times what one of many days is.
const RECENCY_FACTOR: u64 = 16;
const DAY: u64 = 86_400;

/// What losing one costs, in no unit: only ratios mean something.
///
/// `(1 + protection) × 8 if not superseded × recency`; recency falls from 16 for a fresh one by half in one day, to a
/// third in two, towards 1. An incomplete one is worth nothing: nobody can restore it.
pub fn of(is_incomplete: bool, protection: Protection, follows: Follows, age: Duration) -> u64 {
    if is_incomplete {
        return 0;
    }
    let standing = if follows.contains(Follows::SUPERSEDED) { 1 } else { NEWEST_FACTOR };
    // In sixteenths of a thousandth, so that minutes count too.
    let recency = 1000 + (RECENCY_FACTOR - 1) * 1000 * DAY / (DAY + age.as_secs().min(DAY * 36_500));
    (1 + u64::from(protection.get())) * standing * recency
}

/// Loss per byte (or inode) freed; the largest number when nothing is freed.
pub(crate) fn per_unit(loss: u64, gain: u64) -> u64 {
    // Forty bits after the point: a loss of one for a TiB is still more than none.
    let scaled = (u128::from(loss) << 40).checked_div(gain.into()).unwrap_or(u128::MAX);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Of candidates sorted by loss per unit, positions whose gain covers `need` at a small total loss, at most twice the
/// smallest possible; `None` when all together do not cover it.
///
/// Greedy by density alone can take a huge dear one where few small ones do. So, after Gens and Levner: whichever
/// candidate would complete the cover is tried as the last of it and then left out of what follows; the best of those
/// covers wins.
pub(crate) fn cheapest_cover(
    ranking: &Ranking<'_>,
    candidates: &[Candidate],
    need: Need,
) -> Option<Vec<usize>> {
    let mut prefix = Vec::new();
    let (mut left, mut spent) = (need, 0u128);
    let mut best: Option<(u128, usize, usize)> = None;
    for (position, candidate) in candidates.iter().enumerate() {
        let loss = u128::from(ranking.whole_loss(candidate));
        let rest = left.less(candidate.gain());
        if rest.is_met() {
            if best.is_none_or(|(least, ..)| spent + loss < least) {
                best = Some((spent + loss, prefix.len(), position));
            }
        } else {
            prefix.push(position);
            left = rest;
            spent += loss;
        }
    }
    let (_, length, last) = best?;
    prefix.truncate(length);
    prefix.push(last);
    Some(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUPERSEDED: Follows = Follows::SUPERSEDED;
    const NONE: Follows = Follows::empty();

    #[track_caller]
    fn check(less: (u8, Follows, u64), more: (u8, Follows, u64)) {
        let loss = |(protection, follows, hours): (u8, Follows, u64)| {
            of(false, Protection::new(protection).unwrap(), follows, Duration::from_secs(hours * 3600))
        };
        assert!(loss(less) < loss(more), "{less:?} < {more:?}");
    }

    #[test]
    fn protection_recency_and_being_the_last_each_make_a_loss_greater() {
        check((50, NONE, 1), (51, NONE, 1));
        check((50, SUPERSEDED, 1), (50, NONE, 1));
        check((50, NONE, 2), (50, NONE, 1));
        check((50, SUPERSEDED, 1), (50, NONE, 24 * 14));
    }

    #[test]
    fn nothing_is_lost_with_an_incomplete_one() {
        assert_eq!(of(true, Protection::new(99).unwrap(), NONE, Duration::ZERO), 0);
        assert_eq!(per_unit(0, 1), 0);
    }

    #[test]
    fn what_frees_nothing_goes_last() {
        assert_eq!(per_unit(1, 0), u64::MAX);
        assert_eq!(per_unit(0, 0), u64::MAX);
    }
}
