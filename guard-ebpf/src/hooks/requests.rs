//! One filesystem's own entry for writing, by a kprobe: whoever asks passes here, also io_uring and libaio.
//!
//! Counted is what is asked for, before it is done: a write that is cut short counts whole, and one that io_uring tries
//! twice counts twice. Writing over what is there counts again, nothing is given back.

use aya_ebpf::macros::kprobe;
use aya_ebpf::programs::ProbeContext;
use guard_ebpf::Counting;

use crate::kernel::{File, offset, read};
use crate::{filter, hooks};

/// `…_file_write_iter(kiocb, iter)`.
#[kprobe]
pub(crate) fn write_requested(context: ProbeContext) -> u32 {
    let request: u64 = context.arg(0).unwrap_or_default();
    let iter: u64 = context.arg(1).unwrap_or_default();
    count(File(read(request, offset!(kiocb_file))), || read(iter, offset!(iter_count)));
    0
}

/// `FALLOC_FL_PUNCH_HOLE`, `_COLLAPSE_RANGE` and `_INSERT_RANGE` of linux/falloc.h: they allocate nothing.
const NOT_ALLOCATING: u32 = 0x02 | 0x08 | 0x20;

/// `vfs_fallocate(file, mode, offset, length)`.
#[kprobe]
pub(crate) fn allocation_requested(context: ProbeContext) -> u32 {
    if context.arg::<u32>(1).unwrap_or_default() & NOT_ALLOCATING == 0 {
        count(File(context.arg(0).unwrap_or_default()), || context.arg(3).unwrap_or_default());
    }
    0
}

/// `do_page_mkwrite(fault, …)`.
#[kprobe]
pub(crate) fn page_requested(context: ProbeContext) -> u32 {
    let vma: u64 = read(context.arg(0).unwrap_or_default(), offset!(fault_vma));
    count(File(read(vma, offset!(vma_file))), || 1 << offset!(page_bits));
    0
}

#[inline(always)]
fn count(file: File, bytes: impl Fn() -> u64) {
    let inode = file.inode();
    if let Some(watched) = filter::watched()
        && let Some(filesystem) = filter::filesystem(watched, inode, Counting::Requests)
    {
        hooks::count(watched, filesystem, inode, bytes());
    }
}
