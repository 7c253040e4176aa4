//! Does it count? A probe file is written and looked up.

use std::fs::File;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::model::{Bytes, FileId};

/// Large enough to need blocks of its own whatever the block size, small enough for a nearly full disk.
const SIZE: usize = 64 << 10;

/// Writes a nameless file into `directory`, which disappears when the result is dropped.
pub(super) fn write_probe_file(directory: BorrowedFd<'_>) -> std::io::Result<(File, FileId, Bytes)> {
    let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(directory, ".", flags, Mode::S_IRUSR)?);
    // Not zeros: a filesystem that compresses would keep no block of them.
    let bytes: Vec<u8> = (0..SIZE).map(|at| (at * 31 + (at >> 8) * 17) as u8).collect();
    file.write_all(&bytes)?;
    let metadata = file.metadata()?;
    Ok((file, FileId { dev: metadata.dev(), ino: metadata.ino() }, Bytes(SIZE as u64)))
}
