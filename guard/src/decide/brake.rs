//! [`Brake`]: whether writers into the checkpoint directories of one filesystem are refused.
//!
//! The last means, and so the one with the narrowest entrance: the filesystem is below its critical threshold *now*, and
//! either nothing that may be deleted is left, or what is deleted does not make up for what is written. It ends when what
//! is available has stayed beyond critical and the minimum reclaim for the transition period, or at once when an operator
//! says so. Nothing is ever refused because something *might* happen.

mod race;

use std::fmt;
use std::time::Duration;

pub use self::race::Race;
use crate::decide::threshold::{is_below, until, until_resolved};
use crate::model::{Bytes, Level, Monotonic, Observation, PressurePolicy, Signal};

/// After an operator has released the brake, it does not engage by itself for so long: whoever lets go of it wants to see
/// what happens, or to save one checkpoint that matters.
pub const INHIBITED: Duration = Duration::from_secs(600);

/// An operator's engagement ends after this unless told otherwise: a brake that somebody tried and forgot is an outage.
pub const ENGAGED_FOR: Duration = Duration::from_secs(600);

/// What deleting has come to, at the critical level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reclaim {
    /// Nothing is needed, or what is needed is being freed.
    #[default]
    Works,
    /// The plan cannot reach its target: nothing more may be deleted.
    Helpless,
    /// Checkpoints are deleted, and there is less and less all the same: writers are faster. See [`Race`].
    Outrun,
}

/// One look at the filesystem, for [`Brake::observe`].
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// What was measured.
    pub seen: &'a Observation,
    /// Against what.
    pub policy: &'a PressurePolicy,
    /// What deleting has come to.
    pub reclaim: Reclaim,
}

/// Why writers are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// [`Reclaim::Helpless`].
    Helpless,
    /// [`Reclaim::Outrun`].
    Outrun,
    /// An operator said so.
    Operator,
}

/// For people: ends the sentence "writers are refused: …".
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Helpless => "below critical, and nothing more may be deleted",
            Cause::Outrun => "below critical, and writers are faster than deleting",
            Cause::Operator => "an operator engaged the brake",
        })
    }
}

/// Why writers are no longer refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// There has been room beyond critical and the minimum reclaim for the transition period.
    Recovered,
    /// An operator said so.
    Operator,
    /// The time for which an operator had engaged it is over.
    Expired,
    /// The configuration has no critical threshold any more, or switches the brake off.
    Configuration,
    /// The guard ends.
    Stopped,
    /// No directory of the filesystem is held any more.
    Unheld,
}

/// For people: ends the sentence "writers are no longer refused: …".
impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ending::Recovered => "there has been room again for the transition period",
            Ending::Operator => "an operator released the brake",
            Ending::Expired => "the time for which an operator had engaged the brake is over",
            Ending::Configuration => "the configuration in force has no brake",
            Ending::Stopped => "the guard ends",
            Ending::Unheld => "no directory is held there any more",
        })
    }
}

/// A change, to be carried out and reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Refuse from now on.
    Engage(Cause),
    /// Let everybody write.
    Release(Ending),
}

