//! The operator's command before a deletion, to copy the checkpoint away first.
//!
//! The guard's sandbox lets no program be started, so a companion runs it ([`runner`]). The companion knows the program from
//! the configuration; the guard says which checkpoint, and that is all it can say.

mod runner;

use std::ffi::OsString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::SockType;
use serde::{Deserialize, Serialize};

use super::brake::protocol::{receive, send};
use crate::companion::{self, CompanionError};
use crate::model::Monotonic;

/// The one of this process.
static RUNNER: OnceLock<Mutex<Runner>> = OnceLock::new();

/// While a command runs, whether it is to be ended is looked at so often.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What was killed is gone within a millisecond, unless it hangs in the kernel; then nobody waits for it any longer.
const KILLED_WITHIN: Duration = Duration::from_millis(500);

/// What the command is told. Nothing of it is from inside the archive but whose it is.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Job {
    /// The archive or the directory of the pod checkpoint: `CHECKPOINT_GUARD_PATH`.
    pub path: OsString,
    /// `hard`, `retention:…`: `CHECKPOINT_GUARD_TRIGGER`.
    pub trigger: String,
    /// The checkpoint's record as JSON, on its standard input.
    pub record: String,
}

/// How it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ran {
    /// It ended with 0.
    Done,
    /// It did not, or could not be started.
    Failed(String),
    /// It was ended, because it took too long.
    TimedOut(Duration),
    /// It was ended, or not run, for this reason.
    GivenUp(GivenUp),
}

/// Why a command is not waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// The filesystem is at critical, or has got there: room first.
    Critical,
    /// A reclaim has become more urgent than what this was for.
    Pressed,
    /// The guard ends.
    Stopping,
}

/// What passes to the companion.
#[derive(Debug, Deserialize, Serialize)]
enum Order {
    Run(Job),
    End,
}

/// What comes back for each [`Order::Run`], once.
#[derive(Debug, Deserialize, Serialize)]
struct Report(Result<(), String>);

#[derive(Debug)]
struct Runner {
    socket: OwnedFd,
    /// A command was given up and has not reported.
    owes_report: bool,
}

/// Starts the companion; `confine` is called in it before it is asked anything. Does nothing when there is one.
///
/// # Errors
/// To be called while the calling thread is the only one.
pub fn start(program: PathBuf, arguments: Vec<String>, confine: impl FnOnce()) -> Result<(), CompanionError> {
    if RUNNER.get().is_some() {
        return Ok(());
    }
    let socket = companion::start(c"before-deletion", SockType::SeqPacket, confine, |its, _| {
        runner::serve(&its, &program, &arguments);
    })?;
    let _ = RUNNER.set(Mutex::new(Runner { socket, owes_report: false }));
    Ok(())
}

/// Runs the command and waits for it, for `timeout` at most and only while `give_up` says nothing. One command runs at a
/// time; waiting for the one of another filesystem counts.
pub fn run(
    job: &Job,
    timeout: Duration,
    clock: &dyn Fn() -> Monotonic,
    give_up: &mut dyn FnMut() -> Option<GivenUp>,
) -> Ran {
    let until = Monotonic(clock().0 + timeout);
    let mut is_over = || match give_up() {
        Some(why) => Some(Ran::GivenUp(why)),
        None if clock() >= until => Some(Ran::TimedOut(timeout)),
        None => None,
    };
    run_by(RUNNER.get(), job, &mut is_over)
}

/// Whoever is to give up does: also where nobody could run the command, it speaks against no deletion then.
fn run_by(runner: Option<&Mutex<Runner>>, job: &Job, is_over: &mut dyn FnMut() -> Option<Ran>) -> Ran {
    let unable = |problem: String, is_over: &mut dyn FnMut() -> Option<Ran>| match is_over() {
        Some(Ran::GivenUp(why)) => Ran::GivenUp(why),
        _ => Ran::Failed(problem),
    };
    let Some(runner) = runner else {
        return unable("has no process to run it; the log of the start says why".to_owned(), is_over);
    };
    let mut runner = loop {
        match (is_over(), try_lock(runner)) {
            (Some(over), _) => return over,
            (None, Some(runner)) => break runner,
            (None, None) => std::thread::sleep(LOOK_EVERY),
        }
    };
    match runner.run(job, is_over) {
        Ok(Some(ran)) => ran,
        Ok(None) => {
            let problem = "is not run: the one before hangs in the kernel and cannot be ended";
            unable(problem.to_owned(), is_over)
        }
        Err(errno) => unable(format!("cannot be run, its process is gone: {errno}"), is_over),
    }
}

