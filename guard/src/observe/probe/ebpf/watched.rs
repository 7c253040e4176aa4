//! [`Directories`]: which directories are watched, and which programs that takes.

use std::os::fd::{AsRawFd, BorrowedFd};

use guard_ebpf::{Counting, Directory, Learn, Watched, names};
use nix::sys::statfs::{self, FsType};

use super::super::{Coverage, ProbeError, Slot};
use super::object::{Array, Attached, Object, refused};
use super::offsets::Layout;

/// The watched directories, as the kernel knows them.
pub(super) struct Directories {
    object: Object,
    layout: Layout,
    questions: Array<Learn>,
    table: Array<Watched>,
    /// What `table` holds.
    watched: Watched,
    blocks: Vec<Attached>,
    pages: Vec<Attached>,
}

impl Directories {
    pub(super) fn new(mut object: Object, layout: Layout) -> Result<Directories, ProbeError> {
        Ok(Directories {
            questions: object.map(names::LEARN)?,
            table: object.map(names::WATCHED)?,
            object,
            layout,
            watched: Watched::default(),
            blocks: Vec::new(),
            pages: Vec::new(),
        })
    }

    /// Begins to count what is written below `directory`. Watching one twice is watching it once.
    pub(super) fn add(&mut self, slot: Slot, directory: BorrowedFd<'_>) -> Result<Coverage, ProbeError> {
        let Some(counting) = self.counting(directory)? else { return Ok(Coverage::Nothing) };
        let dev = examine(directory, nix::sys::stat::fstat(directory))?.st_dev;
        let learnt = self.learn(directory)?;
        let coverage = self.attach(counting)?;
        let entry = Directory {
            sb: learnt.sb,
            dentry: learnt.dentry,
            dev,
            slot: slot.0.into(),
            counting: counting as u32,
            block_bits: learnt.block_bits,
            cluster_bits: if counting == Counting::Blocks { learnt.cluster_bits } else { 0 },
        };
        let place = self.place_of(learnt.dentry).or_else(|| self.place_of(0));
        let place = place.ok_or(ProbeError::TooManyDirectories)?;
        self.watched.directories[place] = entry;
        self.watched.count = self.watched.count.max(place as u64 + 1);
        self.write_table()?;
        Ok(coverage)
    }

    /// Ends that. Not having been watched is no error.
    pub(super) fn remove(&mut self, directory: BorrowedFd<'_>) -> Result<(), ProbeError> {
        if self.counting(directory)?.is_none() {
            return Ok(());
        }
        let learnt = self.learn(directory)?;
        let Some(place) = self.place_of(learnt.dentry) else { return Ok(()) };
        self.watched.directories[place] = Directory::default();
        self.write_table()?;
        self.detach_idle()
    }

    /// The entry with that dentry; 0 finds an unused one.
    fn place_of(&self, dentry: u64) -> Option<usize> {
        self.watched.directories.iter().position(|entry| entry.dentry == dentry)
    }

    fn write_table(&mut self) -> Result<(), ProbeError> {
        self.table.set(0, self.watched, 0).map_err(|error| refused("the table of directories", &error))
    }

    /// How to count on the filesystem of `directory`; `None` when nothing there can be counted.
    ///
    /// tmpfs has no writeback, so only a program on every system call would see it. That made getppid(2) take
    /// 0.37 µs in place of 0.20, for a filesystem whose statfs is exact and cheap. Writes to an overlay reach
    /// another filesystem, where they look like anybody's.
    fn counting(&self, directory: BorrowedFd<'_>) -> Result<Option<Counting>, ProbeError> {
        let kind = examine(directory, statfs::fstatfs(directory))?.filesystem_type();
        Ok(match kind {
            statfs::EXT4_SUPER_MAGIC if self.layout.knows_ext4 => Some(Counting::Blocks),
            statfs::TMPFS_MAGIC | statfs::OVERLAYFS_SUPER_MAGIC | RAMFS_MAGIC => None,
            _ => Some(Counting::Pages),
        })
    }

    /// Asks the kernel which superblock and dentry `directory` is.
    fn learn(&mut self, directory: BorrowedFd<'_>) -> Result<Learn, ProbeError> {
        let fd = directory.as_raw_fd();
        let namespace = examine(directory, nix::sys::stat::stat("/proc/self/ns/pid"))?;
        let question = Learn {
            tid: nix::unistd::gettid().as_raw().unsigned_abs(),
            fd: fd.unsigned_abs(),
            pid_namespace_dev: kernel_device(namespace.st_dev),
            pid_namespace_ino: namespace.st_ino,
            ..Learn::default()
        };
        self.questions.set(0, question, 0).map_err(|error| refused("a question", &error))?;
        let (program, tracepoint) = names::LEARNER;
        let attached = self.object.attach(program, tracepoint)?;
        // Any system call of this thread makes the program answer.
        nix::unistd::getppid();
        let answer = self.questions.get(&0, 0);
        // It runs at every system call of the node, so not a moment longer than needed.
        self.object.detach(attached)?;
        let answer = answer.map_err(|error| refused("an answer", &error))?;
        if answer.sb == 0 || answer.dentry == 0 { Err(ProbeError::Unanswered { fd }) } else { Ok(answer) }
    }

    /// Attaches the programs that `counting` needs, unless they are.
    fn attach(&mut self, counting: Counting) -> Result<Coverage, ProbeError> {
        match counting {
            Counting::Blocks => {
                if self.blocks.is_empty() {
                    self.blocks = self.object.attach_all(&names::EXT4)?;
                }
                Ok(Coverage::Blocks)
            }
            Counting::Pages => {
                let direct_io = self.layout.direct_io;
                if self.pages.is_empty() {
                    let programs = [&[self.layout.dirty_pages], direct_io].concat();
                    self.pages = self.object.attach_all(&programs)?;
                }
                Ok(Coverage::Pages { direct_io: !direct_io.is_empty() })
            }
        }
    }

    /// Detaches the programs that no watched directory needs any more.
    fn detach_idle(&mut self) -> Result<(), ProbeError> {
        for (counting, attached) in [(Counting::Blocks, &mut self.blocks), (Counting::Pages, &mut self.pages)]
        {
            let needed = |entry: &Directory| entry.sb != 0 && entry.counting == counting as u32;
            if !self.watched.directories.iter().any(needed) {
                for program in attached.drain(..) {
                    self.object.detach(program)?;
                }
            }
        }
        Ok(())
    }
}

/// `RAMFS_MAGIC` of linux/magic.h, which the library does not name.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

pub(super) fn examine<T>(directory: BorrowedFd<'_>, result: nix::Result<T>) -> Result<T, ProbeError> {
    result.map_err(|errno| ProbeError::Directory { fd: directory.as_raw_fd(), source: errno.into() })
}

/// A device number as the kernel has it inside, which is not how `stat` reports it.
pub(super) fn kernel_device(dev: u64) -> u64 {
    libc::major(dev) as u64 * (1 << 20) + libc::minor(dev) as u64
}
