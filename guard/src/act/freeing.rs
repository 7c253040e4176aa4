//! [`Freeing`]: the space of a deleted checkpoint on its way back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::act::checkpoint_dir::Unlinked;
use crate::model::Bytes;

/// Less than this is freed faster than a thread starts.
const WORTH_A_THREAD: Bytes = Bytes::mib(4);

/// Space that is being freed, perhaps by a thread of its own.
#[derive(Debug)]
pub(super) struct Freeing(Arc<AtomicBool>);

impl Freeing {
    /// Frees what `unlinked` held. While it takes long, the caller can look at the filesystem and decide.
    ///
    /// The thread runs at its maker's priority: on a busy node it is needed as soon as the maker is.
    pub(super) fn start(unlinked: Unlinked) -> Freeing {
        let is_done = Arc::new(AtomicBool::new(false));
        if unlinked.removed().allocated >= WORTH_A_THREAD {
            let sets = is_done.clone();
            let slot = Arc::new(std::sync::Mutex::new(Some(unlinked)));
            let takes = slot.clone();
            let free = move || {
                let unlinked = takes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
                unlinked.map(Unlinked::free);
                sets.store(true, Ordering::Release);
            };
            if std::thread::Builder::new().name("free".to_owned()).spawn(free).is_ok() {
                return Freeing(is_done);
            }
            // Out of threads: here and now, then.
            let unlinked = slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            unlinked.map(Unlinked::free);
        } else {
            unlinked.free();
        }
        is_done.store(true, Ordering::Release);
        Freeing(is_done)
    }

    /// Whether the space has come back, as far as the kernel is concerned; what statfs shows may lag.
    pub(super) fn is_done(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
