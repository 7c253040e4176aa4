//! The thread that speaks with the API server: it joins watching, looking up, remembering and publishing.
//!
//! Everybody else sees two things: the last [`Cluster`], a value, and [`Notices`], a queue that never waits. So an API
//! server that is away, slow, or says no holds up nothing.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::agent::clock::{monotonic, wall};
use crate::agent::stumbles;
use crate::config::{KubernetesConfig, KubernetesMode};
use crate::model::{Cluster, LookUp, Monotonic, PodName};
use crate::observe::cluster::declared::{self, Told};
use crate::observe::cluster::lookup::{self, Queue};
use crate::observe::cluster::memory::MemoryError;
use crate::observe::cluster::trouble::Cause;
use crate::observe::cluster::{
    Access, ClientError, Knowledge, Resource, Seen, Sighting, Trouble, client, memory, watch as watching,
};
use crate::report::events::{Delivery, Notice, Notices, publish};
use crate::report::metrics::{EventOutcome, FilesystemLabel, Metrics};

/// What was learnt is kept on disk this long after, at the soonest: a node that starts fifty pods writes once.
const KEEP_AFTER: Duration = Duration::from_secs(5);
/// And this often while nothing changes, for its age.
const KEEP_EVERY: Duration = Duration::from_secs(300);
/// How often to see whether there is somebody to look up.
const TICK: Duration = Duration::from_secs(1);
/// Credentials that cannot be used may be mended.
const CLIENT_RETRY: Duration = Duration::from_secs(30);
/// From the first try to publish an Event to the last wait.
const PUBLISH_BACKOFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// An Event that could not be published for so long is news to nobody.
const STALE_EVENT: Duration = Duration::from_secs(600);

/// The rest of the agent's end.
pub struct Link {
    cluster: watch::Receiver<Arc<Cluster>>,
    /// `None`: no Events are wanted.
    pub(super) notices: Option<Notices>,
    pub(super) questions: Questions,
}

/// The pods that the loops want looked up, by loop.
#[derive(Clone, Debug, Default)]
pub(super) struct Questions(Arc<Mutex<BTreeMap<FilesystemLabel, Vec<PodName>>>>);

impl Questions {
    /// What `loop_` wants to know now.
    pub(super) fn ask(&self, loop_: &FilesystemLabel, pods: Vec<PodName>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(loop_.clone(), pods);
    }

    fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn all(&self) -> Vec<PodName> {
        let questions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = questions.values().flatten().cloned().collect();
        all.sort();
        all.dedup();
        all
    }
}

impl Link {
    /// What is known now.
    pub fn latest(&self) -> Arc<Cluster> {
        self.cluster.borrow().clone()
    }

    /// Waits until something else is known. Never, once the thread has ended.
    pub(super) async fn changed(&mut self) -> Arc<Cluster> {
        if self.cluster.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.cluster.borrow_and_update().clone()
    }
}

/// What is remembered of the cluster, for commands that ask no API server.
///
/// # Errors
/// There is a file, and it cannot be used.
pub fn remembered(config: &KubernetesConfig) -> Result<Knowledge, MemoryError> {
    let path = config.state.as_deref().filter(|_| config.mode != KubernetesMode::Off);
    Ok(path.map(|path| memory::load(path, None)).transpose()?.flatten().unwrap_or_default())
}

/// Whom to ask, as which Node, and what was known before. Nothing runs yet.
pub struct Asking {
    node: String,
    access: Access,
    state: Option<PathBuf>,
    events: bool,
    knowledge: Knowledge,
}

/// Finds out whom to ask; `None` when nobody is to be asked.
///
/// # Errors
/// The configuration says `on`, and there are no credentials or nobody says which Node this is.
pub fn prepare(config: &KubernetesConfig) -> Result<Option<Asking>, ClientError> {
    if config.mode == KubernetesMode::Off {
        return Ok(None);
    }
    let wanted = config.mode == KubernetesMode::On;
    let found = Access::find(config.kubeconfig.as_deref());
    let (access, node) = match (found, client::node_name(config.node_name.as_deref())) {
        (Some(access), Ok(node)) => (access, node),
        (None, _) if wanted => return Err(ClientError::NoCredentials),
        (_, Err(error)) if wanted => return Err(error),
        (None, _) => {
            tracing::info!("no credentials for an API server: nobody is asked (kubernetes.mode = \"auto\")");
            return Ok(None);
        }
        (_, Err(error)) => {
            tracing::warn!(%error, "the API server is not asked");
            return Ok(None);
        }
    };
    let knowledge = match config.state.as_deref().map(|path| memory::load(path, Some(&node))) {
        Some(Ok(Some(knowledge))) => knowledge,
        Some(Err(error)) => {
            tracing::warn!(%error, "what was known of the cluster is lost");
            Knowledge::default()
        }
        Some(Ok(None)) | None => Knowledge::default(),
    };
    Ok(Some(Asking { node, access, state: config.state.clone(), events: config.events, knowledge }))
}

