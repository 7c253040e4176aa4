//! What was deleted, what should have been and was not, and how fast it went.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus::{Histogram, IntCounterVec};

use super::checkpoints::{NAMESPACES_MAX, OTHER, UNKNOWN};
use super::families::Families;
use super::labels::{
    FAILURE, FILESYSTEM, FailureCause, FilesystemLabel, NAMESPACE, REFUSAL, RefusalCause, TRIGGER, TRIGGERS,
};
use crate::model::{Bytes, Trigger};

/// From 50 µs, where a ring buffer's wake-up ends, to 1 s, where a poller would have been as good.
const REACTION_BUCKETS: [f64; 14] =
    [50e-6, 100e-6, 200e-6, 350e-6, 500e-6, 750e-6, 1e-3, 2e-3, 5e-3, 10e-3, 25e-3, 100e-3, 250e-3, 1.0];

/// A plan over ten thousand checkpoints takes milliseconds; a second would be a fault.
const PLAN_BUCKETS: [f64; 8] = [50e-6, 200e-6, 1e-3, 5e-3, 20e-3, 100e-3, 500e-3, 1.0];

#[derive(Debug)]
pub(super) struct DeletionFamilies {
    deletions: IntCounterVec,
    freed: IntCounterVec,
    namespace_deletions: IntCounterVec,
    namespace_freed: IntCounterVec,
    failures: IntCounterVec,
    refusals: IntCounterVec,
    reaction: Histogram,
    plan: Histogram,
    /// Counters must not vanish, so the first namespaces to lose something keep their series and later ones
    /// are `other`.
    named: Mutex<BTreeSet<String>>,
}

impl DeletionFamilies {
    pub(super) fn declare(families: &mut Families) -> DeletionFamilies {
        let deletions = DeletionFamilies {
            deletions: families.counter_by(
                "checkpoint_guard_deletions_total",
                &[FILESYSTEM, TRIGGER],
                "Checkpoints deleted, by what set it off; `checkpoint-guard history` says which and why.",
            ),
            freed: families.counter_by(
                "checkpoint_guard_freed_bytes_total",
                &[FILESYSTEM, TRIGGER],
                "Bytes that deletions really freed, measured, by what set them off.",
            ),
            namespace_deletions: families.counter_by(
                "checkpoint_guard_namespace_deletions_total",
                &[NAMESPACE],
                "Checkpoints deleted, by the namespace that lost them.",
            ),
            namespace_freed: families.counter_by(
                "checkpoint_guard_namespace_freed_bytes_total",
                &[NAMESPACE],
                "Bytes that deletions really freed, by the namespace that lost the checkpoints.",
            ),
            failures: families.counter_by(
                "checkpoint_guard_deletion_failures_total",
                &[FAILURE],
                "Deletions that the filesystem refused; the next candidate was tried instead.",
            ),
            refusals: families.counter_by(
                "checkpoint_guard_deletion_refusals_total",
                &[REFUSAL],
                "Planned deletions given up at the last look, because the checkpoint was no longer what the plan \
                 saw.",
            ),
            reaction: families.histogram(
                "checkpoint_guard_reaction_seconds",
                &REACTION_BUCKETS,
                "From the write that used up the headroom (kernel's time stamp) to the first deletion.",
            ),
            plan: families.histogram(
                "checkpoint_guard_plan_duration_seconds",
                &PLAN_BUCKETS,
                "How long deciding what to delete took.",
            ),
            named: Mutex::default(),
        };
        for cause in FailureCause::ALL {
            deletions.failures.with_label_values(&[cause.as_str()]);
        }
        for cause in RefusalCause::ALL {
            deletions.refusals.with_label_values(&[cause.as_str()]);
        }
        deletions
    }

    /// Starts every counter of a filesystem at zero, so that its first deletion is an increase.
    pub(super) fn begin(&self, filesystem: &FilesystemLabel) {
        for trigger in TRIGGERS {
            self.deletions.with_label_values(&[filesystem.as_str(), trigger]);
            self.freed.with_label_values(&[filesystem.as_str(), trigger]);
        }
    }

    pub(super) fn deleted(
        &self,
        filesystem: &FilesystemLabel,
        trigger: &Trigger,
        namespace: Option<&str>,
        freed: Bytes,
    ) {
        let labels = [filesystem.as_str(), trigger.label()];
        self.deletions.with_label_values(&labels).inc();
        self.freed.with_label_values(&labels).inc_by(freed.0);
        let namespace = self.bounded(namespace.unwrap_or(UNKNOWN));
        self.namespace_deletions.with_label_values(&[namespace]).inc();
        self.namespace_freed.with_label_values(&[namespace]).inc_by(freed.0);
    }

    pub(super) fn failed(&self, cause: FailureCause) {
        self.failures.with_label_values(&[cause.as_str()]).inc();
    }

    pub(super) fn refused(&self, cause: RefusalCause) {
        self.refusals.with_label_values(&[cause.as_str()]).inc();
    }

    pub(super) fn reacted(&self, after: Duration) {
        self.reaction.observe(after.as_secs_f64());
    }

    pub(super) fn planned(&self, took: Duration) {
        self.plan.observe(took.as_secs_f64());
    }

    pub(super) fn forget(&self, filesystem: &FilesystemLabel) {
        for trigger in TRIGGERS {
            // Err: there was no such series, which is what is wanted.
            let _ = self.deletions.remove_label_values(&[filesystem.as_str(), trigger]);
            let _ = self.freed.remove_label_values(&[filesystem.as_str(), trigger]);
        }
    }

    fn bounded<'a>(&self, namespace: &'a str) -> &'a str {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.contains(namespace) {
            return namespace;
        }
        if named.len() < NAMESPACES_MAX {
            named.insert(namespace.to_owned());
            return namespace;
        }
        OTHER
    }
}
