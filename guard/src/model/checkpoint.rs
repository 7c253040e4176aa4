//! [`Checkpoint`]: the unit that is listed, protected and deleted.

use std::ffi::OsStr;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use crate::model::{Bytes, Identity, Need};

/// A file as the kernel knows it. Inode numbers are reused; size and mtime go with it where that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// `st_dev`.
    pub dev: u64,
    /// `st_ino`.
    pub ino: u64,
}

/// What sort of checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One tar file.
    Archive,
    /// One directory of a pod-level checkpoint (KEP-5823).
    PodCheckpoint,
}

/// A process that has a file open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Its process id in our pid namespace.
    pub pid: i32,
    /// Its command name, `/proc/<pid>/comm`.
    pub comm: String,
}

bitflags::bitflags! {
    /// What was *observed* of a checkpoint. What follows from these, from the others and from the policy
    /// (superseded, last, young, protected) is decided in `decide`, not stored.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct States: u16 {
        /// A marker `<name>.keep` lies beside it.
        const PINNED = 1;
        /// Somebody has it open.
        const IN_USE = 1 << 1;
        /// Somebody has it open for writing, or it is not known to be finished.
        const BEING_WRITTEN = 1 << 2;
        /// Nobody writes it any more and its tar ends early.
        const INCOMPLETE = 1 << 3;
        /// Another hard link holds its data: deleting this name frees nothing.
        const LINKED = 1 << 4;
        /// Its pod is known to be gone. Unset when unknown.
        const ORPHAN = 1 << 5;
        /// It is useless without an earlier one (podman's `--with-previous`, `checkpoint/parent`).
        const HAS_PARENT = 1 << 6;
        /// It is a pre-dump that later ones build on (podman's `--pre-checkpoint`).
        const PRE_CHECKPOINT = 1 << 7;
        /// Deleting it failed lately, or could not be shown to be safe. Cleared by the next scan.
        const REFUSED = 1 << 8;
        /// Others than its owner may read it: its mode lets them, and so do all directories above it.
        const EXPOSED = 1 << 9;
        /// It does not end early, and not both dumps were found inside: another kind of tar, encrypted, not to be read, or zeros
        /// where blocks never reached the disk.
        const UNPROVEN = 1 << 10;
    }
}

/// One checkpoint as last observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Which of [`crate::model::Inventory::directories`] it lies in.
    pub directory: u16,
    /// Archive or pod checkpoint.
    pub kind: Kind,
    /// What was observed.
    pub states: States,
    /// One path component; any bytes.
    pub name: Box<OsStr>,
    /// Device and inode.
    pub file: FileId,
    /// When it was made: its name says, else `config.dump`, else mtime.
    pub created: Timestamp,
    /// Last change of its content, `st_mtim`.
    pub modified: Timestamp,
    /// `st_size`; for a pod checkpoint the sum below it.
    pub len: Bytes,
    /// What deleting it frees: `st_blocks × 512` (below it), zero while another hard link holds it.
    pub allocated: Bytes,
    /// How many inodes deleting it frees.
    pub inodes: u32,
    /// Whose it is; the checkpoints of one owner share it.
    pub identity: Arc<Identity>,
}

impl Checkpoint {
    /// The moment it counts as made, seen from `now`: `created`, unless that lies in the future. A clock was wrong
    /// then, and its mtime is the next witness; when that lies in the future too, the earlier of the two.
    ///
    /// A checkpoint dated 2039 must not be the newest of its container until 2039 (salt#48478).
    #[inline]
    pub fn instant(&self, now: Timestamp) -> Timestamp {
        if self.created <= now { self.created } else { self.created.min(self.modified) }
    }

    /// How old it is at `now`, by [`Checkpoint::instant`]; zero when every witness lies in the future.
    pub fn age(&self, now: Timestamp) -> std::time::Duration {
        now.duration_since(self.instant(now)).try_into().unwrap_or_default()
    }

    /// What deleting it frees.
    #[inline]
    pub const fn gain(&self) -> Need {
        Need { bytes: self.allocated, inodes: self.inodes as u64 }
    }

    /// Its name as text, invalid UTF-8 replaced.
    pub fn display_name(&self) -> std::borrow::Cow<'_, str> {
        self.name.to_string_lossy()
    }
}
