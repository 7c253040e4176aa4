//! Leases (fcntl(2), `F_SETLEASE`): the kernel's own word on who has a file open.
//!
//! A write lease is granted only while the caller's is the one open file description of the inode, mappings and
//! other mount namespaces included; while it is held, everybody else's open(2) waits. So having one *proves* that
//! nobody reads or writes the file, in 1.5 µs, where a walk through `/proc/*/fd` takes milliseconds, races, and does
//! not see what the kernel itself has open (a loop device, nfsd).
//!
//! What it does not see: `O_PATH` descriptors (they cannot read), and openers that come after it was given back.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

/// Why there is no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLease {
    /// Somebody else has the file open.
    #[error("somebody has it open")]
    Held,
    /// Leases don't exist here: the filesystem has none (`EINVAL`), or we may not take them (`EACCES`: neither
    /// the owner of the file nor `CAP_LEASE`).
    #[error("no lease to be had: {0}")]
    Unsupported(Errno),
}

/// A lease on an open file, given back on drop.
#[derive(Debug)]
pub struct Lease<'f> {
    file: BorrowedFd<'f>,
    kind: libc::c_int,
}

impl<'f> Lease<'f> {
    /// Proof that nobody else has `file` open. While it lives, others wait in open(2), for at most
    /// `/proc/sys/fs/lease-break-time` (45 s); with `O_NONBLOCK` they get `EWOULDBLOCK`.
    pub fn exclusive(file: &'f impl AsFd) -> Result<Lease<'f>, NoLease> {
        Lease::take(file.as_fd(), libc::F_WRLCK)
    }

    /// Proof that nobody has `file` open for writing; `file` must be open for reading only.
    pub fn shared(file: &'f impl AsFd) -> Result<Lease<'f>, NoLease> {
        Lease::take(file.as_fd(), libc::F_RDLCK)
    }

    fn take(file: BorrowedFd<'f>, kind: libc::c_int) -> Result<Lease<'f>, NoLease> {
        // Somebody who opens the file makes the kernel send us SIGIO, and SIGIO kills who does not expect it.
        // SIGURG is ignored unless somebody asks for it; we look at the lease instead (`is_intact`).
        // If this fails, so does the next call, and for the same reason.
        let _ = fcntl(file, F_SETSIG, libc::SIGURG);
        match fcntl(file, libc::F_SETLEASE, kind) {
            Ok(_) => Ok(Lease { file, kind }),
            Err(Errno::EAGAIN) => Err(NoLease::Held),
            Err(errno) => Err(NoLease::Unsupported(errno)),
        }
    }

    /// Whether nobody has tried to open the file since. Once somebody has, he waits for this lease to end.
    pub fn is_intact(&self) -> bool {
        fcntl(self.file, libc::F_GETLEASE, 0) == Ok(self.kind)
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // Fails only when the lease is gone already.
        let _ = fcntl(self.file, libc::F_SETLEASE, libc::F_UNLCK);
    }
}

/// From the kernel's `include/uapi/asm-generic/fcntl.h`; the libc crate has it for some targets only.
const F_SETSIG: libc::c_int = 10;

fn fcntl(file: BorrowedFd<'_>, command: libc::c_int, argument: libc::c_int) -> Result<libc::c_int, Errno> {
    // SAFETY: the three commands used here take an int and no pointer, and the descriptor is borrowed for the call.
    Errno::result(unsafe { libc::fcntl(file.as_raw_fd(), command, argument) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_reader_a_writer_and_a_mapping_each_forbid_an_exclusive_lease() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        let ours = File::open(file.path()).unwrap();
        assert_eq!(Lease::exclusive(&ours).map(drop), Err(NoLease::Held), "the writer");
        assert_eq!(Lease::shared(&ours).map(drop), Err(NoLease::Held), "the writer");
        let path = file.into_temp_path();
        assert!(Lease::shared(&ours).is_ok() && Lease::exclusive(&ours).is_ok());

        let reader = File::open(&path).unwrap();
        assert_eq!(Lease::exclusive(&ours).map(drop), Err(NoLease::Held), "the reader");
        assert!(Lease::shared(&ours).is_ok());

        let length = std::num::NonZeroUsize::new(4096).unwrap();
        let (read, private) = (nix::sys::mman::ProtFlags::PROT_READ, nix::sys::mman::MapFlags::MAP_PRIVATE);
        // SAFETY: a fresh read-only mapping that nothing but munmap below touches.
        let mapping = unsafe { nix::sys::mman::mmap(None, length, read, private, &reader, 0) }.unwrap();
        drop(reader);
        assert_eq!(Lease::exclusive(&ours).map(drop), Err(NoLease::Held), "the mapping");
        // SAFETY: this is the mapping made above, and nobody holds a reference into it.
        unsafe { nix::sys::mman::munmap(mapping, 4096) }.unwrap();
        assert!(Lease::exclusive(&ours).is_ok());
    }

    #[test]
    fn an_opener_waits_and_is_noticed_and_nobody_dies_of_sigio() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let ours = File::open(&path).unwrap();
        let lease = Lease::exclusive(&ours).unwrap();
        assert!(lease.is_intact());
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| File::open(&path).map(drop));
            while lease.is_intact() {
                std::thread::yield_now();
            }
            assert!(!opener.is_finished(), "an opener waits for the lease to end");
            drop(lease);
            opener.join().unwrap().unwrap();
        });
    }
}
