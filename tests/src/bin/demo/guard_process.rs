//! The guard as a process: started, asked over HTTP, ended.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::http::get;

use crate::PATIENCE;

/// A running `checkpoint-guard run`; ended on drop.
#[derive(Debug)]
pub(crate) struct GuardProcess {
    child: Child,
    log: PathBuf,
    http: SocketAddr,
}

impl GuardProcess {
    /// Starts `binary` with the configuration and waits until it is ready.
    #[expect(clippy::disallowed_methods, reason = "waits for another process, so it measures time")]
    pub(crate) fn start(binary: &Path, config: &Path, http: SocketAddr, log: &Path) -> Result<GuardProcess> {
        let stderr = File::create(log)?;
        let child = Command::new(binary)
            .arg("run")
            .arg("--config")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(stderr.try_clone()?)
            .stderr(stderr)
            // A process group of its own: Ctrl-C ends the demo, and the demo ends the guard.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}; cargo xtask demo builds it", binary.display()))?;
        let mut guard = GuardProcess { child, log: log.to_owned(), http };
        let began = Instant::now();
        loop {
            guard.check_running()?;
            let answer = get(http, "/readyz");
            if answer.as_ref().is_ok_and(|(status, _)| *status == 200) {
                return Ok(guard);
            }
            ensure!(
                began.elapsed() < PATIENCE,
                "checkpoint-guard is not ready after {PATIENCE:?}: {answer:?}\n{}",
                guard.log_text()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// An error with its log when it has ended by itself.
    pub(crate) fn check_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("checkpoint-guard ended with {status}:\n{}", self.log_text()),
            None => Ok(()),
        }
    }

    /// What it says at `/metrics`.
    pub(crate) fn metrics(&self) -> Result<String> {
        let (status, body) = get(self.http, "/metrics")?;
        ensure!(status == 200, "/metrics answered {status}: {body}");
        Ok(body)
    }

    /// Its own log so far.
    pub(crate) fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it with SIGTERM; gives how long that took, `None` when it had to be killed.
    #[expect(clippy::disallowed_methods, reason = "measures how long ending takes")]
    pub(crate) fn stop(mut self) -> Result<Option<Duration>> {
        let began = Instant::now();
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM)?;
        while self.child.try_wait()?.is_none() {
            if began.elapsed() > PATIENCE {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Some(began.elapsed()))
    }
}

impl Drop for GuardProcess {
    fn drop(&mut self) {
        // Err: it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
