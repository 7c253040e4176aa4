//! [`Queue`]: the rounds that wait. No I/O, no clock.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Posted;

/// So many may wait: with [`super::TOLD_MAX`] deletions in each, 5 MB at the very most.
pub const WAITING_MAX: usize = 64;

/// First in, first out.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: VecDeque<Arc<Posted>>,
    /// The first is being posted.
    taken: bool,
    dropped: Option<Dropped>,
}

/// Rounds that were dropped, because too many were waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// How many.
    pub count: u64,
    /// The `id` of the first one.
    pub first: String,
    /// And of the last.
    pub last: String,
}

impl Queue {
    /// Adds a round. When too many wait, the oldest that is not being posted is dropped for it: what happens now is what
    /// somebody wants to know.
    pub fn push(&mut self, posted: Posted) {
        if self.waiting.len() >= WAITING_MAX
            && let Some(oldest) = self.waiting.remove(usize::from(self.taken))
        {
            let last = oldest.id.clone();
            self.dropped = Some(match self.dropped.take() {
                Some(before) => Dropped { count: before.count + 1, last, ..before },
                None => Dropped { count: 1, first: last.clone(), last },
            });
        }
        self.waiting.push_back(Arc::new(posted));
    }

    /// The oldest, which is being posted from now on.
    pub fn first(&mut self) -> Option<Arc<Posted>> {
        self.taken = !self.waiting.is_empty();
        self.waiting.front().cloned()
    }

    /// The oldest need not wait any longer.
    pub fn done(&mut self) {
        self.waiting.pop_front();
        self.taken = false;
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Those dropped since the last call.
    pub fn newly_dropped(&mut self) -> Option<Dropped> {
        self.dropped.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(n: usize) -> Posted {
        Posted { id: n.to_string(), body: "{}".into() }
    }

    #[test]
    fn when_too_many_wait_the_oldest_are_dropped_and_counted() {
        let mut queue = Queue::default();
        (0..WAITING_MAX + 3).for_each(|n| queue.push(posted(n)));
        let expect = Dropped { count: 3, first: "0".into(), last: "2".into() };
        assert_eq!((queue.len(), queue.newly_dropped()), (WAITING_MAX, Some(expect)));
        assert_eq!(queue.newly_dropped(), None);
    }

    #[test]
    fn a_round_that_is_being_posted_is_not_dropped() {
        let mut queue = Queue::default();
        queue.push(posted(0));
        let first = queue.first().unwrap();
        (1..=WAITING_MAX).for_each(|n| queue.push(posted(n)));
        assert_eq!(queue.newly_dropped().unwrap().first, "1");
        assert!(Arc::ptr_eq(&first, &queue.first().unwrap()));
        queue.done();
        assert_eq!((queue.len(), queue.first().unwrap().id.as_str()), (WAITING_MAX - 1, "2"));
    }
}
