//! The brake: below a watched directory, while its lease lasts, creating and writing fail with ENOSPC.
//!
//! Programs of BPF LSM. They are attached only while there is pressure, and then every read(2) and write(2) of the node
//! passes `refuse_write`: all but writes to a filesystem on which somebody is refused leave it after a few plain loads.
//! Not stopped: stores into a mapping that exists already, and ftruncate(2), which allocates nothing.

use aya_ebpf::bindings::{BPF_NOEXIST, bpf_pidns_info};
use aya_ebpf::helpers::{bpf_get_current_comm, bpf_get_ns_current_pid_tgid, bpf_ktime_get_ns};
use aya_ebpf::macros::{fexit, lsm};
use aya_ebpf::programs::{FExitContext, LsmContext};
use guard_ebpf::{BrakedDirectory, Braking, DEPTH, DIRECTORIES, Lease, RefusedKey, RefusedValue};

use crate::kernel::{self, Dentry, read};
use crate::maps::{BRAKED, BRAKING, LEASES, REFUSED};
use crate::typed::{self, File};

/// The field of [`BRAKE_OFFSETS`](crate::BRAKE_OFFSETS) named so.
macro_rules! offset {
    ($field:ident) => {{
        let offsets = core::ptr::addr_of!($crate::BRAKE_OFFSETS).cast::<guard_ebpf::BrakeOffsets>();
        // SAFETY: `Global` is a transparent wrapper. Volatile, for its value is set after compilation.
        unsafe { core::ptr::read_volatile(core::ptr::addr_of!((*offsets).$field)) }
    }};
}

/// What the calls of the hooks fail with.
const NO_SPACE: i32 = -28;
/// `MAY_WRITE`, `MAY_APPEND` (include/linux/fs.h).
const WRITES: u32 = 0x2 | 0x8;
/// `WRITE` (include/linux/kernel.h), the direction.
const WRITE: u32 = 1;
/// `__O_TMPFILE` (include/uapi/asm-generic/fcntl.h), which open(2) leaves in `f_flags`.
const TMPFILE: u32 = 0o20_000_000;
const PROT_WRITE: u64 = 0x2;
/// `MAP_PRIVATE`, of the type bits.
const MAP_PRIVATE: u64 = 0x2;
const MAP_TYPE: u64 = 0xf;

/// `file_permission(file, mask)`: before each read(2), write(2) and fallocate(2) of whatever kind.
#[lsm(hook = "file_permission")]
pub(crate) fn refuse_write(context: LsmContext) -> i32 {
    let mask: u32 = context.arg(1);
    if mask & WRITES == 0 {
        return 0;
    }
    let Some(braking) = braking() else { return 0 };
    // SAFETY: the first argument is the file.
    refuse_file(braking, unsafe { File::from_argument(context.arg(0)) })
}

/// `file_open(file)`: after the file was found, before anybody has it. Refuses making one without a name, which passes no
/// other hook; who opens a file that is there is refused when he writes, and may truncate it.
#[lsm(hook = "file_open")]
pub(crate) fn refuse_open(context: LsmContext) -> i32 {
    let Some(braking) = braking() else { return 0 };
    // SAFETY: the first argument is the file.
    let file = unsafe { File::from_argument(context.arg(0)) };
    if file.field(offset!(file_flags)) & TMPFILE == 0 {
        return 0;
    }
    refuse_file(braking, file)
}

/// `inode_create(directory, dentry, mode)`: before a file is made, so that nothing is left behind.
#[lsm(hook = "inode_create")]
pub(crate) fn refuse_create(context: LsmContext) -> i32 {
    refuse_name(&context)
}

/// `inode_mkdir(directory, dentry, mode)`: a pod checkpoint is a directory.
#[lsm(hook = "inode_mkdir")]
pub(crate) fn refuse_mkdir(context: LsmContext) -> i32 {
    refuse_name(&context)
}

/// `mmap_file(file, reqprot, prot, flags)`; the file may be null, which reads as nothing of ours.
#[lsm(hook = "mmap_file")]
pub(crate) fn refuse_mapping(context: LsmContext) -> i32 {
    let (protection, flags): (u64, u64) = (context.arg(2), context.arg(3));
    if protection & PROT_WRITE == 0 || flags & MAP_TYPE == MAP_PRIVATE {
        return 0;
    }
    let Some(braking) = braking() else { return 0 };
    let file: u64 = context.arg(0);
    if file == 0 {
        return 0;
    }
    // SAFETY: the first argument is the file, and not null.
    refuse_file(braking, unsafe { File::from_argument(file) })
}

/// `rw_verify_area(direction, file, position, count) = error`: what asks `file_permission` for whoever writes, and knows
/// what that hook is not told: how many bytes.
#[fexit]
pub(crate) fn refused_area(context: FExitContext) -> i32 {
    let (direction, error): (u32, i32) = (context.arg(0), context.arg(4));
    if error == NO_SPACE && direction == WRITE {
        count_bytes(kernel::File(context.arg(1)), context.arg(3));
    }
    0
}

/// `vfs_fallocate(file, mode, offset, length) = error`, which asks `file_permission` by itself.
#[fexit]
pub(crate) fn refused_allocation(context: FExitContext) -> i32 {
    if context.arg::<i32>(4) == NO_SPACE {
        count_bytes(kernel::File(context.arg(0)), context.arg(3));
    }
    0
}

