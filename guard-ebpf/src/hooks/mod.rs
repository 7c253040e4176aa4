//! Where the kernel calls us: one file per family of hooks.

mod brake;
mod calls;
mod ext4;
mod io_uring;
mod learn;
mod pages;
mod requests;

use guard_ebpf::{Directory, Watched};

use crate::kernel::Inode;
use crate::{budget, filter, ledger};

/// Counts `bytes` that the current process added to `inode`, if it lies in a watched directory; `filesystem` is one on its
/// filesystem.
#[inline(always)]
fn count(watched: &'static Watched, filesystem: &Directory, inode: Inode, bytes: u64) {
    if let Some(directory) = filter::directory_of(watched, filesystem, inode) {
        ledger::add(directory, inode, bytes);
        budget::spend(directory.slot, bytes);
    }
}
