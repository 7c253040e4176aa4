//! Rounds of deletions, posted as JSON to a URL of the operator (`[notify] url`).
//!
//! A courtesy like Events: bounded, tried again for a while, and nothing waits for it. The audit log has everything.

mod post;
mod queue;
mod round;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

pub use post::{Post, Poster, PosterError};
pub use queue::{Dropped, Queue, WAITING_MAX};
pub use round::{Posted, Round, TOLD_MAX, Told};

/// Where loops leave rounds and the poster takes them. Cloning gives another handle of the same.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    queue: Arc<Mutex<Queue>>,
    bell: Arc<Notify>,
}

impl Rounds {
    /// Leaves a round. Never waits for anybody but another who leaves or takes one.
    pub fn leave(&self, round: &Round) {
        let posted = round.posted();
        self.lock().push(posted);
        self.bell.notify_one();
    }

    /// The one that has waited longest; it goes on waiting until [`Rounds::done`].
    pub fn first(&self) -> Option<Arc<Posted>> {
        self.lock().first()
    }

    /// The first one need not wait any longer.
    pub fn done(&self) {
        self.lock().done();
    }

    /// Those that were dropped since the last call, because too many were waiting.
    pub fn newly_dropped(&self) -> Option<Dropped> {
        self.lock().newly_dropped()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.lock().len()
    }

    /// Waits until one was left. One left before the call counts.
    pub async fn left(&self) {
        self.bell.notified().await;
    }

    /// Each change is whole: a panic elsewhere leaves the queue as it was.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
