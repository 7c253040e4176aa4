//! Thresholds against one observation: which are crossed, what is missing, what is left until the next.
//!
//! Nothing here remembers anything; [`crate::decide::Pressure`] does.

use crate::model::{Bytes, Level, Need, Observation, PressurePolicy, Signal, Threshold};

/// Whether `signal` is below its value in `threshold`. Exactly at the value is not below it, as in the kubelet's
/// `thresholdsMet` (pkg/kubelet/eviction/helpers.go). A signal that the filesystem does not have is never below.
pub fn is_below(threshold: &Threshold, signal: Signal, seen: &Observation) -> bool {
    value(threshold, signal, seen).zip(seen.left(signal)).is_some_and(|(value, left)| left < value)
}

/// The signals that are below their value in `threshold`.
pub fn crossed(threshold: &Threshold, seen: &Observation) -> impl Iterator<Item = Signal> {
    Signal::ALL.into_iter().filter(move |&signal| is_below(threshold, signal, seen))
}

/// The level that `seen` alone calls for, as if every grace period had run out and nothing had been before.
///
/// For "what if" (`plan --assume-available`); the daemon asks [`crate::decide::Pressure`].
pub fn level_of(policy: &PressurePolicy, seen: &Observation) -> Level {
    let is_crossed = |level: &Level| {
        policy.threshold(*level).is_some_and(|threshold| crossed(threshold, seen).next().is_some())
    };
    Level::ALL.into_iter().rfind(is_crossed).unwrap_or(Level::Normal)
}

/// What a reclaim at `level` has to free: for every threshold crossed up to that level, up to its value and the
/// minimum reclaim beyond; zero when none is crossed.
pub fn missing(policy: &PressurePolicy, level: Level, seen: &Observation) -> Need {
    Level::ALL
        .into_iter()
        .filter(|candidate| *candidate <= level)
        .filter_map(|level| policy.threshold(level))
        .flat_map(|threshold| crossed(threshold, seen).map(move |signal| (threshold, signal)))
        .map(|(threshold, signal)| until_resolved(policy, threshold, signal, seen))
        .fold(Need::default(), |all, one| all.max(one))
}

/// What `signal` lacks until `threshold`, once crossed, counts as resolved; zero when it does.
///
/// A crossed threshold resolves only at its value and the minimum reclaim: that gap keeps a node from flapping.
/// Same rule as the kubelet's `thresholdsMet` with `enforceMinReclaim`.
pub fn until_resolved(
    policy: &PressurePolicy,
    threshold: &Threshold,
    signal: Signal,
    seen: &Observation,
) -> Need {
    let (Some(value), Some(left), Some(total)) =
        (value(threshold, signal, seen), seen.left(signal), seen.total(signal))
    else {
        return Need::default();
    };
    let beyond = policy.minimum_reclaim.amount(signal).map_or(0, |amount| amount.resolve(total));
    // Nothing can be freer than empty: "95 %" and "10 % more" must not ask for 105 %.
    let lacks = value.saturating_add(beyond).min(total).saturating_sub(left);
    match signal {
        Signal::Available => Need { bytes: Bytes(lacks), inodes: 0 },
        Signal::InodesFree => Need { bytes: Bytes::ZERO, inodes: lacks },
    }
}

/// What to reclaim although no threshold is crossed yet, because one is about to be: available is less than `lead` above
/// the value of hard, and writers use up that much before the first deletion shows. Up to the same target as after the
/// crossing, or up to `lead` where that is more.
pub fn ahead(policy: &PressurePolicy, seen: &Observation, lead: Bytes) -> Need {
    let Some(hard) = &policy.hard else { return Need::default() };
    match until(hard, Signal::Available, seen) {
        Some(left) if left < lead.0 => {
            let lacks = Need { bytes: Bytes(lead.0 - left), inodes: 0 };
            until_resolved(policy, hard, Signal::Available, seen).max(lacks)
        }
        _ => Need::default(),
    }
}

/// What of available is the hard threshold; zero without one.
pub fn hard(policy: &PressurePolicy, seen: &Observation) -> Bytes {
    let value = policy.hard.as_ref().and_then(|hard| value(hard, Signal::Available, seen));
    Bytes(value.unwrap_or_default())
}

/// What of available the minimum reclaim is.
pub fn minimum_reclaim(policy: &PressurePolicy, seen: &Observation) -> Bytes {
    let beyond = policy.minimum_reclaim.amount(Signal::Available);
    Bytes(beyond.map_or(0, |amount| amount.resolve(seen.capacity.0)))
}

/// How much of `signal` can still be used up before the next threshold below is crossed, whichever level it belongs
/// to: also a threshold of a level that is already active (it would have to be reclaimed anew) and a soft one
/// (its grace period would begin). `None` when it is below all of them, or no threshold has this signal.
pub fn headroom(policy: &PressurePolicy, signal: Signal, seen: &Observation) -> Option<u64> {
    let left = seen.left(signal)?;
    Level::ALL
        .into_iter()
        .filter_map(|level| value(policy.threshold(level)?, signal, seen))
        .filter(|value| *value <= left)
        .map(|value| left - value)
        .min()
}

