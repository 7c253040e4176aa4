//! [`Outbox`]: the notices that wait, and when the next may go. No I/O, no clock.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;

use super::{Notice, Text};
use crate::model::{Allowance, Monotonic};

/// So many may wait. An API server that is away for an hour of storm costs 64 sentences of memory.
pub const WAITING_MAX: usize = 64;
/// So many go at once.
pub const BURST: u32 = 10;
/// Then one in so long: two a minute tell a person everything, and 15,000 nodes at their limit send 500 a second.
/// client-go's own limit is a burst of 25 and one in 5 min for each object (`events_cache.go`).
pub const EVERY: Duration = Duration::from_secs(30);

/// The queue.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: VecDeque<(Timestamp, Notice)>,
    allowance: Allowance,
    dropped: u64,
}

impl Outbox {
    /// Adds a notice: to one that waits and says the same, else at the end. When too many wait, the oldest that is no warning
    /// is dropped for it, else the oldest.
    pub fn push(&mut self, at: Timestamp, notice: Notice) {
        if let Some((_, known)) = self.waiting.iter_mut().find(|(_, known)| known.is_like(&notice)) {
            if let (Text::Tally(known), Text::Tally(new)) = (&mut known.text, notice.text) {
                known.add(new);
            }
            return;
        }
        if self.waiting.len() >= WAITING_MAX {
            let least = self.waiting.iter().position(|(_, known)| !known.warning).unwrap_or(0);
            self.waiting.remove(least);
            self.dropped += 1;
        }
        self.waiting.push_back((at, notice));
    }

    /// The next one and when it happened, if it may go at `now`.
    pub fn take(&mut self, now: Monotonic) -> Option<(Timestamp, Notice)> {
        if !self.allowance.is_left(now, EVERY, BURST) {
            return None;
        }
        let notice = self.waiting.pop_front()?;
        self.allowance.spend();
        Some(notice)
    }

    /// How many were dropped since the last call.
    pub fn newly_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bytes, Level, Trigger};
    use crate::report::events::{About, Deleted};

    fn at(seconds: u64) -> Monotonic {
        Monotonic(Duration::from_secs(seconds))
    }

    fn sentence(text: &str, warning: bool) -> Notice {
        let text = Text::Sentence(text.to_owned());
        Notice { about: About::Node, warning, reason: "X", action: "Y", text }
    }

    fn round(name: &str) -> Notice {
        let trigger = Trigger::Pressure(Level::Hard);
        let deleted =
            Deleted { name: name.to_owned(), freed: Bytes::mib(1), trigger, pod: None, object: None };
        Notice::of_round("/c", &[deleted]).remove(0)
    }

    #[test]
    fn rounds_that_wait_are_added_up_and_nothing_is_lost_from_the_sum() {
        let mut outbox = Outbox::default();
        for n in 0..1000 {
            outbox.push(Timestamp::UNIX_EPOCH, round(&format!("c-{n}")));
        }
        let note = outbox.take(at(0)).unwrap().1.note();
        assert_eq!(
            note,
            "deleted 1000 checkpoints under hard pressure on /c in 1000 rounds, freed 0.98 GiB: c-0, c-1, c-2, …"
        );
        assert_eq!(outbox.take(at(0)), None);
    }

    #[test]
    fn a_storm_of_events_leaves_at_the_limits_pace() {
        let mut outbox = Outbox::default();
        (0..WAITING_MAX).for_each(|n| outbox.push(Timestamp::UNIX_EPOCH, sentence(&n.to_string(), false)));
        let drain = |outbox: &mut Outbox, now| std::iter::from_fn(|| outbox.take(now)).count();
        assert_eq!(drain(&mut outbox, at(1000)), BURST as usize);
        assert_eq!(drain(&mut outbox, at(1029)), 0);
        assert_eq!(drain(&mut outbox, at(1030)), 1);
        assert_eq!(drain(&mut outbox, at(1090)), 2);
    }

    #[test]
    fn when_too_many_wait_warnings_stay() {
        let mut outbox = Outbox::default();
        outbox.push(Timestamp::UNIX_EPOCH, sentence("first", true));
        (0..WAITING_MAX).for_each(|n| outbox.push(Timestamp::UNIX_EPOCH, sentence(&n.to_string(), false)));
        assert_eq!(outbox.newly_dropped(), 1);
        assert_eq!(outbox.newly_dropped(), 0);
        assert_eq!(outbox.take(at(0)).unwrap().1.note(), "first");
    }
}
