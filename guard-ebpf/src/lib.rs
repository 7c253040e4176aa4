#![no_std]
//! What the eBPF program and the guard agree on: the types in the maps, their sizes, and the names of maps,
//! programs and globals.
//!
//! Nothing here has implicit padding: the kernel compares map keys byte by byte.

/// How many filesystems can have a budget at once. A node has one or two; each slot costs 40 bytes.
pub const SLOTS: usize = 16;

/// Where the bytes of a self-test go: beyond the slots, never armed, so that they are in nobody's budget.
pub const SELF_TEST_SLOT: u32 = SLOTS as u32;

/// How many directories can be watched at once, on all filesystems together.
pub const DIRECTORIES: usize = 16;

/// How many levels below a watched directory a file is still recognised. Pod checkpoints use three.
pub const DEPTH: usize = 16;

/// Bytes of a command name, with the terminating zero (`TASK_COMM_LEN`).
pub const COMM: usize = 16;

/// The names by which the guard finds things in the object.
pub mod names {
    /// Global: [`Offsets`](crate::Offsets).
    pub const OFFSETS: &str = "OFFSETS";
    /// Array of one [`Watched`](crate::Watched).
    pub const WATCHED: &str = "WATCHED";
    /// Array of one [`Learn`](crate::Learn).
    pub const LEARN: &str = "LEARN";
    /// Hash of [`LedgerKey`](crate::LedgerKey) to [`LedgerValue`](crate::LedgerValue).
    pub const LEDGER: &str = "LEDGER";
    /// Array of [`Total`](crate::Total), by slot.
    pub const TOTALS: &str = "TOTALS";
    /// Array of [`Limit`](crate::Limit), by slot.
    pub const LIMITS: &str = "LIMITS";
    /// Hash of [`Crossing`](crate::Crossing) to nothing.
    pub const CROSSED: &str = "CROSSED";
    /// Ring buffer of [`WakeRecord`](crate::WakeRecord).
    pub const WAKES: &str = "WAKES";
    /// Array of one [`Lost`](crate::Lost).
    pub const LOST: &str = "LOST";

    /// Global: [`BrakeOffsets`](crate::BrakeOffsets).
    pub const BRAKE_OFFSETS: &str = "BRAKE_OFFSETS";
    /// Array of one [`Braking`](crate::Braking).
    pub const BRAKING: &str = "BRAKING";
    /// Hash of the address of a dentry to [`BrakedDirectory`](crate::BrakedDirectory).
    pub const BRAKED: &str = "BRAKED";
    /// Array of [`Lease`](crate::Lease), by [`BrakedDirectory::place`](crate::BrakedDirectory::place).
    pub const LEASES: &str = "LEASES";
    /// Hash of [`RefusedKey`](crate::RefusedKey) to [`RefusedValue`](crate::RefusedValue).
    pub const REFUSED: &str = "REFUSED";
    /// Programs of BPF LSM and their hooks, for the brake.
    pub const LSM: [(&str, &str); 5] = [
        ("refuse_write", "file_permission"),
        ("refuse_open", "file_open"),
        ("refuse_create", "inode_create"),
        ("refuse_mkdir", "inode_mkdir"),
        ("refuse_mapping", "mmap_file"),
    ];
    /// Programs that count the bytes of what those refuse, their functions, and how many arguments these must have: the
    /// result stands behind the last. Without them the calls are counted alone.
    pub const REFUSED_BYTES: [(&str, &str, u32); 2] =
        [("refused_area", "rw_verify_area", 4), ("refused_allocation", "vfs_fallocate", 4)];

