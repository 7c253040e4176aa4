//! [`WallClock`]: whether the wall clock can be believed when it says how old something is.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Clocks that are slewed or that differ by a leap second stay within this from one retention run to the next.
const STEP_MIN: Duration = Duration::from_secs(60);
/// For so long after a step nothing is deleted for its age alone. Whoever set the clock wrong by hand, a time server that
/// went mad, a virtual machine that was resumed: they are put right within minutes.
pub const HELD_FOR: Duration = Duration::from_secs(3600);

/// Compares the wall clock with how long the machine has been up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WallClock {
    /// What the wall clock showed when the machine started, by the last look at both.
    started: Option<Timestamp>,
    /// When it was last set, in time since the start of the machine.
    stepped: Option<Duration>,
}

impl WallClock {
    /// Takes in what the wall clock shows `up` after the start of the machine (`CLOCK_BOOTTIME`, which counts while it sleeps).
    /// The result is by how much somebody has set it since the last time, when it is more than a minute.
    pub fn see(&mut self, wall: Timestamp, up: Duration) -> Option<SignedDuration> {
        let started = wall.checked_sub(up).unwrap_or(Timestamp::MIN);
        let step = started.duration_since(self.started.replace(started)?);
        if step.unsigned_abs() <= STEP_MIN {
            return None;
        }
        self.stepped = Some(up);
        Some(step)
    }

    /// Whether it was set so lately that nothing should be deleted for its age alone.
    pub fn is_doubtful(&self, up: Duration) -> bool {
        self.stepped.is_some_and(|stepped| up.saturating_sub(stepped) < HELD_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    /// `ahead` seconds ahead of the truth, `up` seconds after the start.
    fn see(clock: &mut WallClock, up: u64, ahead: i64) -> Option<i64> {
        let wall = Timestamp::from_second(1_800_000_000 + up as i64 + ahead).unwrap();
        clock.see(wall, Duration::from_secs(up)).map(|step| step.as_secs())
    }

    fn is_doubtful(clock: &WallClock, up: u64) -> bool {
        clock.is_doubtful(Duration::from_secs(up))
    }

    #[test]
    fn one_that_runs_is_believed_also_after_a_long_sleep_and_while_it_is_slewed() {
        let mut clock = WallClock::default();
        assert_eq!(see(&mut clock, 5, 1000), None, "there is nothing to compare the first with");
        for (up, ahead) in
            [(65, 1000), (30 * 24 * HOUR, 1000), (30 * 24 * HOUR + 60, 1059), (31 * 24 * HOUR, 1110)]
        {
            assert_eq!(see(&mut clock, up, ahead), None);
            assert!(!is_doubtful(&clock, up));
        }
    }

    #[test]
    fn one_that_was_set_is_believed_after_an_hour() {
        for month in [30 * 24 * HOUR as i64, -30 * 24 * HOUR as i64, 61] {
            let mut clock = WallClock::default();
            see(&mut clock, 100, 0);
            assert_eq!(see(&mut clock, 200, month), Some(month));
            assert_eq!(see(&mut clock, 260, month), None, "said once");
            assert!(is_doubtful(&clock, 200) && is_doubtful(&clock, 200 + HOUR - 1));
            assert!(!is_doubtful(&clock, 200 + HOUR));
        }
    }

    #[test]
    fn each_step_counts_also_the_one_that_puts_it_right() {
        let mut clock = WallClock::default();
        see(&mut clock, 100, 0);
        assert_eq!(see(&mut clock, 200, 5000), Some(5000));
        assert_eq!(see(&mut clock, 3000, 0), Some(-5000));
        assert!(is_doubtful(&clock, 200 + HOUR) && !is_doubtful(&clock, 3000 + HOUR));
    }
}
