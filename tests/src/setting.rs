//! [`Setting`]: a configuration of its own, and the real binary, started with a configuration, asked, and ended.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::http::{free_address, get};
use crate::vm::patience;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The binary under test: `CHECKPOINT_GUARD`, else the one that was built beside this test.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("CHECKPOINT_GUARD") {
        return path.into();
    }
    let test = std::env::current_exe().expect("a test knows where it lies");
    let profile = test.ancestors().find(|folder| folder.join("checkpoint-guard").is_file());
    let profile =
        profile.expect("`cargo xtask test` (or `cargo build --bins`) builds checkpoint-guard first");
    profile.join("checkpoint-guard")
}

/// What one command printed.
pub fn run(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).stdin(Stdio::null()).output().expect("the binary starts")
}

/// A configuration, an audit log and a log in a directory of their own, away from the filesystem under test.
#[derive(Debug)]
pub struct Setting {
    scratch: tempfile::TempDir,
    audit: PathBuf,
    address: SocketAddr,
    kubernetes: String,
}

impl Default for Setting {
    fn default() -> Setting {
        Setting::new()
    }
}

impl Setting {
    /// An empty one.
    pub fn new() -> Setting {
        let scratch = tempfile::tempdir().expect("a temporary directory can be made");
        let audit = scratch.path().join("audit.jsonl");
        let (address, kubernetes) = (free_address().expect("a port is free"), "mode = \"off\"".to_owned());
        Setting { scratch, audit, address, kubernetes }
    }

    /// Asks an API server with these credentials, as this Node; to be said before [`Setting::configure`]. `more` are other
    /// keys of `[kubernetes]`.
    pub fn in_cluster(mut self, kubeconfig: &Path, node: &str, more: &str) -> Setting {
        let state = self.state_path();
        self.kubernetes = format!(
            "mode = \"on\"\nkubeconfig = {kubeconfig:?}\nnode-name = \"{node}\"\nstate = {state:?}\n{more}"
        );
        self
    }

    /// Where what is known of the cluster is kept.
    pub fn state_path(&self) -> PathBuf {
        self.scratch.path().join("state/cluster.json")
    }

    /// Keeps the audit log elsewhere; to be said before [`Setting::configure`].
    pub fn audit_at(mut self, path: PathBuf) -> Setting {
        self.audit = path;
        self
    }

    /// Where the guard serves its metrics.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.scratch.path().join("guard.toml")
    }

    /// The daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.scratch.path().join("run/guard.sock")
    }

    /// The audit log.
    pub fn audit_path(&self) -> PathBuf {
        self.audit.clone()
    }

    /// Writes the configuration: `text`, with metrics and audit of its own, and without the node's kubelet.
    pub fn configure(&self, text: &str) {
        let audit = self.audit_path();
        let common = format!(
            "[metrics]\nlisten = \"{}\"\n[audit]\npath = {audit:?}\n[socket]\npath = {:?}\n[kubernetes]\n{}\n",
            self.address,
            self.socket(),
            self.kubernetes
        );
        std::fs::write(self.config(), format!("{text}\n{common}")).expect("the configuration can be written");
    }

    /// Starts the guard and waits until it is ready.
    #[track_caller]
    pub fn start(&self) -> Daemon {
        self.start_with(&[], &mut |_| {})
    }

    /// Starts the guard with more arguments, the command changed by `prepare`, and waits until it is ready.
    #[track_caller]
    pub fn start_with(&self, arguments: &[&str], prepare: &mut dyn FnMut(&mut Command)) -> Daemon {
        let mut daemon = self.launch(arguments, prepare);
        daemon.wait_until_ready();
        daemon
    }

    /// Starts the guard and waits for nothing.
    pub fn launch(&self, arguments: &[&str], prepare: &mut dyn FnMut(&mut Command)) -> Daemon {
        self.launch_command(Command::new(binary()), arguments, prepare)
    }

    /// Starts the guard through a command that replaces itself by it (`setpriv`, `unshare`), and waits until it is ready.
    #[track_caller]
    pub fn start_through(&self, wrapper: &[&str]) -> Daemon {
        let mut daemon = self.launch_through(wrapper);
        daemon.wait_until_ready();
        daemon
    }

    /// The same, waiting for nothing.
    pub fn launch_through(&self, wrapper: &[&str]) -> Daemon {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).arg(binary());
        self.launch_command(command, &[], &mut |_| {})
    }

    fn launch_command(
        &self,
        mut command: Command,
        arguments: &[&str],
        prepare: &mut dyn FnMut(&mut Command),
    ) -> Daemon {
        let log = self.scratch.path().join("log");
        let stderr = File::create(&log).expect("the log can be made");
        command.arg("run").arg("--config").arg(self.config()).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        prepare(&mut command);
        let child = command.spawn().expect("the binary starts");
        Daemon { child, log, audit: self.audit_path(), address: self.address }
    }

    /// What a command says with this configuration.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let config = self.config();
        let mut all = arguments.to_vec();
        let config = config.to_str().expect("temporary paths are UTF-8");
        all.extend(["--config", config]);
        run(&all)
    }

    /// What a command says with `-o json`.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        let output = self.run(&all);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{all:?} printed no JSON ({error}): {}", String::from_utf8_lossy(&output.stderr))
        })
    }
}