/// The brake of one filesystem.
///
/// Protocol of use: [`observe`](Brake::observe) after each look and at [`next_deadline`](Brake::next_deadline) at the
/// latest. Calling it too often is harmless.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Brake {
    automatic: Option<Automatic>,
    manual: Option<Manual>,
    inhibited_until: Option<Monotonic>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Automatic {
    cause: Cause,
    /// Since when there has been room, without a break.
    room_since: Option<Monotonic>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Manual {
    /// `None`: until somebody releases it.
    until: Option<Monotonic>,
}

impl Brake {
    /// Released, with no history.
    pub fn new() -> Brake {
        Brake::default()
    }

    /// Why writers are refused; `None` when they are not.
    pub fn engaged(&self) -> Option<Cause> {
        let by_itself = self.automatic.map(|automatic| automatic.cause);
        by_itself.or(self.manual.map(|_| Cause::Operator))
    }

    /// When an operator's engagement ends by itself; `None` when there is none, or it does not.
    pub fn expires(&self) -> Option<Monotonic> {
        self.manual?.until
    }

    /// Until when it does not engage by itself.
    pub fn inhibited_until(&self, now: Monotonic) -> Option<Monotonic> {
        self.inhibited_until.filter(|until| now < *until)
    }

    /// Takes note of one look. `Some` when writers are to be refused from now on, or no longer.
    pub fn observe(&mut self, sight: &Sight<'_>, now: Monotonic) -> Option<Change> {
        let before = self.engaged();
        let is_inhibited = self.inhibited_until(now).is_some();
        let mut ending = Ending::Recovered;
        if self.manual.is_some_and(|manual| manual.until.is_some_and(|until| until <= now)) {
            self.manual = None;
            ending = Ending::Expired;
        }
        match &mut self.automatic {
            Some(automatic) => {
                if sight.policy.critical.is_none() {
                    self.automatic = None;
                    ending = Ending::Configuration;
                } else if !sight.has_room() {
                    automatic.room_since = None;
                } else if now.since(*automatic.room_since.get_or_insert(now))
                    >= sight.policy.transition_period
                {
                    self.automatic = None;
                    ending = Ending::Recovered;
                }
            }
            None if !is_inhibited => {
                self.automatic = sight.calls_for().map(|cause| Automatic { cause, room_since: None });
            }
            None => {}
        }
        self.change(before, ending)
    }

    /// An operator engages it, for so long or until somebody releases it. `None` when it is engaged already; the new time
    /// counts all the same.
    pub fn engage(&mut self, time: Option<Duration>, now: Monotonic) -> Option<Change> {
        let before = self.engaged();
        self.manual = Some(Manual { until: time.map(|time| Monotonic(now.0.saturating_add(time))) });
        self.change(before, Ending::Operator)
    }

    /// An operator releases it, and does not want it to engage by itself for `inhibited`. `None` when it was not engaged;
    /// the inhibition counts all the same.
    pub fn release(&mut self, inhibited: Duration, now: Monotonic) -> Option<Change> {
        let before = self.engaged();
        *self = Brake::new();
        self.inhibited_until = Some(Monotonic(now.0.saturating_add(inhibited)));
        self.change(before, Ending::Operator)
    }

    /// It is switched off, with everything that was remembered.
    pub fn switch_off(&mut self) -> Option<Change> {
        let before = self.engaged();
        *self = Brake::new();
        self.change(before, Ending::Configuration)
    }

    /// Nobody can be refused any more, for this reason. For how long an operator does not want it to engage is remembered.
    pub fn end(&mut self, ending: Ending) -> Option<Change> {
        let before = self.engaged();
        (self.automatic, self.manual) = (None, None);
        self.change(before, ending)
    }

    /// When [`observe`](Brake::observe) would change something though nothing else does.
    pub fn next_deadline(&self, policy: &PressurePolicy) -> Option<Monotonic> {
        let recovery = self.automatic.and_then(|automatic| automatic.room_since);
        let recovery = recovery.map(|since| Monotonic(since.0.saturating_add(policy.transition_period)));
        [recovery, self.expires(), self.inhibited_until].into_iter().flatten().min()
    }

    fn change(&self, before: Option<Cause>, ending: Ending) -> Option<Change> {
        match (before, self.engaged()) {
            (None, Some(cause)) => Some(Change::Engage(cause)),
            (Some(_), None) => Some(Change::Release(ending)),
            _ => None,
        }
    }
}

impl Sight<'_> {
    /// The reason to engage, if there is one.
    fn calls_for(&self) -> Option<Cause> {
        let critical = self.policy.critical.as_ref()?;
        let is_critical = Signal::ALL.into_iter().any(|signal| is_below(critical, signal, self.seen));
        match self.reclaim {
            _ if !is_critical => None,
            Reclaim::Works => None,
            Reclaim::Helpless => Some(Cause::Helpless),
            Reclaim::Outrun => Some(Cause::Outrun),
        }
    }

    /// Whether every signal has reached critical and the minimum reclaim.
    fn has_room(&self) -> bool {
        self.policy.critical.as_ref().is_none_or(|critical| {
            let mut signals = Signal::ALL.into_iter();
            signals.all(|signal| until_resolved(self.policy, critical, signal, self.seen).is_met())
        })
    }
}

