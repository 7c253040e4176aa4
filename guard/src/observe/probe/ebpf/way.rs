//! [`Way`]: the ways in which a filesystem's bytes can be counted, and which to try first where.

use guard_ebpf::{Counting, names};
use nix::sys::statfs::{self, FsType};

use super::super::{Backend, Coverage, Unseen, Writing, Writings};
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
                let (first, others) = layout
                    .calls
                    .split_first()
                    .map_or((None, &[][..]), |(first, others)| (Some(first), others));
                let mut programs =
                    Programs { needed: first.copied().into_iter().collect(), wanted: others.to_vec() };
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

    /// What is seen on a filesystem of this `kind` when the programs called `attached` are.
    pub(super) fn coverage(self, kind: FsType, layout: &Layout, attached: &[&str]) -> Coverage {
        let by_design = self.never_seen(kind);
        let lacks = |(program, _): &&(&str, Writing)| !attached.contains(program);
        let lacking = |hooks: &[(&str, Writing)]| Unseen {
            by_design,
            for_lack_of_hooks: hooks
                .iter()
                .filter(lacks)
                .map(|(_, writing)| *writing)
                .collect::<Writings>()
                .without(by_design),
        };
        match self {
            Way::Blocks => Coverage::Blocks,
            Way::Pages if layout.direct_io.is_empty() => Coverage::Pages(lacking(&DIRECT_HOOKS)),
            Way::Pages => Coverage::Pages(lacking(&[])),
            Way::Calls => Coverage::Calls(lacking(&CALL_HOOKS)),
            Way::Requests(_) => Coverage::Requests(lacking(&REQUEST_HOOKS)),
        }
    }

    /// What this way cannot see on such a filesystem on any kernel (docs/KERNEL.md has what was tried).
    fn never_seen(self, kind: FsType) -> Writings {
        let mut never = Vec::new();
        match self {
            Way::Blocks => {}
            Way::Pages => {
                never.push(Writing::Allocation);
                // Of others it is not known whether their direct I/O goes through iomap.
                if ![statfs::EXT4_SUPER_MAGIC, statfs::XFS_SUPER_MAGIC, statfs::BTRFS_SUPER_MAGIC]
                    .contains(&kind)
                {
                    never.push(Writing::Direct);
                }
            }
            Way::Calls => never.push(Writing::Aio),
            Way::Requests(_) => {}
        }
        if matches!(self, Way::Calls | Way::Requests(_)) {
            match kind {
                // No page of theirs is ever made writable: there is nothing to write it back to.
                statfs::TMPFS_MAGIC | RAMFS_MAGIC => never.push(Writing::Mapping),
                // Mapped and spliced to is the file below.
                statfs::OVERLAYFS_SUPER_MAGIC => never.extend([Writing::Mapping, Writing::Splice]),
                _ => {}
            }
        }
        never.into_iter().collect()
    }
}

/// Which program sees which way of writing, where it is not the first one of its way.
const CALL_HOOKS: [(&str, Writing); 5] = [
    (names::CALLS[1].0, Writing::Vector),
    (names::CALLS[2].0, Writing::Splice),
    (names::CALLS[3].0, Writing::Allocation),
    (names::MAPPED.0, Writing::Mapping),
    (names::IO_URING.0, Writing::IoUring),
];
const REQUEST_HOOKS: [(&str, Writing); 2] =
    [(names::REQUESTS[0].0, Writing::Allocation), (names::REQUESTS[1].0, Writing::Mapping)];
