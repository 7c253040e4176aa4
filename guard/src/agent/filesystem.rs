//! The loop of one filesystem: observe, decide, act, report; on a thread of its own, so that a statfs(2) that hangs
//! or a deletion that takes seconds holds up nobody else.

mod changes;
mod directories;
mod rest;

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, atomic::Ordering};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::mpsc::UnboundedSender;

use self::directories::Directory;
use self::rest::Rest;
use crate::act::checkpoint_dir::CheckpointDir;
use crate::agent::braking::{self, FilesystemBrake};
use crate::agent::clock::{monotonic, wall};
use crate::agent::naming::Naming;
use crate::agent::probing::Watched;
use crate::agent::reader::Reader;
use crate::agent::shared::Shared;
use crate::agent::showing::{self, Showing};
use crate::agent::staging::Arrivals;
use crate::agent::{Happened, relief};
use crate::config::{ASSUMED_WRITE_SPEED, Config, DirectoryConfig};
use crate::decide::forecast::{Consumption, Forecast};
use crate::decide::staging::Announced;
use crate::decide::{Lead, Pressure, threshold};
use crate::memory;
use crate::model::{Bytes, Level, Monotonic, Need, Observation, PressurePolicy, Signal};
use crate::observe::catalog::Catalog;
use crate::observe::filesystem::observe;
use crate::observe::inotify::Watcher;
use crate::report::metrics::{FilesystemLabel, FilesystemState, Wake};

/// What the loop is told from outside. Each message is followed by a ring of the bell.
pub(super) enum Message {
    /// A directory on this filesystem has been opened.
    Add(DirectoryConfig, Box<CheckpointDir>),
    /// Another configuration is in force; its directories are the same.
    Configure(Arc<Config>),
    /// Something else is known of the cluster: [`Shared::cluster`] has it.
    Cluster,
    /// Somebody asks about the brake, or wants it otherwise.
    Brake(braking::Ask),
}

/// The handle that the rest of the agent has on a loop.
pub(super) struct Handle {
    pub(super) label: FilesystemLabel,
    pub(super) messages: Sender<Message>,
    pub(super) bell: Arc<EventFd>,
    pub(super) thread: std::thread::JoinHandle<()>,
    /// What it was given to watch and has not lost since.
    pub(super) directories: Vec<DirectoryConfig>,
}

/// An entry to be looked at once more.
#[derive(Debug)]
struct Closing {
    directory: u16,
    name: OsString,
    at: Monotonic,
    /// How long to wait after that, if need be.
    gap: Duration,
}

/// Everything that one loop knows.
pub(super) struct Filesystem {
    pub(super) shared: Arc<Shared>,
    pub(super) config: Arc<Config>,
    /// `config`'s thresholds on a filesystem of this size.
    pub(super) thresholds: PressurePolicy,
    pub(super) label: FilesystemLabel,
    directories: Vec<Directory>,
    /// One for each of `directories`, at the same place.
    pub(super) dirs: Vec<CheckpointDir>,
    pub(super) catalog: Catalog,
    pub(super) pressure: Pressure,
    pub(super) forecast: Forecast,
    pub(super) relief: relief::State,
    pub(super) naming: Naming,
    pub(super) brake: FilesystemBrake,
    pub(super) showing: Showing,
    lead: Lead,
    pub(super) watched: Option<Watched>,
    /// The budget of the staging directories here; there once there is one.
    staging: Option<Watched>,
    arrivals: Arrivals,
    /// What is on its way here, as of the last look.
    announced: Option<Announced>,
    watcher: Option<Watcher>,
    reader: Reader,
    inbox: Receiver<Message>,
    bell: Arc<EventFd>,
    /// Rung by the reader, which is in no hurry.
    answers: Arc<EventFd>,
    /// When the directories or the reader last had something to say.
    heard: Monotonic,
    outbox: UnboundedSender<Happened>,
    due: Due,
    /// Entries that a writer may have closed and that the kernel still has as being written.
    closing: Vec<Closing>,
    /// The size that `thresholds` was made for.
    capacity: Option<Bytes>,
    /// Since the start.
    consumption: Consumption,
    /// statfs(2) failed at the last look; said once.
    is_blind: bool,
    began: Monotonic,
    /// Everything that lay there at the start is known.
    is_acquainted: bool,
    /// What was needed only for that has been given back.
    is_tidy: bool,
    /// [`Catalog::revision`] when what lies here was last summed up.
    summed_up: Option<u64>,
}

