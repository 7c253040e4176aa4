//! What to do about a loop that panicked: a bug, and yet its filesystem must not be left alone. And about the threads beside
//! the loops, and what is served: none of them may end unnoticed.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::agent::clock::monotonic;
use crate::model::Monotonic;

/// How often threads beside the loops have panicked. They are started before there are metrics.
static BESIDE: AtomicU64 = AtomicU64::new(0);

/// So many in a row are no accident that a fresh look at everything mends.
const IN_A_ROW_MAX: u32 = 5;
/// A loop that has run for so long since the last one was sound.
const SOUND_AFTER: Duration = Duration::from_secs(300);
/// Between tries, once there were too many.
const PAUSE: Duration = Duration::from_secs(60);

/// How a filesystem goes on after its loop has panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another loop, now.
    AtOnce,
    /// Another loop after a while: starting the guard anew would leave the other filesystems alone meanwhile, for as long as
    /// the supervisor waits.
    After(Duration),
    /// Nothing is guarded as it is: a new process may get further.
    Exit,
}

/// How often loops have panicked lately.
#[derive(Debug, Default)]
pub(super) struct Stumbles {
    in_a_row: u32,
    last: Monotonic,
}

impl Stumbles {
    /// Takes note of one at `now`; `others` says whether other filesystems are guarded all the same.
    pub(super) fn next(&mut self, now: Monotonic, others: bool) -> Next {
        let goes_on = self.in_a_row > 0 && now.since(self.last) < SOUND_AFTER;
        self.in_a_row = if goes_on { self.in_a_row + 1 } else { 1 };
        self.last = now;
        match self.in_a_row {
            ..IN_A_ROW_MAX => Next::AtOnce,
            _ if others => Next::After(PAUSE),
            _ => Next::Exit,
        }
    }
}

/// Does `work` until it ends by itself: after a panic once more, and after too many in a row not at once. `name` is the
/// thread's, for the log.
pub(super) fn go_on(name: &str, mut work: impl FnMut()) {
    let mut stumbles = Stumbles::default();
    while !survives(name, &mut work) {
        if let Next::After(pause) = stumbles.next(monotonic(), true) {
            std::thread::sleep(pause);
        }
    }
}

/// Does `work` once; false, and counted, when it panics. What it changes must be whole between any two statements.
pub(super) fn survives(name: &str, work: impl FnMut()) -> bool {
    let is_well = catch_unwind(AssertUnwindSafe(work)).is_ok();
    if !is_well {
        note(name);
    }
    is_well
}

/// As [`go_on`], for what shares its thread with others.
pub(super) async fn go_on_async<F: Future<Output = ()>>(name: &str, mut work: impl FnMut() -> F) {
    let mut stumbles = Stumbles::default();
    while survives_async(name, work()).await.is_none() {
        if let Next::After(pause) = stumbles.next(monotonic(), true) {
            tokio::time::sleep(pause).await;
        }
    }
}

/// As [`survives`], for what shares its thread with others; what comes of `work`, or `None`.
pub(super) async fn survives_async<T>(name: &str, work: impl Future<Output = T>) -> Option<T> {
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    if outcome.is_err() {
        note(name);
    }
    outcome.ok()
}

fn note(name: &str) {
    BESIDE.fetch_add(1, Ordering::Relaxed);
    tracing::error!(thread = name, "a bug: a thread beside the loops panicked; it begins again");
}

/// How often threads beside the loops have panicked.
pub(super) fn panics() -> u64 {
    BESIDE.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_begins_again_and_is_counted() {
        let (before, mut tries) = (panics(), 0);
        go_on("test", || {
            tries += 1;
            assert!(tries > 3, "a panic that is expected");
        });
        assert_eq!(tries, 4);
        assert!(panics() >= before + 3);
    }

    #[tokio::test]
    async fn what_shares_its_thread_begins_again_and_is_counted() {
        let (before, tries) = (panics(), std::cell::Cell::new(0));
        let work = || async {
            tries.set(tries.get() + 1);
            tokio::task::yield_now().await;
            assert!(tries.get() > 3, "a panic that is expected");
        };
        go_on_async("test", work).await;
        assert_eq!(tries.get(), 4);
        assert!(panics() >= before + 3);
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic(Duration::from_secs(seconds))
    }

    #[test]
    fn the_fifth_in_a_row_ends_the_guard_or_waits_for_the_sake_of_others() {
        let mut stumbles = Stumbles::default();
        for second in 0..4 {
            assert_eq!(stumbles.next(at(second), false), Next::AtOnce);
        }
        assert_eq!(stumbles.next(at(4), true), Next::After(PAUSE));
        let paused = 4 + PAUSE.as_secs();
        assert_eq!(stumbles.next(at(paused), true), Next::After(PAUSE), "a pause makes nothing sound");
        assert_eq!(stumbles.next(at(paused + 1), false), Next::Exit);
    }

    #[test]
    fn what_ran_for_minutes_begins_anew() {
        let mut stumbles = Stumbles::default();
        for turn in 0..20 {
            let now = at(10 + turn * SOUND_AFTER.as_secs());
            assert_eq!(stumbles.next(now, false), Next::AtOnce);
        }
    }
}
