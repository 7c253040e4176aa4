//! [`Settling`]: whether pod checkpoints are finished, which nobody tells.
//!
//! A directory appears before anything is in it, its files come one after the other, and none is open in between; no event
//! tells of what happens below it. So a tree counts as being written until nothing in it has changed for [`SETTLES_AFTER`].
//! A writer who pauses for longer than that between two files cannot be told from one who is done.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::{Bytes, FileId, Moment, Monotonic};
use crate::observe::scan::Tree;

/// How long nothing may have changed in a pod checkpoint before it counts as finished. A runtime that checkpoints several
/// containers freezes and dumps one after the other, which leaves pauses of seconds.
pub const SETTLES_AFTER: Duration = Duration::from_secs(10);

/// What a look at a tree comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Somebody writes it, as far as is known.
    BeingWritten,
    /// Nobody writes it, and no file is in it.
    Empty,
    /// Finished.
    Settled,
}

/// All trees, by the inode of their top.
#[derive(Debug, Default)]
pub(super) struct Settling {
    trees: HashMap<FileId, Seen>,
    /// The earliest of those that are not settled; may be too early.
    due: Option<Monotonic>,
}

/// What in a tree cannot stay the same when something is written.
type Print = (Bytes, u32, Timestamp);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    print: Print,
    /// When it was first seen like this.
    since: Monotonic,
    is_settled: bool,
}

impl Seen {
    /// What is known after one more look. `is_busy`: it cannot be finished, whatever else is known of it. `is_first`: it lay
    /// there before anybody watched, so its own times are all that tells how long it has been like this.
    fn next(before: Option<Seen>, print: Print, is_busy: bool, is_first: bool, now: Moment) -> Seen {
        let since = now.monotonic;
        match before {
            _ if is_busy => Seen { print, since, is_settled: false },
            None => {
                // A change in the future is of now: a clock was wrong.
                let unchanged_for = Duration::try_from(now.wall.duration_since(print.2)).unwrap_or_default();
                Seen { print, since, is_settled: is_first && unchanged_for >= SETTLES_AFTER }
            }
            Some(before) if before.print != print => Seen { print, since, is_settled: false },
            Some(before) => {
                let is_settled = before.is_settled || since.since(before.since) >= SETTLES_AFTER;
                Seen { is_settled, ..before }
            }
        }
    }

    fn due(&self) -> Option<Monotonic> {
        (!self.is_settled).then_some(Monotonic(self.since.0 + SETTLES_AFTER))
    }
}

impl Settling {
    /// Notes a look at a tree; see [`Seen::next`].
    pub(super) fn see(&mut self, top: FileId, tree: &Tree, is_first: bool, now: Moment) -> Shape {
        let print = (tree.len, tree.inodes, tree.changed);
        // What was not seen whole may still be growing.
        let is_busy = tree.being_written || tree.partial;
        let seen = Seen::next(self.trees.get(&top).copied(), print, is_busy, is_first, now);
        self.trees.insert(top, seen);
        self.due = self.due.into_iter().chain(seen.due()).min();
        match seen.is_settled {
            false => Shape::BeingWritten,
            true if tree.files == 0 => Shape::Empty,
            true => Shape::Settled,
        }
    }

    /// It could not be looked at: not again at once.
    pub(super) fn put_off(&mut self, top: FileId, now: Moment) {
        if let Some(seen) = self.trees.get_mut(&top) {
            *seen = Seen { since: now.monotonic, is_settled: false, ..*seen };
        }
    }

    /// It is no more.
    pub(super) fn forget(&mut self, top: FileId) {
        self.trees.remove(&top);
    }

    /// What was due has been looked at.
    pub(super) fn have_looked(&mut self) {
        self.due = self.trees.values().filter_map(Seen::due).min();
    }

    /// When the first of those that are not settled should be looked at again.
    pub(super) fn due(&self) -> Option<Monotonic> {
        self.due
    }