/// What happens by the clock.
struct Due {
    scan: Monotonic,
    place: Monotonic,
    publish: Monotonic,
    arrivals: Monotonic,
}

/// How often gauges are brought up to date when nothing happens in between.
const PUBLISH_EVERY: Duration = Duration::from_secs(5);
/// So many pods are asked for at a time; those that were found make room for others.
const LOOK_UPS_MAX: usize = 1024;
/// The longest sleep: the backstop for everything that no hook and no event tells.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// How often a loop that has ended looks whether the whole guard is to.
const HAND_BACK_EVERY: Duration = Duration::from_millis(50);

/// The directories of one filesystem are opened side by side; all of them are there after this long.
const ACQUAINTED_AFTER: Duration = Duration::from_millis(50);
/// What lies there at the start may take this long to be read before what is known must do: a hundred archives take
/// less than a tenth of it, and the kubelet looks every ten seconds.
const ACQUAINTED_BY: Duration = Duration::from_secs(2);
/// The same at critical, where writers may be failing already.
const ACQUAINTED_BY_AT_CRITICAL: Duration = Duration::from_millis(250);
/// How often to look meanwhile.
const ACQUAINTED_LOOK: Duration = Duration::from_millis(10);

impl Filesystem {
    /// Starts the loop for the filesystem that `dir` lies on.
    ///
    /// # Errors
    /// The system is out of threads or descriptors.
    pub(super) fn start(
        shared: Arc<Shared>,
        config: Arc<Config>,
        outbox: UnboundedSender<Happened>,
        (directory, dir): (DirectoryConfig, CheckpointDir),
    ) -> std::io::Result<Handle> {
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK)?);
        let (messages, inbox) = std::sync::mpsc::channel();
        let name = directory.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let watched = shared.probing.as_ref().and_then(|probing| probing.slot(bell.clone()));
        let watcher = Watcher::new().inspect_err(|errno| {
            tracing::warn!(%errno, "no inotify instance (fs.inotify.max_user_instances?); scanning by the clock instead");
        });
        let answers = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK)?);
        let now = monotonic();
        let mut this = Filesystem {
            label: FilesystemLabel::new(&directory.path),
            reader: Reader::start(&name, answers.clone())?,
            shared,
            thresholds: config.policy.pressure.clone(),
            config,
            directories: Vec::new(),
            dirs: Vec::new(),
            catalog: Catalog::new(Vec::new()),
            pressure: Pressure::new(),
            forecast: Forecast::new(),
            relief: relief::State::default(),
            naming: Naming::default(),
            brake: FilesystemBrake::default(),
            showing: Showing::default(),
            lead: Lead::default(),
            watched,
            staging: None,
            arrivals: Arrivals::default(),
            announced: None,
            watcher: watcher.ok(),
            inbox,
            bell: bell.clone(),
            answers,
            heard: Monotonic::default(),
            outbox,
            due: Due { scan: now, place: now, publish: now, arrivals: now },
            closing: Vec::new(),
            capacity: None,
            consumption: Consumption::default(),
            is_blind: false,
            began: now,
            is_acquainted: false,
            is_tidy: false,
            summed_up: None,
        };
        this.shared.brakes.enter(&this.label, messages.clone(), bell.clone());
        let label = this.label.clone();
        let directories = vec![directory.clone()];
        let thread = std::thread::Builder::new().name(format!("fs-{name}")).spawn(move || {
            super::priority::raise();
            // After a panic nothing of what it believed is looked at any more.
            let ran = catch_unwind(AssertUnwindSafe(|| {
                this.shared.metrics.filesystem(&this.label).begin();
                this.shared.view.enter(&this.label, this.bell.clone());
                this.catalog.set_cluster(this.shared.cluster());
                this.add(directory, dir);
                this.run();
            }));
            this.end(ran.is_err());
        })?;
        Ok(Handle { label, messages, bell, thread, directories })
    }

    fn run(&mut self) {
        let mut woken_by = Wake::Request;
        while !self.shared.stop.load(Ordering::Relaxed) && self.directories.iter().any(|it| !it.gone) {
            let woken = self.watched.as_ref().and_then(Watched::take_wake);
            let staged = self.staging.as_ref().and_then(Watched::take_wake);
            if staged.is_some() {
                self.shared.staging.poke();
            }
            self.shared.metrics.woke(woken.or(staged).map_or(woken_by, |_| Wake::Budget));
            self.hear();
            self.catch_up();
            if let Some(woken) = woken {
                self.lead.note(woken.rate);
            }
            let rest = self.turn(woken.or(staged).map(|woken| woken.at));
            self.shared.health.beat(&self.label, monotonic());
            woken_by = self.wait(rest);
        }
    }

    /// Lets go of everything, and tells that this loop is no more.
    fn end(&mut self, has_panicked: bool) {
        // Writers are let through first, and the agent is told whatever happens here.
        let let_go = catch_unwind(AssertUnwindSafe(|| {
            braking::end(self);
            if has_panicked {
                (0..self.directories.len()).for_each(|index| self.let_go(index));
            }
        }));
        if let_go.is_err() {
            tracing::error!(filesystem = self.label.as_str(), "a bug: letting go of the filesystem panicked");
        }
        self.shared.brakes.leave(&self.label);
        self.shared.health.forget(&self.label);
        self.shared.view.leave(&self.label);
        self.shared.metrics.filesystem(&self.label).forget();
        self.shared.publish_holdings(&self.label, None);
        self.shared.ask(&self.label, Vec::new);
        let label = self.label.clone();
        let how = if has_panicked { Happened::Panicked(label) } else { Happened::Ended(label) };
        let _ = self.outbox.send(how);
        self.hand_back(has_panicked);
    }

    /// A directory may have been handed to this loop while it ended; it is opened once more, for another loop. Until the
    /// agent has taken the end in and lets go of its side of the line. After a panic it opens all of them by itself.
    fn hand_back(&self, has_panicked: bool) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            match self.inbox.recv_timeout(HAND_BACK_EVERY) {
                Ok(Message::Add(config, _)) if !has_panicked => {
                    let _ = self.outbox.send(Happened::Lost(config));
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// One turn: look, decide, act, report.
    fn turn(&mut self, woken: Option<Monotonic>) -> Rest {
        let Some(mut seen) = self.look() else {
            return Rest { limit: SLEEP_MAX, hears_directory: true, deaf: Duration::ZERO };
        };
        self.note(&seen);
        if self.is_getting_acquainted() {
            showing::publish(self, &seen, false);
            return Rest { limit: ACQUAINTED_LOOK, hears_directory: false, deaf: ACQUAINTED_LOOK };
        }
        if let Some(after) = relief::relieve(self, seen, woken) {
            seen = after;
        }
        braking::follow(self, &seen);
        relief::retain(self);
        self.arm(&seen);
        self.take_growth();
        let now = monotonic();
        self.account_arrivals(now);
        let is_due = now >= self.due.publish;
        if is_due {
            self.due.publish = Monotonic(now.0 + PUBLISH_EVERY);
            self.publish(&seen);
            self.tidy();
        }
        showing::publish(self, &seen, is_due);
        self.rest(&seen, now)
    }

    /// Whether to wait with deciding because what lay there at the start is not known yet: the first archives that
    /// happen to be read are not the ones that matter least.
    fn is_getting_acquainted(&mut self) -> bool {
        let age = monotonic().since(self.began);
        let patience =
            if self.pressure.level() < Level::Critical { ACQUAINTED_BY } else { ACQUAINTED_BY_AT_CRITICAL };
        let knows_all = age >= ACQUAINTED_AFTER && !self.catalog.has_unread();
        self.is_acquainted |= knows_all || age >= patience;
        !self.is_acquainted
    }

    /// Gives back what reading everything took, once and when nothing presses.
    fn tidy(&mut self) {
        if !self.is_tidy && self.pressure.level() == Level::Normal && !self.catalog.has_unread() {
            self.is_tidy = true;
            self.catalog.forget_unused();
            memory::give_back(memory::Keep::Code);
        }
    }

    /// Measures the filesystem; `None` when that fails.
    fn look(&mut self) -> Option<Observation> {
        match observe(&self.dirs[self.measured()]) {
            Ok(seen) => {
                self.is_blind = false;
                if self.capacity.replace(seen.capacity) != Some(seen.capacity) {
                    self.thresholds = self.config.pressure_on(&seen, ASSUMED_WRITE_SPEED);
                }
                Some(seen)
            }
            Err(errno) => {
                if !std::mem::replace(&mut self.is_blind, true) {
                    tracing::error!(filesystem = self.label.as_str(), %errno, "cannot measure the filesystem; trying again");
                }
                None
            }
        }
    }

    /// What was available at the last look.
    pub(super) fn available_lately(&self) -> Bytes {
        self.consumption.available().unwrap_or_default()
    }

    /// Lets the gauges follow at the end of this turn.
    pub(super) fn due_publish(&mut self) {
        self.due.publish = monotonic();
    }

    /// Lets the level follow an observation, and tells when it changes.
    pub(super) fn note(&mut self, seen: &Observation) {
        let now = monotonic();
        self.showing.note(seen.available, now);
        self.forecast.sample(now, self.consumption.see(seen.available));
        let Some(transition) = self.pressure.observe(seen, &self.thresholds, now) else { return };
        let signal = transition.signal.map(Signal::as_str);
        tracing::info!(filesystem = self.label.as_str(), from = %transition.from, to = %transition.to, signal,
            available = %seen.available, "pressure level changed");
        self.shared.record_pressure(&self.directory_names(), &transition, seen);
        self.due.publish = now;
    }

    /// Takes messages from the rest of the agent.
    fn hear(&mut self) {
        // Only resets the counter: EAGAIN means that nobody rang.
        let _ = self.bell.read();
        let _ = self.answers.read();
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                Message::Add(config, dir) => self.add(config, *dir),
                Message::Cluster => {
                    self.catalog.set_cluster(self.shared.cluster());
                    self.relief.catalog_changed();
                }
                Message::Brake(ask) => braking::obey(self, ask),
                Message::Configure(config) => {
                    self.config = config;
                    self.capacity = None;
                    self.relief.configuration_changed();
                    self.due.publish = monotonic();
                    for index in 0..self.directories.len() {
                        if !self.config.directories.contains(&self.directories[index].config) {
                            self.let_go(index);
                        }
                    }
                }
            }
        }
    }

    /// Brings the gauges up to date.
    fn publish(&mut self, seen: &Observation) {
        let unencrypted = self.unencrypted();
        let (is_refusing, is_failing) = (braking::is_refusing(self), braking::is_failing(self));
        let metrics = self.shared.metrics.filesystem(&self.label);
        if let Some(watched) = &mut self.watched {
            metrics.written(watched.newly_written());
        }
        let now = monotonic();
        let inodes = threshold::headroom(&self.thresholds, Signal::InodesFree, seen).unwrap_or(0);
        let announced = self.on_its_way();
        metrics.announced(announced);
        metrics.set(&FilesystemState {
            observation: seen,
            observed: wall(),
            level: self.pressure.level(),
            policy: &self.thresholds,
            headroom: Need { bytes: self.headroom(seen), inodes },
            fill_rate: self.forecast.rate(now).0 as f64,
            time_to: [Level::Soft, Level::Hard, Level::Critical].map(|level| {
                let until = threshold::until(self.thresholds.threshold(level)?, Signal::Available, seen)?;
                self.forecast.until(Bytes(until).saturating_sub(announced), now)
            }),
            unreclaimable: self.relief.unreclaimable(),
            brake: is_refusing,
            brake_failing: is_failing,
        });
        metrics.unencrypted(unencrypted);
        // On an idle node this would be most of what the guard does.
        let revision = Some(self.catalog.revision());
        if std::mem::replace(&mut self.summed_up, revision) != revision {
            let inventory = self.catalog.inventory();
            let sizes = inventory.checkpoints.iter().map(|checkpoint| checkpoint.allocated);
            self.brake.learn_largest(sizes.max().unwrap_or_default());
            self.shared.publish_holdings(&self.label, Some(inventory));
        }
        self.shared.publish_losses();
        self.shared.publish_growth();
        self.shared.ask(&self.label, || self.catalog.pods_to_look_up(wall(), LOOK_UPS_MAX));
    }
}
