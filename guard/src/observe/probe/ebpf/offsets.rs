//! [`Offsets`] of the running kernel. They differ between versions and even between builds of one version, so no
//! table of them is shipped.

use guard_ebpf::{Offsets, names};

use super::super::ProbeError;
use super::btf::Btf;
use crate::observe::host::kernel::Kernel;

/// What the running kernel's type information tells.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) offsets: Offsets,
    /// Whether ext4's structures are known. They are not when it is a module that describes itself nowhere (before
    /// Linux 5.11) or that was not loaded yet.
    pub(super) knows_ext4: bool,
    /// Whether the page cache's structures are known.
    pub(super) knows_pages: bool,
    /// Program and tracepoint for dirty pages.
    pub(super) dirty_pages: (&'static str, &'static str),
    /// Programs and tracepoints for direct I/O; none on a kernel that has no such tracepoints.
    pub(super) direct_io: &'static [(&'static str, &'static str)],
    /// Programs and functions that count calls; empty where `vfs_write` is not as expected.
    pub(super) calls: Vec<(&'static str, &'static str)>,
    /// Whether pages of mappings can be seen to become writable.
    pub(super) mapped: bool,
    /// How a program casts an address, where the kernel lets it.
    pub(super) cast: Option<Cast>,
    /// Whether io_uring tells which request is complete (Linux 6.1 does, 5.10 does not).
    pub(super) io_uring: bool,
}

/// What the kernel knows casting by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cast {
    /// The number of the function.
    pub(super) function: u32,
    /// [`Offsets::word_type`], for an object in which that function is called and for no other.
    pub(super) word_type: u32,
}

/// Looks up every offset that the eBPF program reads.
pub(super) fn of_kernel() -> Result<Layout, ProbeError> {
    let mut btf = Btf::of_kernel()?;
    // ext4 is a module on many distributions.
    btf.add_module("ext4")?;
    let mut offsets = Offsets { page_bits: page_bits(), ..Offsets::default() };
    tree(&btf, &mut offsets)?;
    let knows_pages = pages(&btf, &mut offsets).inspect_err(|error| {
        tracing::info!(%error, "pages of the page cache are not counted");
    });
    let knows_pages = knows_pages.is_ok();
    let knows_ext4 = ext4(&btf, &mut offsets).is_ok();
    let has = |(_, tracepoint): &(&str, &str)| btf.tracepoint_arguments(tracepoint).is_some();
    let dirty_pages = if has(&names::DIRTY_FOLIOS) { names::DIRTY_FOLIOS } else { names::DIRTY_PAGES };
    let direct_io = if direct_io(&btf, &mut offsets).is_ok() && names::DIRECT_IO.iter().all(has) {
        &names::DIRECT_IO[..]
    } else {
        &[]
    };
    let mapped = mapped(&btf, &mut offsets).is_ok();
    let io_uring = io_uring(&btf, &mut offsets).unwrap_or(false);
    let may_probe = !super::super::surroundings::Lockdown::read().hides_kernel_memory();
    offsets.may_probe = may_probe.into();
    // Lockdown forbids the helper and forgets this function. What was meant is obeyed.
    let cast = if may_probe && (cfg!(target_arch = "x86_64") || Kernel::here().version() >= MINDS_ADDRESSES) {
        cast(&btf)
    } else {
        None
    };
    Ok(Layout {
        offsets,
        cast,
        knows_ext4,
        knows_pages,
        dirty_pages,
        direct_io,
        calls: calls(&btf),
        mapped,
        io_uring,
    })
}

/// The function that lets a program read an address by a plain load, and a type that any address can pass for: the first
/// member of a tree's node is an `unsigned long`. (Linux 6.17 casts to no type as well; this does before.)
fn cast(btf: &Btf) -> Option<Cast> {
    let function = btf.function_id(CAST).filter(|_| btf.function_arguments(CAST) == Some(2))?;
    let word_type = btf.structure_id("rb_node")?;
    if btf.offset("rb_node", "__rb_parent_color").ok()? != 0 || cfg!(target_pointer_width = "32") {
        return None;
    }
    Some(Cast { function, word_type })
}

