//! Pointers that the verifier knows the types of, as a program on a function's entry or exit gets them.
//!
//! Their fields are read by plain loads, without a helper call: a fifth to a half of the time of [`crate::kernel`]'s
//! reads, and allowed under lockdown=confidentiality. The verifier checks each load against the kernel's types, and a
//! load through a stale or null pointer gives zero.

use guard_ebpf::{DEPTH, Directory, LedgerKey, Watched};

use crate::filter;
use crate::kernel::{Dentry, Inode, offset};

/// Loads a field.
///
/// # Safety
///
/// `pointer` came from the context of the program, or from one that did, by such loads: the verifier refuses others.
#[inline(always)]
unsafe fn load<T: Copy>(pointer: u64, offset: u32) -> T {
    // SAFETY: the caller's promise. Volatile, so that the offset is added to the pointer and to nothing else.
    unsafe { core::ptr::read_volatile(pointer.wrapping_add(u64::from(offset)) as *const T) }
}

/// The superblock of an inode.
///
/// # Safety
///
/// `inode` is an argument that the function's type says is a `struct inode *`.
#[inline(always)]
pub(crate) unsafe fn superblock(inode: u64) -> u64 {
    let sb = offset!(inode_sb);
    // SAFETY: the caller's promise.
    unsafe { load(inode, sb) }
}

/// A `struct file`.
#[derive(Clone, Copy)]
pub(crate) struct File(u64);

impl File {
    /// # Safety
    ///
    /// `pointer` is an argument that the function's type says is a `struct file *`.
    #[inline(always)]
    pub(crate) unsafe fn from_argument(pointer: u64) -> File {
        File(pointer)
    }

    /// The file whose mapping has the page fault `pointer`.
    ///
    /// # Safety
    ///
    /// `pointer` is an argument that the function's type says is a `struct vm_fault *`.
    #[inline(always)]
    pub(crate) unsafe fn of_fault(pointer: u64) -> File {
        let (vma, file) = (offset!(fault_vma), offset!(vma_file));
        // SAFETY: the caller's promise.
        unsafe { File(load(load(pointer, vma), file)) }
    }

    /// The name it was opened by.
    #[inline(always)]
    pub(crate) fn dentry(self) -> Dentry {
        let name = offset!(file_dentry);
        // SAFETY: a `File` is made of an argument only.
        Dentry(unsafe { load(self.0, name) })
    }

    /// A field of 32 bits, at this offset of the structure.
    #[inline(always)]
    pub(crate) fn field(self, offset: u32) -> u32 {
        // SAFETY: as above.
        unsafe { load(self.0, offset) }
    }

    #[inline(always)]
    fn inode(self) -> u64 {
        let inode = offset!(file_inode);
        // SAFETY: a `File` is made of an argument only.
        unsafe { load(self.0, inode) }
    }

    #[inline(always)]
    pub(crate) fn superblock(self) -> u64 {
        let sb = offset!(inode_sb);
        // SAFETY: as above.
        unsafe { load(self.inode(), sb) }
    }

    #[inline(always)]
    pub(crate) fn key(self, directory: &Directory) -> LedgerKey {
        let inode = self.inode();
        let (number, generation) = (offset!(inode_ino), offset!(inode_generation));
        // SAFETY: as above.
        let (ino, generation) = unsafe { (load::<u64>(inode, number), load::<u32>(inode, generation)) };
        LedgerKey { dev: directory.dev, ino, generation: generation.into() }
    }

    /// The watched directory that the file lies below, by the name that it was opened by or by another one.
    #[inline(always)]
    pub(crate) fn directory(
        self,
        watched: &'static Watched,
        filesystem: &Directory,
    ) -> Option<&'static Directory> {
        let by_name = self.directory_by_own_name(watched, filesystem.root);
        if by_name.is_some() || offset!(may_probe) == 0 {
            return by_name;
        }
        let nlink = offset!(inode_nlink);
        // SAFETY: as above.
        let links: u32 = unsafe { load(self.inode(), nlink) };
        // Another walk for each of the others, and hardly any file has them.
        if links > 1 { filter::directory_of(watched, filesystem, Inode::at(self.inode())) } else { None }
    }

    #[inline(always)]
    fn directory_by_own_name(self, watched: &'static Watched, root: u64) -> Option<&'static Directory> {
        let (name, up) = (offset!(file_dentry), offset!(dentry_parent));
        // SAFETY: as above.
        let mut dentry: u64 = unsafe { load(self.0, name) };
        for _ in 0..DEPTH {
            // SAFETY: as above.
            let parent: u64 = unsafe { load(dentry, up) };
            if parent == dentry || parent == 0 {
                return None;
            }
            if let Some(directory) = filter::find(watched, |directory| directory.dentry == parent) {
                return Some(directory);
            }
            if parent == root {
                return None;
            }
            dentry = parent;
        }
        None
    }
}
