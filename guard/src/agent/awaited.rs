//! [`Awaited`]: the directories that are being opened, which takes until they are there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Which thread opens which directory.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tickets: u64,
    awaited: BTreeMap<PathBuf, Entry>,
}

#[derive(Debug)]
struct Entry {
    ticket: u64,
    is_missed: bool,
}

/// One thread's task; void when another has been given it, or nobody wants the directory any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

impl Awaited {
    /// A thread begins to open `path`; one that was at it already stops.
    pub(super) fn begin(&self, path: &Path) -> Ticket {
        let mut state = self.state();
        state.tickets += 1;
        let ticket = state.tickets;
        state.awaited.insert(path.to_owned(), Entry { ticket, is_missed: false });
        Ticket(ticket)
    }

    /// The directory is not there, and should be. The result is whether to go on trying.
    pub(super) fn miss(&self, path: &Path, ticket: Ticket) -> bool {
        match self.state().awaited.get_mut(path).filter(|entry| entry.ticket == ticket.0) {
            Some(entry) => entry.is_missed = true,
            None => return false,
        }
        true
    }

    /// Whether the task is still wanted.
    pub(super) fn is_wanted(&self, path: &Path, ticket: Ticket) -> bool {
        self.state().awaited.get(path).is_some_and(|entry| entry.ticket == ticket.0)
    }

    /// The directory is open. The result is whether it was still wanted.
    pub(super) fn end(&self, path: &Path, ticket: Ticket) -> bool {
        let mut state = self.state();
        let is_wanted = state.awaited.get(path).is_some_and(|entry| entry.ticket == ticket.0);
        if is_wanted {
            state.awaited.remove(path);
        }
        is_wanted
    }

    /// Forgets those of which `is_wanted` says no.
    pub(super) fn keep(&self, mut is_wanted: impl FnMut(&Path) -> bool) {
        self.state().awaited.retain(|path, _| is_wanted(path));
    }

    /// How many are not there and should be.
    pub(super) fn missed(&self) -> usize {
        self.state().awaited.values().filter(|entry| entry.is_missed).count()
    }

    /// Each change is a single step: a panic elsewhere leaves the state whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_counts_until_it_is_open_or_not_wanted_any_more() {
        let (awaited, [a, b]) = (Awaited::default(), ["/a", "/b"].map(Path::new));
        let (of_a, of_b) = (awaited.begin(a), awaited.begin(b));
        assert_eq!(awaited.missed(), 0, "nobody has looked yet");
        assert!(awaited.miss(a, of_a) && awaited.miss(a, of_a) && awaited.miss(b, of_b));
        assert_eq!(awaited.missed(), 2);
        assert!(awaited.end(a, of_a));
        assert_eq!(awaited.missed(), 1);
        awaited.keep(|_| false);
        assert_eq!(awaited.missed(), 0);
        assert!(!awaited.miss(b, of_b) && !awaited.is_wanted(b, of_b) && !awaited.end(b, of_b));
    }

    #[test]
    fn of_two_threads_at_one_directory_the_later_one_has_the_task() {
        let (awaited, a) = (Awaited::default(), Path::new("/a"));
        let (first, second) = (awaited.begin(a), awaited.begin(a));
        assert!(!awaited.is_wanted(a, first) && awaited.is_wanted(a, second));
        assert!(!awaited.end(a, first) && awaited.end(a, second));
    }
}
