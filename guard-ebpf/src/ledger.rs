//! The ledger: bytes and last writer per file.

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::{
    bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_ktime_get_ns,
};
use guard_ebpf::{Directory, LedgerKey, LedgerValue};

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
    match entry(&key(directory, inode), directory) {
        Some(value) => {
            // SAFETY: `value` points into the map. Others may write the plain fields at the same time; then one of
            // two last writers is named, and nothing else depends on them.
            unsafe {
                atomic::add((&raw mut (*value).bytes).cast(), bytes);
                (*value).last_ns = bpf_ktime_get_ns();
                sign(value);
            }
        }
        None => count_full(),
    }
}

/// Takes back `bytes` from a file that the ledger knows; tells whether it does.
#[inline(always)]
pub(crate) fn take_back(key: &LedgerKey, bytes: u64) -> bool {
    let Some(value) = LEDGER.get_ptr_mut(key) else { return false };
    // SAFETY: `value` points into the map.
    unsafe { atomic::subtract((&raw mut (*value).bytes).cast(), bytes) };
    true
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
    let empty = LedgerValue { slot: directory.slot, ..EMPTY };
    // Of two processors that get here for one file, the second must not overwrite what the first has added; so both
    // insert only if absent, and both look again, whichever was first.
    let _ = LEDGER.insert(key, &empty, u64::from(BPF_NOEXIST));
    LEDGER.get_ptr_mut(key)
}

const EMPTY: LedgerValue =
    LedgerValue { bytes: 0, last_ns: 0, cgroup: 0, pid: 0, slot: 0, comm: [0; guard_ebpf::COMM] };

/// Names the current process as the last writer. Only a change of process costs the two helper calls.
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
