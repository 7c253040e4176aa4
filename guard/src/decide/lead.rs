//! [`Lead`]: how far ahead of the hard threshold to act, so that what is written until the first deletion shows does not
//! go below it.

use std::time::Duration;

use super::threshold;
use crate::model::{Bytes, Observation, PressurePolicy};

/// From a wake until statfs(2) shows what the first deletion freed, beside writers at full speed: mostly 2 to 10 ms.
const DELETION_TAKES: Duration = Duration::from_millis(10);
/// Slower writers are dealt with when they cross.
const LEAD_MIN: Bytes = Bytes::mib(4);

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

    /// What is written while one deletion takes effect, if that is worth acting for; and where the filesystem takes space in
    /// steps, one `step`. Within the minimum reclaim, unless one step is more than that.
    pub fn bytes(&self, thresholds: &PressurePolicy, seen: &Observation, step: Bytes) -> Bytes {
        let written = Bytes((self.rate * DELETION_TAKES.as_secs_f64()) as u64);
        if written < LEAD_MIN {
            return Bytes::ZERO;
        }
        let beyond = threshold::minimum_reclaim(thresholds, seen);
        (written + step).min(beyond.max(step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::fixture::{observed, pressure_policy};

    /// 100 GiB with a minimum reclaim of 2 %.
    #[track_caller]
    fn check(rates: &[f64], step: Bytes, expect: Bytes) {
        let mut lead = Lead::default();
        rates.iter().for_each(|rate| lead.note(*rate));
        assert_eq!(lead.bytes(&pressure_policy(), &observed("20GiB"), step), expect, "after {rates:?}");
    }

    #[test]
    fn the_lead_is_what_is_written_while_a_deletion_takes_effect() {
        check(&[], Bytes::ZERO, Bytes::ZERO);
        check(&[1e9], Bytes::ZERO, Bytes(10_000_000));
        check(&[1e9], Bytes::mib(16), Bytes(10_000_000) + Bytes::mib(16));
    }

    #[test]
    fn slow_writers_are_dealt_with_when_they_cross() {
        check(&[100e6], Bytes::ZERO, Bytes::ZERO);
        check(&[100e6], Bytes::mib(16), Bytes::ZERO);
    }

    #[test]
    fn a_pause_halves_the_lead_instead_of_ending_it() {
        check(&[2e9, 0.0], Bytes::ZERO, Bytes(10_000_000));
        check(&[2e9, 0.0, 0.0, 0.0], Bytes::ZERO, Bytes::ZERO);
    }

    #[test]
    fn the_lead_stays_within_the_minimum_reclaim() {
        let beyond = (100 << 30) / 50;
        check(&[1e12], Bytes::ZERO, Bytes(beyond));
        check(&[1e12], Bytes::gib(1), Bytes(beyond));
        check(&[1e12], Bytes::gib(3), Bytes::gib(3));
    }
}