    /// Whether this one should.
    pub(super) fn is_due(&self, top: FileId, now: Moment) -> bool {
        self.trees.get(&top).and_then(Seen::due).is_some_and(|due| due <= now.monotonic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: FileId = FileId { dev: 1, ino: 2 };

    fn at(seconds: u64) -> Moment {
        let wall = Timestamp::from_second(1_800_000_000 + seconds as i64).unwrap();
        Moment { monotonic: Monotonic(Duration::from_secs(seconds)), wall }
    }

    /// A tree of so many bytes in one file, last changed at that second.
    fn tree(len: u64, changed: u64) -> Tree {
        let changed = at(changed).wall;
        Tree {
            len: Bytes(len),
            files: u32::from(len > 0),
            inodes: 2,
            modified: changed,
            changed,
            ..Tree::default()
        }
    }

    #[track_caller]
    fn check(settling: &mut Settling, seconds: u64, tree: &Tree, expect: Shape) {
        assert_eq!(settling.see(TOP, tree, false, at(seconds)), expect, "at {seconds} s");
    }

    #[test]
    fn a_tree_is_finished_when_nothing_in_it_has_changed_for_ten_seconds() {
        use Shape::{BeingWritten, Settled};
        let mut settling = Settling::default();
        check(&mut settling, 100, &tree(7, 0), BeingWritten);
        assert_eq!(settling.due(), Some(at(110).monotonic));
        check(&mut settling, 109, &tree(7, 0), BeingWritten);
        // Another file is no longer than the first, nor newer by its mtime.
        check(&mut settling, 110, &Tree { inodes: 3, ..tree(7, 0) }, BeingWritten);
        check(&mut settling, 119, &Tree { inodes: 3, changed: at(115).wall, ..tree(7, 0) }, BeingWritten);
        let last = Tree { inodes: 3, changed: at(115).wall, ..tree(7, 0) };
        check(&mut settling, 128, &last, BeingWritten);
        check(&mut settling, 129, &last, Settled);
        settling.have_looked();
        assert_eq!(settling.due(), None);
        check(&mut settling, 500, &last, Settled);
        check(&mut settling, 501, &Tree { len: Bytes(8), ..last }, BeingWritten);
        assert_eq!(settling.due(), Some(at(511).monotonic));
        assert!(!settling.is_due(TOP, at(510)) && settling.is_due(TOP, at(511)));
    }

    #[test]
    fn one_that_is_open_or_not_seen_whole_is_never_finished_and_then_waits_anew() {
        let open = Tree { being_written: true, ..tree(7, 0) };
        for busy in [open, Tree { partial: true, ..tree(7, 0) }] {
            let mut settling = Settling::default();
            check(&mut settling, 100, &busy, Shape::BeingWritten);
            check(&mut settling, 200, &busy, Shape::BeingWritten);
            check(&mut settling, 205, &tree(7, 0), Shape::BeingWritten);
            check(&mut settling, 210, &tree(7, 0), Shape::Settled);
        }
    }

    #[test]
    fn an_empty_one_is_being_written_at_first_and_then_incomplete() {
        let mut settling = Settling::default();
        check(&mut settling, 100, &tree(0, 0), Shape::BeingWritten);
        check(&mut settling, 110, &tree(0, 0), Shape::Empty);
        check(&mut settling, 111, &tree(7, 111), Shape::BeingWritten);
    }

    #[test]
    fn what_lay_there_at_the_start_is_as_settled_as_its_times_say() {
        for (changed, expect) in [
            (89, Shape::Settled),
            (90, Shape::Settled),
            (91, Shape::BeingWritten),
            (1000, Shape::BeingWritten),
        ] {
            let shape = Settling::default().see(TOP, &tree(7, changed), true, at(100));
            assert_eq!(shape, expect, "changed at {changed}");
        }
        // Later its times say nothing: they can be set, and so can the clock.
        assert_eq!(Settling::default().see(TOP, &tree(7, 0), false, at(100)), Shape::BeingWritten);
    }
}
