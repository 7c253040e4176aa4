//! Pointers into the kernel's structures, and the few fields of them that are read.
//!
//! A read of a stale or wild address gives zero, which every caller takes for "not ours".

use aya_ebpf::helpers::bpf_probe_read_kernel;

/// The field of [`OFFSETS`](crate::OFFSETS) named so, read alone rather than with the whole structure.
macro_rules! offset {
    ($field:ident) => {{
        let offsets = core::ptr::addr_of!($crate::OFFSETS).cast::<guard_ebpf::Offsets>();
        // SAFETY: `Global` is a transparent wrapper of `Offsets`. Volatile, for its value is set after compilation.
        unsafe { core::ptr::read_volatile(core::ptr::addr_of!((*offsets).$field)) }
    }};
}
pub(crate) use offset;

/// Reads a `T` at `address + offset` in kernel memory, zero when it cannot be read.
#[inline(always)]
pub(crate) fn read<T: Copy + Default>(address: u64, offset: u32) -> T {
    let source = address.wrapping_add(u64::from(offset)) as *const T;
    // SAFETY: the helper checks the address itself, and `T` is an integer, valid whatever is read.
    unsafe { bpf_probe_read_kernel(source) }.unwrap_or_default()
}

/// A `struct inode`.
#[derive(Clone, Copy)]
pub(crate) struct Inode {
    address: u64,
    /// The words from `i_sb` on: on every kernel so far (5.10 to 7.3) the inode number is the fourth, so one call reads both.
    words: [u64; 4],
}

impl Inode {
    #[inline(always)]
    pub(crate) fn at(address: u64) -> Inode {
        Inode { address, words: read(address, offset!(inode_sb)) }
    }

    #[inline(always)]
    pub(crate) fn superblock(self) -> u64 {
        self.words[0]
    }

    #[inline(always)]
    pub(crate) fn number(self) -> u64 {
        let is_near = offset!(inode_ino) == offset!(inode_sb) + 24;
        if is_near { self.words[3] } else { read(self.address, offset!(inode_ino)) }
    }

    #[inline(always)]
    pub(crate) fn generation(self) -> u32 {
        read(self.address, offset!(inode_generation))
    }

    /// The first of its names, `None` when it has none (any more) in the dentry cache.
    #[inline(always)]
    pub(crate) fn first_name(self) -> Option<Dentry> {
        Dentry::from_alias(read(self.address, offset!(inode_dentry)))
    }
}

/// Address of a `struct dentry`: a name of an inode, and its place in the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dentry(pub(crate) u64);

impl Dentry {
    /// The list of an inode's names links the middles of its dentries.
    #[inline(always)]
    fn from_alias(link: u64) -> Option<Dentry> {
        (link != 0).then(|| Dentry(link.wrapping_sub(u64::from(offset!(dentry_alias)))))
    }

    /// The next name of the same inode.
    #[inline(always)]
    pub(crate) fn next_name(self) -> Option<Dentry> {
        Dentry::from_alias(read(self.0, offset!(dentry_alias)))
    }

    /// The directory it lies in; the root of a filesystem is its own.
    #[inline(always)]
    pub(crate) fn parent(self) -> Dentry {
        Dentry(read(self.0, offset!(dentry_parent)))
    }
}

/// Address of a `struct file`.
#[derive(Clone, Copy)]
pub(crate) struct File(pub(crate) u64);

impl File {
    #[inline(always)]
    pub(crate) fn inode(self) -> Inode {
        Inode::at(read(self.0, offset!(file_inode)))
    }

    #[inline(always)]
    pub(crate) fn dentry(self) -> Dentry {
        Dentry(read(self.0, offset!(file_dentry)))
    }
}
