//! [`Refusing`]: the programs of the brake in the kernel (BPF LSM), and the maps that tell them whom to refuse.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::programs::fexit::FExitLinkId;
use aya::programs::lsm::LsmLinkId;
use aya::programs::{FExit, Lsm, Program, ProgramError, RawTracePoint};
use aya::{Btf, Ebpf, EbpfLoader};
use guard_ebpf::{
    BrakeOffsets, BrakedDirectory, Braking, DIRECTORIES, Learn, Lease, RefusedKey, RefusedValue, names,
};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::super::ProbeError;
use super::object::{Array, HashMap, OBJECT, kernel_types, refused};
use super::watched::{examine, kernel_device};
use super::{btf, offsets};

/// Where the kernel says which security modules are active.
const ACTIVE: &str = "/sys/kernel/security/lsm";

/// The brake's programs. Loaded, they do nothing; attached, they refuse below a directory while it has a lease; when this
/// is dropped, the kernel detaches them.
pub struct Refusing {
    programs: Mutex<Programs>,
    /// Apart, so that engaging never waits for an attachment.
    leases: Mutex<Leases>,
    refused: Mutex<HashMap<RefusedKey, RefusedValue>>,
}

struct Leases {
    table: Array<Lease>,
    /// The superblock of the directory at each place.
    superblocks: [u64; DIRECTORIES],
}

struct Programs {
    ebpf: Ebpf,
    questions: Array<Learn>,
    who: Array<Braking>,
    /// What `who` holds.
    braking: Braking,
    table: HashMap<u64, BrakedDirectory>,
    /// The dentry at each place; 0: it is free.
    places: [u64; DIRECTORIES],
    links: Vec<(&'static str, LsmLinkId)>,
    /// Programs that count bytes, and their functions, as far as the kernel let them in.
    byte_counters: Vec<(&'static str, &'static str)>,
    byte_links: Vec<(&'static str, FExitLinkId)>,
    was_detached: bool,
}

/// Calls that were refused to one program below the directory at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedCalls {
    /// The place that [`Refusing::add`] gave.
    pub place: u32,
    /// Command name.
    pub comm: String,
    /// Calls.
    pub calls: u64,
    /// What they would have written or allocated; zero where the kernel does not let that be counted.
    pub bytes: u64,
}

impl Refusing {
    /// Loads the programs.
    ///
    /// # Errors
    /// Says what the kernel lacks: BPF LSM as such, `bpf` among the active security modules, a capability.
    pub fn load() -> Result<Refusing, ProbeError> {
        let lacks = |reason: String| ProbeError::Refused {
            what: "the brake by BPF LSM".to_owned(),
            reason,
            errno: None,
        };
        // Without securityfs only the self-test tells.
        if let Ok(active) = std::fs::read_to_string(ACTIVE)
            && !active.trim().split(',').any(|module| module == "bpf")
        {
            let active = active.trim();
            return Err(lacks(format!(
                "`bpf` is not among the active security modules ({ACTIVE}: {active}); boot with lsm={active},bpf"
            )));
        }
        let layout = offsets::of_kernel()?;
        let functions = btf::Btf::of_kernel()?;
        let brake = brake_offsets(&functions)?;
        let mut loader = EbpfLoader::new();
        loader.override_global(names::OFFSETS, &layout.offsets, true);
        loader.override_global(names::BRAKE_OFFSETS, &brake, true);
        // Of another use of the object; here they stay empty.
        loader.map_max_entries(names::LEDGER, 1);
        let mut ebpf = loader.load(OBJECT).map_err(|error| refused("the eBPF object", &error))?;
        let types = Btf::from_sys_fs().map_err(|error| refused("the kernel's types", &error))?;
        for (program, hook) in names::LSM {
            let loaded = lsm(&mut ebpf, program).and_then(|it| it.load(hook, &types));
            loaded.map_err(|error| refused(&format!("program {program} on LSM hook {hook}"), &error))?;
        }
        let byte_counters = load_byte_counters(&mut ebpf, &types, &functions);
        let questions = take(&mut ebpf, names::LEARN)?;
        let (who, table) = (take(&mut ebpf, names::BRAKING)?, take(&mut ebpf, names::BRAKED)?);
        let leases =
            Mutex::new(Leases { table: take(&mut ebpf, names::LEASES)?, superblocks: [0; DIRECTORIES] });
        let refused_calls = Mutex::new(take(&mut ebpf, names::REFUSED)?);
        let namespace = examine_namespace()?;
        let braking = Braking {
            pid_namespace_dev: kernel_device(namespace.st_dev),
            pid_namespace_ino: namespace.st_ino,
            guard: std::process::id(),
            places: 0,
        };
        let places = [0; DIRECTORIES];
        let programs = Programs {
            ebpf,
            questions,
            who,
            braking,
            table,
            places,
            links: Vec::new(),
            byte_counters,
            byte_links: Vec::new(),
            was_detached: false,
        };
        let this = Refusing { programs: Mutex::new(programs), leases, refused: refused_calls };
        this.try_out()?;
        Ok(this)
    }

