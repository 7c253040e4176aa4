//! [`Pressure`]: the level of one filesystem, with hysteresis.
//!
//! Two independent halves keep it from flapping, as in the kubelet: *quantity*, a crossed threshold is resolved only
//! at its value and the minimum reclaim; and *time*, a level is left only when its signals have been above their
//! values for the transition period. Times are monotonic: an operator who sets the clock changes nothing here.

use std::time::Duration;

use crate::decide::threshold::{is_below, until_resolved};
use crate::model::{Level, Monotonic, Need, Observation, PressurePolicy, Signal, Threshold};

/// The levels that have a threshold, mildest first.
const LEVELS: [Level; 3] = [Level::Soft, Level::Hard, Level::Critical];

/// The level of one filesystem.
///
/// Protocol of use: [`observe`](Pressure::observe) after each look at the filesystem; at
/// [`next_deadline`](Pressure::next_deadline) at the latest [`elapse`](Pressure::elapse) or another `observe`;
/// whenever [`need`](Pressure::need) is not met, reclaim at [`need_level`](Pressure::need_level). Calling any of them
/// too often is harmless.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    levels: [LevelState; 3],
}

/// A change of level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Before.
    pub from: Level,
    /// After.
    pub to: Level,
    /// The signal that is below its value at the new level; `None` when a level was left.
    pub signal: Option<Signal>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LevelState {
    is_active: bool,
    /// Since when no signal has been below, while the level is still active.
    above_since: Option<Monotonic>,
    /// By [`Signal::ALL`].
    signals: [SignalState; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SignalState {
    /// Since when it has been below its value without a break.
    below_since: Option<Monotonic>,
    /// It was below for its grace period, and has not reached its value and the minimum reclaim since.
    is_unresolved: bool,
}

impl Pressure {
    /// At `normal`, with no history.
    pub fn new() -> Pressure {
        Pressure::default()
    }

    /// The worst level that is active.
    pub fn level(&self) -> Level {
        let active = LEVELS.iter().zip(&self.levels).rfind(|(_, state)| state.is_active);
        active.map_or(Level::Normal, |(level, _)| *level)
    }

    /// Takes note of one look at the filesystem. `Some` when the level changed.
    pub fn observe(
        &mut self,
        seen: &Observation,
        policy: &PressurePolicy,
        now: Monotonic,
    ) -> Option<Transition> {
        let from = self.level();
        for (level, state) in LEVELS.iter().zip(&mut self.levels) {
            match policy.threshold(*level) {
                Some(threshold) => state.note(threshold, seen, policy, now),
                None => *state = LevelState::default(),
            }
        }
        self.elapse_from(from, policy, now)
    }

    /// Lets time pass without a new look: a grace period runs out though the value stays what it was, a transition
    /// period ends (kubernetes#51516: there the clock stood still while the statistics did). `Some` when the level
    /// changed.
    pub fn elapse(&mut self, policy: &PressurePolicy, now: Monotonic) -> Option<Transition> {
        self.elapse_from(self.level(), policy, now)
    }

    /// When [`elapse`](Pressure::elapse) would change something at the earliest; `None` when only a look can.
    pub fn next_deadline(&self, policy: &PressurePolicy) -> Option<Monotonic> {
        let deadlines = LEVELS.iter().zip(&self.levels).flat_map(|(level, state)| {
            let grace = policy.threshold(*level).map_or(Duration::ZERO, |threshold| grace(*level, threshold));
            let graces = state.signals.iter().filter(|signal| !signal.is_unresolved).map(move |signal| {
                let since = signal.below_since?;
                Some(Monotonic(since.0.saturating_add(grace)))
            });
            let leave = state.above_since.filter(|_| state.is_active);
            let leave = leave.map(|since| Monotonic(since.0.saturating_add(policy.transition_period)));
            graces.chain([leave])
        });
        deadlines.flatten().min()
    }

    /// What must be reclaimed now: up to the value and minimum reclaim of every threshold that was crossed and has
    /// not been resolved since. Met when there is nothing to do, at whatever level.
    pub fn need(&self, seen: &Observation, policy: &PressurePolicy) -> Need {
        self.unresolved(policy)
            .map(|(_, threshold, signal)| until_resolved(policy, threshold, signal, seen))
            .fold(Need::default(), |all, one| all.max(one))
    }

    /// By which level's rules the need is reclaimed: the worst that is unresolved. Milder than
    /// [`level`](Pressure::level) when that one is only held for its transition period: who crossed `soft` again
    /// must not pay by the rules of `critical`.
    pub fn need_level(&self, policy: &PressurePolicy) -> Level {
        self.unresolved(policy).map(|(level, ..)| level).max().unwrap_or(Level::Normal)
    }

    fn unresolved<'a>(
        &'a self,
        policy: &'a PressurePolicy,
    ) -> impl Iterator<Item = (Level, &'a Threshold, Signal)> + 'a {
        LEVELS.into_iter().zip(&self.levels).flat_map(move |(level, state)| {
            let threshold = policy.threshold(level);
            let signals = Signal::ALL.into_iter().zip(&state.signals);
            signals
                .filter(|(_, state)| state.is_unresolved)
                .filter_map(move |(signal, _)| threshold.map(|threshold| (level, threshold, signal)))
        })
    }

    fn elapse_from(&mut self, from: Level, policy: &PressurePolicy, now: Monotonic) -> Option<Transition> {
        for (level, state) in LEVELS.iter().zip(&mut self.levels) {
            if let Some(threshold) = policy.threshold(*level) {
                state.elapse(grace(*level, threshold), policy.transition_period, now);
            }
        }
        let to = self.level();
        (from != to).then(|| Transition { from, to, signal: self.cause(to).filter(|_| to > from) })
    }

    /// The first signal that is below its value at `level`.
    fn cause(&self, level: Level) -> Option<Signal> {
        let (_, state) = LEVELS.iter().zip(&self.levels).find(|(candidate, _)| **candidate == level)?;
        let mut signals = Signal::ALL.into_iter().zip(&state.signals);
        signals.find(|(_, state)| state.below_since.is_some()).map(|(signal, _)| signal)
    }
}

/// Only soft waits. Whatever is configured, hard and critical act at once (kubernetes#94305).
fn grace(level: Level, threshold: &Threshold) -> Duration {
    if level == Level::Soft { threshold.grace_period } else { Duration::ZERO }
}

impl LevelState {
    fn note(&mut self, threshold: &Threshold, seen: &Observation, policy: &PressurePolicy, now: Monotonic) {
        for (signal, state) in Signal::ALL.into_iter().zip(&mut self.signals) {
            if is_below(threshold, signal, seen) {
                state.below_since.get_or_insert(now);
            } else {
                state.below_since = None;
                state.is_unresolved &= !until_resolved(policy, threshold, signal, seen).is_met();
            }
        }
        if self.signals.iter().any(|signal| signal.below_since.is_some()) {
            self.above_since = None;
        } else {
            self.above_since.get_or_insert(now);
        }
    }

    fn elapse(&mut self, grace: Duration, transition_period: Duration, now: Monotonic) {
        for signal in &mut self.signals {
            if signal.below_since.is_some_and(|since| now.since(since) >= grace) {
                signal.is_unresolved = true;
                self.is_active = true;
            }
        }
        if self.above_since.is_some_and(|since| now.since(since) >= transition_period) {
            self.is_active = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::fixture::{observed, pressure_policy};
    use crate::model::{Bytes, Inodes};

    /// A filesystem of 100 GiB told step by step: soft 20 % after 30 s, hard 15 %, critical 11 %, minimum reclaim 2 %,
    /// transition period 60 s.
    struct Story {
        pressure: Pressure,
        policy: PressurePolicy,
        seen: Observation,
    }

    impl Story {
        fn begin() -> Story {
            Story { pressure: Pressure::new(), policy: pressure_policy(), seen: observed("100GiB") }
        }

        #[track_caller]
        fn sees(&mut self, second: u64, available: &str, level: Level) -> &mut Story {
            self.seen = observed(available);
            let before = self.pressure.level();
            let change = self.pressure.observe(&self.seen, &self.policy, at(second));
            assert_eq!(self.pressure.level(), level, "{available} at {second} s");
            assert_eq!(
                change.map(|change| (change.from, change.to)),
                (before != level).then_some((before, level))
            );
            self
        }

        #[track_caller]
        fn waits(&mut self, second: u64, level: Level) -> &mut Story {
            self.pressure.elapse(&self.policy, at(second));
            assert_eq!(self.pressure.level(), level, "after waiting until {second} s");
            self
        }

        #[track_caller]
        fn needs(&mut self, bytes: &str, level: Level) -> &mut Story {
            let need = Need { bytes: bytes.parse().unwrap(), inodes: 0 };
            assert_eq!(self.pressure.need(&self.seen, &self.policy), need);
            assert_eq!(self.pressure.need_level(&self.policy), level);
            self
        }

        #[track_caller]
        fn wakes_at(&mut self, second: Option<u64>) -> &mut Story {
            assert_eq!(self.pressure.next_deadline(&self.policy), second.map(at));
            self
        }
    }

    fn at(second: u64) -> Monotonic {
        Monotonic(Duration::from_secs(second))
    }

    use Level::{Critical, Hard, Normal, Soft};

    #[test]
    fn soft_begins_after_its_grace_period_and_hard_at_once() {
        Story::begin()
            .sees(0, "19GiB", Normal)
            .needs("0", Normal)
            .wakes_at(Some(30))
            .sees(29, "18GiB", Normal)
            .sees(30, "18GiB", Soft)
            .needs("4GiB", Soft)
            .wakes_at(None)
            .sees(31, "14GiB", Hard)
            .needs("8GiB", Hard);
    }

    #[test]
    fn a_recovery_within_the_grace_period_starts_it_anew() {
        Story::begin()
            .sees(0, "19GiB", Normal)
            .sees(20, "21GiB", Normal)
            .sees(25, "19GiB", Normal)
            .sees(50, "19GiB", Normal)
            .wakes_at(Some(55))
            .sees(55, "19GiB", Soft);
    }

    #[test]
    fn case_20_a_reclaim_goes_on_past_the_threshold_to_the_target() {
        Story::begin()
            .sees(0, "10GiB", Critical)
            .needs("7GiB", Critical)
            .sees(1, "13GiB", Critical)
            .needs("4GiB", Hard)
            .sees(2, "16GiB", Critical)
            .needs("1GiB", Hard)
            .sees(3, "17GiB", Critical)
            .needs("0", Normal);
    }

    #[test]
    fn case_21_toggling_around_the_threshold_enters_once_and_is_reclaimed_on_each_real_crossing_only() {
        let mut story = Story::begin();
        story.policy.soft = None;
        story.sees(0, "14GiB", Hard).needs("3GiB", Hard);
        for round in 0..20 {
            let second = 5 + 10 * round;
            story.sees(second, "18GiB", Hard).needs("0", Normal);
            story.sees(second + 5, "14GiB", Hard).needs("3GiB", Hard);
        }
        story.sees(210, "18GiB", Hard).wakes_at(Some(270));
        story.sees(269, "18GiB", Hard).sees(270, "18GiB", Normal).wakes_at(None);
    }

    #[test]
    fn case_26_a_grace_period_runs_out_though_the_value_never_changes() {
        Story::begin().sees(100, "19GiB", Normal).waits(129, Normal).waits(130, Soft).needs("3GiB", Soft);
        let mut story = Story::begin();
        for second in 0..30 {
            story.sees(second, "19GiB", Normal);
        }
        story.sees(30, "19GiB", Soft);
    }

    #[test]
    fn case_31_critical_acts_at_once_whatever_graces_say() {
        let mut story = Story::begin();
        for threshold in [&mut story.policy.hard, &mut story.policy.critical] {
            threshold.as_mut().unwrap().grace_period = Duration::from_secs(3600);
        }
        story.sees(0, "14GiB", Hard).sees(1, "10GiB", Critical).needs("7GiB", Critical);
    }

    #[test]
    fn a_transition_period_ends_without_another_look_too() {
        Story::begin().sees(0, "14GiB", Hard).sees(10, "30GiB", Hard).waits(69, Hard).waits(70, Normal);
    }

    #[test]
    fn a_held_critical_does_not_lend_its_rules_to_a_new_crossing_of_hard() {
        Story::begin()
            .sees(0, "10GiB", Critical)
            .sees(1, "18GiB", Critical)
            .needs("0", Normal)
            .sees(2, "14GiB", Critical)
            .needs("3GiB", Hard);
    }

    #[test]
    fn levels_are_left_one_by_one_as_their_own_periods_end() {
        Story::begin()
            .sees(0, "10GiB", Critical)
            .sees(10, "14GiB", Critical)
            .sees(30, "16GiB", Critical)
            .waits(70, Hard)
            .waits(90, Soft)
            .sees(100, "50GiB", Soft)
            .waits(160, Normal);
    }

    #[test]
    fn a_transition_names_the_signal_that_caused_it() {
        let (mut pressure, policy, mut seen) = (Pressure::new(), pressure_policy(), observed("50GiB"));
        seen.inodes = Some(Inodes { total: 1000, free: 65 });
        let change = pressure.observe(&seen, &policy, at(0)).unwrap();
        assert_eq!(change, Transition { from: Normal, to: Hard, signal: Some(Signal::InodesFree) });
        assert_eq!(pressure.need(&seen, &policy), Need { bytes: Bytes::ZERO, inodes: 5 });
        seen.inodes = Some(Inodes { total: 1000, free: 200 });
        pressure.observe(&seen, &policy, at(1));
        let change = pressure.observe(&seen, &policy, at(61)).unwrap();
        assert_eq!(change, Transition { from: Hard, to: Normal, signal: None });
    }

    #[test]
    fn a_level_that_a_new_configuration_drops_ends_at_once() {
        let mut story = Story::begin();
        story.sees(0, "14GiB", Hard);
        story.policy.hard = None;
        story.policy.soft = None;
        story.sees(1, "14GiB", Normal).needs("0", Normal).wakes_at(None);
    }

    #[test]
    fn a_clock_that_runs_backwards_ends_nothing_early() {
        Story::begin().sees(100, "14GiB", Hard).sees(101, "30GiB", Hard).sees(50, "30GiB", Hard);
    }
}
