//! [`View`]: where the loops lay down what they know, for those who look over the socket.
//!
//! Nobody watches most of the time, so a loop makes a snapshot when it was asked, and otherwise only with its gauges.
//! Asking is a counter that each loop compares with its own once a turn, and a ring of its bell.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::eventfd::EventFd;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::agent::clock::monotonic;
use crate::model::Monotonic;
use crate::report::metrics::FilesystemLabel;
use crate::report::snapshot::FilesystemSnapshot;

/// A loop that is busy deleting, or hangs in statfs(2), is not waited for: what it laid down last is shown.
const PATIENCE: Duration = Duration::from_millis(500);
/// What is younger is not asked for again, however many look at it.
const FRESH: Duration = Duration::from_millis(100);

/// The snapshots of all filesystems.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Counts the times that somebody asked.
    asked: AtomicU64,
    state: Mutex<State>,
    published: Notify,
}

#[derive(Debug, Default)]
struct State {
    asked_at: Option<Monotonic>,
    filesystems: BTreeMap<FilesystemLabel, Shown>,
}

#[derive(Debug)]
struct Shown {
    bell: Arc<EventFd>,
    /// The asking that `snapshot` answers.
    answers: u64,
    snapshot: Option<Arc<FilesystemSnapshot>>,
}

impl View {
    /// A loop begins; `bell` wakes it.
    pub(super) fn enter(&self, label: &FilesystemLabel, bell: Arc<EventFd>) {
        self.state().filesystems.insert(label.clone(), Shown { bell, answers: 0, snapshot: None });
    }

    /// A loop has ended.
    pub(super) fn leave(&self, label: &FilesystemLabel) {
        self.state().filesystems.remove(label);
        self.published.notify_waiters();
    }

    /// How often was asked: a loop that has answered less often is to publish.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    /// Lays a snapshot down that answers the asking number `answers`.
    pub(super) fn publish(&self, label: &FilesystemLabel, answers: u64, snapshot: FilesystemSnapshot) {
        if let Some(shown) = self.state().filesystems.get_mut(label) {
            shown.answers = answers;
            shown.snapshot = Some(Arc::new(snapshot));
        }
        self.published.notify_waiters();
    }

    /// What all loops know now, or knew last when one of them does not answer at once.
    pub(super) async fn look(&self) -> Vec<Arc<FilesystemSnapshot>> {
        let number = self.ask();
        let until = Instant::now() + PATIENCE;
        loop {
            // Made before looking: what is published in between is not missed.
            let published = self.published.notified();
            {
                let state = self.state();
                let mut all = state.filesystems.values();
                if all.all(|shown| shown.answers >= number) || Instant::now() >= until {
                    return state.filesystems.values().filter_map(|shown| shown.snapshot.clone()).collect();
                }
            }
            // Err: out of patience, as the next look finds.
            let _ = timeout_at(until, published).await;
        }
    }

    /// Asks every loop, unless somebody has just done so; gives the number of the asking.
    fn ask(&self) -> u64 {
        let now = monotonic();
        let mut state = self.state();
        if state.asked_at.is_some_and(|at| now.since(at) < FRESH) {
            return self.asked();
        }
        state.asked_at = Some(now);
        let number = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        for shown in state.filesystems.values() {
            let _ = shown.bell.write(1);
        }
        number
    }

    /// Every change is a single insert, remove or store: a panic elsewhere leaves it whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
