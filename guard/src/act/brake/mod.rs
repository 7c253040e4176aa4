//! The brake: refusing writers in the kernel, below the watched directories and nowhere else.
//!
//! Two means, one face ([`Backend`]). *BPF LSM* ([`lsm`]) stops every write with ENOSPC by one write to a map, where the
//! kernel has it. *fanotify* ([`fanotify`]) asks user space before a file is opened, and since Linux 6.14 before each write;
//! whoever asks waits for the answer, so that is given by a process of its own ([`helper`]) that does nothing else.
//!
//! Both **fail open**. What the kernel holds ends with the process that set it up. Being engaged is never a state that
//! stays, but a lease of a few seconds which the guard renews: should it be stopped, hang or be swapped out, the lease runs
//! out and everybody writes again.

pub mod access;
pub mod fanotify;
pub mod helper;
pub mod lsm;
pub mod starter;

mod group;
pub(in crate::act) mod protocol;
mod tree;

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

pub use self::group::try_group;

use self::fanotify::Fanotify;
use self::lsm::LsmBrake;
use crate::model::FileId;
use crate::observe::probe::ProbeError;

/// How long writers are refused after the guard was last heard of.
pub const LEASE: Duration = Duration::from_secs(3);

/// A loop that has not spoken for so long hangs, and its directories are let go.
const LOOP_SILENCE_MAX: Duration = Duration::from_secs(30);
/// What is needed under pressure only is kept a little longer: pressure comes back more often than not.
const LINGER: Duration = Duration::from_secs(30);

/// While no brake is wanted, whoever tends it is woken by that changing, and looks by himself this often only.
const IDLE: Duration = Duration::from_secs(10);

/// A directory that was given to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key(pub u32);

/// What is to happen to writers below a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stance {
    /// Nothing; nobody is even asked.
    #[default]
    Off,
    /// Nothing yet, but files that are opened from now on can be stopped later.
    Ready,
    /// They are refused.
    Refusing,
}

/// One program that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedWriter {
    /// Its command name (`/proc/<pid>/comm`), or [`OTHERS`].
    pub comm: String,
    /// Calls that failed: opening or creating, writing, allocating.
    pub calls: u64,
    /// What these calls would have written; opening counts nothing, and where the kernel does not tell, neither does
    /// writing.
    pub bytes: u64,
}

/// What stands for all further programs once [`WRITERS_MAX`] are known by name.
pub const OTHERS: &str = "others";

/// So many programs are told apart. A node has three or four that write checkpoints.
pub const WRITERS_MAX: usize = 16;

/// A file whose creation was refused, which leaves its name behind, with nothing in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// Its name in the directory.
    pub name: OsString,
    /// Which file that was.
    pub file: FileId,
}

/// What was refused below one directory since the last question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// By program.
    pub writers: Vec<RefusedWriter>,
    /// Empty files that refused creations left.
    pub created: Vec<Created>,
}

impl Refusals {
    /// Adds more of the same.
    pub fn add(&mut self, more: Refusals) {
        for writer in more.writers {
            add_writer(&mut self.writers, &writer.comm, writer.calls, writer.bytes);
        }
        self.created.extend(more.created);
    }
}

/// Adds what one program was refused; bounded by [`WRITERS_MAX`] and [`OTHERS`].
pub fn add_writer(writers: &mut Vec<RefusedWriter>, comm: &str, calls: u64, bytes: u64) {
    let is_known = writers.iter().any(|writer| writer.comm == comm);
    let comm = if is_known || writers.len() < WRITERS_MAX { comm } else { OTHERS };
    match writers.iter_mut().find(|writer| writer.comm == comm) {
        Some(writer) => {
            writer.calls = writer.calls.saturating_add(calls);
            writer.bytes = writer.bytes.saturating_add(bytes);
        }
        None => writers.push(RefusedWriter { comm: comm.to_owned(), calls, bytes }),
    }
}

/// What a backend can do below one directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ability {
    /// Writers that have their file open already are stopped too (of fanotify: since Linux 6.14, on filesystems with
    /// pre-content events).
    pub stops_writes: bool,
    /// What they get is ENOSPC (of fanotify: since Linux 6.13); else EPERM.
    pub says_no_space: bool,
}

/// Why there is no brake.
#[derive(Debug, thiserror::Error)]
pub enum BrakeError {
    /// BPF LSM does not work here.
    #[error(transparent)]
    Lsm(#[from] ProbeError),
    /// Neither works here.
    #[error("by BPF LSM: {lsm}; by fanotify: {fanotify}")]
    Neither {
        /// Why not the one.
        lsm: Box<BrakeError>,
        /// Why not the other.
        fanotify: Box<BrakeError>,
    },
    /// fanotify_init(2) failed.
    #[error("fanotify has no permission events for us: {0}{hint}", hint = fanotify_hint(.0))]
    Fanotify(Errno),
    /// A directory could not be taken up.
    #[error("the brake cannot hold the directory: {0}{hint}", hint = directory_hint(.0))]
    Directory(Errno),
    /// More directories than [`DIRECTORIES_MAX`].
    #[error(
        "the brake holds {DIRECTORIES_MAX} directories at most, and this one is left out: let checkpoints go to fewer"
    )]
    TooMany,
}

