//! Whatever ends the benchmarks, nothing of theirs stays behind: no guard, no mount, no image of a disk.
//!
//! They run in a process of their own, in a mount namespace of its own: mounts and loop devices go with its last process.
//! The one that was started only waits for it, ends what it leaves, and deletes the directory in which everything lies.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

/// Set for the process that measures.
const INSIDE: &str = "CHECKPOINT_GUARD_BENCH_INSIDE";
/// What was asked to end gets so long; then it is killed.
const GRACE: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(20);

/// Runs `measure` in such a process; the result is its exit code.
pub(crate) fn supervised(measure: impl FnOnce() -> Result<()>) -> Result<ExitCode> {
    if std::env::var_os(INSIDE).is_some() {
        awaited().thread_unblock()?;
        hide_mounts();
        return measure().map(|()| ExitCode::SUCCESS);
    }
    // Before there is any other thread: they inherit it.
    awaited().thread_block()?;
    // Orphans become ours.
    set_child_subreaper(true)?;
    let scratch = tempfile::Builder::new().prefix("checkpoint-guard-bench-").tempdir()?;
    let mut child = Command::new("/proc/self/exe")
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .env("TMPDIR", scratch.path())
        // Ctrl-C ends us, and we end the others.
        .process_group(0)
        .spawn()
        .context("cannot start the process that measures")?;
    let status = follow(&mut child);
    end_orphans();
    scratch.close().context("cannot delete what the benchmarks left")?;
    let code = status?
        .map_or(130, |status| status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn awaited() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGCHLD].into_iter().collect()
}

/// Keeps what is mounted from here on to ourselves. Where that is refused, the benchmarks unmount as tests do.
fn hide_mounts() {
    let hidden = unshare(CloneFlags::CLONE_NEWNS).and_then(|()| {
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
    });
    if let Err(errno) = hidden {
        eprintln!("no mount namespace of one's own ({errno}): end this with Ctrl-C only between benchmarks");
    }
}

/// Waits until the child ends. `None`: somebody wanted us to end, and so it was ended.
fn follow(child: &mut Child) -> Result<Option<ExitStatus>> {
    loop {
        match awaited().wait()? {
            Signal::SIGCHLD => {
                if let Some(status) = child.try_wait()? {
                    return Ok(Some(status));
                }
            }
            _ => {
                // Not asked: it would have to tidy up what goes with it anyway.
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
        }
    }
}

/// Ends all that the child has left running, its guards above all.
fn end_orphans() {
    let mut waited = Duration::ZERO;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => return,
            Ok(WaitStatus::StillAlive) => {}
            // Another one may have ended as well.
            Ok(_) | Err(_) => continue,
        }
        let signal = if waited < GRACE { Signal::SIGTERM } else { Signal::SIGKILL };
        // Said once, then again and again when it must be.
        if waited.is_zero() || waited >= GRACE {
            for orphan in children() {
                // Err: it has ended by itself.
                let _ = kill(orphan, signal);
            }
        }
        std::thread::sleep(STEP);
        waited += STEP;
    }
}

fn children() -> Vec<Pid> {
    let path = format!("/proc/self/task/{}/children", getpid());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect()
}
