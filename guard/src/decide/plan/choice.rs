//! Which of the candidates are taken: in their order, or those whose loss is the smallest together; and which of these are
//! given back.

use std::ops::Range;

use crate::decide::loss;
use crate::decide::rank::{Candidate, Key, Ranking};
use crate::model::{Need, OrderKey, Weighed};

/// Positions of those taken, ascending: in order until `need` is met. With `smallest-loss`, those that are equal by
/// the keys before it are chosen for the smallest loss together rather than one by one: these, and how many would have
/// been taken one by one.
pub(super) fn take(
    ranking: &Ranking<'_>,
    candidates: &[Candidate],
    need: Need,
) -> (Vec<usize>, Option<(Range<usize>, usize)>) {
    let mut left = need;
    let until_met = candidates.iter().take_while(|candidate| {
        let goes_on = !left.is_met();
        left = left.less(candidate.gain());
        goes_on
    });
    let count = until_met.count();
    let smallest_loss = ranking.order.iter().position(|key| *key == Key::Order(OrderKey::SmallestLoss));
    let (Some(key), true) = (smallest_loss, count > 0) else {
        return ((0..count).collect(), None);
    };
    let last = &candidates[count - 1];
    let is_equal = |candidate: &Candidate| ranking.by_keys(&ranking.order[..key], candidate, last).is_none();
    let start =
        candidates[..count].iter().rposition(|candidate| !is_equal(candidate)).map_or(0, |other| other + 1);
    let end = count + candidates[count..].iter().take_while(|candidate| is_equal(candidate)).count();
    let before = candidates[..start].iter().fold(need, |left, candidate| left.less(candidate.gain()));
    match loss::cheapest_cover(ranking, &candidates[start..end], before) {
        Some(cover) => {
            let cover = cover.into_iter().map(|position| start + position);
            ((0..start).chain(cover).collect(), Some((start..end, count)))
        }
        None => ((0..count).collect(), None),
    }
}

/// Those that `smallest-loss` weighed against each other, and what came of it.
pub(super) struct Weighing {
    weighed: Range<usize>,
    chosen: u64,
    in_turn: u64,
}

impl Weighing {
    /// Among `weighed`, `taken` was chosen; one by one it would have been the first `count`, less what is given back.
    pub(super) fn new(
        ranking: &Ranking<'_>,
        candidates: &[Candidate],
        taken: &[usize],
        need: Need,
        (weighed, count): (Range<usize>, usize),
    ) -> Weighing {
        let mut one_by_one: Vec<usize> = (0..count).collect();
        give_back(candidates, need, &mut one_by_one);
        let losses = |taken: &[usize]| {
            let losses = taken.iter().filter(|position| weighed.contains(position));
            losses.map(|position| ranking.whole_loss(&candidates[*position])).sum()
        };
        Weighing { chosen: losses(taken), in_turn: losses(&one_by_one), weighed }
    }

    pub(super) fn of(
        &self,
        ranking: &Ranking<'_>,
        position: usize,
        candidate: &Candidate,
    ) -> Option<Weighed> {
        let Weighing { weighed, chosen, in_turn } = self;
        let own = || ranking.whole_loss(candidate);
        weighed.contains(&position).then(|| Weighed { own: own(), chosen: *chosen, in_turn: *in_turn })
    }
}

/// Gives back, last taken first, each without which the need is met just as far.
pub(super) fn give_back(candidates: &[Candidate], need: Need, taken: &mut Vec<usize>) {
    let gain = |position: &usize| candidates[*position].gain();
    let mut frees = taken.iter().map(gain).fold(Need::default(), |all, one| all.plus(one));
    let shortfall = need.less(frees);
    taken.reverse();
    taken.retain(|position| {
        let without = frees.less(gain(position));
        let is_needed = need.less(without) != shortfall;
        if !is_needed {
            frees = without;
        }
        is_needed
    });
    taken.reverse();
}
