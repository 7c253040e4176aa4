//! [`Outlook`]: what is to come while nothing is deleted, for people who read why something was.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::decide::threshold;
use crate::model::{Bytes, DeleteReason, Level, Observation, Plan, PressurePolicy, Signal};

/// How fast a filesystem fills, and when the next worse level is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    rate: Bytes,
    /// `None`: full.
    next: Option<Level>,
    after: Duration,
}

impl Outlook {
    /// What follows on `level`, with `rate` in bytes a second and `until` telling how long it takes to use up so many bytes.
    /// `None`: nothing that can be foreseen.
    pub fn after(
        level: Level,
        policy: &PressurePolicy,
        seen: &Observation,
        rate: Bytes,
        until: impl Fn(Bytes) -> Option<Duration>,
    ) -> Option<Outlook> {
        let worse = Level::ALL.into_iter().filter(|worse| *worse > level);
        let left = |worse| {
            let left = threshold::until(policy.threshold(worse)?, Signal::Available, seen)?;
            (left > 0).then_some((Some(worse), Bytes(left)))
        };
        let (next, left) = worse.filter_map(left).next().unwrap_or((None, seen.available));
        Some(Outlook { rate, next, after: until(left)? })
    }
}

impl fmt::Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outlook { rate, next, after } = self;
        let next = next.map_or("full", Level::as_str);
        write!(f, "filling at {rate}/s, {next} in {:.1} s", after.as_secs_f64())
    }
}

/// Says it in every reason of `plan`.
pub fn explain(plan: &mut Plan, outlook: &Outlook) {
    let outlook: Arc<str> = outlook.to_string().into();
    plan.reword(|reason| DeleteReason::Foreseen { outlook: outlook.clone(), reason });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::fixture::{observed, pressure_policy};

    /// 100 GiB with hard at 15 and critical at 11 GiB, filling at 1 GiB a second.
    #[track_caller]
    fn check(level: Level, available: &str, expect: &str) {
        let until = |left: Bytes| Some(Duration::from_secs_f64(left.0 as f64 / f64::from(1 << 30)));
        let outlook =
            Outlook::after(level, &pressure_policy(), &observed(available), Bytes::gib(1), until).unwrap();
        assert_eq!(outlook.to_string(), expect);
    }

    #[test]
    fn the_next_worse_level_is_foreseen_and_after_the_last_the_end() {
        check(Level::Hard, "15GiB", "filling at 1.00 GiB/s, critical in 4.0 s");
        check(Level::Critical, "3GiB", "filling at 1.00 GiB/s, full in 3.0 s");
        check(Level::Hard, "4GiB", "filling at 1.00 GiB/s, full in 4.0 s");
    }

    #[test]
    fn what_does_not_fill_has_no_outlook() {
        let seen = observed("9GiB");
        assert_eq!(Outlook::after(Level::Hard, &pressure_policy(), &seen, Bytes::ZERO, |_| None), None);
    }
}