    /// The program that looks a file descriptor up, and the tracepoint it needs.
    pub const LEARNER: (&str, &str) = ("learn", "sys_enter");
    /// Programs and tracepoints that account an ext4 filesystem.
    pub const EXT4: [(&str, &str); 6] = [
        ("ext4_da_reserve_space", "ext4_da_reserve_space"),
        ("ext4_da_release_space", "ext4_da_release_space"),
        ("ext4_da_update_reserve_space", "ext4_da_update_reserve_space"),
        ("ext4_allocate_blocks", "ext4_allocate_blocks"),
        ("ext4_free_blocks", "ext4_free_blocks"),
        ("ext4_free_inode", "ext4_free_inode"),
    ];
    /// The program that counts pages becoming dirty, and its tracepoint.
    pub const DIRTY_FOLIOS: (&str, &str) = ("dirty_pages", "writeback_dirty_folio");
    /// The same before Linux 5.18.
    pub const DIRTY_PAGES: (&str, &str) = ("dirty_pages", "writeback_dirty_page");
    /// Programs and tracepoints that count direct I/O through iomap (xfs, btrfs), where the kernel has them: the
    /// second was added by Linux 6.6.
    pub const DIRECT_IO: [(&str, &str); 2] =
        [("direct_io_begins", "iomap_dio_rw_begin"), ("direct_io_ends", "iomap_dio_complete")];
    /// Programs that count calls when they return, their functions, and how many arguments those must have: the
    /// result stands behind the last. The first one is indispensable.
    pub const CALLS: [(&str, &str, u32); 4] = [
        ("wrote", "vfs_write", 4),
        ("wrote_vector", "vfs_writev", 5),
        ("spliced", "iter_file_splice_write", 5),
        ("allocated", "vfs_fallocate", 4),
    ];
    /// The program that counts pages of mappings when they become writable, and its function.
    pub const MAPPED: (&str, &str) = ("page_made_writable", "do_page_mkwrite");
    /// The program that counts what io_uring has written, and its tracepoint.
    pub const IO_URING: (&str, &str) = ("io_uring_done", "io_uring_complete");
    /// The program on a filesystem's own entry for writing (a kprobe); the function depends on the filesystem.
    pub const REQUEST: &str = "write_requested";
    /// Programs that go with it, and their functions.
    pub const REQUESTS: [(&str, &str); 2] =
        [("allocation_requested", "vfs_fallocate"), ("page_requested", "do_page_mkwrite")];
}

/// How a filesystem's bytes are counted; a hook passes over filesystems that are counted by another one, so that
/// no byte is counted twice.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Blocks that ext4 reserves and allocates, less those that it frees and releases.
    Blocks = 1,
    /// Page-cache pages that become dirty, and finished direct writes.
    Pages = 2,
    /// What calls of the virtual filesystem return: bytes as written, nothing given back.
    Calls = 3,
    /// What the filesystem itself is asked to write, whoever asks; nothing given back.
    Requests = 4,
}

