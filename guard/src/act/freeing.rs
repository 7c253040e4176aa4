//! [`Freeing`]: the space of a deleted checkpoint on its way back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::act::checkpoint_dir::Unlinked;
use crate::model::Bytes;

/// Less than this is freed faster than a thread starts.
const WORTH_A_THREAD: Bytes = Bytes::mib(4);

/// Space that is being freed, perhaps by a thread of its own.
#[derive(Debug)]
pub(super) struct Freeing(Arc<Progress>);

#[derive(Debug)]
struct Progress {
    left: AtomicU64,
    is_done: AtomicBool,
}

impl Progress {
    fn free(&self, unlinked: Unlinked) {
        unlinked.free_telling(|left| self.left.store(left.0, Ordering::Release));
        self.is_done.store(true, Ordering::Release);
    }
}

impl Freeing {
    /// Frees what `unlinked` held. While it takes long, the caller can look at the filesystem and decide.
    ///
    /// The thread runs at its maker's priority: on a busy node it is needed as soon as the maker is.
    pub(super) fn start(unlinked: Unlinked) -> Freeing {
        let allocated = unlinked.removed().allocated;
        let progress =
            Arc::new(Progress { left: AtomicU64::new(allocated.0), is_done: AtomicBool::new(false) });
        if allocated < WORTH_A_THREAD {
            progress.free(unlinked);
            return Freeing(progress);
        }
        let slot = Arc::new(Mutex::new(Some(unlinked)));
        let free = {
            let (progress, slot) = (progress.clone(), slot.clone());
            move || {
                if let Some(unlinked) = take(&slot) {
                    progress.free(unlinked);
                }
            }
        };
        let spawned = std::thread::Builder::new().name("free".to_owned()).spawn(free);
        // Out of threads: here and now, then.
        if spawned.is_err()
            && let Some(unlinked) = take(&slot)
        {
            progress.free(unlinked);
        }
        Freeing(progress)
    }

    /// Whether the space has come back, as far as the kernel is concerned; what statfs shows may lag.
    pub(super) fn is_done(&self) -> bool {
        self.0.is_done.load(Ordering::Acquire)
    }

    /// What is still to come.
    pub(super) fn left(&self) -> Bytes {
        Bytes(self.0.left.load(Ordering::Acquire))
    }
}

fn take(slot: &Mutex<Option<Unlinked>>) -> Option<Unlinked> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}
