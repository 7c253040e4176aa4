//! What a checkpoint archive says about itself: its name outside, a few small entries inside.
//!
//! ```text
//! name.rs      checkpoint-<pod>_<namespace>-<container>-<time>.tar  ─► CheckpointName ─┐
//! sniff.rs     magic bytes: plain tar, or a stream to decompress                       ├─► identify.rs ─► Identity
//! input.rs     positioned reads (plain), bounded decompression  ─► walk.rs ─► Contents ┘
//! ```
//!
//! Whoever can write into the directory chooses both, so nothing here trusts a length, a name or a stream. Reading
//! is bounded by [`Limits`]: in bytes and headers, never in seconds, so that the same archive reads the same on a
//! busy machine. Of what lies inside, only names and times are kept; environment values and memory are not.
//!
//! The walk over the headers is ours; the tar crate only takes the 512-byte header apart. The crate's own
//! reader decides what to do with an archive whose readers disagree, has no bound on entries, and splits PAX records
//! at newlines, so that a file name with a newline in it could forge a `size`. Where readers disagree we do as Go's
//! archive/tar does, which the three engines and checkpointctl use.

mod contents;
mod dumps;
pub mod fuzzing;
mod identify;
mod input;
mod interner;
mod label;
mod name;
mod pax;
mod sniff;
mod walk;

use std::fs::File;
use std::io;

pub use contents::{Contents, End};
pub use identify::{identify, is_checkpoint};
pub use interner::Interner;
pub use name::{CheckpointName, Split};

/// How much one archive may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tar headers looked at, extended ones included. The engines write 13 to 70 for a container of a few
    /// processes; criu adds about seven a process and one a thread.
    pub headers: u32,
    /// Bytes read from a plain tar, and bytes that decompression may produce.
    pub bytes: u64,
    /// Bytes of one `config.dump`, `spec.dump` or `status.dump`. The largest real one has 24 KiB; Kubernetes itself
    /// bounds a pod's annotations at 256 KiB.
    pub dump: u64,
}

impl Limits {
    /// 16,384 headers, 12 MiB read or produced, 1 MiB a dump: at most 16 MiB of memory (a decoder's window
    /// included). Decoders have tighter bounds of their own, see `sniff.rs`.
    pub const DEFAULT: Limits = Limits { headers: 16_384, bytes: 12 << 20, dump: 1 << 20 };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}

/// Why nothing can be said about a file. What is wrong *inside* is not an error, see [`End`].
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A directory, a fifo, a device: reading one may block or have effects.
    #[error("not a regular file: only plain files are read as archives")]
    NotRegular,
    /// fstat(2) or pread(2) failed.
    #[error("cannot read the archive at byte {offset}")]
    Io {
        /// Where in the file.
        offset: u64,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Reads what `file` says about itself, without moving its offset.
///
/// A plain tar is read header by header with pread(2); memory pages are never touched. A compressed one is
/// decompressed from its start, within bounds.
pub fn read(file: &File, limits: &Limits) -> Result<Contents, ReadError> {
    let metadata = file.metadata().map_err(|source| ReadError::Io { offset: 0, source })?;
    if !metadata.is_file() {
        return Err(ReadError::NotRegular);
    }
    contents::read(file, metadata.len(), limits)
}
