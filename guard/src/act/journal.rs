//! [`Journal`]: what the executor tells before and after each deletion.

use std::path::Path;

use crate::act::checkpoint_dir::Removed;
use crate::act::refusal::Refused;
use crate::model::{Bytes, Checkpoint, Monotonic, Need, Observation, Protection, Trigger};

/// A deletion about to be tried.
#[derive(Clone, Debug)]
pub struct Intent<'a> {
    /// What is to go.
    pub checkpoint: &'a Checkpoint,
    /// The directory it lies in.
    pub directory: &'a Path,
    /// What its rules give it.
    pub protection: Protection,
    /// What set it off.
    pub trigger: &'a Trigger,
    /// Why this one, as a sentence.
    pub reason: String,
    /// Who asked, when somebody did: `uid 0 (root)`.
    pub requested_by: Option<&'a str>,
}

/// How a deletion ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Gone, by us.
    Deleted(Removed),
    /// Gone before.
    Gone,
    /// Still there, because we refused. Or because the kernel did: [`Refused::is_failure`].
    Refused(Refused),
    /// A dry run: nothing was tried.
    WouldBeDeleted,
}

/// One deletion, tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Index into [`crate::model::Inventory::checkpoints`].
    pub index: u32,
    /// Its audit id; zero in a dry run.
    pub id: u64,
    /// How it ended.
    pub verdict: Verdict,
    /// What the plan counted on.
    pub promised: Need,
    /// What statfs shows beyond `before`, but no more than the file had (others delete too), and nothing when
    /// writers were faster.
    pub freed: Need,
    /// Right before.
    pub before: Observation,
    /// Afterwards; `None` when the filesystem did not answer.
    pub after: Option<Observation>,
    /// When it was begun.
    pub began: Monotonic,
    /// When its name was gone, or it was refused.
    pub removed_at: Monotonic,
    /// When it was measured, too.
    pub ended: Monotonic,
}

impl Outcome {
    /// The word for it in records and metrics.
    pub const fn label(&self) -> &'static str {
        match &self.verdict {
            Verdict::Deleted(_) => "deleted",
            Verdict::Gone => "gone",
            Verdict::Refused(refused) if refused.is_failure() => "failed",
            Verdict::Refused(_) => "spared",
            Verdict::WouldBeDeleted => "would-be-deleted",
        }
    }

    /// Why it was not deleted.
    pub const fn refused(&self) -> Option<&Refused> {
        match &self.verdict {
            Verdict::Refused(refused) => Some(refused),
            _ => None,
        }
    }

    /// Whether it was deleted and gave back less than half of what was promised: reflink copies and snapshots
    /// share its blocks, somebody wrote faster, or the filesystem's numbers lag by more than we wait.
    pub fn fell_short(&self) -> bool {
        matches!(self.verdict, Verdict::Deleted(_)) && self.freed.bytes < Bytes(self.promised.bytes.0 / 2)
    }
}

/// Where deletions are announced and recorded. Nothing here may wait for a disk: a deletion waits for it.
pub trait Journal {
    /// Announces a deletion; what it returns grows and never repeats.
    fn intent(&mut self, intent: &Intent<'_>) -> u64;

    /// Records how it ended.
    fn outcome(&mut self, intent: &Intent<'_>, outcome: &Outcome);
}
