//! Where the kernel calls us: one file per family of hooks.

mod brake;
mod ext4;
mod learn;
mod pages;

use guard_ebpf::Watched;

use crate::kernel::Inode;
use crate::{budget, filter, ledger};

/// Counts `bytes` that the current process added to `inode`, if it lies in a watched directory.
#[inline(always)]
fn count(watched: &'static Watched, inode: Inode, bytes: u64) {
    if let Some(directory) = filter::directory_of(watched, inode) {
        ledger::add(directory, inode, bytes);
        budget::spend(directory.slot, bytes);
    }
}
