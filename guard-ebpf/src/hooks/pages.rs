//! Any filesystem on a disk: page-cache pages that become dirty, and direct writes that are done.
//!
//! Rounded to pages, and a large folio counts whole for one byte of it. A page that is dirty already does not count
//! again until it has been written back. Nothing is given back. Not seen: fallocate, reflinks, and filesystems
//! without writeback (tmpfs).

use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use guard_ebpf::Counting;

use crate::kernel::{File, Inode, offset, read};
use crate::{filter, hooks};

/// `IOCB_WRITE` of include/linux/fs.h, a `#define` and so not in BTF; it has had this value for as long as
/// `iomap_dio_complete` has existed.
const IOCB_WRITE: u32 = 1 << 18;

/// `writeback_dirty_folio(folio, mapping)`, before Linux 5.18 `writeback_dirty_page(page, mapping)`.
#[raw_tracepoint]
pub(crate) fn dirty_pages(context: RawTracePointContext) -> i32 {
    let mapping: u64 = context.arg(1);
    added(Inode(read(mapping, offset!(mapping_host))), || folio_bytes(context.arg(0)));
    0
}

/// `iomap_dio_complete(kiocb, error, ret)`: `ret` bytes were read or written, or it is an error.
#[raw_tracepoint]
pub(crate) fn direct_io(context: RawTracePointContext) -> i32 {
    let request: u64 = context.arg(0);
    let done: i64 = context.arg(2);
    if done > 0 && read::<u32>(request, offset!(kiocb_flags)) & IOCB_WRITE != 0 {
        added(File(read(request, offset!(kiocb_file))).inode(), || done as u64);
    }
    0
}

#[inline(always)]
fn added(inode: Inode, bytes: impl Fn() -> u64) {
    if let Some(watched) = filter::watched()
        && filter::filesystem(watched, inode, Counting::Pages).is_some()
    {
        hooks::count(watched, inode, bytes());
    }
}

#[inline(always)]
fn folio_bytes(folio: u64) -> u64 {
    let large = read::<u64>(folio, offset!(folio_flags)) >> (offset!(folio_large_bit) & 63) & 1 != 0;
    let order =
        if large && offset!(folio_order) != 0 { read::<u8>(folio, offset!(folio_order)) & 31 } else { 0 };
    1 << (offset!(page_bits) + u32::from(order))
}
