//! The agent: joins observing, deciding, acting and reporting. The only room that asks the clock.
//!
//! One thread per filesystem turns the loop ([`filesystem`]); this module starts them, one for each filesystem that a
//! configured directory lies on, opens directories anew when they were replaced or mounted over, takes up changed
//! configuration, serves HTTP and the socket, and ends everything on SIGTERM.

pub mod clock;
pub mod cluster;
pub mod notify;

mod answers;
mod awaited;
mod braking;
pub(crate) mod descriptors;
mod filesystem;
mod growth;
mod naming;
mod opener;
pub(crate) mod priority;
mod probing;
mod reader;
mod relief;
mod reload;
mod shared;
mod showing;
mod staging;
mod stumbles;
mod view;

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use self::filesystem::{Filesystem, Handle, Message};
use self::shared::Shared;
use self::stumbles::{Next, Stumbles};
use crate::act::checkpoint_dir::CheckpointDir;
use crate::config::{
    BrakeMode, Config, ConfigFile, DirectoryConfig, KubernetesConfig, Problems, choose_pool,
};
use crate::decide::wishes;
use crate::memory;
use crate::model::Cluster;
use crate::report::audit::Event;
use crate::report::metrics::{FilesystemLabel, Metrics};
use crate::report::socket::SocketError;
use crate::report::{http, socket};
use crate::sandbox::{self, Sandbox};

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration file, for reloading.
    pub config_path: PathBuf,
    /// `--pool` or `CHECKPOINT_GUARD_POOL`.
    pub pool: Option<String>,
    /// Where the pool comes from when nobody names it.
    pub labels: Labels,
    /// Decide and report, but delete nothing.
    pub dry_run: bool,
}

impl Options {
    /// The configuration that `file` has for this node.
    ///
    /// # Errors
    /// The pool that was named is not in the file.
    pub fn choose(&self, file: &ConfigFile) -> Result<Config, Problems> {
        let pool_labels = file.effective(None)?.kubernetes.pool_labels;
        let choice = choose_pool(self.pool.as_deref(), None, &self.labels.get(), &pool_labels);
        let (config, note) = file.choose(&choice)?;
        if let Some(note) = note {
            tracing::warn!(%note, "the Node's pool has no settings of its own");
        }
        Ok(config)
    }
}

/// The Node's labels, as far as they are known.
#[derive(Clone, Debug, Default)]
pub struct Labels(Arc<Mutex<BTreeMap<String, String>>>);

impl Labels {
    /// What is known now.
    pub fn get(&self) -> BTreeMap<String, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes over what `cluster` says. The result is whether that is anything new.
    pub fn set(&self, cluster: &Cluster) -> bool {
        let Some(labels) = &cluster.node_labels else { return false };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *known, labels.clone()) != *labels
    }
}

/// What the loops and the helpers tell this module.
enum Happened {
    /// A configured directory could be opened.
    Opened(DirectoryConfig, Box<CheckpointDir>),
    /// A directory's path leads elsewhere; it must be opened again.
    Lost(DirectoryConfig),
    /// A loop has ended: nothing is left for it to watch, or it was told to stop.
    Ended(FilesystemLabel),
    /// A loop has ended by a bug.
    Panicked(FilesystemLabel),
    /// The configuration file has changed.
    Reloaded(Box<Result<Config, String>>),
}

/// SIGTERM to exit at most; the kubelet would wait 30 s, systemd 90 s, but a node that goes down has no time.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Of that, for rounds that are still to be posted.
const POST_LIMIT: Duration = Duration::from_millis(200);

