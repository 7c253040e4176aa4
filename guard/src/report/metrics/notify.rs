//! Who is told of deletions: the command before, the URL after.
//!
//! Absent as long as nobody is (`[notify]`).

use std::time::Duration;

use prometheus::{CounterVec, GaugeVec, IntCounterVec, Opts};

use super::families::{Families, FamilyKind};
use super::labels::{COMMAND, ROUND};

/// What became of a round that was to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundOutcome {
    /// The server took it.
    Delivered,
    /// The server would not take it.
    Refused,
    /// Too many waited, or the server did not answer for too long.
    Dropped,
}

impl RoundOutcome {
    /// Every value.
    pub const ALL: [RoundOutcome; 3] =
        [RoundOutcome::Delivered, RoundOutcome::Refused, RoundOutcome::Dropped];

    /// The label's value, and the word in the audit log.
    pub const fn as_str(self) -> &'static str {
        match self {
            RoundOutcome::Delivered => "delivered",
            RoundOutcome::Refused => "refused",
            RoundOutcome::Dropped => "dropped",
        }
    }
}

/// Every value of [`COMMAND`].
const COMMAND_OUTCOMES: [&str; 4] = ["done", "failed", "timed-out", "given-up"];

#[derive(Debug)]
pub(super) struct NotifyFamilies {
    rounds: IntCounterVec,
    failures: IntCounterVec,
    waiting: GaugeVec,
    commands: IntCounterVec,
    command_seconds: CounterVec,
}

impl NotifyFamilies {
    pub(super) fn declare(families: &mut Families) -> NotifyFamilies {
        let seconds = (
            "checkpoint_guard_command_seconds_total",
            "How long deletions waited for the command before them.",
        );
        NotifyFamilies {
            rounds: families.counter_by(
                "checkpoint_guard_webhook_rounds_total",
                &[ROUND],
                "Rounds of deletions that were to be posted to notify.url, by what became of them.",
            ),
            failures: families.counter_by(
                "checkpoint_guard_webhook_failures_total",
                &[],
                "Tries to post a round that failed; it is tried again for 10 min. The guard's log says why.",
            ),
            waiting: families.gauge_by(
                "checkpoint_guard_webhook_waiting",
                &[],
                "Rounds that wait to be posted; at 64 the oldest is dropped.",
            ),
            commands: families.counter_by(
                "checkpoint_guard_command_runs_total",
                &[COMMAND],
                "The command before a deletion, by how it ended; with `given-up` checkpoints were deleted at critical \
                 without it, or the guard ended.",
            ),
            command_seconds: {
                let (name, help) = seconds;
                let counter = CounterVec::new(Opts::new(name, help), &[]);
                let counter = counter.expect("the name is a literal that the tests have seen");
                families.declare(FamilyKind::Counter, name, &[], help, counter)
            },
        }
    }

    /// Starts the counters of the URL at zero.
    pub(super) fn begin_webhook(&self) {
        for outcome in RoundOutcome::ALL {
            self.rounds.with_label_values(&[outcome.as_str()]);
        }
        self.failures.with_label_values::<&str>(&[]);
        self.waiting(0);
    }

    /// Starts the counters of the command at zero.
    pub(super) fn begin_command(&self) {
        for outcome in COMMAND_OUTCOMES {
            self.commands.with_label_values(&[outcome]);
        }
        self.command_seconds.with_label_values::<&str>(&[]);
    }

    pub(super) fn rounds(&self, outcome: RoundOutcome, count: u64) {
        self.rounds.with_label_values(&[outcome.as_str()]).inc_by(count);
    }

    pub(super) fn failed(&self) {
        self.failures.with_label_values::<&str>(&[]).inc();
    }

    pub(super) fn waiting(&self, count: usize) {
        self.waiting.with_label_values::<&str>(&[]).set(count as f64);
    }

    pub(super) fn ran(&self, outcome: &str, took: Duration) {
        self.commands.with_label_values(&[outcome]).inc();
        self.command_seconds.with_label_values::<&str>(&[]).inc_by(took.as_secs_f64());
    }
}
