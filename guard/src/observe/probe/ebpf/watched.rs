//! [`Directories`]: which directories are watched, and which programs that takes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use guard_ebpf::{DIRECTORIES, Directory, Learn, Watched, names};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::statfs;

use super::super::{Backend, Coverage, ProbeError};
use super::object::{Array, Attached, Object, refused};
use super::offsets::Layout;
use super::way::{self, Programs, Way};

/// The watched directories, as the kernel knows them.
pub(super) struct Directories {
    object: Object,
    layout: Layout,
    questions: Array<Learn>,
    table: Array<Watched>,
    /// What `table` holds.
    watched: Watched,
    /// How each of them is counted.
    ways: [Option<(Way, Coverage)>; DIRECTORIES],
    attached: Vec<Set>,
    /// Ways that the kernel has refused: it does not change its mind.
    refused: Vec<Way>,
    only: Option<Backend>,
}

/// The attached programs of one way.
struct Set {
    way: Way,
    programs: Vec<Attached>,
}

impl Directories {
    pub(super) fn new(
        mut object: Object,
        layout: Layout,
        only: Option<Backend>,
    ) -> Result<Directories, ProbeError> {
        Ok(Directories {
            questions: object.map(names::LEARN)?,
            table: object.map(names::WATCHED)?,
            object,
            layout,
            watched: Watched::default(),
            ways: [None; DIRECTORIES],
            attached: Vec::new(),
            refused: Vec::new(),
            only,
        })
    }

    /// The ways to try on the filesystem of `directory`, the best first; none when nothing there can be counted.
    pub(super) fn candidates(&self, directory: BorrowedFd<'_>) -> Result<Vec<Way>, ProbeError> {
        let kind = examine(directory, statfs::fstatfs(directory))?.filesystem_type();
        let mut ways = way::candidates(kind, &self.layout);
        ways.retain(|way| self.only.is_none_or(|only| only == way.backend()) && !self.refused.contains(way));
        Ok(ways)
    }

    /// Changes the slot of a directory that is watched already; `None` when it is not.
    pub(super) fn move_to(
        &mut self,
        slot: u32,
        directory: BorrowedFd<'_>,
    ) -> Result<Option<Coverage>, ProbeError> {
        if self.watched.count == 0 {
            return Ok(None);
        }
        let dentry = self.learn(directory)?.dentry;
        let Some(place) = self.place_of(dentry) else { return Ok(None) };
        self.watched.directories[place].slot = slot;
        self.write_table()?;
        Ok(self.ways[place].map(|(_, coverage)| coverage))
    }

    /// Begins to count what is written below `directory` in this `way`.
    pub(super) fn add(
        &mut self,
        slot: u32,
        directory: BorrowedFd<'_>,
        way: Way,
    ) -> Result<Coverage, ProbeError> {
        let dev = examine(directory, nix::sys::stat::fstat(directory))?.st_dev;
        let learnt = self.learn(directory)?;
        let place = self.place_of(learnt.dentry).or_else(|| self.place_of(0));
        let place = place.ok_or(ProbeError::TooManyDirectories)?;
        let kind = examine(directory, statfs::fstatfs(directory))?.filesystem_type();
        self.attach(way)?;
        let coverage = way.coverage(kind, &self.layout, &self.programs_of(way));
        self.watched.directories[place] = Directory {
            sb: learnt.sb,
            dentry: learnt.dentry,
            root: learnt.root,
            dev,
            slot,
            counting: way.counting() as u32,
            block_bits: learnt.block_bits,
            cluster_bits: if way == Way::Blocks { learnt.cluster_bits as u16 } else { 0 },
            place: place as u16,
        };
        self.ways[place] = Some((way, coverage));
        self.watched.count = self.watched.count.max(place as u64 + 1);
        self.write_table()?;
        Ok(coverage)
    }

    /// Ends that. Not having been watched is no error.
    pub(super) fn remove(&mut self, directory: BorrowedFd<'_>) -> Result<(), ProbeError> {
        if self.watched.count == 0 {
            return Ok(());
        }
        let learnt = self.learn(directory)?;
        let Some(place) = self.place_of(learnt.dentry) else { return Ok(()) };
        self.watched.directories[place] = Directory::default();
        self.ways[place] = None;
        self.write_table()?;
        self.detach_idle()
    }

