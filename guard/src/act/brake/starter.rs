//! The starter: a companion that starts the brake's helper when it is needed, and ends it.
//!
//! Permission events take CAP_SYS_ADMIN, and starting a program takes execve(2). The guard, which reads archives and
//! listens, has neither ([`crate::sandbox`]); this process has both, hears single words from the guard and nothing from
//! anybody else.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::SockType;
use serde::{Deserialize, Serialize};

use super::fanotify::HELPER_COMMAND;
use super::group::try_group;
use super::protocol::{receive, send};
use crate::companion::{self, CompanionError};

/// The one of this process.
static STARTER: OnceLock<Mutex<OwnedFd>> = OnceLock::new();

/// Starting a program takes 5 ms, and on a busy machine a hundred times that.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the guard says.
#[derive(Debug, Deserialize, Serialize)]
enum Ask {
    /// Does the kernel grant permission events?
    Try,
    /// Start a helper whose standard input is the descriptor that comes along.
    Start,
    /// End the helper with this process id.
    End(u32),
}

/// What the starter says: a process id where one was asked for, or an errno.
#[derive(Debug, Deserialize, Serialize)]
struct Answer(Result<u32, i32>);

/// Starts it, for helpers that are `program`; `confine` is called in it before it is asked anything. Does nothing when there
/// is one.
///
/// # Errors
/// To be called while the calling thread is the only one.
pub fn start(program: &Path, confine: impl FnOnce()) -> Result<(), CompanionError> {
    if STARTER.get().is_some() {
        return Ok(());
    }
    let ours = companion::start(c"brake-starter", SockType::SeqPacket, confine, |its, guard| {
        serve(&its, program, guard.as_raw());
    })?;
    let _ = STARTER.set(Mutex::new(ours));
    Ok(())
}

/// Answers until nobody is left to ask.
fn serve(socket: &OwnedFd, program: &Path, guard: i32) {
    let mut helpers: BTreeMap<u32, Child> = BTreeMap::new();
    loop {
        // EINTR is a look too many, no more.
        let _ = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
        // Those that ended by themselves are buried.
        helpers.retain(|_, child| matches!(child.try_wait(), Ok(None)));
        let answer = match receive::<Ask>(socket.as_fd()) {
            Ok(None) => continue,
            Err(_) => return,
            Ok(Some((Ask::Try, _))) => try_group().map(|()| 0),
            Ok(Some((Ask::Start, Some(its)))) => launch(program, guard, its).map(|child| {
                let pid = child.id();
                helpers.insert(pid, child);
                pid
            }),
            Ok(Some((Ask::Start, None))) => Err(Errno::EBADF),
            Ok(Some((Ask::End(pid), _))) => {
                if let Some(mut child) = helpers.remove(&pid) {
                    // SIGKILL, for it may be stopped; the kernel closes its groups and lets everybody pass.
                    let _ = child.kill();
                    let _ = child.wait();
                }
                Ok(0)
            }
        };
        if send(socket.as_fd(), &Answer(answer.map_err(|errno| errno as i32)), None).is_err() {
            return;
        }
    }
}

fn launch(program: &Path, guard: i32, its: OwnedFd) -> Result<Child, Errno> {
    let spawned = Command::new(program)
        .args([HELPER_COMMAND, "--guard", &guard.to_string()])
        .stdin(Stdio::from(its))
        .stdout(Stdio::null())
        .spawn();
    spawned.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
}

/// Whether the kernel grants permission events.
pub(super) fn try_events() -> Result<(), Errno> {
    ask(&Ask::Try, None).map(drop)
}

/// Starts a helper whose standard input is `its`; its process id.
pub(super) fn start_helper(its: &OwnedFd) -> Result<u32, Errno> {
    ask(&Ask::Start, Some(its))
}

/// Ends a helper, whatever it is doing.
pub(super) fn end_helper(pid: u32) {
    // Err: there is no starter any more, and then its helpers have ended, too.
    let _ = ask(&Ask::End(pid), None);
}

/// `ESRCH` when there is no starter.
fn ask(question: &Ask, descriptor: Option<&OwnedFd>) -> Result<u32, Errno> {
    let socket = STARTER.get().ok_or(Errno::ESRCH)?.lock().unwrap_or_else(PoisonError::into_inner);
    // What came too late for the one who asked.
    while let Some(_late) = receive::<Answer>(socket.as_fd())? {}
    send(socket.as_fd(), question, descriptor.map(|fd| fd.as_fd()))?;
    let patience = PollTimeout::from(PATIENCE.as_millis() as u16);
    let _ = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], patience);
    let (Answer(answer), _) = receive::<Answer>(socket.as_fd())?.ok_or(Errno::ETIMEDOUT)?;
    answer.map_err(Errno::from_raw)
}