/// Whether to get ready: files opened from now on must be such that writing to them can be stopped (`FAN_PRE_ACCESS` tells
/// of a file only when the mark was there before the file was opened). That costs its writers a round trip for each call,
/// so it is not done for ever: only above `normal`, or when one more archive like the largest would reach critical.
pub fn is_near(level: Level, seen: &Observation, policy: &PressurePolicy, largest: Bytes) -> bool {
    let Some(critical) = &policy.critical else { return false };
    level > Level::Normal
        || until(critical, Signal::Available, seen).is_some_and(|left| left <= largest.0)
        || Signal::ALL.into_iter().any(|signal| is_below(critical, signal, seen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::fixture::{observed, pressure_policy};
    use crate::model::Inodes;
    use Reclaim::{Helpless, Outrun, Works};

    /// A filesystem of 100 GiB told step by step: critical 11 %, minimum reclaim 2 %, transition period 60 s.
    struct Story {
        brake: Brake,
        policy: PressurePolicy,
    }

    impl Story {
        fn begin() -> Story {
            Story { brake: Brake::new(), policy: pressure_policy() }
        }

        #[track_caller]
        fn sees(
            &mut self,
            second: u64,
            available: &str,
            reclaim: Reclaim,
            change: Option<Change>,
        ) -> &mut Story {
            self.looks(second, &observed(available), reclaim, change)
        }

        #[track_caller]
        fn looks(
            &mut self,
            second: u64,
            seen: &Observation,
            reclaim: Reclaim,
            change: Option<Change>,
        ) -> &mut Story {
            let sight = Sight { seen, policy: &self.policy, reclaim };
            assert_eq!(self.brake.observe(&sight, at(second)), change, "at {second} s");
            self
        }

        #[track_caller]
        fn wakes_at(&mut self, second: Option<u64>) -> &mut Story {
            assert_eq!(self.brake.next_deadline(&self.policy), second.map(at));
            self
        }
    }

    fn at(second: u64) -> Monotonic {
        Monotonic(Duration::from_secs(second))
    }

    fn engage(cause: Cause) -> Option<Change> {
        Some(Change::Engage(cause))
    }

    fn release(ending: Ending) -> Option<Change> {
        Some(Change::Release(ending))
    }

    #[test]
    fn it_engages_only_below_critical_and_only_when_deleting_does_not_help() {
        #[track_caller]
        fn check(available: &str, reclaim: Reclaim, expect: Option<Cause>) {
            Story::begin().sees(0, available, reclaim, expect.map(Change::Engage));
        }
        check("50GiB", Helpless, None);
        check("14GiB", Helpless, None);
        check("14GiB", Outrun, None);
        check("11GiB", Helpless, None);
        check("10.9GiB", Works, None);
        check("10.9GiB", Helpless, Some(Cause::Helpless));
        check("10.9GiB", Outrun, Some(Cause::Outrun));
        check("0", Works, None);
    }

    #[test]
    fn inodes_engage_it_too() {
        let seen = |free| Observation { inodes: Some(Inodes { total: 1000, free }), ..observed("50GiB") };
        Story::begin().looks(0, &seen(60), Helpless, None).looks(
            1,
            &seen(59),
            Helpless,
            engage(Cause::Helpless),
        );
    }

    #[test]
    fn it_ends_when_there_has_been_room_for_the_transition_period() {
        Story::begin()
            .sees(0, "10GiB", Helpless, engage(Cause::Helpless))
            .wakes_at(None)
            .sees(10, "12.9GiB", Works, None)
            .wakes_at(None)
            .sees(20, "13GiB", Works, None)
            .wakes_at(Some(80))
            .sees(50, "12GiB", Works, None)
            .wakes_at(None)
            .sees(60, "14GiB", Works, None)
            .sees(119, "14GiB", Works, None)
            .sees(120, "14GiB", Works, release(Ending::Recovered))
            .wakes_at(None)
            .sees(121, "10GiB", Works, None)
            .sees(122, "10GiB", Helpless, engage(Cause::Helpless));
    }

    #[test]
    fn between_critical_and_its_target_it_neither_engages_nor_ends() {
        Story::begin().sees(0, "12GiB", Helpless, None);
        let mut story = Story::begin();
        story.sees(0, "10GiB", Helpless, engage(Cause::Helpless));
        for hour in 1..100 {
            story.sees(hour * 3600, "12GiB", Helpless, None);
        }
    }

    #[test]
    fn an_operator_ends_it_at_once_and_it_does_not_come_back_for_a_while() {
        let mut story = Story::begin();
        story.sees(0, "10GiB", Helpless, engage(Cause::Helpless));
        assert_eq!(story.brake.release(INHIBITED, at(10)), release(Ending::Operator));
        assert_eq!(story.brake.inhibited_until(at(11)), Some(at(610)));
        story.wakes_at(Some(610)).sees(11, "1GiB", Helpless, None).sees(609, "1GiB", Helpless, None);
        story.sees(610, "1GiB", Helpless, engage(Cause::Helpless));
        assert_eq!(story.brake.inhibited_until(at(611)), None);
    }

    #[test]
    fn a_release_inhibits_also_when_nothing_was_engaged() {
        let mut story = Story::begin();
        assert_eq!(story.brake.release(INHIBITED, at(0)), None);
        story.sees(1, "1GiB", Helpless, None);
    }

    #[test]
    fn an_operator_engages_it_at_any_level_and_for_a_time() {
        let mut story = Story::begin();
        assert_eq!(story.brake.engage(Some(ENGAGED_FOR), at(0)), engage(Cause::Operator));
        assert_eq!(story.brake.engage(Some(ENGAGED_FOR), at(60)), None, "engaged already");
        story.wakes_at(Some(660)).sees(659, "90GiB", Works, None);
        story.sees(660, "90GiB", Works, release(Ending::Expired));
    }

    #[test]
    fn an_operators_engagement_without_a_time_lasts_until_it_is_released() {
        let mut story = Story::begin();
        assert_eq!(story.brake.engage(None, at(0)), engage(Cause::Operator));
        story.wakes_at(None).sees(1_000_000, "90GiB", Works, None);
        assert_eq!(story.brake.release(INHIBITED, at(1_000_001)), release(Ending::Operator));
    }

    #[test]
    fn an_engagement_that_expires_below_critical_goes_on_by_itself() {
        let mut story = Story::begin();
        story.brake.engage(Some(ENGAGED_FOR), at(0));
        story.sees(5, "10GiB", Helpless, None);
        assert_eq!(story.brake.engaged(), Some(Cause::Helpless));
        story.sees(600, "10GiB", Helpless, None).sees(601, "20GiB", Works, None);
        story.sees(661, "20GiB", Works, release(Ending::Recovered));
    }

    #[test]
    fn an_operator_may_engage_what_he_has_just_released() {
        let mut story = Story::begin();
        story.brake.release(INHIBITED, at(0));
        assert_eq!(story.brake.engage(Some(ENGAGED_FOR), at(1)), engage(Cause::Operator));
    }

    #[test]
    fn it_ends_when_nobody_can_be_refused_any_more() {
        let mut story = Story::begin();
        assert_eq!(story.brake.end(Ending::Stopped), None, "nobody was refused");
        story.sees(0, "10GiB", Helpless, engage(Cause::Helpless));
        story.brake.engage(Some(ENGAGED_FOR), at(1));
        assert_eq!(story.brake.end(Ending::Unheld), release(Ending::Unheld));
        assert_eq!(story.brake, Brake::new());
        story.brake.release(INHIBITED, at(2));
        story.brake.end(Ending::Unheld);
        assert_eq!(story.brake.inhibited_until(at(3)), Some(at(602)));
    }

    #[test]
    fn a_configuration_without_critical_or_without_brake_ends_it_at_once() {
        let mut story = Story::begin();
        story.sees(0, "10GiB", Helpless, engage(Cause::Helpless));
        story.policy.critical = None;
        story.sees(1, "10GiB", Helpless, release(Ending::Configuration)).sees(2, "10GiB", Helpless, None);
        let mut story = Story::begin();
        story.brake.engage(None, at(0));
        assert_eq!(story.brake.switch_off(), release(Ending::Configuration));
        assert_eq!(story.brake.switch_off(), None);
    }

    #[test]
    fn a_clock_that_runs_backwards_ends_nothing_early() {
        Story::begin()
            .sees(100, "10GiB", Helpless, engage(Cause::Helpless))
            .sees(110, "14GiB", Works, None)
            .sees(20, "14GiB", Works, None);
    }

    #[test]
    fn getting_ready_begins_above_normal_or_one_archive_before_critical() {
        let policy = pressure_policy();
        let near = |level, available: &str, largest: &str| {
            is_near(level, &observed(available), &policy, largest.parse().unwrap())
        };
        assert!(near(Level::Soft, "19GiB", "0"));
        assert!(!near(Level::Normal, "50GiB", "10GiB"));
        assert!(near(Level::Normal, "50GiB", "40GiB"));
        assert!(near(Level::Normal, "10GiB", "0"));
        let without = PressurePolicy { critical: None, ..pressure_policy() };
        assert!(!is_near(Level::Hard, &observed("1GiB"), &without, Bytes::gib(1)));
    }
}