    /// What counts below `directory`.
    pub(super) fn backend_of(&mut self, directory: BorrowedFd<'_>) -> Result<Backend, ProbeError> {
        let dentry = self.learn(directory)?.dentry;
        let way = self.place_of(dentry).and_then(|place| self.ways[place]);
        Ok(way.map_or(Backend::Inotify, |(way, _)| way.backend()))
    }

    /// Never tries this way again.
    pub(super) fn refuse(&mut self, way: Way) {
        self.refused.push(way);
    }

    /// Whether the kernel lets a backend in: attaches its programs for a moment, after asking about a directory, without
    /// which none can be watched by any backend. [`Directories::settle`] afterwards.
    pub(super) fn try_backend(&mut self, backend: Backend) -> Result<(), ProbeError> {
        // Not to be read, and so nothing that a sandbox forbids.
        let root = open("/", OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
        let root = root.map_err(|errno| ProbeError::Directory { fd: -1, source: errno.into() })?;
        self.learn(root.as_fd())?;
        let ways = way::of_backend(backend, &self.layout);
        let missing = format!("function or tracepoint of the kind that {backend} counts by");
        let mut outcome = Err(ProbeError::Unfamiliar { missing });
        for (at, way) in ways.into_iter().enumerate() {
            let attached = self.attach(way);
            self.detach_idle()?;
            // The first refusal tells most: it is that of the most common filesystem.
            if attached.is_ok() || at == 0 {
                outcome = attached;
            }
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Gives back what is only needed while trying.
    pub(super) fn settle(&mut self) {
        self.object.settle();
    }

    /// The entry with that dentry; 0 finds an unused one.
    fn place_of(&self, dentry: u64) -> Option<usize> {
        self.watched.directories.iter().position(|entry| entry.dentry == dentry)
    }

    fn write_table(&mut self) -> Result<(), ProbeError> {
        self.table.set(0, self.watched, 0).map_err(|error| refused("the table of directories", &error))
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

    /// Attaches the programs of a way, unless they are.
    fn attach(&mut self, way: Way) -> Result<(), ProbeError> {
        if self.attached.iter().any(|set| set.way == way) {
            return Ok(());
        }
        let Programs { needed, wanted } = way.programs(&self.layout);
        let mut programs = self.object.attach_all(&needed)?;
        for (program, hook) in wanted {
            match self.object.attach(program, hook) {
                Ok(attached) => programs.push(attached),
                Err(error) => tracing::info!(%error, backend = way.backend().as_str(), "goes on without"),
            }
        }
        self.attached.push(Set { way, programs });
        Ok(())
    }

    /// The names of the programs that are attached for a way.
    fn programs_of(&self, way: Way) -> Vec<&'static str> {
        let sets = self.attached.iter().filter(|set| set.way == way);
        sets.flat_map(|set| set.programs.iter().map(Attached::program)).collect()
    }

    /// Detaches the programs that no watched directory needs any more.
    fn detach_idle(&mut self) -> Result<(), ProbeError> {
        let (needed, idle) = std::mem::take(&mut self.attached)
            .into_iter()
            .partition(|set| self.ways.iter().flatten().any(|(way, _)| *way == set.way));
        self.attached = needed;
        let idle: Vec<Set> = idle;
        idle.into_iter().flat_map(|set| set.programs).try_for_each(|program| self.object.detach(program))
    }
}

pub(super) fn examine<T>(directory: BorrowedFd<'_>, result: nix::Result<T>) -> Result<T, ProbeError> {
    result.map_err(|errno| ProbeError::Directory { fd: directory.as_raw_fd(), source: errno.into() })
}

/// A device number as the kernel has it inside, which is not how `stat` reports it.
pub(super) fn kernel_device(dev: u64) -> u64 {
    libc::major(dev) as u64 * (1 << 20) + libc::minor(dev) as u64
}
