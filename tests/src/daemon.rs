//! [`Daemon`]: `checkpoint-guard run` as a process: started, asked over HTTP, ended.

use std::ffi::OsStr;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::exposition::min;
use crate::http::{free_address, get};

/// How long the daemon may take to be ready, and to end. Its own limit for the latter is 2 s.
const PATIENCE: Duration = Duration::from_secs(15);

/// Names the binary, where it does not lie beside the program that asks.
pub const BINARY_VARIABLE: &str = "CHECKPOINT_GUARD";

/// A running guard, ended on drop.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    http: SocketAddr,
    /// Configuration, audit log and the process's own log. Not on the filesystem that is guarded.
    scratch: tempfile::TempDir,
}

impl Daemon {
    /// Starts the guard over `directory` and waits until it is ready. `settings` is TOML without `[[directory]]`,
    /// `[kubernetes]`, `[metrics]`, `[socket]` and `[audit]`.
    #[expect(clippy::disallowed_methods, reason = "waits for another process, so it measures time")]
    pub fn start(directory: &Path, settings: &str) -> Result<Daemon> {
        let scratch = tempfile::Builder::new().prefix("checkpoint-guard-daemon-").tempdir()?;
        let http = free_address()?;
        let config = scratch.path().join("guard.toml");
        std::fs::write(
            &config,
            configuration(directory, settings, http, &scratch.path().join("audit.jsonl")),
        )?;
        let binary = binary()?;
        let log = File::create(scratch.path().join("guard.log"))?;
        let child = Command::new(&binary)
            .args([OsStr::new("run"), OsStr::new("--config"), config.as_os_str()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A process group of its own: Ctrl-C ends us, and we end the guard.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let mut daemon = Daemon { child, http, scratch };
        let began = Instant::now();
        loop {
            daemon.check_running()?;
            let answer = get(http, "/readyz");
            if answer.as_ref().is_ok_and(|(status, _)| *status == 200) {
                return Ok(daemon);
            }
            ensure!(
                began.elapsed() < PATIENCE,
                "the guard is not ready after {PATIENCE:?}: {answer:?}\n{}",
                daemon.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// An error with its log when it has ended by itself.
    pub fn check_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the guard ended with {status}:\n{}", self.log()),
            None => Ok(()),
        }
    }

    /// Where it serves HTTP.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// What it says at `/metrics`.
    pub fn metrics(&self) -> Result<String> {
        let (status, body) = get(self.http, "/metrics")?;
        ensure!(status == 200, "/metrics answered {status}: {body}");
        Ok(body)
    }

    /// What it says at `/metrics` once it has looked at every filesystem after `at`: gauges and the kernel's counters
    /// are brought up to date every few seconds only.
    #[expect(clippy::disallowed_methods, reason = "waits for another process, so it measures time")]
    pub fn metrics_after(&mut self, at: Timestamp) -> Result<String> {
        let began = Instant::now();
        loop {
            self.check_running()?;
            let metrics = self.metrics()?;
            let looked = min(&metrics, "checkpoint_guard_filesystem_observed_timestamp_seconds");
            if looked.is_some_and(|looked| looked >= at.as_millisecond() as f64 / 1000.0) {
                return Ok(metrics);
            }
            ensure!(began.elapsed() < PATIENCE, "the guard has not looked again after {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Its audit log.
    pub fn audit_log(&self) -> PathBuf {
        self.scratch.path().join("audit.jsonl")
    }

    /// Its own log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("guard.log")).unwrap_or_default()
    }

    /// Ends it with SIGTERM; gives how long that took, `None` when it does not end. Its files stay until drop.
    #[expect(clippy::disallowed_methods, reason = "measures how long ending takes")]
    pub fn terminate(&mut self) -> Result<Option<Duration>> {
        let began = Instant::now();
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM)?;
        while self.child.try_wait()?.is_none() {
            if began.elapsed() > PATIENCE {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Some(began.elapsed()))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Err: it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(directory: &Path, settings: &str, http: SocketAddr, audit: &Path) -> String {
    format!(
        "[[directory]]\npath = {directory:?}\n\n{settings}\n[kubernetes]\nmode = \"off\"\n\n\
         [metrics]\nlisten = \"{http}\"\n\n[socket]\npath = \"off\"\n\n[audit]\npath = {audit:?}\n"
    )
}

/// The guard's binary: [`BINARY_VARIABLE`], else the one that cargo put beside this program.
fn binary() -> Result<PathBuf> {
    if let Some(binary) = std::env::var_os(BINARY_VARIABLE) {
        return Ok(binary.into());
    }
    let this = std::env::current_exe()?;
    // A test lies in target/debug/deps, a program in target/debug.
    let beside = this.ancestors().skip(1).take(2).map(|directory| directory.join("checkpoint-guard"));
    beside.into_iter().find(|binary| binary.is_file()).with_context(|| {
        format!("there is no checkpoint-guard beside {}: cargo build -p guard", this.display())
    })
}