const DIRECT_HOOKS: [(&str, Writing); 1] = [(names::DIRECT_IO[0].0, Writing::Direct)];

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
    // A kprobe costs the writer two to five times as much, and pays where it is the only one to see io_uring, or vectors and
    // pipes.
    if layout.io_uring && layout.calls.len() == names::CALLS.len() {
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
        let calls = names::CALLS.map(|(program, function, _)| (program, function)).to_vec();
        let offsets = guard_ebpf::Offsets::default();
        Layout {
            offsets,
            cast: None,
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
        let without_vectors = Layout { calls: vec![("wrote", "vfs_write")], ..layout(true) };
        let kprobes_first = [requests("xfs_file_write_iter"), Way::Calls, Way::Pages];
        assert_eq!(candidates(statfs::XFS_SUPER_MAGIC, &without_vectors), kprobes_first);
        let without_pages = Layout { knows_pages: false, ..layout(true) };
        assert_eq!(candidates(statfs::EXT4_SUPER_MAGIC, &without_pages), ext4[..3]);
    }
    /// What is unseen by design and for lack of hooks.
    #[track_caller]
    fn unseen(way: Way, kind: FsType, layout: &Layout, refused: &[&str], expect: (&[Writing], &[Writing])) {
        let Programs { needed, wanted } = way.programs(layout);
        let all = needed.iter().chain(&wanted).map(|(program, _)| *program);
        let attached: Vec<&str> = all.filter(|program| !refused.contains(program)).collect();
        let coverage = way.coverage(kind, layout, &attached);
        let (Coverage::Pages(unseen) | Coverage::Calls(unseen) | Coverage::Requests(unseen)) = coverage
        else {
            panic!("{coverage}");
        };
        let set = |writings: &[Writing]| writings.iter().copied().collect::<Writings>();
        assert_eq!(
            (unseen.by_design, unseen.for_lack_of_hooks),
            (set(expect.0), set(expect.1)),
            "{coverage}"
        );
    }

    #[test]
    fn each_hook_that_is_missing_makes_one_way_of_writing_unseen() {
        use Writing::{Aio, Allocation, Direct, IoUring, Mapping, Splice, Vector};
        let (xfs, tmpfs, overlay) =
            (statfs::XFS_SUPER_MAGIC, statfs::TMPFS_MAGIC, statfs::OVERLAYFS_SUPER_MAGIC);
        let whole = layout(true);
        unseen(Way::Calls, xfs, &whole, &[], (&[Aio], &[]));
        unseen(Way::Calls, xfs, &whole, &["wrote_vector"], (&[Aio], &[Vector]));
        unseen(Way::Calls, xfs, &whole, &["spliced", "allocated"], (&[Aio], &[Splice, Allocation]));
        unseen(Way::Calls, xfs, &whole, &["page_made_writable"], (&[Aio], &[Mapping]));
        // Of another signature: it is not even tried.
        let first_only = Layout { calls: vec![("wrote", "vfs_write")], ..layout(true) };
        unseen(Way::Calls, xfs, &first_only, &[], (&[Aio], &[Vector, Splice, Allocation]));
        unseen(Way::Calls, xfs, &layout(false), &[], (&[Aio], &[IoUring]));
        unseen(Way::Calls, tmpfs, &Layout { mapped: false, ..layout(true) }, &[], (&[Aio, Mapping], &[]));
        unseen(Way::Calls, overlay, &whole, &["spliced"], (&[Aio, Mapping, Splice], &[]));
        let requests = Way::Requests("xfs_file_write_iter");
        unseen(requests, xfs, &whole, &[], (&[], &[]));
        unseen(requests, xfs, &whole, &["allocation_requested"], (&[], &[Allocation]));
        unseen(requests, xfs, &Layout { mapped: false, ..layout(true) }, &[], (&[], &[Mapping]));
        unseen(Way::Pages, xfs, &whole, &[], (&[Allocation], &[]));
        unseen(Way::Pages, xfs, &Layout { direct_io: &[], ..layout(true) }, &[], (&[Allocation], &[Direct]));
        unseen(Way::Pages, statfs::NFS_SUPER_MAGIC, &whole, &[], (&[Allocation, Direct], &[]));
        assert_eq!(Way::Blocks.coverage(xfs, &whole, &[]), Coverage::Blocks);
    }

    #[test]
    fn without_one_of_the_calls_the_others_still_count() {
        let Programs { needed, wanted } = Way::Calls.programs(&layout(true));
        assert_eq!(needed, [("wrote", "vfs_write")]);
        let rest = ["wrote_vector", "spliced", "allocated", "page_made_writable", "io_uring_done"];
        assert_eq!(wanted.iter().map(|(program, _)| *program).collect::<Vec<_>>(), rest);
    }
}
