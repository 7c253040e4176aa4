//! [`Syncer`]: fsync(2) in the background, so that no deletion waits for the disk.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A thread that makes what was written durable, as soon as the disk lets it.
#[derive(Debug)]
pub(super) struct Syncer {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    idle: Condvar,
    /// How many times the disk refused, among other failures.
    failures: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct State {
    /// Written to since the last time; each file once, so never more than rotations in the meantime.
    dirty: Vec<Arc<File>>,
    busy: bool,
    ended: bool,
}

impl Syncer {
    /// Starts the thread. Without one (no memory), nothing is synced and everything else works.
    pub(super) fn start(failures: Arc<AtomicU64>) -> Syncer {
        let shared = Arc::new(Shared { failures, ..Shared::default() });
        let of_thread = shared.clone();
        let started = std::thread::Builder::new().name("audit-sync".into()).spawn(move || of_thread.run());
        if let Err(error) = started {
            tracing::error!(%error, "no thread to sync the audit log; a power failure may lose its last lines");
            shared.state().ended = true;
        }
        Syncer { shared }
    }

    /// Asks for `file` to be made durable.
    pub(super) fn request(&self, file: &Arc<File>) {
        let mut state = self.shared.state();
        if !state.dirty.iter().any(|dirty| Arc::ptr_eq(dirty, file)) {
            state.dirty.push(file.clone());
        }
        self.shared.work.notify_one();
    }

    /// Waits until everything asked for is durable, for `limit` at most. False when it ran out.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let state = self.shared.state();
        let busy = |state: &mut State| !state.ended && (state.busy || !state.dirty.is_empty());
        let waited = self.shared.idle.wait_timeout_while(state, limit, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for Syncer {
    /// Ends the thread when it has nothing left to do; on a disk that hangs, that may be never.
    fn drop(&mut self) {
        self.flush(Duration::from_secs(1));
        self.shared.state().ended = true;
        self.shared.work.notify_one();
    }
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let state = self.state();
            let nothing = |state: &mut State| state.dirty.is_empty() && !state.ended;
            let mut state = self.work.wait_while(state, nothing).unwrap_or_else(PoisonError::into_inner);
            let dirty = std::mem::take(&mut state.dirty);
            if dirty.is_empty() {
                return;
            }
            state.busy = true;
            drop(state);
            for file in dirty {
                if let Err(error) = file.sync_data() {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(%error, "cannot make the audit log durable");
                }
            }
            self.state().busy = false;
            self.idle.notify_all();
        }
    }
}