impl Asking {
    /// What is known now.
    pub fn known(&self) -> &Cluster {
        &self.knowledge.cluster
    }

    /// Asks for the Node's labels if they are not known, and waits for the answer for `limit` at most: for a start where
    /// nothing is remembered. Leaves no thread behind.
    pub fn find_labels(&mut self, limit: Duration) {
        if self.knowledge.cluster.node_labels.is_some() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        let labels = runtime.block_on(async {
            let look = async {
                let client = self.access.client().await.ok()?;
                watching::node_labels(&client, &self.node).await
            };
            tokio::time::timeout(limit, look).await.ok().flatten()
        });
        // A name that is still being looked up must not hold up the start.
        runtime.shutdown_background();
        self.knowledge.cluster.node_labels = labels;
    }

    /// Starts the thread that asks; `None`, said in the log, where there can be none.
    pub(super) fn start(self, metrics: &Arc<Metrics>) -> Option<Link> {
        let Asking { node, access, state, events, knowledge } = self;
        metrics.cluster_begin();
        for resource in Resource::ALL {
            metrics.cluster_known_since(resource.as_str(), knowledge.current[resource as usize]);
        }
        let (sender, receiver) = watch::channel(Arc::new(knowledge.cluster.clone()));
        let (questions, notices) = (Questions::default(), events.then(Notices::default));
        tracing::info!(%node, ?access, "asking the API server");
        let speaker = Speaker {
            node,
            access,
            state,
            metrics: metrics.clone(),
            sender,
            current: Cell::new(knowledge.current),
            questions: questions.clone(),
            notices: notices.clone(),
        };
        let thread = std::thread::Builder::new().name("cluster".to_owned());
        if let Err(error) = thread.spawn(move || stumbles::go_on("cluster", || speaker.run())) {
            tracing::error!(%error, "the API server is not asked: no thread for it");
            return None;
        }
        Some(Link { cluster: receiver, notices, questions })
    }
}

/// The thread.
struct Speaker {
    node: String,
    access: Access,
    state: Option<PathBuf>,
    metrics: Arc<Metrics>,
    /// With what everybody else knows, and what this begins with.
    sender: watch::Sender<Arc<Cluster>>,
    /// Since when it is so.
    current: Cell<[Option<Timestamp>; 3]>,
    questions: Questions,
    notices: Option<Notices>,
}

/// What comes in.
enum Input {
    Sighting(Sighting),
    Answer(PodName, Result<LookUp, Trouble>),
    PodCheckpoints(Told),
}

/// Whether the list of this node's pods has come, or will not.
fn answers_for_pods(input: &Input) -> bool {
    let Input::Sighting(Sighting { resource, seen, .. }) = input else { return false };
    *resource == Resource::Pods && matches!(seen, Seen::All(_) | Seen::Failed(_))
}

