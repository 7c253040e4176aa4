//! The helper: a process that answers permission events and does nothing else.
//!
//! Whoever opens a file below a marked directory waits in the kernel until we answer, for as long as that takes. So the
//! question is what happens when we do not:
//!
//! | what happens | what ends the waiting |
//! | --- | --- |
//! | the guard is killed or crashes | our end of the socket is closed (and `PR_SET_PDEATHSIG`): we end, and our groups with us |
//! | the guard is stopped, hangs, is swapped out | its lease runs out ([`super::LEASE`]): we let everybody pass |
//! | we are killed or crash | the kernel closes our groups, and allows what waits for an answer |
//! | we are stopped, or hang in a system call | a timer of the kernel kills us ([`DEADMAN`]); SIGKILL ends the stopped, too |
//! | the guard opens a file there itself | we are another process, and let it pass at once |
//! | we open a file there ourselves | we never do: directories raise no event, and event descriptors are exempt |
//!
//! The one case left is that of a frozen cgroup v1, in which even SIGKILL waits.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::stat::{fstat, stat};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::time::ClockId;
use nix::unistd::Pid;

use super::access::{Call, Wish, wish_of_flags};
use super::group::{Event, Group};
use super::protocol::{DirectoryReport, Order, Report, receive, send};
use super::tree::Tree;
use super::{Key, RefusedWriter, Stance, add_writer};
use crate::model::Monotonic;
use crate::observe::lease::{Lease, NoLease};

/// Nobody waits longer than this for a helper that does not answer: the kernel kills it.
pub const DEADMAN: Duration = Duration::from_secs(2);
/// How long to sleep at most. Much less than [`DEADMAN`], for a busy machine.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// After so many answers the guard is listened to again.
const ANSWERS_IN_A_ROW: usize = 64;
/// So many empty files are remembered, about 1 MiB; more are not cleared away.
pub(super) const CREATED_MAX: usize = 4096;
/// The guard hears of so many at once.
pub(super) const REPORTED_MAX: usize = 64;
/// Marks that could not be set are tried again after this.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// A thread that asks is not always asleep yet; looking so often, 50 µs apart, is enough.
const LOOKS: u32 = 20;