/// Where the running kernel keeps what the program reads: byte offsets within its structures, from its BTF.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// `task_struct.files`
    pub task_files: u32,
    /// `files_struct.fdt`
    pub files_fdt: u32,
    /// `fdtable.max_fds`
    pub fdtable_max_fds: u32,
    /// `fdtable.fd`
    pub fdtable_fd: u32,
    /// `file.f_path.dentry`
    pub file_dentry: u32,
    /// `file.f_inode`
    pub file_inode: u32,
    /// `inode.i_sb`
    pub inode_sb: u32,
    /// `inode.i_ino`
    pub inode_ino: u32,
    /// `inode.i_generation`
    pub inode_generation: u32,
    /// `inode.i_dentry`: the head of the list of its names
    pub inode_dentry: u32,
    /// `dentry.d_parent`
    pub dentry_parent: u32,
    /// `dentry.d_u.d_alias`: the link in that list
    pub dentry_alias: u32,
    /// `super_block.s_blocksize_bits`
    pub sb_blocksize_bits: u32,
    /// `super_block.s_fs_info`
    pub sb_fs_info: u32,
    /// `super_block.s_root`
    pub sb_root: u32,
    /// `ext4_sb_info.s_cluster_bits`; 0 where ext4's BTF is not to be had
    pub ext4_cluster_bits: u32,
    /// `ext4_allocation_request.inode`
    pub ext4_request_inode: u32,
    /// `ext4_allocation_request.len`
    pub ext4_request_len: u32,
    /// `ext4_allocation_request.flags`
    pub ext4_request_flags: u32,
    /// 1 when `ext4_da_reserve_space` tells how many clusters (Linux 6.10), 0 when it is always one.
    pub ext4_reserve_has_count: u32,
    /// `address_space.host`
    pub mapping_host: u32,
    /// `folio.flags` (`page.flags` before folios)
    pub folio_flags: u32,
    /// The bit in it that marks a folio of several pages
    pub folio_large_bit: u32,
    /// The byte that holds such a folio's order, from its beginning, maybe in the second page; 0 where pages are counted
    /// one by one
    pub folio_order: u32,
    /// Base 2 logarithm of the page size
    pub page_bits: u32,
    /// `kiocb.ki_filp`
    pub kiocb_file: u32,
    /// `iov_iter.data_source`: the byte that says a direct I/O is a write
    pub iter_is_source: u32,
    /// `iov_iter.count`
    pub iter_count: u32,
    /// `inode.i_nlink`
    pub inode_nlink: u32,
    /// `vm_fault.vma`
    pub fault_vma: u32,
    /// `vm_area_struct.vm_file`
    pub vma_file: u32,
    /// `io_kiocb.file`
    pub uring_file: u32,
    /// `io_kiocb.opcode`
    pub uring_opcode: u32,
    /// `io_uring_cqe.res`; only where the tracepoint tells the entry rather than the result
    pub uring_result: u32,
    /// 1 when `io_uring_complete` tells the completion queue entry (Linux 6.18), 0 when it tells the result
    pub uring_tells_entry: u32,
    /// 1 when programs may read any kernel memory, 0 under lockdown=confidentiality
    pub may_probe: u32,
    /// The id of a type that begins with an `unsigned long`, to which the program may cast any address to read it; 0 where
    /// [`CAST_PLACEHOLDER`] stands for no call
    pub word_type: u32,
}

/// What the program assigns to register 0 in each place where the guard puts a call of the kernel's function
/// `bpf_rdonly_cast` (Linux 6.2), if the kernel has it: calls of such functions have the kernel's own numbers.
pub const CAST_PLACEHOLDER: i32 = 0x6361_7374;

impl Offsets {
    /// Before the guard has looked them up.
    // SAFETY: made of integers only.
    pub const UNKNOWN: Offsets = unsafe { core::mem::zeroed() };
}

/// One watched directory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// Address of its `super_block`; 0 marks an unused entry. The guard's open descriptor keeps it alive.
    pub sb: u64,
    /// Address of its `dentry`.
    pub dentry: u64,
    /// Address of the `dentry` of the filesystem's root: above it is nothing.
    pub root: u64,
    /// `st_dev` of the directory, which on btrfs differs from the filesystem's own number.
    pub dev: u64,
    /// Slot of its filesystem.
    pub slot: u32,
    /// A [`Counting`].
    pub counting: u32,
    /// Base 2 logarithm of the block size.
    pub block_bits: u32,
    /// Base 2 logarithm of the blocks in a cluster (0 without ext4's bigalloc).
    pub cluster_bits: u16,
    /// Where it stands in [`Watched::directories`], see `filter::find` of the program.
    pub place: u16,
}

/// All watched directories.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Entries up to `count`; some of them may be unused.
    pub directories: [Directory; DIRECTORIES],
    /// Entries from here on are unused.
    pub count: u64,
}

/// A question of the guard (who asks, about which descriptor) and the kernel's answer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Learn {
    /// The asking thread, in its own pid namespace.
    pub tid: u32,
    /// The descriptor asked about.
    pub fd: u32,
    /// That pid namespace: device and inode of `/proc/self/ns/pid`.
    pub pid_namespace_dev: u64,
    /// See above.
    pub pid_namespace_ino: u64,
    /// Answer: address of the `super_block`; 0 as long as there is no answer.
    pub sb: u64,
    /// Answer: address of the `dentry`.
    pub dentry: u64,
    /// Answer: address of the `dentry` of the filesystem's root.
    pub root: u64,
    /// Answer: base 2 logarithm of the block size.
    pub block_bits: u32,
    /// Answer: value of the field that is ext4's cluster bits, meaningless on other filesystems.
    pub cluster_bits: u32,
}

