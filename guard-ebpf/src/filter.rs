//! Whose file is this: does it lie in a watched directory, at any depth?

use guard_ebpf::{Counting, DEPTH, Directory, Watched};

use crate::kernel::{Dentry, Inode};
use crate::maps::WATCHED;

/// How many names of one inode are followed. A checkpoint that is linked more often than that, all other names
/// being elsewhere and newer, is not recognised.
const NAMES: usize = 4;

/// All watched directories, while there are any.
#[inline(always)]
pub(crate) fn watched() -> Option<&'static Watched> {
    WATCHED.get(0)
}

/// Any watched directory on the filesystem of `inode`, if that is counted by `counting`.
///
/// This is the cheap first question: one read rejects every write to other filesystems.
#[inline(always)]
pub(crate) fn filesystem(
    watched: &'static Watched,
    inode: Inode,
    counting: Counting,
) -> Option<&'static Directory> {
    superblock(watched, inode.superblock(), counting)
}

/// The same, by the address of a `struct super_block`.
#[inline(always)]
pub(crate) fn superblock(
    watched: &'static Watched,
    sb: u64,
    counting: Counting,
) -> Option<&'static Directory> {
    find(watched, |directory| directory.sb == sb && directory.counting == counting as u32)
}

/// The watched directory that `inode` lies below, by one of its names.
///
/// A file that was unlinked or renamed away keeps or changes its name in the dentry cache accordingly: unlinked but
/// open it still counts, renamed elsewhere it no longer does.
#[inline(always)]
pub(crate) fn directory_of(watched: &'static Watched, inode: Inode) -> Option<&'static Directory> {
    let mut name = inode.first_name();
    for _ in 0..NAMES {
        let dentry = name?;
        if let Some(directory) = above(watched, dentry) {
            return Some(directory);
        }
        name = dentry.next_name();
    }
    None
}

/// The nearest watched directory above `dentry`.
#[inline(always)]
fn above(watched: &'static Watched, mut dentry: Dentry) -> Option<&'static Directory> {
    for _ in 0..DEPTH {
        let parent = dentry.parent();
        if parent == dentry || parent.0 == 0 {
            return None;
        }
        if let Some(directory) = find(watched, |directory| directory.dentry == parent.0) {
            return Some(directory);
        }
        dentry = parent;
    }
    None
}

#[inline(always)]
pub(crate) fn find(
    watched: &'static Watched,
    matches: impl Fn(&Directory) -> bool,
) -> Option<&'static Directory> {
    // Two bounds: the verifier wants a constant one.
    for (index, directory) in watched.directories.iter().enumerate() {
        if index as u64 >= watched.count {
            return None;
        }
        if matches(directory) {
            return Some(directory);
        }
    }
    None
}
