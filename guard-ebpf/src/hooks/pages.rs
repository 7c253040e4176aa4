//! Any filesystem on a disk: page-cache pages that become dirty, and direct writes that are done.
//!
//! Rounded to pages, and a large folio counts whole for one byte of it. A page that is dirty already does not count
//! again until it has been written back. Nothing is given back. Not seen: fallocate, reflinks, and filesystems
//! without writeback (tmpfs).

use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use guard_ebpf::Counting;

use crate::kernel::{File, Inode, offset, read};
use crate::maps::DIRECT_WRITES;
use crate::{budget, filter, hooks, ledger};

/// `writeback_dirty_folio(folio, mapping)`, before Linux 5.18 `writeback_dirty_page(page, mapping)`.
#[raw_tracepoint]
pub(crate) fn dirty_pages(context: RawTracePointContext) -> i32 {
    let mapping: u64 = context.arg(1);
    added(Inode::at(read(mapping, offset!(mapping_host))), || folio_bytes(context.arg(0)));
    0
}

/// `iomap_dio_rw_begin(kiocb, iter, flags, done_before)`: remembers that it is a write, and by whom. Neither can be
/// told when it ends: that may be in an interrupt or a worker, and the request does not know its direction.
#[raw_tracepoint]
pub(crate) fn direct_io_begins(context: RawTracePointContext) -> i32 {
    let request: u64 = context.arg(0);
    let inode = inode_of(request);
    let Some(watched) = filter::watched() else { return 0 };
    let Some(filesystem) = filter::filesystem(watched, inode, Counting::Pages) else { return 0 };
    if read::<u8>(context.arg(1), offset!(iter_is_source)) == 0 {
        // A read, whose request may lie where that of a write lay which never ended.
        let _ = DIRECT_WRITES.remove(request);
    } else if let Some(directory) = filter::directory_of(watched, filesystem, inode) {
        let _ = DIRECT_WRITES.insert(request, 0, 0);
        ledger::add(directory, inode, 0);
    }
    0
}

/// `iomap_dio_complete(kiocb, error, ret)`: `ret` bytes were read or written, or it is an error.
#[raw_tracepoint]
pub(crate) fn direct_io_ends(context: RawTracePointContext) -> i32 {
    let request: u64 = context.arg(0);
    let done: i64 = context.arg(2);
    let inode = inode_of(request);
    if let Some(watched) = filter::watched()
        && let Some(filesystem) = filter::filesystem(watched, inode, Counting::Pages)
        && DIRECT_WRITES.remove(request).is_ok()
        && done > 0
        && let Some(directory) = filter::directory_of(watched, filesystem, inode)
    {
        ledger::add_unsigned(directory, &ledger::key(directory, inode), done as u64);
        budget::spend(directory.slot, done as u64);
    }
    0
}

#[inline(always)]
fn inode_of(request: u64) -> Inode {
    File(read(request, offset!(kiocb_file))).inode()
}

#[inline(always)]
fn added(inode: Inode, bytes: impl Fn() -> u64) {
    if let Some(watched) = filter::watched()
        && let Some(filesystem) = filter::filesystem(watched, inode, Counting::Pages)
    {
        hooks::count(watched, filesystem, inode, bytes());
    }
}

#[inline(always)]
fn folio_bytes(folio: u64) -> u64 {
    let large = read::<u64>(folio, offset!(folio_flags)) >> (offset!(folio_large_bit) & 63) & 1 != 0;
    let order =
        if large && offset!(folio_order) != 0 { read::<u8>(folio, offset!(folio_order)) & 31 } else { 0 };
    1 << (offset!(page_bits) + u32::from(order))
}
