//! [`Race`]: whether writers are faster than deleting.

use std::time::Duration;

use crate::model::{Bytes, Monotonic};

/// Rounds of deletions at critical against the writers.
///
/// A single round that leaves less than was there before says little: what was deleted may take tens of milliseconds to
/// show (btrfs), and the next round makes up for it. So only a row of them counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Race {
    lost: u32,
    /// When the first of the row was lost.
    since: Monotonic,
    is_lost: bool,
}

/// So many rounds in a row must be lost,
const ROUNDS: u32 = 3;
/// over at least this time.
const ROW: Duration = Duration::from_millis(250);

impl Race {
    /// Takes note of a round at critical that deleted something.
    pub fn round(&mut self, before: Bytes, after: Bytes, now: Monotonic) {
        if after >= before {
            *self = Race::default();
            return;
        }
        if self.lost == 0 {
            self.since = now;
        }
        self.lost = self.lost.saturating_add(1);
        self.is_lost = self.lost >= ROUNDS && now.since(self.since) >= ROW;
    }

    /// Whether writers are faster than deleting.
    pub fn is_lost(self) -> bool {
        self.is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_race_is_lost_by_a_row_of_rounds_and_not_by_one() {
        #[track_caller]
        fn check(rounds: &[(u64, u64, u64)], expect: bool) {
            let mut race = Race::default();
            for &(millis, before, after) in rounds {
                race.round(Bytes(before), Bytes(after), Monotonic(Duration::from_millis(millis)));
            }
            assert_eq!(race.is_lost(), expect, "{rounds:?}");
        }
        check(&[], false);
        check(&[(0, 9, 8)], false);
        // Three in a row, but within what a filesystem may take to show one deletion.
        check(&[(0, 9, 8), (20, 8, 7), (40, 7, 6)], false);
        check(&[(0, 9, 8), (20, 8, 7), (250, 7, 6)], true);
        // One that gains begins a new row; just as much as before is a gain against writers.
        check(&[(0, 9, 8), (20, 8, 7), (200, 7, 7), (260, 7, 6)], false);
        check(&[(0, 9, 8), (20, 8, 7), (250, 7, 6), (300, 6, 20)], false);
    }
}
