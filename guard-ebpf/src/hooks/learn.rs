//! Which kernel objects a descriptor of the guard stands for. Attached only while the guard asks.

use aya_ebpf::bindings::bpf_pidns_info;
use aya_ebpf::helpers::{bpf_get_current_task, bpf_get_ns_current_pid_tgid};
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use guard_ebpf::Learn;

use crate::kernel::{File, offset, read};
use crate::maps::LEARN;

/// `sys_enter`: answers the question in [`LEARN`] when the asking thread makes a system call.
#[raw_tracepoint]
pub(crate) fn learn(_: RawTracePointContext) -> i32 {
    if let Some(question) = LEARN.get_ptr_mut(0) {
        // SAFETY: it points into the map, and only the asking thread gets further than the first line of `answer`.
        answer(unsafe { &mut *question });
    }
    0
}

fn answer(question: &mut Learn) -> Option<()> {
    if question.sb != 0 || !asked_by_current(question) {
        return None;
    }
    let file = descriptor(question.fd)?;
    question.dentry = file.dentry().0;
    let sb = file.inode().superblock();
    question.block_bits = u32::from(read::<u8>(sb, offset!(sb_blocksize_bits)));
    question.cluster_bits = read(read(sb, offset!(sb_fs_info)), offset!(ext4_cluster_bits));
    question.root = read(sb, offset!(sb_root));
    // Last: it marks the answer as complete.
    question.sb = sb;
    Some(())
}

/// Whether the current thread is the asking one. It knows its id in its own pid namespace only, which is another
/// one than the kernel's in a container.
fn asked_by_current(question: &Learn) -> bool {
    let mut ids = bpf_pidns_info { pid: 0, tgid: 0 };
    // SAFETY: `ids` is valid and its size is the one given.
    let found = unsafe {
        bpf_get_ns_current_pid_tgid(
            question.pid_namespace_dev,
            question.pid_namespace_ino,
            &raw mut ids,
            size_of::<bpf_pidns_info>() as u32,
        )
    };
    found == 0 && ids.pid == question.tid
}

/// The current process' open file number `fd`.
fn descriptor(fd: u32) -> Option<File> {
    // SAFETY: the helper has no preconditions.
    let task = unsafe { bpf_get_current_task() };
    let files: u64 = read(task, offset!(task_files));
    let table: u64 = read(files, offset!(files_fdt));
    if fd >= read(table, offset!(fdtable_max_fds)) {
        return None;
    }
    let array: u64 = read(table, offset!(fdtable_fd));
    let file = read(array.wrapping_add(u64::from(fd) * 8), 0);
    (file != 0).then_some(File(file))
}
