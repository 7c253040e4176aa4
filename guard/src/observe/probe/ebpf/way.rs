//! [`Way`]: the ways in which a filesystem's bytes can be counted, and which to try first where.

use guard_ebpf::{Counting, names};
use nix::sys::statfs::{self, FsType};

use super::super::{Backend, Coverage};
use super::offsets::Layout;

/// One way of counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Raw tracepoints of ext4: what it reserves, allocates and frees.
    Blocks,
    /// Raw tracepoints of the page cache and direct I/O.
    Pages,
    /// fexit on the virtual filesystem's functions.
    Calls,
    /// kprobes, the first of them on this function of the filesystem.
    Requests(&'static str),
}

/// What a way needs in the kernel. Each member is a program and its hook.
#[derive(Debug, Default)]
pub(super) struct Programs {
    /// Without one of these it is no use.
    pub(super) needed: Vec<(&'static str, &'static str)>,
    /// Without one of these it misses something, see [`Coverage`].
    pub(super) wanted: Vec<(&'static str, &'static str)>,
}

impl Way {
    pub(super) fn backend(self) -> Backend {
        match self {
            Way::Blocks | Way::Pages => Backend::RawTracepoint,
            Way::Calls => Backend::Fexit,
            Way::Requests(_) => Backend::Kprobe,
        }
    }

    pub(super) fn counting(self) -> Counting {
        match self {
            Way::Blocks => Counting::Blocks,
            Way::Pages => Counting::Pages,
            Way::Calls => Counting::Calls,
            Way::Requests(_) => Counting::Requests,
        }
    }

    pub(super) fn programs(self, layout: &Layout) -> Programs {
        match self {
            Way::Blocks => Programs { needed: names::EXT4.to_vec(), wanted: Vec::new() },
            Way::Pages => {
                Programs { needed: [&[layout.dirty_pages], layout.direct_io].concat(), wanted: Vec::new() }
            }
            Way::Calls => {
                let mut programs = Programs { needed: layout.calls.clone(), wanted: Vec::new() };
                programs.wanted.extend(layout.mapped.then_some(names::MAPPED));
                programs.wanted.extend(layout.io_uring.then_some(names::IO_URING));
                programs
            }
            Way::Requests(function) => {
                let mapped = |(_, hook): &(&str, &str)| *hook != names::MAPPED.1 || layout.mapped;
                let wanted = names::REQUESTS.into_iter().filter(mapped).collect();
                Programs { needed: vec![(names::REQUEST, function)], wanted }
            }
        }
    }

    /// What is seen when the programs called `attached` are.
    pub(super) fn coverage(self, layout: &Layout, attached: &[&str]) -> Coverage {
        match self {
            Way::Blocks => Coverage::Blocks,
            Way::Pages => Coverage::Pages { direct_io: !layout.direct_io.is_empty() },
            Way::Calls => Coverage::Calls { io_uring: attached.contains(&names::IO_URING.0) },
            Way::Requests(_) => Coverage::Requests,
        }
    }
}

/// What can be tried on a filesystem, the best first. Which of them the kernel lets in, and which count, only trying
/// tells.
pub(super) fn candidates(kind: FsType, layout: &Layout) -> Vec<Way> {
    let mut ways = Vec::new();
    // Exact, to the block, and it gives back: nothing else does.
    if kind == statfs::EXT4_SUPER_MAGIC && layout.knows_ext4 {
        ways.push(Way::Blocks);
    }
    let calls = (!layout.calls.is_empty()).then_some(Way::Calls);
    let requests = write_function(kind).map(Way::Requests);
    // A kprobe costs the writer two to five times as much, and pays where it is the only one to see io_uring.
    if layout.io_uring {
        ways.extend(calls.into_iter().chain(requests))
    } else {
        ways.extend(requests.into_iter().chain(calls))
    }
    // What lies in memory has no writeback, and writes to an overlay reach another filesystem, where they look like
    // anybody's.
    let has_pages = ![statfs::TMPFS_MAGIC, statfs::OVERLAYFS_SUPER_MAGIC, RAMFS_MAGIC].contains(&kind);
    if has_pages && layout.knows_pages {
        ways.push(Way::Pages);
    }
    ways
}

/// All ways of a backend, whatever the filesystem; the first that the kernel lets in proves that it lets the backend in.
pub(super) fn of_backend(backend: Backend, layout: &Layout) -> Vec<Way> {
    let kinds =
        [statfs::EXT4_SUPER_MAGIC, statfs::XFS_SUPER_MAGIC, statfs::BTRFS_SUPER_MAGIC, statfs::TMPFS_MAGIC];
    let mut ways: Vec<Way> = kinds.into_iter().flat_map(|kind| candidates(kind, layout)).collect();
    ways.retain(|way| way.backend() == backend);
    ways.dedup();
    ways
}

/// The function through which every write to a filesystem goes, by whatever system call.
fn write_function(kind: FsType) -> Option<&'static str> {
    Some(match kind {
        statfs::EXT4_SUPER_MAGIC => "ext4_file_write_iter",
        statfs::XFS_SUPER_MAGIC => "xfs_file_write_iter",
        statfs::BTRFS_SUPER_MAGIC => "btrfs_file_write_iter",
        // Before Linux 6.6 it was generic_file_write_iter, which other filesystems call too, some only at times.
        statfs::TMPFS_MAGIC => "shmem_file_write_iter",
        statfs::OVERLAYFS_SUPER_MAGIC => "ovl_write_iter",
        _ => return None,
    })
}

/// `RAMFS_MAGIC` of linux/magic.h, which the library does not name.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(io_uring: bool) -> Layout {
        let calls = vec![("wrote", "vfs_write")];
        let offsets = guard_ebpf::Offsets::default();
        Layout {
            offsets,
            knows_ext4: true,
            knows_pages: true,
            dirty_pages: names::DIRTY_FOLIOS,
            direct_io: &names::DIRECT_IO,
            calls,
            mapped: true,
            io_uring,
        }
    }

    #[track_caller]
    fn check(kind: FsType, io_uring: bool, expect: &[Way]) {
        assert_eq!(candidates(kind, &layout(io_uring)), expect);
    }

    #[test]
    fn the_best_that_covers_a_filesystem_comes_first() {
        let requests = Way::Requests;
        let ext4 = [Way::Blocks, Way::Calls, requests("ext4_file_write_iter"), Way::Pages];
        check(statfs::EXT4_SUPER_MAGIC, true, &ext4);
        check(statfs::XFS_SUPER_MAGIC, true, &[Way::Calls, requests("xfs_file_write_iter"), Way::Pages]);
        check(statfs::XFS_SUPER_MAGIC, false, &[requests("xfs_file_write_iter"), Way::Calls, Way::Pages]);
        check(statfs::TMPFS_MAGIC, true, &[Way::Calls, requests("shmem_file_write_iter")]);
        check(statfs::OVERLAYFS_SUPER_MAGIC, true, &[Way::Calls, requests("ovl_write_iter")]);
        check(statfs::NFS_SUPER_MAGIC, true, &[Way::Calls, Way::Pages]);
        let without_pages = Layout { knows_pages: false, ..layout(true) };
        assert_eq!(candidates(statfs::EXT4_SUPER_MAGIC, &without_pages), ext4[..3]);
    }
}