/// How much of `signal` can still be used up before `threshold` is crossed; zero when it is. `None` when it says nothing
/// about this signal.
pub fn until(threshold: &Threshold, signal: Signal, seen: &Observation) -> Option<u64> {
    Some(seen.left(signal)?.saturating_sub(value(threshold, signal, seen)?))
}

fn value(threshold: &Threshold, signal: Signal, seen: &Observation) -> Option<u64> {
    Some(threshold.amount(signal)?.resolve(seen.total(signal)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::fixture::{observed, pressure_policy};
    use crate::model::{Amount, Inodes, Percent, Quantity};

    /// 100 GiB; soft 20 %, hard 15 %, critical 11 %, minimum reclaim 2 %; inodes 10, 7 and 6 %.
    #[track_caller]
    fn check(available: &str, level: Level, bytes: &str, headroom_bytes: Option<&str>) {
        let (policy, seen) = (pressure_policy(), observed(available));
        assert_eq!(level_of(&policy, &seen), level, "level at {available}");
        let need = Need { bytes: bytes.parse().unwrap(), inodes: 0 };
        assert_eq!(missing(&policy, level, &seen), need, "missing at {available}");
        let expect = headroom_bytes.map(|text| text.parse::<Bytes>().unwrap().0);
        assert_eq!(headroom(&policy, Signal::Available, &seen), expect, "headroom at {available}");
    }

    #[test]
    fn a_crossed_threshold_asks_for_its_minimum_reclaim_too() {
        check("50GiB", Level::Normal, "0", Some("30GiB"));
        check("20GiB", Level::Normal, "0", Some("0"));
        check("19GiB", Level::Soft, "3GiB", Some("4GiB"));
        check("14GiB", Level::Hard, "8GiB", Some("3GiB"));
        check("10GiB", Level::Critical, "12GiB", None);
        check("0", Level::Critical, "22GiB", None);
    }

    #[test]
    fn without_a_history_every_milder_threshold_counts_as_crossed_too() {
        let seen = observed("14GiB");
        assert_eq!(missing(&pressure_policy(), Level::Hard, &seen).bytes, Bytes::gib(8));
    }

    #[test]
    fn case_28_of_a_percentage_and_bytes_the_smaller_counts() {
        let mut policy = pressure_policy();
        let amount = Amount::new(vec![
            Quantity::Share(Percent::from_hundredths(1000).unwrap()),
            Quantity::Absolute(Bytes::gib(100).0),
        ]);
        policy.soft = None;
        policy.critical = None;
        policy.hard.as_mut().unwrap().available = amount;
        let on = |capacity: u64, available: u64| Observation {
            capacity: Bytes::gib(capacity),
            available: Bytes::gib(available),
            inodes: None,
        };
        assert_eq!(level_of(&policy, &on(4000, 101)), Level::Normal);
        assert_eq!(level_of(&policy, &on(4000, 99)), Level::Hard);
        assert_eq!(level_of(&policy, &on(500, 51)), Level::Normal);
        assert_eq!(level_of(&policy, &on(500, 49)), Level::Hard);
    }

    #[test]
    fn inodes_are_a_signal_of_their_own_and_none_where_there_are_none() {
        let policy = pressure_policy();
        let mut seen = observed("50GiB");
        seen.inodes = Some(Inodes { total: 1000, free: 65 });
        assert_eq!(level_of(&policy, &seen), Level::Hard);
        assert_eq!(missing(&policy, Level::Hard, &seen), Need { bytes: Bytes::ZERO, inodes: 35 });
        assert_eq!(headroom(&policy, Signal::InodesFree, &seen), Some(5));
        seen.inodes = None;
        assert_eq!(level_of(&policy, &seen), Level::Normal);
        assert_eq!(headroom(&policy, Signal::InodesFree, &seen), None);
    }

    #[test]
    fn a_crossing_that_is_about_to_come_asks_for_the_same_target_or_for_the_lead() {
        let policy = pressure_policy();
        let ahead =
            |available, lead: &str| super::ahead(&policy, &observed(available), lead.parse().unwrap()).bytes;
        assert_eq!(ahead("15.5GiB", "1GiB"), "1.5GiB".parse().unwrap());
        assert_eq!(ahead("15.5GiB", "256MiB"), Bytes::ZERO);
        assert_eq!(ahead("18GiB", "2GiB"), Bytes::ZERO);
        assert_eq!(ahead("18GiB", "4GiB"), Bytes::gib(1));
        assert_eq!(minimum_reclaim(&policy, &observed("50GiB")), Bytes::gib(2));
    }

    #[test]
    fn a_target_never_exceeds_the_filesystem() {
        let mut policy = pressure_policy();
        policy.hard.as_mut().unwrap().available =
            Some(Amount::one(Quantity::Share(Percent::from_hundredths(9900).unwrap())));
        assert_eq!(missing(&policy, Level::Hard, &observed("50GiB")).bytes, Bytes::gib(50));
    }
}
