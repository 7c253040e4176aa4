//! [`Lead`]: how far ahead of the hard threshold to act, so that what is written until the first deletion shows does not
//! go below it.

use std::time::Duration;

use super::threshold;
use crate::model::{Bytes, Observation, PressurePolicy};

/// From a wake until statfs(2) shows what the first deletion freed, beside writers at full speed: mostly 2 to 10 ms.
const DELETION_TAKES: Duration = Duration::from_millis(10);
/// Slower writers are dealt with when they cross.
const LEAD_MIN: Bytes = Bytes::mib(4);
/// xfs sets aside as much beyond the end of a growing file as the file has, in one step: at 32 MiB another 32 MiB. That is
/// half of a checkpoint of 64 MiB, so acting a jump ahead never costs a whole one beyond need.
const JUMP: Bytes = Bytes::mib(32);

/// How fast writers were lately.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lead {
    /// Bytes a second.
    rate: f64,
}

impl Lead {
    /// Takes in how fast was written before a wake, in bytes a second. The fastest lately counts: bursts come in rows.
    pub fn note(&mut self, rate: f64) {
        self.rate = rate.max(self.rate / 2.0);
    }

    /// What is written while one deletion takes effect, if that is worth acting for and within the minimum reclaim; and
    /// where the filesystem takes more than what is written (`jumps`), one such jump.
    pub fn bytes(&self, thresholds: &PressurePolicy, seen: &Observation, jumps: bool) -> Bytes {
        let written = Bytes((self.rate * DELETION_TAKES.as_secs_f64()) as u64);
        if written < LEAD_MIN {
            return Bytes::ZERO;
        }
        let jump = if jumps { JUMP } else { Bytes::ZERO };
        written.min(threshold::lead_max(thresholds, seen)) + jump
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::fixture::{observed, pressure_policy};

    /// 100 GiB with a minimum reclaim of 2 %.
    #[track_caller]
    fn check(rates: &[f64], jumps: bool, expect: Bytes) {
        let mut lead = Lead::default();
        rates.iter().for_each(|rate| lead.note(*rate));
        assert_eq!(lead.bytes(&pressure_policy(), &observed("20GiB"), jumps), expect, "after {rates:?}");
    }

    #[test]
    fn the_lead_is_what_is_written_while_a_deletion_takes_effect() {
        check(&[], false, Bytes::ZERO);
        check(&[1e9], false, Bytes(10_000_000));
        check(&[1e9], true, Bytes(10_000_000) + JUMP);
    }

    #[test]
    fn slow_writers_are_dealt_with_when_they_cross() {
        check(&[100e6], false, Bytes::ZERO);
        check(&[100e6], true, Bytes::ZERO);
    }

    #[test]
    fn a_pause_halves_the_lead_instead_of_ending_it() {
        check(&[2e9, 0.0], false, Bytes(10_000_000));
        check(&[2e9, 0.0, 0.0, 0.0], false, Bytes::ZERO);
    }

    #[test]
    fn the_lead_stays_within_the_minimum_reclaim() {
        check(&[1e12], false, Bytes((100 << 30) / 50 / 4 * 3));
    }
}
