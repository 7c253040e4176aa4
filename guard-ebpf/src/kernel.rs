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

/// Reads a `T` of at most eight bytes at `address + offset` in kernel memory, zero when it cannot be read.
///
/// By a plain load where the kernel lets an address be cast to a type ([`guard_ebpf::Offsets::word_type`]): a tenth of what the
/// helper takes, which is called elsewhere.
#[inline(always)]
pub(crate) fn read<T: Copy + Default>(address: u64, offset: u32) -> T {
    const { assert!(size_of::<T>() <= 8) };
    if casts() {
        let word = cast(address.wrapping_add(u64::from(offset)));
        // SAFETY: the verifier knows `word` as a pointer whose loads give zero where nothing can be read, and `T` is an
        // integer. Volatile, so that it is loaded as a whole and from this pointer.
        unsafe { core::ptr::read_volatile(word as *const T) }
    } else {
        probe(address, offset)
    }
}

/// Whether [`cast`] may be called. A constant for the verifier, which never sees the other branch.
#[inline(always)]
fn casts() -> bool {
    offset!(word_type) != 0
}

/// `address` as a pointer to a word of the kernel's memory: `bpf_rdonly_cast(address, word_type)`, which the verifier turns
/// into a move.
#[inline(always)]
fn cast(address: u64) -> u64 {
    let word_type = u64::from(offset!(word_type));
    let word: u64;
    #[cfg(target_arch = "bpf")]
    // SAFETY: the guard puts the call here in place of this instruction where the kernel has the function, and only there
    // is this reached. What a call clobbers is told.
    unsafe {
        core::arch::asm!(
            "r0 = {placeholder}",
            placeholder = const guard_ebpf::CAST_PLACEHOLDER,
            inlateout("r1") address => _,
            inlateout("r2") word_type => _,
            lateout("r0") word,
            lateout("r3") _,
            lateout("r4") _,
            lateout("r5") _,
        );
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        (word, _) = (address, word_type);
    }
    word
}

/// The same by a helper, for more than a word.
#[inline(always)]
fn probe<T: Copy + Default>(address: u64, offset: u32) -> T {
    let source = address.wrapping_add(u64::from(offset)) as *const T;
    // SAFETY: the helper checks the address itself, and `T` is made of integers, valid whatever is read.
    unsafe { bpf_probe_read_kernel(source) }.unwrap_or_default()
}

/// A `struct inode`.
#[derive(Clone, Copy)]
pub(crate) struct Inode {
    address: u64,
    /// The words from `i_sb` on, where each call of the helper counts: on every kernel so far (5.10 to 7.3) the inode number
    /// is the fourth. Otherwise the first alone.
    words: [u64; 4],
}

impl Inode {
    #[inline(always)]
    pub(crate) fn at(address: u64) -> Inode {
        let sb = offset!(inode_sb);
        let words = if casts() { [read(address, sb), 0, 0, 0] } else { probe(address, sb) };
        Inode { address, words }
    }

    #[inline(always)]
    pub(crate) fn superblock(self) -> u64 {
        self.words[0]
    }

    #[inline(always)]
    pub(crate) fn number(self) -> u64 {
        let is_near = !casts() && offset!(inode_ino) == offset!(inode_sb) + 24;
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
