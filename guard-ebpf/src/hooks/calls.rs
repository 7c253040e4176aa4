//! Any filesystem, also one in memory or above another: what the calls that write return.
//!
//! Bytes exactly as written, in the writer's context. Writing over what is there counts again, nothing is given back.
//! Each byte passes one of these functions and only one: `vfs_iter_write`, `generic_perform_write` and
//! `vfs_copy_file_range` would see some of them a second time. Not seen: reflinks, libaio, and what the kernel writes
//! by itself. Signatures: fs/read_write.c, fs/splice.c, fs/open.c and mm/memory.c, Linux 5.10 to 7.3.

use aya_ebpf::macros::{fentry, fexit};
use aya_ebpf::programs::{FEntryContext, FExitContext};
use guard_ebpf::Counting;

use crate::kernel::offset;
use crate::typed::File;
use crate::{budget, filter, ledger};

/// `vfs_write(file, buffer, count, position) = bytes`: write, pwrite.
#[fexit]
pub(crate) fn wrote(context: FExitContext) -> i32 {
    // SAFETY: the first argument is the file.
    count(unsafe { File::from_argument(context.arg(0)) }, context.arg(4));
    0
}

/// `vfs_writev(file, vector, length, position, flags) = bytes`: writev, pwritev, pwritev2.
#[fexit]
pub(crate) fn wrote_vector(context: FExitContext) -> i32 {
    // SAFETY: the first argument is the file.
    count(unsafe { File::from_argument(context.arg(0)) }, context.arg(5));
    0
}

/// `iter_file_splice_write(pipe, file, position, length, flags) = bytes`: splice, sendfile, and copy_file_range where
/// it copies.
#[fexit]
pub(crate) fn spliced(context: FExitContext) -> i32 {
    // SAFETY: the second argument is the file.
    count(unsafe { File::from_argument(context.arg(1)) }, context.arg(5));
    0
}

/// `FALLOC_FL_PUNCH_HOLE`, `_COLLAPSE_RANGE` and `_INSERT_RANGE` of linux/falloc.h: they allocate nothing.
const NOT_ALLOCATING: u32 = 0x02 | 0x08 | 0x20;

/// `vfs_fallocate(file, mode, offset, length) = error`.
#[fexit]
pub(crate) fn allocated(context: FExitContext) -> i32 {
    if context.arg::<u32>(1) & NOT_ALLOCATING == 0 && context.arg::<i32>(4) == 0 {
        // SAFETY: the first argument is the file.
        count(unsafe { File::from_argument(context.arg(0)) }, context.arg(3));
    }
    0
}

/// `do_page_mkwrite(fault, …)`: a page of a shared mapping is about to become dirty.
#[fentry]
pub(crate) fn page_made_writable(context: FEntryContext) -> i32 {
    // SAFETY: the first argument is the fault.
    count(unsafe { File::of_fault(context.arg(0)) }, 1 << offset!(page_bits));
    0
}

#[inline(always)]
fn count(file: File, bytes: i64) {
    if bytes <= 0 {
        return;
    }
    if let Some(watched) = filter::watched()
        && let Some(filesystem) = filter::superblock(watched, file.superblock(), Counting::Calls)
        && let Some(directory) = file.directory(watched, filesystem)
    {
        ledger::add_to(directory, &file.key(directory), bytes as u64);
        budget::spend(directory.slot, bytes as u64);
    }
}