/// Answers until the guard, at the other end of `socket`, is gone. `guard` is its process id.
///
/// # Errors
/// What makes answering impossible; then nothing is marked any more, and everybody passes.
pub fn run(socket: BorrowedFd<'_>, guard: u32, clock: fn() -> Monotonic) -> Result<(), Errno> {
    // Should the guard have ended before this line, the socket tells.
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    // A signal to the guard's process group (Ctrl-Z, a shell's kill) must not reach both of us.
    let _ = nix::unistd::setsid();
    let event = SigEvent::new(SigevNotify::SigevSignal { signal: Signal::SIGKILL, si_value: 0 });
    let mut deadman = Timer::new(ClockId::CLOCK_MONOTONIC, event)?;
    let mut helper = Helper { guard, directories: BTreeMap::new(), created: 0 };
    loop {
        deadman.set(Expiration::OneShot(DEADMAN.into()), TimerSetTimeFlags::empty())?;
        helper.wait(socket);
        loop {
            match receive(socket) {
                Ok(Some((order, descriptor))) => {
                    let beat = if let Order::Beat { number, .. } = &order { Some(*number) } else { None };
                    helper.obey(order, descriptor, clock());
                    if let Some(number) = beat {
                        // EAGAIN: the guard does not read now, and the report waits for its next beat.
                        helper.report(socket, number)?;
                    }
                }
                Ok(None) => break,
                Err(Errno::EPIPE) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        helper.expire(clock());
        helper.serve();
    }
}

/// What the helper knows.
struct Helper {
    guard: u32,
    directories: BTreeMap<Key, Watched>,
    /// How many created files are remembered, of all directories.
    created: usize,
}

/// One directory.
struct Watched {
    tree: Tree,
    /// There is none while nothing is to happen.
    group: Option<Group>,
    stance: Stance,
    until: Monotonic,
    /// When to try again what is wrong.
    again: Monotonic,
    writers: Vec<RefusedWriter>,
    created: Vec<(Vec<u8>, u64, u64)>,
    stops_writes: bool,
    says_no_space: bool,
    problem: Option<String>,
}

impl Helper {
    /// Sleeps until there is something to do.
    fn wait(&self, socket: BorrowedFd<'_>) {
        let mut fds = vec![PollFd::new(socket, PollFlags::POLLIN)];
        for watched in self.directories.values() {
            let groups = watched.group.as_ref().map(Group::as_fd);
            fds.extend(
                groups.into_iter().chain(watched.tree.news()).map(|fd| PollFd::new(fd, PollFlags::POLLIN)),
            );
        }
        // EINTR is a look too many, no more.
        let _ = poll(&mut fds, PollTimeout::from(SLEEP_MAX.as_millis() as u16));
    }

    fn obey(&mut self, order: Order, descriptor: Option<std::os::fd::OwnedFd>, now: Monotonic) {
        match order {
            Order::Watch { key, nested } => {
                let Some(directory) = descriptor else { return };
                self.directories.insert(key, Watched::new(Tree::new(directory, nested)));
            }
            Order::Forget { key } => {
                let forgotten = self.directories.remove(&key);
                self.created -= forgotten.map_or(0, |watched| watched.created.len());
            }
            Order::Beat { stances, .. } => {
                for (key, stance, until) in stances {
                    if let Some(watched) = self.directories.get_mut(&key) {
                        watched.until = Monotonic(Duration::from_nanos(until));
                        watched.take(stance, now);
                    }
                }
            }
        }
    }

    /// Lets go where the guard has not been heard of for too long.
    fn expire(&mut self, now: Monotonic) {
        for watched in self.directories.values_mut().filter(|watched| watched.stance != Stance::Off) {
            if now >= watched.until {
                watched.let_go();
            }
        }
    }

    fn report(&mut self, socket: BorrowedFd<'_>, number: u64) -> Result<(), Errno> {
        let mut room = REPORTED_MAX;
        let directories = self.directories.iter().map(|(key, watched)| {
            let created = &watched.created[..watched.created.len().min(room)];
            room -= created.len();
            watched.report(*key, created)
        });
        let directories: Vec<_> = directories.collect();
        let told: Vec<usize> = directories.iter().map(|it| it.created.len()).collect();
        let has_more = told.iter().sum::<usize>() < self.created;
        match send(socket, &Report { number, has_more, directories }, None) {
            Ok(()) => {
                for (watched, told) in self.directories.values_mut().zip(told) {
                    watched.reported(told);
                    self.created -= told;
                }
                Ok(())
            }
            Err(Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Answers whoever waits.
    fn serve(&mut self) {
        for watched in self.directories.values_mut() {
            watched.catch_up();
            let mut answered = 0;
            while let Some(group) = watched.group.as_mut() {
                let events = match group.events() {
                    Ok(events) if events.is_empty() => break,
                    Ok(events) => events,
                    Err(errno) => {
                        // Nobody could be answered any more.
                        watched.give_up("reading events", errno);
                        break;
                    }
                };
                answered += events.len();
                for event in events {
                    let refused = match watched.stance {
                        Stance::Refusing => examine(&event, self.guard),
                        Stance::Off | Stance::Ready => None,
                    };
                    if let Some(refused) = &refused {
                        watched.note(&event, refused, &mut self.created);
                    }
                    let Some(group) = watched.group.as_mut() else { break };
                    if let Err(errno) = group.answer(event, refused.is_some()) {
                        watched.give_up("answering", errno);
                    }
                }
                if answered >= ANSWERS_IN_A_ROW {
                    break;
                }
            }
        }
    }
}

impl Watched {
    fn new(tree: Tree) -> Watched {
        Watched {
            tree,
            group: None,
            stance: Stance::Off,
            until: Monotonic::default(),
            again: Monotonic::default(),
            writers: Vec::new(),
            created: Vec::new(),
            stops_writes: true,
            says_no_space: true,
            problem: None,
        }
    }

    fn take(&mut self, stance: Stance, now: Monotonic) {
        if stance == Stance::Off {
            return self.let_go();
        }
        let is_change = stance != self.stance && self.group.is_some();
        if !is_change && !self.is_to_be_tried(stance, now) {
            return;
        }
        self.again = Monotonic(now.0 + TRY_AGAIN);
        if self.group.is_none() {
            match Group::open() {
                Ok(group) => self.group = Some(group),
                Err(errno) => return self.give_up("fanotify_init", errno),
            }
        }
        let Some(group) = &mut self.group else { return };
        self.stance = stance;
        // Err: some are marked, which is better than none, and they are answered.
        self.problem = self.tree.mark(group, stance).err().map(|error| error.to_string());
    }

    /// Whether a stance that is not new calls for anything.
    fn is_to_be_tried(&self, stance: Stance, now: Monotonic) -> bool {
        if self.problem.is_some() { now >= self.again } else { stance != self.stance }
    }

    fn let_go(&mut self) {
        self.stance = Stance::Off;
        self.group = None;
        self.problem = None;
        self.tree.clear();
    }

    fn catch_up(&mut self) {
        if let Some(group) = &mut self.group
            && let Err(error) = self.tree.catch_up(group, self.stance)
        {
            self.problem = Some(error.to_string());
        }
    }

    /// Closes the group, which lets everybody pass.
    fn give_up(&mut self, what: &str, errno: Errno) {
        self.group = None;
        self.stance = Stance::Off;
        self.tree.clear();
        self.problem = Some(format!("{what}: {errno}"));
    }

    /// Remembers who was refused.
    fn note(&mut self, event: &Event, refused: &Refusal, created: &mut usize) {
        add_writer(&mut self.writers, &comm(event.tid), 1, refused.bytes);
        if let Some((name, dev, ino)) = refused.created.as_ref().filter(|_| *created < CREATED_MAX) {
            self.created.push((name.clone(), *dev, *ino));
            *created += 1;
        }
    }

    fn report(&self, key: Key, created: &[(Vec<u8>, u64, u64)]) -> DirectoryReport {
        let group = self.group.as_ref();
        DirectoryReport {
            key,
            stance: self.stance,
            writers: self.writers.clone(),
            created: created.to_vec(),
            stops_writes: group.map_or(self.stops_writes, Group::stops_writes),
            says_no_space: group.map_or(self.says_no_space, Group::says_no_space),
            problem: self.problem.clone().map(|problem| problem.chars().take(200).collect()),
        }
    }

    /// The guard was told, also of the first `created` files.
    fn reported(&mut self, created: usize) {
        if let Some(group) = &self.group {
            (self.stops_writes, self.says_no_space) = (group.stops_writes(), group.says_no_space());
        }
        self.writers.clear();
        self.created.drain(..created);
    }
}

/// What is refused to somebody.
struct Refusal {
    /// So many bytes.
    bytes: u64,
    /// Name, device and inode of a file that he has just made.
    created: Option<(Vec<u8>, u64, u64)>,
}

/// Whether whoever waits is to be refused. Readers, the guard and markers pass; in doubt everybody does.
fn examine(event: &Event, guard: u32) -> Option<Refusal> {
    // The cheapest question first, and the one that lets nearly every reader pass: does anybody have it open for writing?
    // The kernel has entered an opener already, before it asks us.
    let lease = Lease::shared(&event.file).map(drop);
    if lease.is_ok() || is_thread_of(event.tid, guard) {
        return None;
    }
    let name = name_of(event);
    if name.ends_with(b".keep") {
        return None;
    }
    let bytes = match wish(event) {
        Wish::Read => return None,
        Wish::Write(bytes) => bytes.or(event.range),
        // Somebody writes this file, so it is no archive that is being restored; who came may be the one.
        Wish::Unknown if lease == Err(NoLease::Held) => event.range,
        // The filesystem has no leases, and the kernel does not tell what he wants.
        _ => return None,
    };
    let stat = fstat(&event.file).ok();
    let is_new = stat.filter(|stat| event.opening && stat.st_size == 0 && stat.st_blocks == 0);
    Some(Refusal {
        bytes: if event.opening { 0 } else { bytes.unwrap_or(0) },
        created: is_new.map(|stat| (name, stat.st_dev, stat.st_ino)),
    })
}

/// What whoever waits wants with the file, as far as his system call tells.
fn wish(event: &Event) -> Wish {
    let wish = call(event.tid).map_or(Wish::Unknown, |call| call.wish(event.opening));
    match wish {
        Wish::WriteIf(descriptor, bytes) => {
            let other = stat(format!("/proc/{}/fd/{descriptor}", event.tid).as_str());
            match (other, fstat(&event.file)) {
                (Ok(other), Ok(this)) if (other.st_dev, other.st_ino) == (this.st_dev, this.st_ino) => {
                    Wish::Write(Some(bytes))
                }
                (Ok(_), Ok(_)) => Wish::Read,
                _ => Wish::Unknown,
            }
        }
        Wish::WriteIfFlagsAt(address) => flags_at(event.tid, address).map_or(Wish::Unknown, wish_of_flags),
        wish => wish,
    }
}

/// The system call that a thread waits in.
fn call(tid: i32) -> Option<Call> {
    let path = format!("/proc/{tid}/syscall");
    for _ in 0..LOOKS {
        let call = Call::parse(&std::fs::read_to_string(&path).ok()?);
        if call.is_some() {
            return call;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    None
}

/// `open_how.flags` of openat2(2).
fn flags_at(tid: i32, address: u64) -> Option<nix::libc::c_int> {
    let mut flags = [0; 8];
    let there = RemoteIoVec { base: usize::try_from(address).ok()?, len: flags.len() };
    let read = process_vm_readv(Pid::from_raw(tid), &mut [IoSliceMut::new(&mut flags)], &[there]);
    (read == Ok(8)).then(|| u64::from_ne_bytes(flags) as nix::libc::c_int)
}

fn is_thread_of(tid: i32, process: u32) -> bool {
    std::path::Path::new(&format!("/proc/{process}/task/{tid}")).exists()
}

/// The last component of the file's path, as we see it. For what is decided by names only.
fn name_of(event: &Event) -> Vec<u8> {
    let link = format!("/proc/self/fd/{}", event.file.as_raw_fd());
    let path = std::fs::read_link(link).unwrap_or_default();
    path.file_name().unwrap_or_default().as_bytes().to_vec()
}

fn comm(tid: i32) -> String {
    let comm = std::fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
    let comm = String::from_utf8_lossy(comm.trim_ascii_end());
    if comm.is_empty() { super::OTHERS.to_owned() } else { comm.into_owned() }
}
