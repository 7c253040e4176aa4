//! The API server: is what the guard knows of the cluster current, and does it get its Events out?
//!
//! Absent as long as nobody is asked (`[kubernetes] mode`).

use jiff::Timestamp;
use prometheus::{GaugeVec, IntCounterVec};

use super::agent::unix_seconds;
use super::families::Families;
use super::labels::{API_CAUSE, API_CAUSES, CALL, CALLS, DELIVERY, RESOURCE};

/// What became of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventOutcome {
    /// It is in the API.
    Published,
    /// The server would not take it.
    Refused,
    /// Too many waited, or the server did not answer for too long.
    Dropped,
}

impl EventOutcome {
    /// Every value.
    pub const ALL: [EventOutcome; 3] =
        [EventOutcome::Published, EventOutcome::Refused, EventOutcome::Dropped];

    /// The label's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            EventOutcome::Published => "published",
            EventOutcome::Refused => "refused",
            EventOutcome::Dropped => "dropped",
        }
    }
}

#[derive(Debug)]
pub(super) struct ClusterFamilies {
    current: GaugeVec,
    last_current: GaugeVec,
    calls: IntCounterVec,
    failures: IntCounterVec,
    misread: IntCounterVec,
    state_failures: IntCounterVec,
    events: IntCounterVec,
}

impl ClusterFamilies {
    pub(super) fn declare(families: &mut Families) -> ClusterFamilies {
        ClusterFamilies {
            current: families.gauge_by(
                "checkpoint_guard_cluster_current",
                &[RESOURCE],
                "1 while a watch tells what changes in the API server; 0: the guard goes on with what it last knew.",
            ),
            last_current: families.gauge_by(
                "checkpoint_guard_cluster_last_current_timestamp_seconds",
                &[RESOURCE],
                "When the API server was last heard of (Unix time): `time()` less this is the age of what is known. It \
                 grows up to some minutes while nothing changes.",
            ),
            calls: families.counter_by(
                "checkpoint_guard_cluster_calls_total",
                &[CALL],
                "Calls to the API server. None grows with the number of checkpoints.",
            ),
            failures: families.counter_by(
                "checkpoint_guard_cluster_failures_total",
                &[API_CAUSE],
                "Calls to the API server that failed, and watches that broke; `forbidden` is a missing verb of the \
                 ClusterRole.",
            ),
            misread: families.counter_by(
                "checkpoint_guard_cluster_misread_annotations_total",
                &[],
                "Annotations of Namespaces and Pods that say nothing the guard understands; its log names them.",
            ),
            state_failures: families.counter_by(
                "checkpoint_guard_cluster_state_failures_total",
                &[],
                "Failures to keep on disk what is known of the cluster: after a restart without API server, less is known.",
            ),
            events: families.counter_by(
                "checkpoint_guard_events_total",
                &[DELIVERY],
                "Kubernetes Events, by what became of them. The audit log has everything in any case.",
            ),
        }
    }

    /// Starts the counters at zero.
    pub(super) fn begin(&self) {
        for outcome in EventOutcome::ALL {
            self.events.with_label_values(&[outcome.as_str()]);
        }
        for call in CALLS {
            self.calls.with_label_values(&[call]);
        }
        for cause in API_CAUSES {
            self.failures.with_label_values(&[cause]);
        }
        self.misread.with_label_values::<&str>(&[]);
        self.state_failures.with_label_values::<&str>(&[]);
    }

    pub(super) fn current(&self, resource: &str, at: Timestamp) {
        self.current.with_label_values(&[resource]).set(1.0);
        self.last_current.with_label_values(&[resource]).set(unix_seconds(at));
    }

    pub(super) fn known_since(&self, resource: &str, at: Option<Timestamp>) {
        self.current.with_label_values(&[resource]).set(0.0);
        if let Some(at) = at {
            self.last_current.with_label_values(&[resource]).set(unix_seconds(at));
        }
    }

    pub(super) fn called(&self, call: &str) {
        self.calls.with_label_values(&[call]).inc();
    }

    pub(super) fn failed(&self, cause: &str) {
        self.failures.with_label_values(&[cause]).inc();
    }

    pub(super) fn misread(&self, count: u64) {
        self.misread.with_label_values::<&str>(&[]).inc_by(count);
    }

    pub(super) fn state_failed(&self) {
        self.state_failures.with_label_values::<&str>(&[]).inc();
    }

    pub(super) fn event(&self, outcome: EventOutcome, count: u64) {
        self.events.with_label_values(&[outcome.as_str()]).inc_by(count);
    }
}