fn try_lock(runner: &Mutex<Runner>) -> Option<MutexGuard<'_, Runner>> {
    match runner.try_lock() {
        Ok(runner) => Some(runner),
        Err(TryLockError::Poisoned(runner)) => Some(runner.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Runner {
    /// `None`: it is not run, because the one before still is.
    fn run(&mut self, job: &Job, is_over: &mut dyn FnMut() -> Option<Ran>) -> Result<Option<Ran>, Errno> {
        if self.owes_report && self.report(KILLED_WITHIN)?.is_none() {
            return Ok(None);
        }
        send(self.socket.as_fd(), &Order::Run(job.clone()), None)?;
        self.owes_report = true;
        loop {
            if let Some(Report(result)) = self.report(LOOK_EVERY)? {
                return Ok(Some(result.map_or_else(Ran::Failed, |()| Ran::Done)));
            }
            if let Some(over) = is_over() {
                send(self.socket.as_fd(), &Order::End, None)?;
                // Its end is awaited, so that nobody has the archive open any more.
                self.report(KILLED_WITHIN)?;
                return Ok(Some(over));
            }
        }
    }

    /// What the companion says within `patience`.
    fn report(&mut self, patience: Duration) -> Result<Option<Report>, Errno> {
        let patience = PollTimeout::from(patience.as_millis() as u16);
        // EINTR is a look too many, no more.
        let _ = poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], patience);
        let report = receive::<Report>(self.socket.as_fd())?.map(|(report, _)| report);
        self.owes_report &= report.is_none();
        Ok(report)
    }
}

impl Ran {
    /// The word for it in records and metrics.
    pub const fn label(&self) -> &'static str {
        match self {
            Ran::Done => "done",
            Ran::Failed(_) => "failed",
            Ran::TimedOut(_) => "timed-out",
            Ran::GivenUp(_) => "given-up",
        }
    }

    /// What went wrong; `None` when nothing did. Reads on from "the command".
    pub fn problem(&self) -> Option<String> {
        match self {
            Ran::Done => None,
            Ran::Failed(problem) => Some(problem.clone()),
            Ran::TimedOut(limit) => {
                Some(format!("took longer than {} and was ended", crate::config::format_duration(*limit)))
            }
            Ran::GivenUp(GivenUp::Critical) => {
                Some("is not waited for at critical: the disk is about to be full".to_owned())
            }
            Ran::GivenUp(GivenUp::Pressed) => {
                Some("gave way to a reclaim: retention goes on after it".to_owned())
            }
            Ran::GivenUp(GivenUp::Stopping) => Some("was ended, because the guard ends".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{AddressFamily, SockFlag, socketpair};

    use super::*;

    #[test]
    fn at_critical_nothing_is_spared_because_nobody_can_run_the_command() {
        let pair = || {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap()
        };
        let (socket, its) = pair();
        drop(its);
        let gone = Mutex::new(Runner { socket, owes_report: false });
        let (socket, _its) = pair();
        let busy = Mutex::new(Runner { socket, owes_report: true });
        let job = Job { path: "a.tar".into(), trigger: "critical".to_owned(), record: "{}".to_owned() };
        for runner in [None, Some(&gone), Some(&busy)] {
            let critical = Ran::GivenUp(GivenUp::Critical);
            assert_eq!(run_by(runner, &job, &mut || Some(critical.clone())), critical);
            // It gets there only while that is found out.
            let mut looks = 0;
            let mut later = || {
                looks += 1;
                (looks > 1).then(|| critical.clone())
            };
            if runner.is_some() {
                assert_eq!(run_by(runner, &job, &mut later), critical);
            }
            assert!(matches!(run_by(runner, &job, &mut || None), Ran::Failed(_)));
        }
    }
}
