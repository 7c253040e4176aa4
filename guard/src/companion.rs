//! Companions: processes that do for the guard what its sandbox forbids it. Each is forked before the first thread and
//! before the sandbox, does one thing, keeps what that takes, and ends with the guard.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use nix::sys::prctl;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid};

use crate::memory;

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum CompanionError {
    /// fork(2) copies one thread only; with others there, a lock that one of them holds would never be given back.
    #[error("{0} threads run already")]
    Threads(usize),
    /// The system is out of processes or descriptors.
    #[error("cannot start it: {0}")]
    System(#[from] io::Error),
}

/// Forks a process that calls `confine`, runs `body` and ends. `body` is given one end of a pair of sockets of type `socket`,
/// of which the other is returned, and the guard's process id.
///
/// # Errors
/// To be called while the calling thread is the only one.
pub fn start(
    name: &CStr,
    socket: SockType,
    confine: impl FnOnce(),
    body: impl FnOnce(OwnedFd, Pid),
) -> Result<OwnedFd, CompanionError> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(CompanionError::Threads(threads));
    }
    let (ours, its) =
        socketpair(AddressFamily::Unix, socket, None, SockFlag::SOCK_CLOEXEC).map_err(io::Error::from)?;
    let guard = getpid();
    // SAFETY: this is the only thread (looked at above), so the child's copy of the memory has no lock that is held by
    // somebody who is not there, and it may go on as any Rust program.
    match unsafe { fork() }.map_err(io::Error::from)? {
        ForkResult::Parent { .. } => Ok(ours),
        ForkResult::Child => {
            // So that it sees when the guard's is closed.
            drop(ours);
            if ends_with(guard, name) {
                confine();
                memory::give_back();
                body(its, guard);
            }
            std::process::exit(0)
        }
    }
}

/// Arranges for this process to end with `guard` and not before; false when that has ended already.
fn ends_with(guard: Pid, name: &CStr) -> bool {
    // Signals to the whole group or unit are for the guard, which ends us by ending.
    for other in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGPIPE] {
        // SAFETY: ignoring a signal runs no code of ours.
        let _ = unsafe { signal(other, SigHandler::SigIgn) };
    }
    let _ = prctl::set_name(name);
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    getppid() == guard
}
