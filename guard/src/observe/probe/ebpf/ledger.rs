//! [`Ledger`]: reading what the kernel counted per file.

use std::collections::HashSet;

use aya::maps::MapError;
use guard_ebpf::{LedgerKey, LedgerValue, names};

use super::super::{LedgerEntry, ProbeError, Slot, Writer};
use super::object::{HashMap, Object, refused};
use crate::model::{Bytes, FileId, Monotonic};

/// The ledger in the kernel.
pub(super) struct Ledger {
    files: HashMap<LedgerKey, LedgerValue>,
    /// Deleted files that the last reading found still there.
    deleted: HashSet<LedgerKey>,
}

impl Ledger {
    pub(super) fn new(object: &mut Object) -> Result<Ledger, ProbeError> {
        Ok(Ledger { files: object.map(names::LEDGER)?, deleted: HashSet::new() })
    }

    /// All entries. Of several files that had one inode number in turn, only the last that was written to.
    ///
    /// The kernel drops a deleted file when it has released the last of it, which is right after deleting. One that
    /// two readings have found deleted was counted too much somewhere, and is dropped here.
    pub(super) fn entries(&mut self) -> Result<Vec<LedgerEntry>, ProbeError> {
        let mut entries = Vec::new();
        let mut deleted = HashSet::new();
        for entry in self.files.iter() {
            match entry {
                Ok((key, value)) if value.deleted != 0 => {
                    deleted.insert(key);
                }
                Ok((key, value)) => entries.push(read(&key, &value)),
                // Removed between finding its key and reading it.
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(refused("to read the ledger", &error)),
            }
        }
        for key in self.deleted.intersection(&deleted) {
            remove(&mut self.files, key)?;
        }
        self.deleted = deleted;
        entries.sort_by(|a, b| a.file.cmp(&b.file).then(b.last.cmp(&a.last)));
        entries.dedup_by_key(|entry| entry.file);
        Ok(entries)
    }

    /// Drops what is known of `file`, under whatever generation.
    pub(super) fn forget(&mut self, file: FileId) -> Result<(), ProbeError> {
        let keys = self.files.keys().filter_map(Result::ok);
        let its: Vec<LedgerKey> = keys.filter(|key| key.dev == file.dev && key.ino == file.ino).collect();
        its.iter().try_for_each(|key| remove(&mut self.files, key))
    }

    /// Drops what is known of those `entries` that nobody has written to since `idle_since`.
    pub(super) fn sweep(
        &mut self,
        entries: &[LedgerEntry],
        idle_since: Monotonic,
    ) -> Result<usize, ProbeError> {
        let idle: HashSet<FileId> =
            entries.iter().filter(|entry| entry.last < idle_since).map(|entry| entry.file).collect();
        let keys = self.files.keys().filter_map(Result::ok);
        let keys: Vec<_> = keys.filter(|key| idle.contains(&FileId { dev: key.dev, ino: key.ino })).collect();
        keys.iter().try_for_each(|key| remove(&mut self.files, key))?;
        Ok(keys.len())
    }
}

fn remove(files: &mut HashMap<LedgerKey, LedgerValue>, key: &LedgerKey) -> Result<(), ProbeError> {
    match files.remove(key) {
        Err(error) if !is_gone(&error) => Err(refused("to forget a file", &error)),
        _ => Ok(()),
    }
}

fn is_gone(error: &MapError) -> bool {
    match error {
        MapError::KeyNotFound => true,
        MapError::SyscallError(error) => error.io_error.raw_os_error() == Some(libc::ENOENT),
        _ => false,
    }
}

fn read(key: &LedgerKey, value: &LedgerValue) -> LedgerEntry {
    let comm = value.comm.split(|byte| *byte == 0).next().unwrap_or_default();
    LedgerEntry {
        file: FileId { dev: key.dev, ino: key.ino },
        slot: Slot(value.slot as u8),
        bytes: Bytes(value.bytes.max(0).unsigned_abs()),
        writer: Writer {
            pid: value.pid,
            comm: String::from_utf8_lossy(comm).into_owned(),
            cgroup: value.cgroup,
        },
        last: Monotonic(std::time::Duration::from_nanos(value.last_ns)),
    }
}