/// Adds to what was refused just now; a filesystem that is full fails alike, but nobody has been counted then.
#[inline(always)]
fn count_bytes(file: kernel::File, bytes: u64) {
    if braking().is_some()
        && let Some(BrakedDirectory { place, .. }) = directory_above(file.dentry())
        && let Some(refused) = REFUSED.get_ptr_mut(key(place))
    {
        // SAFETY: it points into the map.
        unsafe { crate::atomic::add(&raw mut (*refused).bytes, bytes) };
    }
}

/// Who we are, while there is any directory.
#[inline(always)]
fn braking() -> Option<&'static Braking> {
    let braking = BRAKING.get(0)?;
    if braking.places == 0 { None } else { Some(braking) }
}

#[inline(always)]
fn refuse_file(braking: &'static Braking, file: File) -> i32 {
    if is_refusing_on(braking, file.superblock()) { refuse(braking, file.dentry()) } else { 0 }
}

/// For what is made: the arguments begin with the directory's inode and the new dentry.
#[inline(always)]
fn refuse_name(context: &LsmContext) -> i32 {
    let Some(braking) = braking() else { return 0 };
    // SAFETY: the first argument is an inode.
    let sb = unsafe { typed::superblock(context.arg(0)) };
    if is_refusing_on(braking, sb) { refuse(braking, Dentry(context.arg(1))) } else { 0 }
}

/// Whether anybody is refused on the filesystem of this superblock. The usual case ends here.
#[inline(always)]
fn is_refusing_on(braking: &'static Braking, sb: u64) -> bool {
    for place in 0..DIRECTORIES as u32 {
        if place >= braking.places {
            return false;
        }
        let Some(lease) = LEASES.get_ptr(place) else { return false };
        // SAFETY: `lease` points into the map; volatile, since the guard writes there.
        let Lease { sb: refusing, until } = unsafe { core::ptr::read_volatile(lease) };
        if until != 0 && refusing == sb {
            return true;
        }
    }
    false
}

/// The answer for `dentry`, counted when it is no.
#[inline(never)]
fn refuse(braking: &'static Braking, dentry: Dentry) -> i32 {
    let Some(BrakedDirectory { place, test_tid }) = directory_above(dentry) else { return 0 };
    let (tgid, tid) = current(braking);
    if test_tid != 0 {
        // The guard tries on itself whether it works, and on nobody else.
        return if tid == test_tid { NO_SPACE } else { 0 };
    }
    let Some(lease) = LEASES.get_ptr(place) else { return 0 };
    // SAFETY: `lease` points into the map; volatile, since the guard writes there. The helper has no preconditions.
    let is_over = unsafe { core::ptr::read_volatile(&raw const (*lease).until) <= bpf_ktime_get_ns() };
    if is_over || tgid == braking.guard || is_marker(dentry) {
        return 0;
    }
    count(place);
    NO_SPACE
}

/// The directory above `dentry`.
///
/// By a table, not by comparing with each directory in turn: kernels before 6.12 verify all ways through two loops one by
/// one, which took minutes.
#[inline(always)]
fn directory_above(mut dentry: Dentry) -> Option<BrakedDirectory> {
    for _ in 0..DEPTH {
        let parent = dentry.parent();
        if parent == dentry || parent.0 == 0 {
            return None;
        }
        // SAFETY: the guard replaces entries as a whole, and both halves are read at once.
        if let Some(directory) = unsafe { BRAKED.get(parent.0) } {
            return Some(*directory);
        }
        dentry = parent;
    }
    None
}

/// Process and thread, as the guard counts them.
#[inline(always)]
fn current(braking: &Braking) -> (u32, u32) {
    let mut ids = bpf_pidns_info { pid: 0, tgid: 0 };
    // SAFETY: `ids` is valid and its size is the one given.
    unsafe {
        bpf_get_ns_current_pid_tgid(
            braking.pid_namespace_dev,
            braking.pid_namespace_ino,
            &raw mut ids,
            size_of::<bpf_pidns_info>() as u32,
        );
    }
    (ids.tgid, ids.pid)
}

/// Whether the name ends in `.keep`: a checkpoint may be pinned at any time.
#[inline(always)]
fn is_marker(dentry: Dentry) -> bool {
    let len: u32 = read(dentry.0, offset!(name_len));
    let name: u64 = read(dentry.0, offset!(name_pointer));
    if len < 5 {
        return false;
    }
    let end = name.wrapping_add(u64::from(len - 5));
    let (dot, rest): (u8, u32) = (read(end, 0), read(end, 1));
    dot == b'.' && rest == u32::from_le_bytes(*b"keep")
}

#[inline(always)]
fn key(place: u32) -> RefusedKey {
    RefusedKey { place, pad: 0, comm: bpf_get_current_comm().unwrap_or_default() }
}

#[inline(always)]
fn count(place: u32) {
    let key = key(place);
    if REFUSED.get_ptr_mut(key).is_none() && REFUSED.insert(key, NOTHING, BPF_NOEXIST.into()).is_err() {
        return;
    }
    if let Some(refused) = REFUSED.get_ptr_mut(key) {
        // SAFETY: it points into the map.
        unsafe { crate::atomic::add(&raw mut (*refused).calls, 1) };
    }
}

const NOTHING: RefusedValue = RefusedValue { calls: 0, bytes: 0 };
