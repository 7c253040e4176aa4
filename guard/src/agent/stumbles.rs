//! What to do about a loop that panicked: a bug, and yet its filesystem must not be left alone.

use std::time::Duration;

use crate::model::Monotonic;

/// So many in a row are no accident that a fresh look at everything mends.
const IN_A_ROW_MAX: u32 = 5;
/// A loop that has run for so long since the last one was sound.
const SOUND_AFTER: Duration = Duration::from_secs(300);
/// Between tries, once there were too many.
const PAUSE: Duration = Duration::from_secs(60);

/// How a filesystem goes on after its loop has panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another loop, now.
    AtOnce,
    /// Another loop after a while: starting the guard anew would leave the other filesystems alone meanwhile, for as long as
    /// the supervisor waits.
    After(Duration),
    /// Nothing is guarded as it is: a new process may get further.
    Exit,
}

/// How often loops have panicked lately.
#[derive(Debug, Default)]
pub(super) struct Stumbles {
    in_a_row: u32,
    last: Monotonic,
}

impl Stumbles {
    /// Takes note of one at `now`; `others` says whether other filesystems are guarded all the same.
    pub(super) fn next(&mut self, now: Monotonic, others: bool) -> Next {
        let goes_on = self.in_a_row > 0 && now.since(self.last) < SOUND_AFTER;
        self.in_a_row = if goes_on { self.in_a_row + 1 } else { 1 };
        self.last = now;
        match self.in_a_row {
            ..IN_A_ROW_MAX => Next::AtOnce,
            _ if others => Next::After(PAUSE),
            _ => Next::Exit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic(Duration::from_secs(seconds))
    }

    #[test]
    fn the_fifth_in_a_row_ends_the_guard_or_waits_for_the_sake_of_others() {
        let mut stumbles = Stumbles::default();
        for second in 0..4 {
            assert_eq!(stumbles.next(at(second), false), Next::AtOnce);
        }
        assert_eq!(stumbles.next(at(4), true), Next::After(PAUSE));
        let paused = 4 + PAUSE.as_secs();
        assert_eq!(stumbles.next(at(paused), true), Next::After(PAUSE), "a pause makes nothing sound");
        assert_eq!(stumbles.next(at(paused + 1), false), Next::Exit);
    }

    #[test]
    fn what_ran_for_minutes_begins_anew() {
        let mut stumbles = Stumbles::default();
        for turn in 0..20 {
            let now = at(10 + turn * SOUND_AFTER.as_secs());
            assert_eq!(stumbles.next(now, false), Next::AtOnce);
        }
    }
}
