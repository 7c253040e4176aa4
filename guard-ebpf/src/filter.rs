//! Whose file is this: does it lie in a watched directory, at any depth?

use guard_ebpf::{Counting, DEPTH, DIRECTORIES, Directory, Watched};

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

/// The watched directory that `inode` lies below, by one of its names. `filesystem` is any of those on the inode's
/// filesystem.
///
/// A file that was unlinked or renamed away keeps or changes its name in the dentry cache accordingly: unlinked but
/// open it still counts, renamed elsewhere it no longer does.
#[inline(always)]
pub(crate) fn directory_of(
    watched: &'static Watched,
    filesystem: &Directory,
    inode: Inode,
) -> Option<&'static Directory> {
    let mut name = inode.first_name();
    for _ in 0..NAMES {
        let dentry = name?;
        if let Some(directory) = above(watched, filesystem.root, dentry) {
            return Some(directory);
        }
        name = dentry.next_name();
    }
    None
}

/// The nearest watched directory above `dentry`, up to `root`. What hangs below no root is its own parent.
#[inline(always)]
fn above(watched: &'static Watched, root: u64, mut dentry: Dentry) -> Option<&'static Directory> {
    for _ in 0..DEPTH {
        let parent = dentry.parent();
        if parent == dentry || parent.0 == 0 {
            return None;
        }
        if let Some(directory) = find(watched, |directory| directory.dentry == parent.0) {
            return Some(directory);
        }
        if parent.0 == root {
            return None;
        }
        dentry = parent;
    }
    None
}

/// Hardly any node watches more; what comes after these is looked at only where there are more.
const USUAL: usize = 4;

/// The first directory that matches. Unused entries are zeros, and match nothing that is asked for.
///
/// Two loops of constant length, which the compiler unrolls, and no counter: kernels before 6.12 compare each state of a
/// loop with all before it, which for a loop in a loop took minutes.
#[inline(always)]
pub(crate) fn find(
    watched: &'static Watched,
    matches: impl Fn(&Directory) -> bool,
) -> Option<&'static Directory> {
    let (usual, more) = watched.directories.split_at(USUAL);
    for directory in usual {
        if matches(directory) {
            return Some(same(watched, directory));
        }
    }
    if watched.count > USUAL as u64 {
        for directory in more {
            if matches(directory) {
                return Some(same(watched, directory));
            }
        }
    }
    None
}

/// `directory`, reached by a number that the verifier does not know: what follows is then verified once, and not once for
/// each place in the table and each level of the walk.
#[inline(always)]
fn same(watched: &'static Watched, directory: &Directory) -> &'static Directory {
    const { assert!(DIRECTORIES.is_power_of_two()) };
    // SAFETY: `directory` is initialised. Volatile, or the compiler might take it for known.
    let place = unsafe { core::ptr::read_volatile(&raw const directory.place) };
    // SAFETY: masked into the bounds of the array.
    unsafe { watched.directories.get_unchecked(usize::from(place) & (DIRECTORIES - 1)) }
}
