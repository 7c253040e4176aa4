//! ext4: what `st_blocks` will say, at the time of the write and in the writer's context.
//!
//! Delayed allocation reserves space when a page is written (`ext4_da_reserve_space`) and allocates it at
//! writeback, in another task; so reservations are counted, allocations only where none preceded them, and both
//! ways of giving back are subtracted. Signatures: include/trace/events/ext4.h, Linux 5.10 to 7.3.

use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use guard_ebpf::{Counting, Directory};

use crate::kernel::{Inode, offset, read};
use crate::{budget, filter, hooks, ledger};

/// `EXT4_MB_DELALLOC_RESERVED` of fs/ext4/ext4.h, a `#define` and so not in BTF: the blocks were reserved before.
const DELALLOC_RESERVED: u32 = 0x400;

/// A write into a page without blocks reserves clusters. `(inode)`, since Linux 6.10 `(inode, clusters)`.
#[raw_tracepoint]
pub(crate) fn ext4_da_reserve_space(context: RawTracePointContext) -> i32 {
    // The kernel refuses to attach a program that reads an argument which the tracepoint has not; the verifier
    // knows the constant and drops the branch.
    let clusters: u64 = if offset!(ext4_reserve_has_count) != 0 { context.arg::<u32>(1).into() } else { 1 };
    added(Inode::at(context.arg(0)), |directory| clusters << directory.cluster_bits << directory.block_bits);
    0
}

/// Dirty pages were truncated before they were ever allocated: `(inode, clusters)`.
#[raw_tracepoint]
pub(crate) fn ext4_da_release_space(context: RawTracePointContext) -> i32 {
    let clusters: u64 = context.arg::<u32>(1).into();
    freed(Inode::at(context.arg(0)), |directory| clusters << directory.cluster_bits << directory.block_bits);
    0
}

/// Reserved clusters were allocated: `(inode, clusters, quota_claim)`. Without the claim it was fallocate that
/// allocated them, which `ext4_allocate_blocks` has counted, and the reservation lapses. (Linux 6.18 writes the dirty
/// pages back before it allocates over them, so there the claim is always made.)
#[raw_tracepoint]
pub(crate) fn ext4_da_update_reserve_space(context: RawTracePointContext) -> i32 {
    let clusters: u64 = context.arg::<u32>(1).into();
    let claimed = context.arg::<u32>(2) != 0;
    if !claimed {
        freed(Inode::at(context.arg(0)), |directory| {
            clusters << directory.cluster_bits << directory.block_bits
        });
    }
    0
}

/// Blocks without a reservation: direct I/O, fallocate, metadata, `nodelalloc`, a nearly full filesystem.
/// `(request, block)`.
#[raw_tracepoint]
pub(crate) fn ext4_allocate_blocks(context: RawTracePointContext) -> i32 {
    let request: u64 = context.arg(0);
    if read::<u32>(request, offset!(ext4_request_flags)) & DELALLOC_RESERVED == 0 {
        let clusters: u64 = read::<u32>(request, offset!(ext4_request_len)).into();
        let inode = Inode::at(read(request, offset!(ext4_request_inode)));
        added(inode, |directory| clusters << directory.cluster_bits << directory.block_bits);
    }
    0
}

/// Truncation, deletion, hole punching: `(inode, block, blocks, flags)`. With bigalloc the rest of a last cluster is
/// freed too but not told, so that a bit too little is given back.
#[raw_tracepoint]
pub(crate) fn ext4_free_blocks(context: RawTracePointContext) -> i32 {
    let blocks: u64 = context.arg(2);
    freed(Inode::at(context.arg(0)), |directory| blocks << directory.block_bits);
    0
}

/// The file is gone, all its blocks are freed, but not yet what it had only reserved: `(inode)`.
#[raw_tracepoint]
pub(crate) fn ext4_free_inode(context: RawTracePointContext) -> i32 {
    let inode = Inode::at(context.arg(0));
    if let Some(watched) = filter::watched()
        && let Some(directory) = filter::filesystem(watched, inode, Counting::Blocks)
    {
        ledger::delete(&ledger::key(directory, inode));
    }
    0
}

#[inline(always)]
fn added(inode: Inode, bytes: impl Fn(&Directory) -> u64) {
    if let Some(watched) = filter::watched()
        && let Some(filesystem) = filter::filesystem(watched, inode, Counting::Blocks)
        && bytes(filesystem) != 0
    {
        hooks::count(watched, filesystem, inode, bytes(filesystem));
    }
}

/// A file in the ledger is ours wherever it is now, also when its last name is gone; another one is when it lies in
/// a watched directory, having been there before the guard.
#[inline(always)]
fn freed(inode: Inode, bytes: impl Fn(&Directory) -> u64) {
    let Some(watched) = filter::watched() else { return };
    let Some(filesystem) = filter::filesystem(watched, inode, Counting::Blocks) else { return };
    let bytes = bytes(filesystem);
    if ledger::take_back(&ledger::key(filesystem, inode), bytes) {
        budget::give_back(filesystem.slot, bytes);
    } else if let Some(directory) = filter::directory_of(watched, filesystem, inode) {
        ledger::take_back_from_new(directory, inode, bytes);
        budget::give_back(directory.slot, bytes);
    }
}