/// Each directory has a fanotify group, of which a user has 128 (`fs.fanotify.max_user_groups`).
pub const DIRECTORIES_MAX: usize = 64;

fn directory_hint(errno: &Errno) -> &'static str {
    match errno {
        Errno::EMFILE | Errno::ENFILE => "; raise the limit on descriptors (systemd: LimitNOFILE)",
        Errno::ENOMEM => "; raise the memory limit",
        _ => "; writers into it are not refused, and restarting checkpoint-guard tries again",
    }
}

fn fanotify_hint(errno: &Errno) -> &'static str {
    match errno {
        Errno::EPERM => "; it needs CAP_SYS_ADMIN and a seccomp profile that lets fanotify_init(2) pass",
        Errno::ENOSYS => "; this kernel was built without CONFIG_FANOTIFY",
        Errno::EINVAL => "; this kernel was built without CONFIG_FANOTIFY_ACCESS_PERMISSIONS",
        Errno::EMFILE => "; too many groups (raise fs.fanotify.max_user_groups) or descriptors",
        Errno::ENOENT => "; sysfs is not mounted at /sys, where it is tried",
        Errno::ESRCH | Errno::EPIPE | Errno::ECONNRESET => {
            "; the process that tries it could not be started, the log of the start says why"
        }
        _ => "",
    }
}

/// The means that is in use.
#[derive(Debug)]
pub enum Backend {
    /// Programs in the kernel.
    Lsm(Box<LsmBrake>),
    /// Permission events, answered by a helper.
    Fanotify(Fanotify),
}

impl Backend {
    /// The word for it in configuration, logs and the audit log.
    pub fn as_str(&self) -> &'static str {
        match self {
            Backend::Lsm(_) => "lsm",
            Backend::Fanotify(_) => "fanotify",
        }
    }

    /// Takes a directory up, with [`Stance::Off`]. `nested`: files in directories below it count too.
    pub fn watch(&self, directory: BorrowedFd<'_>, nested: bool) -> Result<Key, BrakeError> {
        match self {
            Backend::Lsm(it) => it.watch(directory),
            Backend::Fanotify(it) => it.watch(directory, nested),
        }
    }

    /// Lets go of it.
    pub fn forget(&self, key: Key) {
        match self {
            Backend::Lsm(it) => it.forget(key),
            Backend::Fanotify(it) => it.forget(key),
        }
    }

    /// Says what is to happen below it; to be said again every few seconds, or the lease runs out. Never blocks.
    pub fn set(&self, key: Key, stance: Stance) {
        match self {
            Backend::Lsm(it) => it.set(key, stance),
            Backend::Fanotify(it) => it.set(key, stance),
        }
    }

    /// Waits, for a moment at most, until what was refused before the last [`Backend::set`] can be taken.
    pub fn hear_out(&self, key: Key) {
        match self {
            // It stands in a map.
            Backend::Lsm(_) => {}
            Backend::Fanotify(it) => it.hear_out(key),
        }
    }

    /// Keeps it going until `stop` is set; to be run by a thread of its own.
    pub fn tend(&self, stop: &AtomicBool) {
        match self {
            Backend::Lsm(it) => it.tend(stop),
            Backend::Fanotify(it) => it.tend(stop),
        }
    }

    /// What was refused since the last call.
    pub fn take_refusals(&self, key: Key) -> Refusals {
        match self {
            Backend::Lsm(it) => it.take_refusals(key),
            Backend::Fanotify(it) => it.take_refusals(key),
        }
    }

    /// Whether what was said last is in force below a directory, everywhere. Never blocks.
    pub fn is_in_force(&self, key: Key) -> bool {
        match self {
            Backend::Lsm(it) => it.is_in_force(key),
            Backend::Fanotify(it) => it.is_in_force(key),
        }
    }

    /// Whether writers below a directory are refused just now, though maybe not everywhere.
    pub fn is_refusing(&self, key: Key) -> bool {
        match self {
            Backend::Lsm(it) => it.is_refusing(key),
            Backend::Fanotify(it) => it.is_refusing(key),
        }
    }

    /// What is wrong with it there; `None` when nothing is.
    pub fn problem(&self, key: Key) -> Option<String> {
        match self {
            Backend::Lsm(it) => it.problem(key),
            Backend::Fanotify(it) => it.problem(key),
        }
    }

    /// What it can do below a directory; `None` until that is known.
    pub fn ability(&self, key: Key) -> Option<Ability> {
        match self {
            Backend::Lsm(it) => it.ability(key),
            Backend::Fanotify(it) => it.ability(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_programs_are_refused_few_are_told_apart() {
        let mut writers = Vec::new();
        for number in 0..1000 {
            add_writer(&mut writers, &format!("writer-{number}"), 1, 4096);
        }
        add_writer(&mut writers, "writer-3", 1, 0);
        assert_eq!(writers.len(), WRITERS_MAX + 1);
        assert_eq!(writers[3], RefusedWriter { comm: "writer-3".into(), calls: 2, bytes: 4096 });
        let others = writers.last().unwrap();
        assert_eq!((others.comm.as_str(), others.calls), (OTHERS, 1000 - WRITERS_MAX as u64));
    }
}