/// A file. The generation tells a new file from a deleted one whose inode number it got.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LedgerKey {
    /// `st_dev` of the watched directory.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Inode generation.
    pub generation: u64,
}

/// What was counted for a file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerValue {
    /// Bytes added less bytes given back, since the file was first seen; negative when it shrank.
    pub bytes: i64,
    /// Time of the last addition, `CLOCK_MONOTONIC` nanoseconds; of several within one tick of the kernel's clock (1 to 10 ms)
    /// the first.
    pub last_ns: u64,
    /// That tick.
    pub tick: u64,
    /// cgroup id of the last writer.
    pub cgroup: u64,
    /// Process id of the last writer, in the initial pid namespace.
    pub pid: u32,
    /// Slot of its filesystem.
    pub slot: u16,
    /// 1 when its inode was freed, though some of its blocks were not yet.
    pub deleted: u16,
    /// Command name of the last writer when it was first seen writing here.
    pub comm: [u8; COMM],
}

/// What was counted on one filesystem since the probe was loaded. Only the kernel writes here.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Bytes added.
    pub added: u64,
    /// Bytes given back.
    pub freed: u64,
    /// Epoch of the limit whose crossing was told.
    pub told: u64,
}

/// Where the budget of one filesystem ends. Only the guard writes here.
///
/// One word, because the kernel reads it while the guard replaces it: the upper 16 bits are the epoch, which makes
/// each arming distinct, the lower 48 those of `added - freed` at which the budget is used up. Differences are taken
/// modulo 2^48, so a budget may be up to 128 TiB and the totals may grow for ever.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit(pub u64);

impl Limit {
    /// No budget: epoch 0 is never crossed.
    pub const DISARMED: Limit = Limit(0);
    /// The largest budget that can be told apart from one that is used up.
    pub const MAX_BUDGET: u64 = (1 << 47) - 1;

    /// The end of a `budget` that begins when `used` bytes were counted. `epoch` counts from 1.
    #[must_use]
    pub const fn new(epoch: u16, used: u64, budget: u64) -> Limit {
        let budget = if budget > Limit::MAX_BUDGET { Limit::MAX_BUDGET } else { budget };
        Limit(((epoch as u64) << 48) | (used.wrapping_add(budget) & ((1 << 48) - 1)))
    }

    /// Which arming this is; 0 means none.
    #[must_use]
    #[inline(always)]
    pub const fn epoch(self) -> u64 {
        self.0 >> 48
    }

    /// What remains when `used` bytes are counted: zero or less when it is used up.
    #[must_use]
    #[inline(always)]
    pub const fn remaining(self, used: u64) -> i64 {
        // The shift drops the epoch and gives the 48-bit difference its sign.
        ((self.0.wrapping_sub(used) << 16) as i64) >> 16
    }
}

/// That a limit was crossed; being the one who inserts it is being the one who tells.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Crossing {
    /// Slot of the filesystem.
    pub slot: u32,
    /// Epoch of the limit.
    pub epoch: u32,
}

/// One wake: a budget is used up.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeRecord {
    /// When, `CLOCK_MONOTONIC` nanoseconds.
    pub at_ns: u64,
    /// Slot of the filesystem.
    pub slot: u32,
    /// Process id of the writer, in the initial pid namespace.
    pub pid: u32,
}

/// Where the running kernel keeps what the brake reads beyond [`Offsets`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrakeOffsets {
    /// `file.f_flags`
    pub file_flags: u32,
    /// `dentry.d_name.len`
    pub name_len: u32,
    /// `dentry.d_name.name`
    pub name_pointer: u32,
}

impl BrakeOffsets {
    /// Before the guard has looked them up.
    pub const UNKNOWN: BrakeOffsets = BrakeOffsets { file_flags: 0, name_len: 0, name_pointer: 0 };
}

/// A directory that the brake holds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrakedDirectory {
    /// Its place among the leases.
    pub place: u32,
    /// The thread of a self-test, which alone is refused; 0: there is none.
    pub test_tid: u32,
}

