//! The ledger: bytes and last writer per file.

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::{
    bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_jiffies64,
    bpf_ktime_get_ns,
};
use guard_ebpf::{COMM, Directory, LedgerKey, LedgerValue};

use crate::atomic;
use crate::kernel::Inode;
use crate::maps::{LEDGER, LOST};

#[inline(always)]
pub(crate) fn key(directory: &Directory, inode: Inode) -> LedgerKey {
    LedgerKey { dev: directory.dev, ino: inode.number(), generation: u64::from(inode.generation()) }
}

/// Adds `bytes` that the current process wrote. When the ledger is full, that is counted in its stead.
#[inline(always)]
pub(crate) fn add(directory: &Directory, inode: Inode, bytes: u64) {
    add_to(directory, &key(directory, inode), bytes);
}

/// The same, where the file's key is known.
#[inline(always)]
pub(crate) fn add_to(directory: &Directory, key: &LedgerKey, bytes: u64) {
    if let Some(value) = add_unsigned(directory, key, bytes) {
        // SAFETY: `value` points into the map.
        unsafe { sign(value) };
    }
}

/// Adds `bytes` that somebody else wrote, who has been named before.
#[inline(always)]
pub(crate) fn add_unsigned(directory: &Directory, key: &LedgerKey, bytes: u64) -> Option<*mut LedgerValue> {
    let Some(value) = entry(key, directory) else {
        count_full();
        return None;
    };
    // SAFETY: `value` points into the map.
    unsafe {
        atomic::add((&raw mut (*value).bytes).cast(), bytes);
        // SAFETY: the helpers have no preconditions. The first is compiled to a load; the exact time takes longer than
        // everything else here, and is asked for once a tick. Others may write here at the same time: one of two times stays.
        let tick = bpf_jiffies64();
        if (*value).tick != tick {
            (*value).tick = tick;
            (*value).last_ns = bpf_ktime_get_ns();
        }
    }
    Some(value)
}

/// Takes back `bytes` from a file that the ledger knows; tells whether it does.
#[inline(always)]
pub(crate) fn take_back(key: &LedgerKey, bytes: u64) -> bool {
    let Some(value) = LEDGER.get_ptr_mut(key) else { return false };
    // SAFETY: `value` points into the map.
    let last_of_deleted = unsafe {
        atomic::subtract((&raw mut (*value).bytes).cast(), bytes);
        (*value).deleted != 0 && (*value).bytes <= 0
    };
    if last_of_deleted {
        let _ = LEDGER.remove(key);
    }
    true
}

/// The file is deleted: forgets it, at once or when what it had reserved was released, which ext4 does after
/// freeing the inode.
#[inline(always)]
pub(crate) fn delete(key: &LedgerKey) {
    let Some(value) = LEDGER.get_ptr_mut(key) else { return };
    // SAFETY: `value` points into the map; nobody writes to a file whose inode is being freed.
    unsafe {
        if (*value).bytes <= 0 {
            let _ = LEDGER.remove(key);
        } else {
            (*value).deleted = 1;
        }
    }
}

/// Takes back `bytes` from a watched file that the ledger does not know: what there was before the guard.
#[inline(always)]
pub(crate) fn take_back_from_new(directory: &Directory, inode: Inode, bytes: u64) {
    match entry(&key(directory, inode), directory) {
        // SAFETY: `value` points into the map.
        Some(value) => unsafe { atomic::subtract((&raw mut (*value).bytes).cast(), bytes) },
        None => count_full(),
    }
}

#[inline(always)]
fn count_full() {
    if let Some(lost) = LOST.get_ptr_mut(0) {
        // SAFETY: `lost` points into the map.
        unsafe { atomic::add(&raw mut (*lost).ledger_full, 1) };
    }
}

/// The entry of a file, made if there is none; `None` when the ledger is full.
#[inline(always)]
fn entry(key: &LedgerKey, directory: &Directory) -> Option<*mut LedgerValue> {
    if let Some(value) = LEDGER.get_ptr_mut(key) {
        return Some(value);
    }
    let empty = LedgerValue { slot: directory.slot as u16, ..EMPTY };
    // Of two processors that get here for one file, the second must not overwrite what the first has added; so both
    // insert only if absent, and both look again, whichever was first.
    let _ = LEDGER.insert(key, empty, u64::from(BPF_NOEXIST));
    LEDGER.get_ptr_mut(key)
}

const EMPTY: LedgerValue =
    LedgerValue { bytes: 0, last_ns: 0, tick: 0, cgroup: 0, pid: 0, slot: 0, deleted: 0, comm: [0; COMM] };

/// Names the current process as the last writer; of two at the same time, one or the other. Only a change of process costs the two helper calls.
///
/// # Safety
///
/// `value` points into the map.
#[inline(always)]
unsafe fn sign(value: *mut LedgerValue) {
    let pid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: the caller's promise.
    unsafe {
        if (*value).pid == pid {
            return;
        }
        (*value).pid = pid;
        (*value).comm = bpf_get_current_comm().unwrap_or_default();
        (*value).cgroup = bpf_get_current_cgroup_id();
    }
}