/// A plain load of a stale pointer may go anywhere. The compiler of programs for x86 has always checked that it does not go to a
/// process's memory; that of others leaves it to the verifier, which does since Linux 6.10.
const MINDS_ADDRESSES: (u32, u32) = (6, 12);

/// `bpf_rdonly_cast(address, type)`, kernel/bpf/helpers.c, since Linux 6.2.
pub(super) const CAST: &str = "bpf_rdonly_cast";

/// The functions that have the arguments which the programs expect.
fn calls(btf: &Btf) -> Vec<(&'static str, &'static str)> {
    let fits =
        |(_, function, arguments): &&(&str, &str, u32)| btf.function_arguments(function) == Some(*arguments);
    if !names::CALLS.first().is_some_and(|first| fits(&first)) {
        return Vec::new();
    }
    names::CALLS.iter().filter(fits).map(|(program, function, _)| (*program, *function)).collect()
}

fn mapped(btf: &Btf, offsets: &mut Offsets) -> Result<(), ProbeError> {
    offsets.fault_vma = btf.offset("vm_fault", "vma")?;
    offsets.vma_file = btf.offset("vm_area_struct", "vm_file")?;
    let function = names::MAPPED.1;
    let found = btf.function_arguments(function).is_some_and(|count| count >= 1);
    if found { Ok(()) } else { Err(ProbeError::Unfamiliar { missing: format!("function {function}") }) }
}

/// Three forms: `(ring, user data, result, flags)`, `(ring, request, user data, result, …)`, `(ring, request, entry)`.
fn io_uring(btf: &Btf, offsets: &mut Offsets) -> Result<bool, ProbeError> {
    let arguments = btf.tracepoint_arguments(names::IO_URING.1).unwrap_or(0);
    if arguments != 3 && arguments < 6 {
        return Ok(false);
    }
    offsets.uring_file = btf.offset("io_kiocb", "file")?;
    offsets.uring_opcode = btf.offset("io_kiocb", "opcode")?;
    offsets.uring_tells_entry = u32::from(arguments == 3);
    offsets.uring_result = btf.offset("io_uring_cqe", "res")?;
    Ok(true)
}

/// Descriptors, files, inodes and names: what every backend needs.
fn tree(btf: &Btf, offsets: &mut Offsets) -> Result<(), ProbeError> {
    offsets.task_files = btf.offset("task_struct", "files")?;
    offsets.files_fdt = btf.offset("files_struct", "fdt")?;
    offsets.fdtable_max_fds = btf.offset("fdtable", "max_fds")?;
    offsets.fdtable_fd = btf.offset("fdtable", "fd")?;
    offsets.file_dentry = btf.offset("file", "f_path.dentry")?;
    offsets.file_inode = btf.offset("file", "f_inode")?;
    offsets.inode_sb = btf.offset("inode", "i_sb")?;
    offsets.inode_ino = btf.offset("inode", "i_ino")?;
    offsets.inode_generation = btf.offset("inode", "i_generation")?;
    offsets.inode_dentry = btf.offset("inode", "i_dentry.first")?;
    offsets.dentry_parent = btf.offset("dentry", "d_parent")?;
    // Linux 7 has it in an unnamed union.
    offsets.dentry_alias =
        btf.offset("dentry", "d_u.d_alias").or_else(|_| btf.offset("dentry", "d_alias"))?;
    offsets.sb_blocksize_bits = btf.offset("super_block", "s_blocksize_bits")?;
    offsets.sb_fs_info = btf.offset("super_block", "s_fs_info")?;
    offsets.sb_root = btf.offset("super_block", "s_root")?;
    offsets.inode_nlink = btf.offset("inode", "i_nlink")?;
    offsets.kiocb_file = btf.offset("kiocb", "ki_filp")?;
    offsets.iter_count = btf.offset("iov_iter", "count")?;
    Ok(())
}

