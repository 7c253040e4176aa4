//! The agent: joins observing, deciding, acting and reporting. The only room that asks the clock.
//!
//! One thread per filesystem turns the loop ([`filesystem`]); this module starts them, one for each filesystem that a
//! configured directory lies on, opens directories anew when they were replaced or mounted over, takes up changed
//! configuration, serves HTTP and the socket, and ends everything on SIGTERM.

pub mod clock;

mod answers;
mod braking;
mod filesystem;
mod growth;
mod opener;
pub(crate) mod priority;
mod probing;
mod reader;
mod relief;
mod reload;
mod shared;
mod showing;
mod staging;
mod view;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use self::filesystem::{Filesystem, Handle, Message};
use self::shared::Shared;
use crate::act::checkpoint_dir::CheckpointDir;
use crate::config::{BrakeMode, Config, DirectoryConfig};
use crate::report::audit::Event;
use crate::report::metrics::FilesystemLabel;
use crate::report::{http, socket};
use crate::sandbox::{self, Sandbox};

/// What the command line says.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration file, for reloading.
    pub config_path: PathBuf,
    /// `--pool` or `CHECKPOINT_GUARD_POOL`.
    pub pool: Option<String>,
    /// Decide and report, but delete nothing.
    pub dry_run: bool,
}

/// What the loops and the helpers tell this module.
enum Happened {
    /// A configured directory could be opened.
    Opened(DirectoryConfig, Box<CheckpointDir>),
    /// A directory's path leads elsewhere; it must be opened again.
    Lost(DirectoryConfig),
    /// A loop has ended: nothing is left for it to watch, or it was told to stop.
    Ended(FilesystemLabel),
    /// The configuration file has changed.
    Reloaded(Box<Result<Config, String>>),
}