/// Runs until SIGTERM or SIGINT. To be called after [`sandbox::start_companions`].
///
/// # Errors
/// Only what makes protecting impossible from the start; afterwards every problem is reported and survived.
pub fn run(
    options: Options,
    config: Config,
    metrics: Arc<Metrics>,
    asking: Option<cluster::Asking>,
) -> anyhow::Result<()> {
    // After the companions, for they would keep it open; and before the sandbox, in which no unix socket can be made or connected to:
    // those of others are the way to be root.
    let listener = config.socket.path.as_deref().map(socket::listen);
    let sandbox = sandbox::enter(&config, &options.config_path);
    let link = asking.and_then(|asking| asking.start(&metrics));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    memory::bound();
    let agent = Agent::new(options, config, sandbox, metrics, link, listener)?;
    // Loading the probe took 10 MiB for reading BTF.
    memory::give_back();
    let result = runtime.block_on(agent.run());
    // A blocked name look-up or accept must not hold up the end.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

struct Agent {
    options: Options,
    /// What the file says; when it is invalid, what it said before.
    written: Config,
    is_refused: bool,
    /// That, with what annotations add.
    config: Arc<Config>,
    shared: Arc<Shared>,
    link: Option<cluster::Link>,
    sandbox: Sandbox,
    /// Until it is served.
    listener: Option<Result<UnixListener, SocketError>>,
    /// By the `st_dev` of their directories.
    loops: HashMap<u64, Handle>,
    stumbles: Stumbles,
    outbox: UnboundedSender<Happened>,
    inbox: UnboundedReceiver<Happened>,
}

impl Agent {
    fn new(
        options: Options,
        written: Config,
        sandbox: Sandbox,
        metrics: Arc<Metrics>,
        link: Option<cluster::Link>,
        listener: Option<Result<UnixListener, SocketError>>,
    ) -> anyhow::Result<Agent> {
        let (outbox, inbox) = unbounded_channel();
        let shared = Arc::new(Shared::new(&written, options.dry_run, metrics, link.as_ref())?);
        for (layer, state) in sandbox.layers() {
            shared.metrics.sandbox(layer.as_str(), matches!(state, sandbox::State::Active(_)));
        }
        notify::start(&shared);
        let config = Arc::new(granting(&written, &shared.cluster()));
        let (loops, stumbles) = (HashMap::new(), Stumbles::default());
        let is_refused = false;
        Ok(Agent {
            options,
            written,
            is_refused,
            config,
            shared,
            link,
            sandbox,
            listener,
            loops,
            stumbles,
            outbox,
            inbox,
        })
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
        let mut link = self.link.take();
        let cluster_changed = async |link: &mut Option<cluster::Link>| match link {
            Some(link) => link.changed().await,
            None => std::future::pending().await,
        };
        let cause = loop {
            tokio::select! {
                _ = terminate.recv() => break Ok("SIGTERM"),
                _ = interrupt.recv() => break Ok("SIGINT"),
                _ = hangup.recv() => reloads.now(),
                Some(happened) = self.inbox.recv() => if self.take(happened).is_break() {
                    break Err("the loop of its only filesystem panicked again and again; a new process may get further");
                },
                cluster = cluster_changed(&mut link) => {
                    if self.learn(cluster) {
                        reloads.now();
                    }
                }
            }
        };
        let (Ok(reason) | Err(reason)) = cause;
        tracing::info!(reason, "stopping");
        let ended = self.stop_loops().await;
        let unposted = self.shared.notify.finish(POST_LIMIT).await;
        if unposted > 0 {
            tracing::warn!(unposted, "rounds of deletions were not posted; the audit log has them");
        }
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
        cause.map(|_| ()).map_err(anyhow::Error::msg)
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
        &mut self,
    ) -> (Option<tokio::task::JoinHandle<()>>, Option<tokio::sync::oneshot::Sender<()>>) {
        let Some(path) = &self.config.socket.path else { return (None, None) };
        let listener = match self.listener.take() {
            None => return (None, None),
            Some(Ok(listener)) => listener,
            Some(Err(error)) => {
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

    /// Nobody waits any longer for directories that have left the configuration.
    fn await_no_others(&self) {
        let is_configured = |path: &Path| self.config.directories.iter().any(|it| it.path == path);
        self.shared.awaited.keep(|path| {
            if !is_configured(path) {
                self.shared.health.scanned(path);
            }
            is_configured(path)
        });
        self.shared.count_missing();
    }

    /// Breaks off when the guard is to end.
    fn take(&mut self, happened: Happened) -> ControlFlow<()> {
        match happened {
            // It may have left the configuration while it was being opened.
            Happened::Opened(directory, dir) if self.config.directories.contains(&directory) => {
                self.watch(directory, *dir);
            }
            Happened::Opened(..) => {}
            Happened::Lost(directory) => {
                for handle in self.loops.values_mut() {
                    handle.directories.retain(|it| *it != directory);
                }
                if self.config.directories.contains(&directory) {
                    self.open(directory);
                }
            }
            Happened::Ended(label) => {
                tracing::debug!(filesystem = label.as_str(), "loop ended");
                // Drops the line to it, for which it waits.
                self.loops.retain(|_, handle| handle.label != label);
            }
            Happened::Panicked(label) => return self.begin_anew(&label),
            Happened::Reloaded(result) => self.configure(*result),
        }
        ControlFlow::Continue(())
    }

    /// Has the directories of a loop that panicked opened for another one, which looks at everything afresh.
    fn begin_anew(&mut self, label: &FilesystemLabel) -> ControlFlow<()> {
        self.shared.metrics.panicked();
        let ended = self.loops.extract_if(|_, handle| handle.label == *label);
        let directories: Vec<_> = ended.flat_map(|(_, handle)| handle.directories).collect();
        let next = self.stumbles.next(clock::monotonic(), !self.loops.is_empty());
        tracing::error!(filesystem = label.as_str(), ?next, "a bug: the loop of this filesystem panicked");
        let pause = match next {
            Next::AtOnce => Duration::ZERO,
            Next::After(pause) => pause,
            Next::Exit => return ControlFlow::Break(()),
        };
        for directory in directories {
            if !directory.optional {
                self.shared.health.expect_scan(&directory.path);
            }
            opener::open_after(pause, directory, self.outbox.clone());
        }
        ControlFlow::Continue(())
    }

    /// Hands a directory to the loop of its filesystem, and starts that loop if there is none.
    fn watch(&mut self, directory: DirectoryConfig, dir: CheckpointDir) {
        let dev = dir.id().dev;
        self.loops.retain(|_, handle| !handle.thread.is_finished());
        if let Some(handle) = self.loops.get_mut(&dev) {
            if !handle.directories.contains(&directory) {
                handle.directories.push(directory.clone());
            }
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
        let again = directory.clone();
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
                tracing::error!(directory = %again.path.display(), %error, "cannot start watching; trying again");
                opener::open_after(opener::RETRY, again, self.outbox.clone());
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
        let written = match result {
            Ok(written) if written == self.written => {
                if std::mem::take(&mut self.is_refused) {
                    tracing::info!("the configuration is valid again, and the one in force");
                    self.shared.metrics.config_loaded(clock::wall());
                    self.record_configuration(true, "the one in force again");
                }
                return;
            }
            Ok(written) => written,
            Err(problems) => {
                self.is_refused = true;
                tracing::error!(%problems, "the changed configuration is invalid; the old one stays in force");
                self.shared.metrics.config_rejected();
                self.record_configuration(false, &problems);
                return;
            }
        };
        if written.metrics != self.written.metrics
            || written.audit != self.written.audit
            || written.probe != self.written.probe
            || written.socket != self.written.socket
            || written.sandbox != self.written.sandbox
            || written.notify != self.written.notify
            || without_maximum(&written.kubernetes) != without_maximum(&self.written.kubernetes)
        {
            tracing::warn!(
                "changes of [metrics], [audit], [probe], [socket], [sandbox], [notify] and of whom to ask in [kubernetes] \
                 take effect with the next start"
            );
        }
        if written.brake != self.written.brake && written.brake != BrakeMode::Off {
            tracing::warn!(
                "another [brake] mode takes effect with the next start; until then the means of this one is used, if any"
            );
        }
        (self.written, self.is_refused) = (written, false);
        let config = granting(&self.written, &self.shared.cluster());
        let before = std::mem::replace(&mut self.config, Arc::new(config));
        self.shared.metrics.pool(self.config.pool.as_deref());
        self.tell_loops(|| Message::Configure(self.config.clone()));
        self.await_no_others();
        for directory in &self.config.directories {
            if !before.directories.contains(directory) {
                self.open(directory.clone());
            }
        }
        tracing::info!("configuration reloaded");
        self.shared.metrics.config_loaded(clock::wall());
        self.record_configuration(true, "taken up");
    }

    /// Takes over what is known of the cluster. The result is whether the Node's labels are new, and with them perhaps the pool.
    fn learn(&mut self, cluster: Arc<Cluster>) -> bool {
        self.shared.set_cluster(cluster.clone());
        let config = granting(&self.written, &cluster);
        if config != *self.config {
            self.config = Arc::new(config);
            tracing::info!("other annotations hold");
            self.tell_loops(|| Message::Configure(self.config.clone()));
        }
        self.tell_loops(|| Message::Cluster);
        self.options.labels.set(&cluster) && self.options.pool.is_none()
    }

    fn tell_loops(&self, message: impl Fn() -> Message) {
        for handle in self.loops.values() {
            if handle.messages.send(message()).is_ok() {
                let _ = handle.bell.write(1);
            }
        }
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
        let deadline = tokio::time::Instant::now() + STOP_LIMIT - Duration::from_millis(900);
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

/// `written`, with what the annotations of `cluster` are granted.
pub(crate) fn granting(written: &Config, cluster: &Cluster) -> Config {
    let mut config = written.clone();
    let protection = &mut config.policy.protection;
    let granted = wishes::rules(protection, cluster, written.kubernetes.max_from_annotations);
    protection.rules.extend(granted);
    config
}

/// What the API server is asked with; the maximum for annotations can change at any time.
fn without_maximum(config: &KubernetesConfig) -> KubernetesConfig {
    KubernetesConfig { max_from_annotations: crate::model::Protection::default(), ..config.clone() }
}
