//! The companion's side: starts the program, waits for it, and ends it with all that it started.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, killpg, sigaction};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::{Job, Order, Report};
use crate::act::brake::protocol::{receive, send};

/// The end of a command is noticed within this.
const LOOK_EVERY_MS: u16 = 10;
/// So much of what it last said is told on.
const TAIL: usize = 300;

/// Runs what is ordered until nobody is left to order.
pub(super) fn serve(socket: &OwnedFd, program: &Path, arguments: &[String]) {
    // What is ignored stays so in programs that are started; what has a handler does not.
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let nothing = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does nothing at all.
        let _ = unsafe { sigaction(signal, &nothing) };
    }
    // The socket tells when the guard is gone, and then the command is to be ended first.
    let _ = prctl::set_pdeathsig(None);
    loop {
        // EINTR is a look too many, no more.
        let _ = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
        let report = match receive::<Order>(socket.as_fd()) {
            // It ended by itself just before.
            Ok(None | Some((Order::End, _))) => continue,
            Ok(Some((Order::Run(job), _))) => run(socket, program, arguments, &job),
            Err(_) => return,
        };
        match report {
            Some(report) if send(socket.as_fd(), &report, None).is_ok() => {}
            _ => return,
        }
    }
}

extern "C" fn nothing(_: i32) {}

/// Runs the program once; `None` when the guard is gone.
fn run(socket: &OwnedFd, program: &Path, arguments: &[String], job: &Job) -> Option<Report> {
    match launch(program, arguments, job) {
        Ok(mut running) => {
            let report = running.wait(socket);
            running.end();
            report
        }
        Err(error) => Some(Report(Err(format!("cannot be started: {}: {error}", program.display())))),
    }
}

fn launch(program: &Path, arguments: &[String], job: &Job) -> io::Result<Running> {
    let mut child = Command::new(program)
        .args(arguments)
        .env("CHECKPOINT_GUARD_PATH", &job.path)
        .env("CHECKPOINT_GUARD_TRIGGER", &job.trigger)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // So that all that it starts can be ended with it.
        .process_group(0)
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A record is smaller than a pipe, so this does not wait. Err: it does not want to know.
        let _ = stdin.write_all(job.record.as_bytes());
    }
    let stderr = child.stderr.take();
    if let Some(stderr) = &stderr {
        fcntl(stderr, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    Ok(Running { child, stderr, said: Vec::new(), is_buried: false })
}

struct Running {
    child: Child,
    /// Until its end.
    stderr: Option<ChildStderr>,
    said: Vec<u8>,
    /// Its number may be another's by now.
    is_buried: bool,
}

impl Running {
    /// Until it has ended, or is to be ended.
    fn wait(&mut self, socket: &OwnedFd) -> Option<Report> {
        loop {
            let mut awaited = vec![PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            awaited.extend(self.stderr.iter().map(|stderr| PollFd::new(stderr.as_fd(), PollFlags::POLLIN)));
            let _ = poll(&mut awaited, PollTimeout::from(LOOK_EVERY_MS));
            self.listen();
            if self.has_ended() {
                self.listen();
                self.end();
                return Some(Report(self.result()));
            }
            match receive::<Order>(socket.as_fd()) {
                Ok(None) => {}
                Ok(Some(_)) => return Some(Report(Err("was ended".to_owned()))),
                Err(_) => return None,
            }
        }
    }

    /// Takes in what it says, and keeps the end of that.
    fn listen(&mut self) {
        let Some(stderr) = &mut self.stderr else { return };
        let mut buffer = [0; 4096];
        // Bounded: one that never stops talking must not keep us from its end.
        for _ in 0..16 {
            match stderr.read(&mut buffer) {
                Ok(0) => {
                    self.stderr = None;
                    return;
                }
                Ok(len) => {
                    self.said.extend_from_slice(&buffer[..len]);
                    let surplus = self.said.len().saturating_sub(TAIL);
                    self.said.drain(..surplus);
                }
                Err(_) => return,
            }
        }
    }

    /// Whether the program itself has ended. It is left unburied, so that nobody else gets its number.
    fn has_ended(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let status = waitid(Id::Pid(self.pid()), flags);
        matches!(status, Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD))
    }

    /// Ends whatever is left of it. SIGKILL: who copies has had his time.
    fn end(&mut self) {
        if !std::mem::replace(&mut self.is_buried, true) {
            let _ = killpg(self.pid(), Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }

    fn result(&mut self) -> Result<(), String> {
        let status = self.child.wait().map_err(|error| format!("is lost: {error}"))?;
        let said = String::from_utf8_lossy(&self.said);
        let said = match said.trim() {
            "" => String::new(),
            said => format!(": {said}"),
        };
        match (status.code(), status.signal()) {
            (Some(0), _) => Ok(()),
            (Some(code), _) => Err(format!("ended with {code}{said}")),
            (None, Some(signal)) => Err(format!("was ended by signal {signal}{said}")),
            (None, None) => Err(format!("ended with {status}{said}")),
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}
