//! [`Way`]: the ways a process can put bytes into a file.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use nix::fcntl::{FallocateFlags, OFlag, SpliceFFlags};
use nix::sys::mman::{MapFlags, MsFlags, ProtFlags};

/// One way of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// write(2), 10 000 bytes at a time.
    Write,
    /// pwrite(2), from the end to the beginning.
    Pwrite,
    /// writev(2).
    Writev,
    /// sendfile(2) from a file elsewhere.
    Sendfile,
    /// splice(2) from a pipe.
    Splice,
    /// copy_file_range(2) from a file elsewhere on the same filesystem, which xfs and btrfs turn into a reflink.
    CopyFileRange,
    /// A write submitted through io_uring.
    IoUring,
    /// Stores into a shared mapping.
    Mmap,
    /// O_DIRECT.
    Direct,
    /// fallocate(2), nothing written.
    Fallocate,
    /// fallocate(2) beyond the end of the file.
    FallocateKeepSize,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 11] = [
        Way::Write,
        Way::Pwrite,
        Way::Writev,
        Way::Sendfile,
        Way::Splice,
        Way::CopyFileRange,
        Way::IoUring,
        Way::Mmap,
        Way::Direct,
        Way::Fallocate,
        Way::FallocateKeepSize,
    ];

    /// Makes the file `path` and writes `len` bytes into it; `elsewhere` is a directory of the same filesystem for
    /// the file to copy from. O_DIRECT wants `len` to be whole blocks.
    pub fn write(self, path: &Path, elsewhere: &Path, len: usize) -> io::Result<File> {
        let content: Vec<u8> = (0..len).map(|at| (at * 31 + (at >> 8) * 17) as u8).collect();
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        if self == Way::Direct {
            options.custom_flags(OFlag::O_DIRECT.bits());
        }
        let mut file = options.open(path)?;
        match self {
            Way::Write => content.chunks(10_000).try_for_each(|chunk| file.write_all(chunk))?,
            Way::Pwrite => pwrite_backwards(&file, &content)?,
            Way::Writev => writev(&mut file, &content)?,
            Way::Sendfile => sendfile(&file, &source(elsewhere, &content)?, len)?,
            Way::Splice => splice(&file, &content)?,
            Way::CopyFileRange => copy_file_range(&file, &source(elsewhere, &content)?, len)?,
            Way::IoUring => io_uring_write(&file, &content)?,
            Way::Mmap => store(&file, &content)?,
            Way::Direct => write_direct(&file, &content)?,
            Way::Fallocate => nix::fcntl::fallocate(&file, FallocateFlags::empty(), 0, len as i64)?,
            Way::FallocateKeepSize => {
                nix::fcntl::fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, len as i64)?;
            }
        }
        Ok(file)
    }
}

fn source(elsewhere: &Path, content: &[u8]) -> io::Result<File> {
    let path = elsewhere.join("source");
    std::fs::write(&path, content)?;
    let file = File::open(path)?;
    file.sync_all()?;
    Ok(file)
}

fn pwrite_backwards(file: &File, content: &[u8]) -> io::Result<()> {
    for (index, chunk) in content.chunks(10_000).enumerate().rev() {
        file.write_all_at(chunk, index as u64 * 10_000)?;
    }
    Ok(())
}

fn writev(file: &mut File, content: &[u8]) -> io::Result<()> {
    for chunk in content.chunks(64 << 10) {
        let slices: Vec<IoSlice<'_>> = chunk.chunks(7_000).map(IoSlice::new).collect();
        let written = file.write_vectored(&slices)?;
        assert_eq!(written, chunk.len());
    }
    Ok(())
}

fn sendfile(file: &File, source: &File, len: usize) -> io::Result<()> {
    let mut left = len;
    while left > 0 {
        left -= nix::sys::sendfile::sendfile(file, source, None, left)?;
    }
    Ok(())
}

fn splice(file: &File, content: &[u8]) -> io::Result<()> {
    let (reader, writer) = nix::unistd::pipe()?;
    let mut writer = File::from(writer);
    // Less than a pipe holds, or writing into it would block.
    for chunk in content.chunks(32 << 10) {
        writer.write_all(chunk)?;
        let mut left = chunk.len();
        while left > 0 {
            left -= nix::fcntl::splice(&reader, None, file, None, left, SpliceFFlags::empty())?;
        }
    }
    Ok(())
}