/// The page cache.
fn pages(btf: &Btf, offsets: &mut Offsets) -> Result<(), ProbeError> {
    offsets.mapping_host = btf.offset("address_space", "host")?;
    offsets.folio_large_bit = btf.enumerator("PG_head")?;
    match btf.offset("folio", "flags") {
        Ok(flags) => {
            offsets.folio_flags = flags;
            offsets.folio_order = folio_order(btf)?;
        }
        // Before folios the tracepoint is told of one page at a time.
        Err(_) => offsets.folio_flags = btf.offset("page", "flags")?,
    }
    Ok(())
}

/// The byte with the order of a large folio. Up to Linux 6.0 it lies in the second page, up to 6.5 it is a member of the
/// folio, then it became the low byte of `_flags_1`.
fn folio_order(btf: &Btf) -> Result<u32, ProbeError> {
    let second_page = || Ok(btf.size("page")? + btf.offset("page", "compound_order")?);
    let own = btf.offset("folio", "_folio_order").or_else(|_| btf.offset("folio", "_flags_1"));
    own.or_else(|unfamiliar| second_page().map_err(|_: ProbeError| unfamiliar))
}

fn direct_io(btf: &Btf, offsets: &mut Offsets) -> Result<(), ProbeError> {
    offsets.iter_is_source = btf.offset("iov_iter", "data_source")?;
    Ok(())
}

fn ext4(btf: &Btf, offsets: &mut Offsets) -> Result<(), ProbeError> {
    offsets.ext4_cluster_bits = btf.offset("ext4_sb_info", "s_cluster_bits")?;
    offsets.ext4_request_inode = btf.offset("ext4_allocation_request", "inode")?;
    offsets.ext4_request_len = btf.offset("ext4_allocation_request", "len")?;
    offsets.ext4_request_flags = btf.offset("ext4_allocation_request", "flags")?;
    let arguments = btf.tracepoint_arguments("ext4_da_reserve_space");
    offsets.ext4_reserve_has_count = u32::from(arguments.is_some_and(|count| count >= 2));
    Ok(())
}

fn page_bits() -> u32 {
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    size.ok().flatten().map_or(12, |size| size.unsigned_abs().trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`pages`] reads, where a folio has these members and a page, of 64 bytes, those.
    fn kernel(folio: &[(&str, u32)], page: &[(&str, u32)]) -> Btf {
        let mapping = ("address_space", 8, &[("host", 0)][..]);
        let mut structures = vec![mapping, ("page", 64, page)];
        if !folio.is_empty() {
            structures.push(("folio", 128, folio));
        }
        Btf::of_structures(&structures, ("PG_head", 16))
    }

    #[track_caller]
    fn check(folio: &[(&str, u32)], page: &[(&str, u32)], order: Option<u32>) {
        let mut offsets = Offsets::default();
        let known = pages(&kernel(folio, page), &mut offsets);
        assert_eq!(known.is_ok().then_some(offsets.folio_order), order, "{known:?}");
    }

    #[test]
    fn the_order_of_a_folio_is_found_in_every_kernel_or_pages_are_not_counted() {
        // Linux 5.10: one page at a time.
        check(&[], &[("flags", 0), ("compound_order", 17)], Some(0));
        // 5.16 to 6.0, 6.1 to 6.5, since 6.6.
        check(&[("flags", 0)], &[("flags", 0), ("compound_order", 17)], Some(64 + 17));
        check(&[("flags", 0), ("_flags_1", 64), ("_folio_order", 81)], &[("flags", 0)], Some(81));
        check(&[("flags", 0), ("_flags_1", 64)], &[("flags", 0)], Some(64));
        check(&[("flags", 0)], &[("flags", 0)], None);
    }

    #[test]
    fn the_running_kernel_is_known() {
        match of_kernel() {
            Ok(layout) => assert!(layout.knows_pages, "{:?}", layout.offsets),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }
}
