//! Keeping what is resident small: a guard shares its node with those it guards.

use std::ffi::c_void;
use std::ptr::NonNull;

use nix::sys::mman::{MmapAdvise, madvise};
use procfs::ProcResult;
use procfs::process::{MMPermissions, MemoryMap, Process};

/// Tells the allocator to keep little of what was freed. To be called before there are threads.
///
/// glibc gives each thread an arena of its own (up to eight for each core), none of which ever shrinks below what was
/// freed in its middle; and once a large block was freed, it takes the next ones from the heap as well, where they leave
/// holes (`M_MMAP_THRESHOLD` grows by itself unless it is set). What is large here, a catalog of 100,000 checkpoints or a
/// kernel's BTF, grows by doubling and so leaves large holes.
pub(crate) fn bound() {
    #[cfg(target_env = "gnu")]
    {
        const LARGE: nix::libc::c_int = 128 << 10;
        use nix::libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD};
        for (parameter, value) in [(M_ARENA_MAX, 2), (M_MMAP_THRESHOLD, LARGE), (M_TRIM_THRESHOLD, LARGE)] {
            // SAFETY: takes numbers only, and locks the allocator for itself. A parameter that this glibc does not know
            // makes it return 0 and change nothing.
            unsafe { nix::libc::mallopt(parameter, value) };
        }
    }
}

/// Gives back to the kernel what was freed, and what was read of the program to get here: some milliseconds for 10 MiB, so
/// not while anything waits.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and locks each arena while it works on it.
    unsafe {
        nix::libc::malloc_trim(0)
    };
    if let Err(error) = let_go_of_program() {
        tracing::debug!(%error, "all of the program that was ever used stays mapped");
    }
}

/// Unmaps the pages of the program. Two thirds of it are mapped after the start, for the kernel maps 64 KiB around whatever
/// is run or read; a third of that is ever used again. It stays in the page cache, where the kernel may take what nobody uses,
/// and is mapped again where it is used: some microseconds for 64 KiB.
///
/// The libraries stay: one may be just being loaded, by a thread that resolves a name.
fn let_go_of_program() -> ProcResult<()> {
    let mappings = Process::myself()?.smaps()?;
    let here = let_go_of_program as *const () as u64;
    let Some(program) = mappings.iter().find(|it| (it.address.0..it.address.1).contains(&here)) else {
        return Ok(());
    };
    for mapping in mappings.iter().filter(|it| is_of_the_file_alone(it, program)) {
        let (begin, end) = mapping.address;
        let Some(address) = NonNull::new(std::ptr::with_exposed_provenance_mut::<c_void>(begin as usize))
        else {
            continue;
        };
        // SAFETY: the program's own file is mapped there as it is, by what the kernel says, so the same is read there
        // afterwards. Nobody writes there meanwhile: the mapping does not allow it, and what the loader makes writable
        // for itself it has done with before main.
        unsafe { madvise(address, (end - begin) as usize, MmapAdvise::MADV_DONTNEED) }
            .map_err(std::io::Error::from)?;
    }
    Ok(())
}

/// Whether nothing can be found at this mapping but the content of the file that `program` is a mapping of: no page of it has
/// become our own by being written to, which the loader does to what it relocates.
fn is_of_the_file_alone(mapping: &MemoryMap, program: &MemoryMap) -> bool {
    let is_none = |key: &str| mapping.extension.map.get(key) == Some(&0);
    (mapping.dev, mapping.inode) == (program.dev, program.inode)
        && mapping.inode != 0
        && mapping.perms.contains(MMPermissions::READ | MMPermissions::PRIVATE)
        && !mapping.perms.contains(MMPermissions::WRITE)
        && is_none("Anonymous")
        && is_none("Swap")
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;

    use nix::sys::uio::{RemoteIoVec, process_vm_readv};
    use nix::unistd::getpid;
    use procfs::FromRead as _;
    use procfs::process::MemoryMaps;

    use super::*;

    /// Whether the mapping with this line in `maps`, and so many KiB of pages that are ours, is let go of.
    #[track_caller]
    fn check(line: &str, ours: &[(&str, u32)], expect: bool) {
        let program = "55b0f8000000-55b0f9000000 r-xp 00547000 fe:00 4711                       /usr/bin/guard\nRss: 8 kB\n";
        let ours: String = ours.iter().map(|(key, kib)| format!("{key}:  {kib} kB\n")).collect();
        let text = format!("{program}{line}\nRss:  96 kB\n{ours}");
        let mappings = MemoryMaps::from_read(text.as_bytes()).unwrap().0;
        assert_eq!(is_of_the_file_alone(&mappings[1], &mappings[0]), expect, "{line} {ours}");
    }

    #[test]
    fn only_what_is_in_the_programs_file_as_it_is_can_be_let_go_of() {
        let none = [("Anonymous", 0), ("Swap", 0)];
        let mapping = |permissions: &str, inode: u32, path: &str| {
            format!("7f0000000000-7f0000200000 {permissions} 00000000 fe:00 {inode}      {path}")
        };
        let code = mapping("r-xp", 4711, "/usr/bin/guard (deleted)");
        check(&code, &none, true);
        check(&mapping("r--p", 4711, "/usr/bin/guard"), &none, true);
        // Relocated by the loader; the same, swapped out; a breakpoint.
        check(&mapping("r--p", 4711, "/usr/bin/guard"), &[("Anonymous", 600), ("Swap", 0)], false);
        check(&mapping("r--p", 4711, "/usr/bin/guard"), &[("Anonymous", 0), ("Swap", 600)], false);
        check(&code, &[("Anonymous", 4), ("Swap", 0)], false);
        // A kernel that does not tell.
        check(&code, &[], false);
        check(&code, &[("Anonymous", 0)], false);
        check(&mapping("rw-p", 4711, "/usr/bin/guard"), &none, false);
        check(&mapping("r--s", 4711, "/usr/bin/guard"), &none, false);
        check(&mapping("---p", 4711, "/usr/bin/guard"), &none, false);
        check(&mapping("r-xp", 815, "/usr/lib/libc.so.6"), &none, false);
        check(&mapping("rw-p", 0, "[heap]"), &none, false);
    }

    /// The code of this program: where it is mapped, and how many bytes of that are.
    fn code() -> ((u64, u64), u64) {
        let here = code as *const () as u64;
        let mappings = Process::myself().unwrap().smaps().unwrap();
        let code = mappings.iter().find(|it| (it.address.0..it.address.1).contains(&here)).unwrap();
        (code.address, code.extension.map["Rss"])
    }

    #[test]
    fn the_program_goes_on_without_what_it_has_let_go_of() {
        // The kernel maps what it reads for us.
        let ((begin, end), _) = code();
        let mut buffer = vec![0; 1 << 20];
        for base in (begin as usize..end as usize).step_by(buffer.len()) {
            let remote = [RemoteIoVec { base, len: buffer.len().min(end as usize - base) }];
            process_vm_readv(getpid(), &mut [IoSliceMut::new(&mut buffer)], &remote).unwrap();
        }
        let (_, before) = code();
        assert!(before > (end - begin) / 10 * 9, "{before} of {} bytes", end - begin);
        let_go_of_program().unwrap();
        // Beside the other tests, which go on as well.
        let (_, after) = code();
        assert!(after < before, "{after} bytes are still mapped of {before}");
    }
}