fn copy_file_range(file: &File, source: &File, len: usize) -> io::Result<()> {
    let mut left = len;
    while left > 0 {
        left -= nix::fcntl::copy_file_range(source, None, file, None, left)?;
    }
    Ok(())
}

/// Every second piece by `IORING_OP_WRITEV_FIXED`, where the kernel has that (Linux 6.15).
fn io_uring_write(file: &File, content: &[u8]) -> io::Result<()> {
    let mut ring = io_uring::IoUring::new(8)?;
    let mut known = io_uring::Probe::new();
    ring.submitter().register_probe(&mut known)?;
    let has_fixed = known.is_supported(io_uring::opcode::WritevFixed::CODE);
    if has_fixed {
        let whole = nix::libc::iovec { iov_base: content.as_ptr().cast_mut().cast(), iov_len: content.len() };
        // SAFETY: `content` outlives the ring, and is only read from.
        unsafe { ring.submitter().register_buffers(&[whole])? };
    }
    for (index, chunk) in content.chunks(64 << 10).enumerate() {
        let fd = io_uring::types::Fd(file.as_raw_fd());
        let offset = (index * (64 << 10)) as u64;
        let piece = nix::libc::iovec { iov_base: chunk.as_ptr().cast_mut().cast(), iov_len: chunk.len() };
        let write = if has_fixed && index % 2 == 1 {
            io_uring::opcode::WritevFixed::new(fd, &piece, 1, 0).offset(offset).build()
        } else {
            io_uring::opcode::Write::new(fd, chunk.as_ptr(), chunk.len() as u32).offset(offset).build()
        };
        // SAFETY: `piece`, `chunk` and `file` outlive the request, whose completion is awaited below.
        unsafe { ring.submission().push(&write) }.map_err(io::Error::other)?;
        ring.submit_and_wait(1)?;
        let done = ring.completion().next().map_or(-1, |completion| completion.result());
        assert_eq!(done, chunk.len() as i32);
    }
    Ok(())
}

fn store(file: &File, content: &[u8]) -> io::Result<()> {
    file.set_len(content.len() as u64)?;
    let mapping = Mapping::new(file, content.len());
    // SAFETY: the mapping is new and as long as `content`, and nobody truncates the file.
    unsafe { mapping.start.cast::<u8>().copy_from(std::ptr::NonNull::from(content).cast(), content.len()) };
    // SAFETY: it is mapped.
    unsafe { nix::sys::mman::msync(mapping.start, mapping.len.get(), MsFlags::MS_ASYNC)? };
    Ok(())
}

/// A shared mapping of a file, gone on drop.
#[derive(Debug)]
pub struct Mapping {
    start: std::ptr::NonNull<std::ffi::c_void>,
    len: NonZeroUsize,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: `dirty_pages`, the one thing to do with a shared one, stores atomically.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`, which has them and keeps them.
    #[track_caller]
    pub fn new(file: &File, len: usize) -> Mapping {
        let len = NonZeroUsize::new(len).unwrap_or_else(|| panic!("nothing to map"));
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a mapping at a new place disturbs no other.
        let mapped = unsafe { nix::sys::mman::mmap(None, len, access, MapFlags::MAP_SHARED, file, 0) };
        Mapping { start: mapped.unwrap_or_else(|errno| panic!("mmap: {errno}")), len }
    }

    /// Stores a byte at each of `places`.
    pub fn dirty_pages(&self, places: impl Iterator<Item = usize>) {
        for place in places {
            assert!(place < self.len.get());
            // SAFETY: within the mapping, and atomic.
            let byte = unsafe { AtomicU8::from_ptr(self.start.as_ptr().cast::<u8>().add(place)) };
            byte.store(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no reference into it is left.
        if let Err(errno) = unsafe { nix::sys::mman::munmap(self.start, self.len.get()) } {
            eprintln!("munmap: {errno}");
        }
    }
}

fn write_direct(file: &File, content: &[u8]) -> io::Result<()> {
    const ALIGNMENT: usize = 4096;
    let mut buffer = vec![0; content.len() + ALIGNMENT];
    let start = buffer.as_ptr().align_offset(ALIGNMENT);
    let aligned = &mut buffer[start..start + content.len()];
    aligned.copy_from_slice(content);
    file.write_all_at(aligned, 0)
}