impl Speaker {
    /// Begins with what was last made known. Never ends but by a panic, after which it can be called again.
    fn run(&self) {
        let knowledge = Knowledge { cluster: (**self.sender.borrow()).clone(), current: self.current.get() };
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(%error, "the API server is not asked");
                return;
            }
        };
        runtime.block_on(async {
            let client = self.client().await;
            let (outbox, inbox) = unbounded_channel();
            let follow = |resource: Resource| {
                let (outbox, client) = (outbox.clone(), client.clone());
                let tell = move |seen| {
                    let _ = outbox.send(Input::Sighting(Sighting { resource, at: wall(), seen }));
                };
                watching::follow(client, resource, &self.node, tell)
            };
            let told = outbox.clone();
            let pod_checkpoints = declared::follow(client.clone(), &self.node, move |told_of| {
                let _ = told.send(Input::PodCheckpoints(told_of));
            });
            tokio::join!(
                pod_checkpoints,
                follow(Resource::Nodes),
                follow(Resource::Pods),
                follow(Resource::Namespaces),
                self.learn(&client, knowledge, inbox, &outbox),
                self.publish(&client),
            );
        });
    }

    /// A client, as soon as the credentials can be used.
    async fn client(&self) -> Client {
        let mut said = String::new();
        loop {
            let error = match self.access.client().await {
                Ok(client) => return client,
                Err(error) => error.to_string(),
            };
            if error != said {
                tracing::error!(%error, "the API server cannot be asked; trying again");
                said = error;
            }
            self.metrics.cluster_failed(Cause::Unauthorized.as_str());
            tokio::time::sleep(CLIENT_RETRY).await;
        }
    }

    /// Takes in what comes, hands on what is new, and keeps it.
    async fn learn(
        &self,
        client: &Client,
        mut knowledge: Knowledge,
        mut inbox: UnboundedReceiver<Input>,
        outbox: &UnboundedSender<Input>,
    ) {
        let mut queue = Queue::default();
        let mut said = Said::default();
        let (mut unkept, mut kept) = (false, Monotonic::default());
        // Those of this node need not be looked up: the list that is on its way names them.
        let mut knows_pods = false;
        loop {
            let mut changed = false;
            match tokio::time::timeout(TICK, inbox.recv()).await {
                Ok(Some(first)) => {
                    let mut next = Some(first);
                    while let Some(input) = next {
                        if answers_for_pods(&input) && !std::mem::replace(&mut knows_pods, true) {
                            // The list answers most of what was asked before; the rest is asked again within seconds.
                            self.questions.forget();
                        }
                        changed |= self.take(input, &mut knowledge, &mut queue, &mut said);
                        next = inbox.try_recv().ok();
                    }
                }
                Ok(None) => return,
                Err(_) => {}
            }
            self.current.set(knowledge.current);
            if changed {
                self.sender.send_replace(Arc::new(knowledge.cluster.clone()));
                unkept = true;
            }
            let now = monotonic();
            if knows_pods {
                queue.want(self.questions.all(), now);
            }
            while let Some(pod) = queue.next(now) {
                let (client, outbox) = (client.clone(), outbox.clone());
                self.metrics.cluster_called("get");
                tokio::spawn(async move {
                    let look = lookup::look_up(&client, &pod, wall());
                    // Without an answer it is asked again later.
                    if let Some(answer) = stumbles::survives_async("cluster", look).await {
                        let _ = outbox.send(Input::Answer(pod, answer));
                    }
                });
            }
            let since = now.since(kept);
            if (unkept && since >= KEEP_AFTER) || since >= KEEP_EVERY {
                self.keep(&knowledge, &mut said);
                (unkept, kept) = (false, now);
            }
        }
    }

    /// Takes one thing in; the result is whether anything is new.
    fn take(&self, input: Input, knowledge: &mut Knowledge, queue: &mut Queue, said: &mut Said) -> bool {
        let sighting = match input {
            Input::Sighting(sighting) => sighting,
            Input::Answer(pod, Ok(answer)) => {
                said.well("get pods");
                return knowledge.found(&pod, answer);
            }
            Input::Answer(pod, Err(trouble)) => {
                queue.failed(&pod);
                self.metrics.cluster_failed(trouble.cause.as_str());
                said.trouble("get pods", &trouble);
                return false;
            }
            Input::PodCheckpoints(told) => return self.take_declared(&told, knowledge, said),
        };
        let name = sighting.resource.as_str();
        match &sighting.seen {
            Seen::Calling(call) => self.metrics.cluster_called(call),
            Seen::Failed(trouble) => {
                self.metrics.cluster_failed(trouble.cause.as_str());
                self.metrics.cluster_known_since(name, knowledge.current[sighting.resource as usize]);
                said.trouble(name, trouble);
            }
            Seen::All(objects) => {
                if sighting.resource == Resource::Nodes && objects.is_empty() {
                    tracing::warn!(
                        node = self.node,
                        "there is no such Node; is kubernetes.node-name or NODE_NAME right?"
                    );
                }
                self.metrics.cluster_current(name, sighting.at);
            }
            Seen::Changed(_) | Seen::Deleted(_) | Seen::Current => {
                self.metrics.cluster_current(name, sighting.at);
                said.well(name);
            }
        }
        let change = knowledge.see(&sighting);
        self.metrics.cluster_misread(change.misread.len() as u64);
        for (whose, misread) in &change.misread {
            tracing::warn!(%whose, %misread, "an annotation is ignored");
        }
        change.changed
    }

    /// The same for PodCheckpoint objects, which not every server has.
    fn take_declared(&self, told: &Told, knowledge: &mut Knowledge, said: &mut Said) -> bool {
        match told {
            Told::Calling(call) => self.metrics.cluster_called(call),
            Told::Absent => tracing::debug!("the API server has no {}", declared::RESOURCE),
            Told::Failed(trouble) => {
                self.metrics.cluster_failed(trouble.cause.as_str());
                self.metrics.cluster_known_since(declared::RESOURCE, None);
                said.trouble(declared::RESOURCE, trouble);
            }
            Told::All(_) | Told::Changed(_) | Told::Deleted(_) | Told::Current => {
                self.metrics.cluster_current(declared::RESOURCE, wall());
                said.well(declared::RESOURCE);
            }
        }
        knowledge.declared(told)
    }

    fn keep(&self, knowledge: &Knowledge, said: &mut Said) {
        let Some(path) = &self.state else { return };
        match memory::keep(path, &self.node, knowledge) {
            Ok(()) => said.well("state"),
            Err(error) => {
                self.metrics.cluster_state_failed();
                if said.is_new("state", error.to_string()) {
                    tracing::warn!(%error, "what is known of the cluster is not kept");
                }
            }
        }
    }

    /// Publishes notices, one after the other.
    async fn publish(&self, client: &Client) {
        let Some(notices) = &self.notices else { return };
        let mut said = Said::default();
        loop {
            self.metrics.event(EventOutcome::Dropped, notices.newly_dropped());
            match notices.take(monotonic()) {
                Some((at, notice)) => self.deliver(client, &notice, at, &mut said).await,
                None => {
                    let _ = tokio::time::timeout(TICK, notices.left()).await;
                }
            }
        }
    }

    async fn deliver(&self, client: &Client, notice: &Notice, at: Timestamp, said: &mut Said) {
        let began = monotonic();
        let mut wait = PUBLISH_BACKOFF[0];
        loop {
            self.metrics.cluster_called("create");
            let problem = match publish(client, &self.node, notice, at).await {
                Delivery::Published => {
                    said.well("events");
                    return self.metrics.event(EventOutcome::Published, 1);
                }
                Delivery::Refused(error) => {
                    let trouble = Trouble::new("create events", &error);
                    self.metrics.cluster_failed(trouble.cause.as_str());
                    said.trouble("events", &trouble);
                    return self.metrics.event(EventOutcome::Refused, 1);
                }
                Delivery::Failed(problem) => problem,
            };
            self.metrics.cluster_failed(Cause::Unreachable.as_str());
            if said.is_new("events", problem.clone()) {
                tracing::warn!(%problem, "an Event could not be published; trying again");
            }
            if monotonic().since(began) > STALE_EVENT {
                return self.metrics.event(EventOutcome::Dropped, 1);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(PUBLISH_BACKOFF[1]);
        }
    }
}

/// What has been said: a server that is away for a day is one line in the log, and one when it is back.
#[derive(Default)]
struct Said(HashMap<&'static str, String>);

impl Said {
    fn is_new(&mut self, about: &'static str, problem: String) -> bool {
        self.0.insert(about, problem.clone()) != Some(problem)
    }

    fn trouble(&mut self, about: &'static str, trouble: &Trouble) {
        if !self.is_new(about, trouble.cause.as_str().to_owned()) {
            return;
        }
        match trouble.cause {
            // The server's memory is short; that is how watching works.
            Cause::Expired => tracing::info!(%trouble, "listing again"),
            _ => tracing::warn!(%trouble, "going on with what was last known"),
        }
    }

    fn well(&mut self, about: &'static str) {
        if self.0.remove(about).is_some() {
            tracing::info!(about, "the API server answers again");
        }
    }
}
