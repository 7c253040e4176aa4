//! [`Counting`]: an allocator that knows how much is held, for programs that measure memory.
//!
//! `#[global_allocator] static ALLOCATOR: Counting = Counting;`, and [`held`] and [`peak_of`] tell.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counted.
#[derive(Debug)]
pub struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Bytes allocated now.
pub fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// What `work` gives, and how many bytes beyond those held before were allocated at its peak. Counts other threads too.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = held();
    PEAK.store(before, Ordering::Relaxed);
    let result = work();
    (result, PEAK.load(Ordering::Relaxed) - before)
}

// SAFETY: every call goes to the system's allocator unchanged; the counters touch no memory of its.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` came from `alloc` above with this `layout`, hence from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
