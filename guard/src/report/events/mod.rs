//! Kubernetes Events (events.k8s.io/v1): what an administrator sees in `kubectl describe node`, and a developer in `kubectl
//! describe pod`.
//!
//! Events are a courtesy: rate limited, bounded, and nothing waits for them. The audit log has everything.
//! kube's own Recorder is not used: it keeps the first note of a series for all that follow.

mod notice;
mod outbox;
mod publish;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::sync::Notify;

pub use notice::{About, Deleted, Notice, Tally, Text};
pub use outbox::{BURST, EVERY, Outbox, WAITING_MAX};
pub use publish::{Delivery, publish};

use crate::model::Monotonic;

/// Where loops leave notices and the publisher takes them. Cloning gives another handle of the same.
#[derive(Clone, Debug, Default)]
pub struct Notices {
    outbox: Arc<Mutex<Outbox>>,
    bell: Arc<Notify>,
}

impl Notices {
    /// Leaves a notice of `at`. Never waits for anybody but another who leaves or takes one.
    pub fn leave(&self, at: Timestamp, notice: Notice) {
        self.lock().push(at, notice);
        self.bell.notify_one();
    }

    /// Takes the next one that may be published at `now`, and when it happened.
    pub fn take(&self, now: Monotonic) -> Option<(Timestamp, Notice)> {
        self.lock().take(now)
    }

    /// How many were dropped since the last call, because too many were waiting.
    pub fn newly_dropped(&self) -> u64 {
        self.lock().newly_dropped()
    }

    /// Waits until one was left. One left before the call counts.
    pub async fn left(&self) {
        self.bell.notified().await;
    }

    /// Each change is whole: a panic elsewhere leaves the queue as it was.
    fn lock(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
