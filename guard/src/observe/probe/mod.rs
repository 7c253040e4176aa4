//! Seeing writes as they happen: bytes per file with their writer, and one wake when a filesystem's budget is used
//! up.
//!
//! [`Probe::load`] brings the eBPF program into the kernel and says why when it can't; the guard then goes on with
//! inotify and the timer. There are several ways into the kernel ([`Backend`]); for each directory the best that works
//! there is found by trying, a written probe file included. Each watched filesystem has a [`Slot`]: [`Probe::watch`] its directories,
//! [`Probe::arm`] it with the headroom, wait on [`Wakes`], measure with statfs, arm again. Methods take `&self` and
//! may be called from any thread while another waits.
//!
//! What is counted depends on the filesystem, see [`Coverage`]. Counting too much only wakes early; what is not
//! seen at all is what the timer is for.

mod attempt;
mod coverage;
#[cfg(feature = "ebpf")]
mod ebpf;
mod error;
mod surroundings;
#[cfg(not(feature = "ebpf"))]
mod without;

use std::fmt;

pub use attempt::{Attempt, Outcome, survey, survey_of};
pub use coverage::{Coverage, Unseen, Writing, Writings};
#[cfg(feature = "ebpf")]
pub use ebpf::{Probe, RefusedCalls, Refusing, Wakes};
pub use error::ProbeError;
#[cfg(not(feature = "ebpf"))]
pub use without::{Probe, RefusedCalls, Refusing, Wakes};

pub use surroundings::lift_locked_memory_limit;

#[cfg(feature = "ebpf")]
use self::ebpf::attempts as ebpf_attempts;
#[cfg(not(feature = "ebpf"))]
use self::without::attempts as ebpf_attempts;

use crate::model::{Bytes, FileId, Monotonic};

/// What sees the writes. The name is a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// eBPF programs at the end of the virtual filesystem's functions.
    Fexit,
    /// eBPF programs on kprobes.
    Kprobe,
    /// eBPF programs on raw tracepoints.
    RawTracepoint,
    /// inotify and a timer: that something is written, but not how much nor by whom.
    Inotify,
}

impl Backend {
    /// Those that count, and the one that remains.
    pub const ALL: [Backend; 4] = [Backend::Fexit, Backend::Kprobe, Backend::RawTracepoint, Backend::Inotify];

    /// Its name: `fexit`, `kprobe`, `raw-tracepoint`, `inotify`.
    pub fn as_str(self) -> &'static str {
        match self {
            Backend::Fexit => "fexit",
            Backend::Kprobe => "kprobe",
            Backend::RawTracepoint => "raw-tracepoint",
            Backend::Inotify => "inotify",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A watched filesystem, numbered by the caller from 0 to [`Slot::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u8);

impl Slot {
    /// The largest slot.
    pub const MAX: Slot = Slot(guard_ebpf::SLOTS as u8 - 1);
}

/// The budget of a filesystem is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// Which filesystem.
    pub slot: Slot,
    /// Time of the write that used it up, in the kernel.
    pub at: Monotonic,
    /// Who wrote: process id in the initial pid namespace.
    pub pid: u32,
}

/// What became of arming a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a budget that is used up already sends no wake"]
pub enum Armed {
    /// A wake will come when it is used up.
    Waiting,
    /// It was used up while it was being armed, or is zero; act as if the wake had come.
    UsedUp,
}

/// What was written to a filesystem's watched directories since it was first watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Bytes added.
    pub added: Bytes,
    /// Bytes given back by truncation and deletion, as far as [`Coverage`] sees them.
    pub freed: Bytes,
}

/// Who wrote last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Writer {
    /// Process id in the initial pid namespace; 0 when nobody has written since the file is known.
    pub pid: u32,
    /// Command name when it began to write to this file.
    pub comm: String,
    /// Its cgroup id (version 2 hierarchy; 1, the root, on a node that does not use it).
    pub cgroup: u64,
}

/// What was counted for one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The file, as `stat` reports it.
    pub file: FileId,
    /// Slot of its filesystem.
    pub slot: Slot,
    /// Bytes added less bytes given back since it was first seen, zero when it shrank.
    pub bytes: Bytes,
    /// Who wrote last.
    pub writer: Writer,
    /// When that was, in the kernel; up to a tick of its clock earlier (1 to 10 ms).
    pub last: Monotonic,
}

/// What could not be recorded, since loading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Writes to files that found no room in the ledger; the budget counted them nevertheless.
    pub ledger_full: u64,
    /// Wakes that found no room in the ring buffer.
    pub wakes_dropped: u64,
}

/// Outcome of [`Probe::self_test`] where it did not fail.
#[derive(Debug)]
pub enum SelfTest {
    /// A probe file was written and counted.
    Counts,
    /// No probe file could be written there (disk full, read-only, no `O_TMPFILE`), so nothing is known.
    Untested(std::io::Error),
}