/// SIGTERM to exit at most; the kubelet would wait 30 s, systemd 90 s, but a node that goes down has no time.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// Only what makes protecting impossible from the start; afterwards every problem is reported and survived.
pub fn run(options: Options, config: Config) -> anyhow::Result<()> {
    // First of all: threads inherit it, and there are none yet.
    sandbox::start_brake(&config);
    let sandbox = sandbox::enter(&config, &options.config_path);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let agent = Agent::new(options, config, sandbox)?;
    let result = runtime.block_on(agent.run());
    // A blocked name look-up or accept must not hold up the end.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

struct Agent {
    options: Options,
    config: Arc<Config>,
    shared: Arc<Shared>,
    sandbox: Sandbox,
    /// By the `st_dev` of their directories.
    loops: HashMap<u64, Handle>,
    outbox: UnboundedSender<Happened>,
    inbox: UnboundedReceiver<Happened>,
}

impl Agent {
    fn new(options: Options, config: Config, sandbox: Sandbox) -> anyhow::Result<Agent> {
        let (outbox, inbox) = unbounded_channel();
        let config = Arc::new(config);
        let shared = Arc::new(Shared::new(&config, options.dry_run)?);
        for (layer, state) in sandbox.layers() {
            shared.metrics.sandbox(layer.as_str(), matches!(state, sandbox::State::Active(_)));
        }
        Ok(Agent { options, config, shared, sandbox, loops: HashMap::new(), outbox, inbox })
    }

    async fn run(mut self) -> anyhow::Result<()> {
        // Registered before anything else: a signal during the start must not kill us half-way.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let directories: Vec<_> =
            self.config.directories.iter().map(|it| it.path.display().to_string()).collect();
        self.shared.record(&Event::Start {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            directories: &directories,
            dry_run: self.options.dry_run,
        });
        let (served, mut stop_serving) = self.serve().await;
        let (on_socket, stop_on_socket) = self.serve_socket();
        for directory in self.config.directories.clone() {
            if !directory.optional {
                self.shared.health.expect_scan(&directory.path);
            }
            self.open(directory);
        }
        let reloads = reload::watch(self.options.clone(), self.outbox.clone());
        let reason = loop {
            tokio::select! {
                _ = terminate.recv() => break "SIGTERM",
                _ = interrupt.recv() => break "SIGINT",
                _ = hangup.recv() => reloads.now(),
                Some(happened) = self.inbox.recv() => self.take(happened),
            }
        };
        tracing::info!(reason, "stopping");
        let ended = self.stop_loops().await;
        drop(stop_on_socket);
        if let Some(stop) = stop_serving.take() {
            let _ = stop.send(());
        }
        for served in [served, on_socket].into_iter().flatten() {
            let _ = tokio::time::timeout(Duration::from_millis(600), served).await;
        }
        let reason =
            if ended { reason.to_owned() } else { format!("{reason}; a deletion was still under way") };
        self.shared.record(&Event::Stop { reason: &reason });
        if !self.shared.flush(Duration::from_millis(300)) {
            tracing::warn!("the audit log is not on the disk yet; the kernel will write it");
        }
        tracing::info!("stopped");
        Ok(())
    }

    /// Serves metrics, if configured and possible.
    async fn serve(&self) -> (Option<tokio::task::JoinHandle<()>>, Option<tokio::sync::oneshot::Sender<()>>) {
        let Some(address) = self.config.metrics.listen else { return (None, None) };
        match http::listen(address).await {
            Ok(listener) => {
                let endpoints = http::Endpoints {
                    metrics: self.shared.metrics.clone(),
                    health: self.shared.health.clone(),
                    now: Arc::new(clock::monotonic),
                };
                let (stop, stopped) = tokio::sync::oneshot::channel();
                tracing::info!(%address, "serving /metrics, /healthz and /readyz");
                let served = tokio::spawn(http::serve(listener, endpoints, async {
                    let _ = stopped.await;
                }));
                (Some(served), Some(stop))
            }
            Err(error) => {
                tracing::error!(%error, "no metrics; protecting all the same");
                (None, None)
            }
        }
    }

    /// Answers on the socket, if configured and possible, until the sender is dropped.
    fn serve_socket(
        &self,
    ) -> (Option<tokio::task::JoinHandle<()>>, Option<tokio::sync::oneshot::Sender<()>>) {
        let Some(path) = &self.config.socket.path else { return (None, None) };
        let listener = match socket::listen(path) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, "no socket for `top` and others; protecting all the same");
                return (None, None);
            }
        };
        tracing::info!(path = %path.display(), "answering on the socket");
        let answers = answers::answers(self.shared.clone(), self.config.pool.clone());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let served = tokio::spawn(async move {
            let until = async {
                let _ = stopped.await;
            };
            if let Err(error) = socket::serve(listener, answers, until).await {
                tracing::error!(%error, "the socket is not served");
            }
        });
        (Some(served), Some(stop))
    }

    /// Opens a directory, now or when it appears, on a thread that nobody waits for: the open may hang.
    fn open(&self, directory: DirectoryConfig) {
        opener::open(directory, self.shared.clone(), self.outbox.clone());
    }

    fn take(&mut self, happened: Happened) {
        match happened {
            Happened::Opened(directory, dir) => self.watch(directory, *dir),
            Happened::Lost(directory) => {
                if self.config.directories.contains(&directory) {
                    self.open(directory);
                }
            }
            Happened::Ended(label) => tracing::debug!(filesystem = label.as_str(), "loop ended"),
            Happened::Reloaded(result) => self.configure(*result),
        }
    }

    /// Hands a directory to the loop of its filesystem, and starts that loop if there is none.
    fn watch(&mut self, directory: DirectoryConfig, dir: CheckpointDir) {
        let dev = dir.id().dev;
        self.loops.retain(|_, handle| !handle.thread.is_finished());
        if let Some(handle) = self.loops.get(&dev) {
            let message = Message::Add(directory, Box::new(dir));
            match handle.messages.send(message) {
                Ok(()) => {
                    let _ = handle.bell.write(1);
                }
                // It ended between the look and the message; its directory gets a loop of its own.
                Err(std::sync::mpsc::SendError(Message::Add(directory, dir))) => {
                    self.loops.remove(&dev);
                    self.watch(directory, *dir);
                }
                Err(_) => {}
            }
            return;
        }
        let path = directory.path.clone();
        let started = Filesystem::start(
            self.shared.clone(),
            self.config.clone(),
            self.outbox.clone(),
            (directory, dir),
        );
        match started {
            Ok(handle) => {
                self.loops.insert(dev, handle);
            }
            Err(error) => {
                tracing::error!(directory = %path.display(), %error, "cannot start watching");
            }
        }
    }

    /// Takes up a changed configuration, or says why not and goes on with the old one.
    fn configure(&mut self, result: Result<Config, String>) {
        let result = result.and_then(|config| match self.sandbox.out_of_reach(&config).as_slice() {
            [] => Ok(config),
            beyond => Err(format!(
                "the sandbox, which cannot be widened, was made for other directories than {beyond:?}; restart the \
                 guard to take the configuration up"
            )),
        });
        let config = match result {
            Ok(config) if config == *self.config => return,
            Ok(config) => config,
            Err(problems) => {
                tracing::error!(%problems, "the changed configuration is invalid; the old one stays in force");
                self.shared.metrics.config_rejected();
                self.record_configuration(false, &problems);
                return;
            }
        };
        if config.metrics != self.config.metrics
            || config.audit != self.config.audit
            || config.probe != self.config.probe
            || config.socket != self.config.socket
            || config.sandbox != self.config.sandbox
        {
            tracing::warn!(
                "changes of [metrics], [audit], [probe], [socket] and [sandbox] take effect with the next start"
            );
        }
        if config.brake != self.config.brake && config.brake != BrakeMode::Off {
            tracing::warn!(
                "another [brake] mode takes effect with the next start; until then the means of this one is used, if any"
            );
        }
        let before = std::mem::replace(&mut self.config, Arc::new(config));
        for handle in self.loops.values() {
            if handle.messages.send(Message::Configure(self.config.clone())).is_ok() {
                let _ = handle.bell.write(1);
            }
        }
        for directory in &self.config.directories {
            if !before.directories.contains(directory) {
                self.open(directory.clone());
            }
        }
        tracing::info!("configuration reloaded");
        self.shared.metrics.config_loaded(clock::wall());
        self.record_configuration(true, "taken up");
    }

    fn record_configuration(&self, accepted: bool, reason: &str) {
        let path = self.options.config_path.display().to_string();
        self.shared.record(&Event::Configuration { path: &path, accepted, reason });
    }

    /// Ends the loops; each finishes the deletion in hand. The result is whether all ended in time.
    async fn stop_loops(&mut self) -> bool {
        self.shared.stop.store(true, Ordering::Relaxed);
        for handle in self.loops.values() {
            let _ = handle.bell.write(1);
        }
        let deadline = tokio::time::Instant::now() + STOP_LIMIT - Duration::from_millis(700);
        while self.loops.values().any(|handle| !handle.thread.is_finished()) {
            if tokio::time::Instant::now() >= deadline {
                tracing::warn!("a deletion is still under way; leaving it to the kernel");
                return false;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        true
    }
}
