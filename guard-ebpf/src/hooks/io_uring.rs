//! io_uring, whose writes pass none of the functions of [`super::calls`].

use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use guard_ebpf::Counting;

use crate::kernel::{File, offset, read};
use crate::{filter, hooks};

/// `IORING_OP_WRITEV`, `_WRITE_FIXED`, `_WRITE` and (Linux 6.15) `_WRITEV_FIXED` of linux/io_uring.h. Splicing and allocating pass the same functions
/// as the system calls do.
const WRITES: [u8; 4] = [2, 5, 23, 61];

/// `io_uring_complete(ring, request, user data, result, …)`, in newer kernels (6.18) `(ring, request, entry)`. Usually in the
/// writer's context; a request that waited for the disk is completed by whoever reaps it, or a worker.
#[raw_tracepoint]
pub(crate) fn io_uring_done(context: RawTracePointContext) -> i32 {
    let request: u64 = context.arg(1);
    let opcode = read::<u8>(request, offset!(uring_opcode));
    if !WRITES.contains(&opcode) {
        return 0;
    }
    let bytes: i32 = if offset!(uring_tells_entry) != 0 {
        read(context.arg(2), offset!(uring_result))
    } else {
        context.arg(3)
    };
    if bytes <= 0 {
        return 0;
    }
    let inode = File(read(request, offset!(uring_file))).inode();
    if let Some(watched) = filter::watched()
        && let Some(filesystem) = filter::filesystem(watched, inode, Counting::Calls)
    {
        hooks::count(watched, filesystem, inode, bytes as u64);
    }
    0
}