/// A running guard; killed on drop.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    log: PathBuf,
    audit: PathBuf,
    address: SocketAddr,
}

impl Daemon {
    /// Its process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Status and body of a GET; `None` when nobody listens.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        get(self.address, path).ok()
    }

    /// The value of one series, written as in the exposition: `checkpoint_guard_scans_total{filesystem="/x"}`. Labels that
    /// are left out may be anything; the values of several series are added up.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let wanted: Vec<_> =
            labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty()).collect();
        let (_, body) = self.get("/metrics")?;
        let values = body.lines().filter_map(|line| {
            let (found, value) = line.rsplit_once(' ')?;
            let (found_name, found_labels) = found.split_once('{').unwrap_or((found, ""));
            let matches = found_name == name && wanted.iter().all(|label| found_labels.contains(label));
            matches.then(|| value.parse::<f64>().ok())?
        });
        values.reduce(|sum, value| sum + value)
    }

    /// The audit log so far.
    #[track_caller]
    pub fn audit(&self) -> Vec<Value> {
        read_audit(&self.audit)
    }

    /// The names of the checkpoints that were deleted, in order.
    #[track_caller]
    pub fn deleted(&self) -> Vec<String> {
        let lines = self.audit();
        let deleted = lines.iter().filter(|line| line["outcome"] == "deleted");
        deleted.filter_map(|line| Some(line["name"].as_str()?.to_owned())).collect()
    }

    /// Waits until it says that it is ready.
    #[track_caller]
    pub fn wait_until_ready(&mut self) {
        self.wait_until("ready", |daemon| daemon.get("/readyz").is_some_and(|(status, _)| status == 200));
    }

    /// Waits until `is_so`, and fails with the log when that does not come.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "waits for another process, so it measures time")]
    pub fn wait_until(&mut self, what: &str, mut is_so: impl FnMut(&Daemon) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                panic!("the guard ended with {status} before it was {what}:\n{}", self.log());
            }
            assert!(
                began.elapsed() < patience(PATIENCE),
                "not {what} after {:?}:\n{}",
                began.elapsed(),
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Lets so much time pass while it must go on running.
    #[track_caller]
    pub fn keeps_running_for(&mut self, time: Duration) {
        std::thread::sleep(time);
        let ended = self.child.try_wait().expect("a child can be waited for");
        assert!(ended.is_none(), "the guard ended with {ended:?}:\n{}", self.log());
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the guard is there");
    }

    /// Waits for its end.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "waits for another process, so it measures time")]
    pub fn wait(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return status;
            }
            assert!(
                began.elapsed() < patience(PATIENCE),
                "still running after {PATIENCE:?}:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it with SIGTERM; the result is how long that took.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "measures how long ending takes")]
    pub fn stop(mut self) -> Duration {
        let began = Instant::now();
        self.signal(Signal::SIGTERM);
        let status = self.wait();
        assert!(status.success(), "ended with {status}:\n{}", self.log());
        began.elapsed()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Err: it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of an audit log; a log that is not there has none. The line that is just being written is not one yet.
#[track_caller]
pub fn read_audit(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}
