//! Whether to wait for space that is slow to come back, or to let the next one go as well.

use std::time::Duration;

use crate::model::{Bytes, Observation};

/// Freeing that takes longer is waiting for a disk: most take less than 3 ms for 64 MiB.
pub const SLOW_AFTER: Duration = Duration::from_millis(2);
/// And goes on for so long at least: 10 to 60 ms in all, mostly.
const TAKES_STILL: Duration = Duration::from_millis(7);
/// Writers that have used up so much while space is slow to come back will not wait for it.
const LOSING: Bytes = Bytes::mib(4);

/// What a round is to come to.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// What was seen when it began.
    pub start: Observation,
    /// To be freed from there.
    pub need: Bytes,
    /// Available below which waiting is worse than one checkpoint too many: the hard threshold. Zero: always wait.
    pub hard: Bytes,
}

/// Deletions whose space has not come back yet.
#[derive(Clone, Copy, Debug)]
pub struct UnderWay {
    /// What they held, together.
    pub held: Bytes,
    /// What the largest of them held.
    pub largest: Bytes,
    /// What is still to come.
    pub left: Bytes,
}

/// What else has happened in the round.
#[derive(Clone, Copy, Debug)]
pub struct SoFar {
    /// Freed by deletions that are done.
    pub freed: Bytes,
    /// Since it began.
    pub elapsed: Duration,
}

/// Whether the next victim, which holds `next`, is due although others are under way: they will not be enough, with what
/// writers use up until they are done. Below hard, where waiting is dangerous: whether it is needed as far as that can be
/// known, so that when all of them have come back, less than one checkpoint is too many.
pub fn is_next_due(goal: &Goal, under_way: UnderWay, so_far: SoFar, seen: &Observation, next: Bytes) -> bool {
    let missing = (goal.start.available + goal.need).saturating_sub(seen.available);
    let counted = if seen.available < goal.hard {
        (under_way.left + next).saturating_sub(under_way.largest.max(next))
    } else {
        under_way.left
    };
    let meanwhile = used_up_meanwhile(goal, under_way, so_far, seen);
    is_losing(&goal.start, seen) && counted < missing + meanwhile
}

/// Whether writers use up space faster than it comes back.
pub fn is_losing(before: &Observation, seen: &Observation) -> bool {
    before.available.saturating_sub(seen.available) >= LOSING
}

/// What writers will use up, at the speed they have had in this round, while slow ones come back.
fn used_up_meanwhile(goal: &Goal, under_way: UnderWay, so_far: SoFar, seen: &Observation) -> Bytes {
    let returned = so_far.freed + under_way.held.saturating_sub(under_way.left);
    let used_up = (goal.start.available + returned).saturating_sub(seen.available);
    let rate = used_up.0 as f64 / so_far.elapsed.max(SLOW_AFTER).as_secs_f64();
    Bytes((rate * TAKES_STILL.as_secs_f64()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::fixture::observed;

    /// 20 MiB needed from 10.02 GiB on, hard at 10 GiB; two of 60 MiB under way, of which `left` is still to come, since
    /// `elapsed` milliseconds; `available` is left, and the next one holds `next`.
    #[track_caller]
    fn check(available: &str, left: u64, elapsed: u64, next: u64, expect: bool) {
        let goal = Goal { start: observed("10.02GiB"), need: Bytes::mib(20), hard: Bytes::gib(10) };
        let under_way = UnderWay { held: Bytes::mib(120), largest: Bytes::mib(60), left: Bytes::mib(left) };
        let so_far = SoFar { freed: Bytes::ZERO, elapsed: Duration::from_millis(elapsed) };
        assert_eq!(
            is_next_due(&goal, under_way, so_far, &observed(available), Bytes::mib(next)),
            expect,
            "{available} available, {left} MiB left, {elapsed} ms, {next} MiB next"
        );
    }

    #[test]
    fn nobody_else_goes_while_nobody_writes() {
        check("10.02GiB", 120, 50, 60, false);
        check("10.017GiB", 120, 50, 60, false);
    }

    #[test]
    fn above_hard_all_that_is_still_to_come_counts() {
        check("10.001GiB", 120, 20, 60, false);
        check("10.001GiB", 30, 20, 60, true);
    }

    #[test]
    fn below_hard_the_largest_may_be_one_too_many() {
        check("9.96GiB", 120, 50, 60, false);
        check("9.96GiB", 120, 50, 16, true);
        check("9.92GiB", 120, 50, 60, true);
    }

    #[test]
    fn fast_writers_are_foreseen() {
        check("9.96GiB", 120, 50, 60, false);
        check("9.96GiB", 120, 10, 60, true);
    }
}