    /// Tries the programs in some directory where a file can be made, so that a kernel which never asks them is known
    /// before anything is built on them. Where there is none, each directory's own test must do.
    fn try_out(&self) -> Result<(), ProbeError> {
        for directory in ["/dev/shm", "/run", "/tmp"] {
            let Ok(directory) = File::open(directory) else { continue };
            match self.add(std::os::fd::AsFd::as_fd(&directory)) {
                Ok(place) => return self.remove(place),
                // Not writable for us.
                Err(ProbeError::Directory { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes a directory up, once it has shown on a call of our own that the programs do refuse; gives its place.
    ///
    /// On a kernel whose list of security modules lacks `bpf` the programs load, attach, and never run (5.10).
    pub fn add(&self, directory: BorrowedFd<'_>) -> Result<u32, ProbeError> {
        let mut programs = lock(&self.programs);
        let Learn { dentry, sb, .. } = programs.learn(directory)?;
        let free = programs.places.iter().position(|place| *place == 0);
        let place = free.ok_or(ProbeError::TooManyDirectories)? as u32;
        lock(&self.leases).superblocks[place as usize] = sb;
        self.lease(place, Lease::TEST)?;
        let test_tid = nix::unistd::gettid().as_raw().unsigned_abs();
        programs.place(dentry, Some(BrakedDirectory { place, test_tid }))?;
        let was_attached = !programs.links.is_empty();
        let tested = programs.attach().and_then(|()| self_test(directory));
        if !was_attached {
            programs.detach()?;
        }
        self.lease(place, 0)?;
        let entry = tested.is_ok().then_some(BrakedDirectory { place, test_tid: 0 });
        programs.place(dentry, entry)?;
        if tested.is_ok() {
            programs.places[place as usize] = dentry;
        }
        tested.map(|()| place)
    }

    /// Lets go of it.
    pub fn remove(&self, place: u32) -> Result<(), ProbeError> {
        self.lease(place, 0)?;
        let mut programs = lock(&self.programs);
        match programs.places.get_mut(place as usize).map(std::mem::take) {
            Some(dentry) if dentry != 0 => programs.place(dentry, None),
            _ => Ok(()),
        }
    }

    /// Attaches the programs, unless they are. From then on every read and write of the node passes one of them.
    pub fn attach(&self) -> Result<(), ProbeError> {
        lock(&self.programs).attach()
    }

    /// Detaches them.
    pub fn detach(&self) -> Result<(), ProbeError> {
        lock(&self.programs).detach()
    }

    /// Refuses writers below the directory until `until`, in nanoseconds of `CLOCK_MONOTONIC`; 0: no longer. In force for
    /// every call that begins when this has returned.
    pub fn lease(&self, place: u32, until: u64) -> Result<(), ProbeError> {
        let mut leases = lock(&self.leases);
        let sb = leases.superblocks.get(place as usize).copied().unwrap_or_default();
        leases.table.set(place, Lease { sb, until }, 0).map_err(|error| refused("a lease", &error))
    }

    /// What was refused since the last call.
    pub fn take_refused(&self) -> Vec<RefusedCalls> {
        let mut refused = lock(&self.refused);
        let found: Vec<_> = refused.iter().flatten().collect();
        found
            .into_iter()
            .map(|(key, RefusedValue { calls, bytes })| {
                // A call in between is lost to the count, and to nothing else.
                let _ = refused.remove(&key);
                let comm = key.comm.split(|byte| *byte == 0).next().unwrap_or_default();
                RefusedCalls {
                    place: key.place,
                    comm: String::from_utf8_lossy(comm).into_owned(),
                    calls,
                    bytes,
                }
            })
            .collect()
    }
}

impl std::fmt::Debug for Refusing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Refusing").finish_non_exhaustive()
    }
}

impl Programs {
    /// Writes the entry of a directory, or takes it away.
    fn place(&mut self, dentry: u64, entry: Option<BrakedDirectory>) -> Result<(), ProbeError> {
        match entry {
            Some(entry) => self.table.insert(dentry, entry, 0),
            None => self.table.remove(&dentry),
        }
        .map_err(|error| refused("the table of directories", &error))?;
        let held = self.table.iter().flatten();
        self.braking.places = held.map(|(_, directory)| directory.place + 1).max().unwrap_or(0);
        self.who.set(0, self.braking, 0).map_err(|error| refused("who is never refused", &error))
    }

    fn attach(&mut self) -> Result<(), ProbeError> {
        if !self.links.is_empty() {
            return Ok(());
        }
        let mut types = None;
        for (program, hook) in names::LSM {
            let attached = match lsm(&mut self.ebpf, program).and_then(Lsm::attach) {
                // Before Linux 5.13 a program can be attached once only; another load makes it a new one.
                Err(_) if self.was_detached => self.load_anew(program, hook, &mut types),
                result => result,
            };
            match attached {
                Ok(link) => self.links.push((program, link)),
                Err(error) => {
                    let error = refused(&format!("to attach program {program} to LSM hook {hook}"), &error);
                    self.detach()?;
                    return Err(error);
                }
            }
        }
        self.attach_byte_counters(&mut types);
        Ok(())
    }

    /// Without them writers are refused all the same, and their calls counted.
    fn attach_byte_counters(&mut self, types: &mut Option<Btf>) {
        for (program, function) in self.byte_counters.clone() {
            let attached = match fexit(&mut self.ebpf, program).and_then(FExit::attach) {
                Err(_) if self.was_detached => fexit(&mut self.ebpf, program).and_then(|it| {
                    it.unload()?;
                    it.load(function, kernel_types(types)?)?;
                    it.attach()
                }),
                result => result,
            };
            match attached {
                Ok(link) => self.byte_links.push((program, link)),
                Err(error) => {
                    let error = refused(&format!("to attach program {program} to {function}"), &error);
                    tracing::info!(%error, "not every refused byte is counted");
                }
            }
        }
    }

    fn load_anew(
        &mut self,
        program: &'static str,
        hook: &str,
        types: &mut Option<Btf>,
    ) -> Result<LsmLinkId, ProgramError> {
        let it = lsm(&mut self.ebpf, program)?;
        it.unload()?;
        it.load(hook, kernel_types(types)?)?;
        it.attach()
    }

    fn detach(&mut self) -> Result<(), ProbeError> {
        self.was_detached = true;
        for (program, link) in self.links.drain(..) {
            let detached = lsm(&mut self.ebpf, program).and_then(|it| it.detach(link));
            detached.map_err(|error| refused(&format!("to detach program {program}"), &error))?;
        }
        for (program, link) in self.byte_links.drain(..) {
            let detached = fexit(&mut self.ebpf, program).and_then(|it| it.detach(link));
            detached.map_err(|error| refused(&format!("to detach program {program}"), &error))?;
        }
        Ok(())
    }

    /// Asks the kernel which dentry `directory` is; as [`super::watched`] does.
    fn learn(&mut self, directory: BorrowedFd<'_>) -> Result<Learn, ProbeError> {
        let fd = directory.as_raw_fd();
        let question = Learn {
            tid: nix::unistd::gettid().as_raw().unsigned_abs(),
            fd: fd.unsigned_abs(),
            pid_namespace_dev: self.braking.pid_namespace_dev,
            pid_namespace_ino: self.braking.pid_namespace_ino,
            ..Learn::default()
        };
        self.questions.set(0, question, 0).map_err(|error| refused("a question", &error))?;
        let (name, tracepoint) = names::LEARNER;
        let attached = learner(&mut self.ebpf, name).and_then(|it| match it.load() {
            Ok(()) | Err(ProgramError::AlreadyLoaded) => it.attach(tracepoint),
            Err(error) => Err(error),
        });
        let link = attached.map_err(|error| refused(&format!("program {name}"), &error))?;
        // Any system call of this thread makes the program answer.
        nix::unistd::getppid();
        let answer = self.questions.get(&0, 0);
        let detached = learner(&mut self.ebpf, name).and_then(|it| it.detach(link));
        detached.map_err(|error| refused(&format!("to detach program {name}"), &error))?;
        let answer = answer.map_err(|error| refused("an answer", &error))?;
        if answer.sb == 0 || answer.dentry == 0 { Err(ProbeError::Unanswered { fd }) } else { Ok(answer) }
    }
}

/// Makes a nameless file, which must fail: the entry of this directory names our thread.
fn self_test(directory: BorrowedFd<'_>) -> Result<(), ProbeError> {
    let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    match openat(directory, ".", flags, Mode::S_IRUSR).map(File::from) {
        Err(Errno::ENOSPC) => Ok(()),
        // No such files on this filesystem; the list of active modules must do.
        Err(Errno::EOPNOTSUPP) => Ok(()),
        Err(errno) => Err(ProbeError::Directory { fd: directory.as_raw_fd(), source: errno.into() }),
        Ok(_) => Err(ProbeError::DoesNotRefuse),
    }
}

fn brake_offsets(btf: &btf::Btf) -> Result<BrakeOffsets, ProbeError> {
    Ok(BrakeOffsets {
        file_flags: btf.offset("file", "f_flags")?,
        name_len: btf.offset("dentry", "d_name.len")?,
        name_pointer: btf.offset("dentry", "d_name.name")?,
    })
}

fn examine_namespace() -> Result<nix::sys::stat::FileStat, ProbeError> {
    let path = "/proc/self/ns/pid";
    let file = File::open(path).map_err(|source| ProbeError::Directory { fd: -1, source })?;
    examine(std::os::fd::AsFd::as_fd(&file), nix::sys::stat::stat(path))
}

/// Loads what counts refused bytes; gives those that the kernel took.
fn load_byte_counters(
    ebpf: &mut Ebpf,
    types: &Btf,
    functions: &btf::Btf,
) -> Vec<(&'static str, &'static str)> {
    let mut loaded = Vec::new();
    for (program, function, arguments) in names::REFUSED_BYTES {
        if functions.function_arguments(function) != Some(arguments) {
            tracing::info!(function, "not every refused byte is counted: this kernel has no such function");
            continue;
        }
        match fexit(ebpf, program).and_then(|it| it.load(function, types)) {
            Ok(()) => loaded.push((program, function)),
            Err(error) => {
                let error = refused(&format!("program {program} on {function}"), &error);
                tracing::info!(%error, "not every refused byte is counted");
            }
        }
    }
    loaded
}

fn fexit<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut FExit, ProgramError> {
    program(ebpf, name)?.try_into()
}

fn program<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut Program, ProgramError> {
    ebpf.program_mut(name).ok_or_else(|| ProgramError::InvalidName { name: name.to_owned() })
}

fn lsm<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut Lsm, ProgramError> {
    program(ebpf, name)?.try_into()
}

fn learner<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut RawTracePoint, ProgramError> {
    program(ebpf, name)?.try_into()
}

/// Maps and programs stay whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take<M>(ebpf: &mut Ebpf, name: &'static str) -> Result<M, ProbeError>
where
    M: TryFrom<aya::maps::Map, Error = aya::maps::MapError>,
{
    let map = ebpf.take_map(name).ok_or(aya::maps::MapError::ElementNotFound);
    map.and_then(M::try_from).map_err(|error| refused(&format!("map {name}"), &error))
}
