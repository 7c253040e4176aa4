//! [`Offsets`] of the running kernel. They differ between versions and even between builds of one version, so no
//! table of them is shipped.

use guard_ebpf::{Offsets, names};

use super::super::ProbeError;
use super::btf::Btf;

/// What the running kernel's type information tells.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) offsets: Offsets,
    /// Whether ext4's structures are known. They are not when it is a module that describes itself nowhere (before
    /// Linux 5.11) or that was not loaded yet.
    pub(super) knows_ext4: bool,
    /// Program and tracepoint for dirty pages.
    pub(super) dirty_pages: (&'static str, &'static str),
    /// Programs and tracepoints for direct I/O; none on a kernel that has no such tracepoints.
    pub(super) direct_io: &'static [(&'static str, &'static str)],
}

/// Looks up every offset that the eBPF program reads.
pub(super) fn of_kernel() -> Result<Layout, ProbeError> {
    let mut btf = Btf::of_kernel()?;
    // ext4 is a module on many distributions.
    btf.add_module("ext4")?;
    let mut offsets = Offsets { page_bits: page_bits(), ..Offsets::default() };
    tree(&btf, &mut offsets)?;
    pages(&btf, &mut offsets)?;
    let knows_ext4 = ext4(&btf, &mut offsets).is_ok();
    let has = |(_, tracepoint): &(&str, &str)| btf.tracepoint_arguments(tracepoint).is_some();
    let dirty_pages = if has(&names::DIRTY_FOLIOS) { names::DIRTY_FOLIOS } else { names::DIRTY_PAGES };
    let direct_io = if direct_io(&btf, &mut offsets).is_ok() && names::DIRECT_IO.iter().all(has) {
        &names::DIRECT_IO[..]
    } else {
        &[]
    };
    Ok(Layout { offsets, knows_ext4, dirty_pages, direct_io })
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
    Ok(())
}

/// The page cache.
fn pages(btf: &Btf, offsets: &mut Offsets) -> Result<(), ProbeError> {
    offsets.mapping_host = btf.offset("address_space", "host")?;
    offsets.folio_large_bit = btf.enumerator("PG_head")?;
    match btf.offset("folio", "flags") {
        Ok(flags) => {
            offsets.folio_flags = flags;
            // The order was a byte of its own up to Linux 6.5, then became the low byte of `_flags_1`.
            offsets.folio_order =
                btf.offset("folio", "_folio_order").or_else(|_| btf.offset("folio", "_flags_1"))?;
        }
        // Before folios the tracepoint is told of one page at a time.
        Err(_) => offsets.folio_flags = btf.offset("page", "flags")?,
    }
    Ok(())
}

fn direct_io(btf: &Btf, offsets: &mut Offsets) -> Result<(), ProbeError> {
    offsets.kiocb_file = btf.offset("kiocb", "ki_filp")?;
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
