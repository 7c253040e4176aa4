//! [`Unlinked`]: a checkpoint without a name, and giving its space back.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::unistd::ftruncate;

use super::Removed;
use super::commit::{Ask, Commits};
use crate::model::Bytes;
use crate::observe::lease::Lease;

/// Of less than this nobody notices whether it comes back 30 ms later.
pub(super) const WORTH_TRUNCATING: Bytes = Bytes::mib(4);
/// Files are emptied in steps of this, and in [`STEPS_MAX`] steps at most: a hole may be longer than any disk.
const STEP_MIN: u64 = 2 << 20;
const STEPS_MAX: u64 = 256;

/// A checkpoint whose name is gone.
#[derive(Debug)]
#[must_use = "its space comes back with `free`"]
pub struct Unlinked {
    removed: Removed,
    /// The last descriptor of an archive: closing it frees the space.
    content: Option<Content>,
    /// Where the filesystem shows freed space only when asked to.
    commits: Option<(Arc<OwnedFd>, Commits)>,
}

/// An archive without a name.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) file: OwnedFd,
    /// Its length.
    pub(super) len: Bytes,
    /// How to empty it. `None`: it can only be closed.
    pub(super) emptying: Option<Emptying>,
}

/// Why and how a file that nobody can get at any more is truncated instead of closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Emptying {
    /// xfs would free it in a worker (inodegc, since 5.14) that beside writers at full speed waits for a core for 30 ms and
    /// more. To nothing at once: any other size makes xfs write what is dirty first (`xfs_setattr_size`).
    AtOnce,
    /// ext4 frees nothing before each page that is being written to the disk has got there, 15 to 80 ms beside writers at
    /// full speed (`truncate_inode_pages_final`). In steps from the end, what is dirty only or written already comes
    /// back at once: few pages of a file are on their way at a time.
    FromTheEnd,
}

impl Unlinked {
    pub(super) fn new(
        removed: Removed,
        content: Option<Content>,
        commits: Option<(Arc<OwnedFd>, Commits)>,
    ) -> Unlinked {
        Unlinked { removed, content, commits }
    }

    /// What [`Unlinked::free`] gives back.
    pub fn removed(&self) -> Removed {
        self.removed
    }

    /// Whether it was shown that nobody can get at the content any more. Not asked for where closing is enough.
    pub fn is_unreachable(&self) -> bool {
        self.content.as_ref().is_some_and(|content| content.emptying.is_some())
    }

    /// Gives the space back. Blocks for as long as the kernel needs: 20 ms for 512 MiB on ext4, and until those of its
    /// pages that are being written to the disk have got there.
    ///
    /// Where truncating is faster ([`Emptying`]), a large one is truncated. That must not happen to anybody who reads it, now
    /// or later: it is done only when nobody can get at it any more ([`super::farewell`]), and a lease shows that nobody has
    /// it open. In any doubt it is closed, and comes back when the last one lets go.
    pub fn free(self) -> Removed {
        self.free_telling(|_| {})
    }

    /// The same; `left` is told how much is still to come, after each step.
    pub fn free_telling(self, left: impl Fn(Bytes)) -> Removed {
        if let Some(content) = &self.content
            && let Some(emptying) = content.emptying
            && let Ok(lease) = Lease::exclusive(&content.file)
            && lease.is_intact()
        {
            for len in lengths(emptying, content.len.0) {
                // Err: closing frees it, later.
                let _ = ftruncate(&content.file, i64::try_from(len).unwrap_or(i64::MAX));
                left(Bytes(self.removed.allocated.0.min(len)));
            }
        }
        drop(self.content);
        if let Some((directory, commits)) = self.commits {
            commits.begin(&directory, Ask::Fsync);
        }
        left(Bytes::ZERO);
        self.removed
    }
}

/// The lengths that a file of `len` has one after the other.
fn lengths(emptying: Emptying, len: u64) -> impl Iterator<Item = u64> {
    let step = match emptying {
        Emptying::AtOnce => len,
        Emptying::FromTheEnd => (len / STEPS_MAX).max(STEP_MIN).min(len),
    };
    let steps = if step == 0 { 0 } else { len.div_ceil(step) };
    (0..steps).rev().map(move |n| n * step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(emptying: Emptying, len: u64, expect: &[u64]) {
        assert_eq!(lengths(emptying, len).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn files_are_emptied_in_steps_from_the_end_and_whole_where_that_is_faster() {
        check(Emptying::FromTheEnd, 5 << 20, &[4 << 20, 2 << 20, 0]);
        check(Emptying::FromTheEnd, 1, &[0]);
        check(Emptying::AtOnce, 5 << 20, &[0]);
        check(Emptying::FromTheEnd, 0, &[]);
        check(Emptying::AtOnce, 0, &[]);
    }

    #[test]
    fn a_hole_of_any_length_takes_a_bounded_number_of_steps() {
        for len in [1 << 30, (1 << 30) + 1, 1 << 60, i64::MAX as u64] {
            let lengths: Vec<_> = lengths(Emptying::FromTheEnd, len).collect();
            assert!(lengths.len() as u64 <= STEPS_MAX + 1, "{} steps", lengths.len());
            assert_eq!(lengths.last(), Some(&0));
            assert!(lengths.is_sorted_by(|a, b| a > b) && lengths[0] < len);
        }
    }
}