/// Until when writers below a directory are refused.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Address of the `super_block` of its filesystem: writers to others are not looked at any closer.
    pub sb: u64,
    /// In nanoseconds of `CLOCK_MONOTONIC`; 0: nobody is refused.
    pub until: u64,
}

impl Lease {
    /// While a self-test goes on, in which nobody is refused but the tester.
    pub const TEST: u64 = 1;
}

/// Who is never refused, and whether there is anything to refuse.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Braking {
    /// The pid namespace of the guard: device and inode of `/proc/self/ns/pid`.
    pub pid_namespace_dev: u64,
    /// See above.
    pub pid_namespace_ino: u64,
    /// The guard's process id there.
    pub guard: u32,
    /// One more than the highest place of a directory that the brake holds; 0: there is none.
    pub places: u32,
}

/// Who was refused, below which directory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RefusedKey {
    /// [`BrakedDirectory::place`].
    pub place: u32,
    /// Zero.
    pub pad: u32,
    /// Its command name.
    pub comm: [u8; COMM],
}

/// What was refused to it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedValue {
    /// Calls that failed.
    pub calls: u64,
    /// What they would have written or allocated.
    pub bytes: u64,
}

/// What could not be recorded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Additions to files that found no room in the ledger (they still count for the budget).
    pub ledger_full: u64,
    /// Wakes that found no room in the ring buffer.
    pub wakes_dropped: u64,
}

const _: () = {
    assert!(size_of::<Offsets>() == 37 * 4);
    assert!(size_of::<Directory>() == 48);
    assert!(size_of::<Watched>() == DIRECTORIES * 48 + 8);
    assert!(size_of::<Learn>() == 56);
    assert!(size_of::<LedgerKey>() == 24);
    assert!(size_of::<LedgerValue>() == 56);
    assert!(size_of::<Total>() == 24);
    assert!(size_of::<Limit>() == 8);
    assert!(size_of::<Crossing>() == 8);
    assert!(size_of::<WakeRecord>() == 16);
    assert!(size_of::<Lost>() == 16);
    assert!(size_of::<BrakeOffsets>() == 12);
    assert!(size_of::<BrakedDirectory>() == 8);
    assert!(size_of::<Braking>() == 24);
    assert!(size_of::<Lease>() == 16);
    assert!(size_of::<RefusedKey>() == 24);
    assert!(size_of::<RefusedValue>() == 16);
};

#[cfg(feature = "user")]
mod pod {
    macro_rules! pod {
        ($($name:ident),*) => {
            $(
                // SAFETY: made of integers only, any bit pattern is a value, and the size assertions above leave
                // no room for padding.
                unsafe impl aya::Pod for crate::$name {}
            )*
        };
    }
    pod!(
        Offsets,
        Directory,
        Watched,
        Learn,
        LedgerKey,
        LedgerValue,
        Total,
        Limit,
        Crossing,
        WakeRecord,
        Lost,
        BrakeOffsets,
        BrakedDirectory,
        Braking,
        Lease,
        RefusedKey,
        RefusedValue
    );
}

#[cfg(test)]
mod tests {
    use super::Limit;

    #[track_caller]
    fn check(used_at_start: u64, budget: u64, used: u64, expect: i64) {
        assert_eq!(Limit::new(7, used_at_start, budget).remaining(used), expect);
    }

    #[test]
    fn what_remains_is_the_budget_less_what_was_used_since() {
        check(0, 100, 0, 100);
        check(0, 100, 99, 1);
        check(0, 100, 100, 0);
        check(5000, 100, 5101, -1);
        check(5000, 100, 4000, 1100);
    }

    #[test]
    fn what_remains_is_right_when_the_totals_wrap() {
        check((1 << 48) - 10, 100, (1 << 48) + 80, 10);
        // More freed than added: the total is below zero.
        check(0u64.wrapping_sub(50), 100, 0u64.wrapping_sub(50), 100);
        check(0u64.wrapping_sub(50), 100, 60, -10);
    }

    #[test]
    fn a_budget_too_large_to_tell_is_cut_short() {
        check(0, u64::MAX, 0, (1 << 47) - 1);
        assert_eq!(Limit::new(7, 0, u64::MAX).epoch(), 7);
    }
}
