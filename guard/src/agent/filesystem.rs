//! The loop of one filesystem: observe, decide, act, report; on a thread of its own, so that a statfs(2) that hangs
//! or a deletion that takes seconds holds up nobody else.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, atomic::Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::mpsc::UnboundedSender;

use crate::act::checkpoint_dir::CheckpointDir;
use crate::act::extent_size;
use crate::agent::braking::{self, FilesystemBrake};
use crate::agent::clock::{moment, monotonic, wall};
use crate::agent::memory;
use crate::agent::naming::Naming;
use crate::agent::probing::Watched;
use crate::agent::reader::Reader;
use crate::agent::shared::Shared;
use crate::agent::showing::{self, Showing};
use crate::agent::staging::Arrivals;
use crate::agent::{Happened, relief};
use crate::config::{ASSUMED_WRITE_SPEED, Config, DirectoryConfig, Layout};
use crate::decide::forecast::{Consumption, Forecast, next_look};
use crate::decide::staging::Announced;
use crate::decide::{Lead, Pressure, threshold};
use crate::model::{Bytes, Level, Monotonic, Need, Observation, PressurePolicy, Signal, States};
use crate::observe::catalog::{Catalog, Holds};
use crate::observe::filesystem::observe;
use crate::observe::host::encryption::Encryption;
use crate::observe::host::mounts::Mount;
use crate::observe::inotify::{Detail, Event, Watcher};
use crate::observe::probe::{Backend, Coverage};
use crate::report::metrics::{FilesystemLabel, FilesystemState, LostEvents, Wake};

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

/// One watched directory.
pub(super) struct Directory {
    config: DirectoryConfig,
    /// A descriptor of the same directory for the reader's thread.
    fd: Option<Arc<OwnedFd>>,
    /// What inotify tells of it: of each write, because no probe does; or of no file that is closed, because that is asked
    /// of single files.
    detail: Detail,
    /// Nothing that can be seen encrypts it; `None` until that was looked into.
    is_unencrypted: Option<bool>,
    /// Its filesystem takes space in steps of this, more than what is written.
    step: Bytes,
    /// Its path leads elsewhere: no longer looked at, and its checkpoints are out of the catalog.
    gone: bool,
}

impl Directory {
    fn holds(&self) -> Option<Holds> {
        holds(self.config.layout)
    }
}

/// What a checkpoint is in a directory of this layout; `None`: nothing there is one.
fn holds(layout: Layout) -> Option<Holds> {
    match layout {
        Layout::Archives => Some(Holds::Archives),
        Layout::PodCheckpoints => Some(Holds::PodCheckpoints),
        Layout::Staging => None,
    }
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
    /// Entries that a writer has closed and that the kernel still has as being written; so many looks are left.
    closing: Vec<(u16, OsString, u32)>,
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

/// How to sleep.
struct Rest {
    limit: Duration,
    /// Whether events in the directories end the sleep.
    hears_directory: bool,
    /// For so long only what is urgent ends the sleep.
    deaf: Duration,
}

/// What happens by the clock.
struct Due {
    scan: Monotonic,
    place: Monotonic,
    publish: Monotonic,
    arrivals: Monotonic,
}

/// A full scan repairs what events did not tell. It costs 1.5 µs per entry, so with 10,000 checkpoints this is
/// 0.03 % of a core; with more, the scan's own duration stretches the interval.
const SCAN_EVERY: Duration = Duration::from_secs(60);
/// After one that failed, which leaves the guard with what it last knew, or with nothing at its start.
const SCAN_AGAIN: Duration = Duration::from_secs(5);
/// A scan may take at most this share of the time.
const SCAN_SHARE: u32 = 500;
/// How often to make sure that the paths still lead to the directories that are watched.
const PLACE_EVERY: Duration = Duration::from_secs(1);
/// How often gauges are brought up to date when nothing happens in between.
const PUBLISH_EVERY: Duration = Duration::from_secs(5);
/// Arrivals are added up this often while nothing is on its way. It takes 0.1 µs for each checkpoint.
const ARRIVALS_EVERY: Duration = Duration::from_millis(200);
/// So many pods are asked for at a time; those that were found make room for others.
const LOOK_UPS_MAX: usize = 1024;
/// The longest sleep: the backstop for everything that no hook and no event tells.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The shortest: in this time the fastest writers measured write 12 MiB.
const SLEEP_MIN: Duration = Duration::from_millis(2);
/// By itself xfs sets aside as much beyond the end of a growing file as the file has, in one step: at 32 MiB another 32 MiB.
/// That is half of a checkpoint of 64 MiB, so acting one step ahead never costs a whole one beyond need.
const STEP_WITHOUT_HINT: Bytes = Bytes::mib(32);
/// How often a loop that has ended looks whether the whole guard is to.
const HAND_BACK_EVERY: Duration = Duration::from_millis(50);
/// A writer who is not out of the kernel's books after so many turns has opened the file again.
const CLOSING_TRIES: u32 = 50;
/// So many looks at one that somebody has just begun to write: what tells that he has closed it may have been asked for
/// between the two steps of closing ([`Filesystem::refresh`]).
const OPENING_TRIES: u32 = 3;
/// What happens in the directories, and what the reader has read, is taken in this often at most: in a storm of small files
/// a look at all that came is cheaper than a look at each. A budget that is used up does not wait for it, and a decision
/// takes in what has happened until then.
const HEAR_APART: Duration = Duration::from_millis(50);
/// While the fastest writers need longer than this for the headroom, nobody need be told of each write.
const LISTEN_BELOW: Duration = Duration::from_millis(50);
/// So much more in a staging directory is worth a look at it.
const STAGING_STEP: Bytes = Bytes::mib(64);
/// The fastest writers into the page cache measured wrote 2.8 GB/s (KERNEL.md, section 5); two of them.
const FASTEST_WRITERS: Bytes = Bytes(6_000_000_000);

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
            memory::give_back();
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

    /// Whether checkpoints of the directory at `index` have directories of their own; `None` where no checkpoints lie.
    pub(super) fn holds_nested(&self, index: usize) -> Option<bool> {
        self.directories[index].holds().map(|holds| holds == Holds::PodCheckpoints)
    }

    /// What was available at the last look.
    pub(super) fn available_lately(&self) -> Bytes {
        self.consumption.available().unwrap_or_default()
    }

    /// Lets the gauges follow at the end of this turn.
    pub(super) fn due_publish(&mut self) {
        self.due.publish = monotonic();
    }

    /// The directory by which the filesystem is measured.
    pub(super) fn measured(&self) -> usize {
        self.directories.iter().position(|it| !it.gone).unwrap_or(0)
    }

    /// The watched directories, for records.
    pub(super) fn directory_names(&self) -> Vec<String> {
        let watched = self.directories.iter().filter(|it| !it.gone);
        watched.map(|it| it.config.path.display().to_string()).collect()
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

    /// Begins to watch a directory.
    fn add(&mut self, config: DirectoryConfig, dir: CheckpointDir) {
        self.catalog.set_now(moment());
        let path = config.path.clone();
        let shared = self.shared.clone();
        let is_staging = config.layout == Layout::Staging;
        // In an engine's directory nothing is ours, whatever it is called.
        if !shared.dry_run && !is_staging {
            match dir.finish_leftovers(&|id| shared.name_of(id)) {
                Ok(leftovers) => {
                    leftovers.iter().for_each(|leftover| shared.record_leftover(&path, leftover))
                }
                Err(error) => {
                    tracing::warn!(directory = %path.display(), %error, "unfinished deletions stay")
                }
            }
        }
        let index = self.catalog.add_directory(path.clone());
        let mut detail = Detail::Writes;
        let mut backend = Backend::Inotify;
        if is_staging && self.staging.is_none() {
            self.staging = shared.probing.as_ref().and_then(|probing| probing.slot(self.bell.clone()));
        }
        let watched = if is_staging { &mut self.staging } else { &mut self.watched };
        if let Some(watched) = watched {
            match watched.add(dir.as_fd()) {
                Ok(Coverage::Nothing) => {
                    tracing::warn!(directory = %path.display(), "eBPF does not see writes on this filesystem");
                }
                Ok(coverage) => {
                    backend = coverage.backend();
                    tracing::info!(directory = %path.display(), %backend, %coverage, "eBPF counts what is written");
                    detail = Detail::Entries;
                }
                Err(error) => tracing::warn!(directory = %path.display(), %error, "not watched by eBPF"),
            }
        }
        self.shared.metrics.filesystem(&self.label).backend(backend.as_str());
        self.shared.is_taken_by(&path, Some(backend));
        if is_staging {
            // Somebody looks every second while there is anything to see.
            detail = Detail::Entries;
            match dir.as_fd().try_clone_to_owned() {
                Ok(fd) => shared.staging.add(&path, fd),
                Err(error) => tracing::error!(directory = %path.display(), %error, "not looked at"),
            }
        }
        if let Some(watcher) = &mut self.watcher
            && let Err(errno) = watcher.add(dir.as_fd(), index, detail)
        {
            tracing::warn!(directory = %path.display(), %errno, "inotify refused; scanning by the clock instead");
        }
        let fd = dir.as_fd().try_clone_to_owned().ok().map(Arc::new);
        if config.layout == Layout::PodCheckpoints
            && let Some(fd) = &fd
        {
            shared.growths.add_tree(&path, fd.clone());
        }
        let step = match dir.sets_aside() {
            true => self.limit_steps(&config, &dir).unwrap_or(STEP_WITHOUT_HINT).min(STEP_WITHOUT_HINT),
            false => Bytes::ZERO,
        };
        self.directories.push(Directory { config, fd, detail, is_unencrypted: None, step, gone: false });
        self.dirs.push(dir);
        braking::add(self, usize::from(index));
        match self.directories[usize::from(index)].holds() {
            Some(_) => {
                let rest = self.scan(usize::from(index));
                // Another one may be waiting to be tried again.
                if rest.is_none() || self.directories.len() == 1 {
                    self.scan_again_after(rest);
                }
            }
            None => self.shared.health.scanned(&path),
        }
        self.due.publish = monotonic();
    }

    /// Keeps xfs from taking space in large steps; says in which it does then. `None`: in its own.
    fn limit_steps(&self, config: &DirectoryConfig, dir: &CheckpointDir) -> Option<Bytes> {
        let (Some(size), Some(_)) = (config.extent_size, holds(config.layout)) else { return None };
        if self.shared.dry_run {
            return None;
        }
        let directory = config.path.display();
        let size = observe(dir).map_or(size, |seen| extent_size::fitting(size, seen.capacity));
        match extent_size::ensure(dir.as_fd(), size) {
            Ok(hint) => {
                tracing::info!(%directory, size = %hint.size, was_there = hint.was_there,
                    "files created here take space in steps of their extent size hint");
                Some(hint.size)
            }
            Err(errno) => {
                tracing::warn!(%directory, %size, %errno,
                    "cannot set an extent size hint; xfs will set aside as much space as a growing file has, and the guard \
                     acts earlier for that (extent-size = false says the same without trying)");
                None
            }
        }
    }

    /// Brings the catalog up to date with what events, the reader and the clock say.
    pub(super) fn catch_up(&mut self) {
        let now = monotonic();
        self.catalog.set_now(moment());
        let mut rescan = now >= self.due.scan;
        for (directory, name, tries) in std::mem::take(&mut self.closing) {
            self.refresh(directory, name, tries);
        }
        let events = self.watcher.as_mut().map(Watcher::drain).unwrap_or_default();
        if !events.is_empty() {
            self.heard = now;
        }
        for event in events {
            match event {
                Event::Entry { directory, name, closed } => {
                    self.refresh(directory, name, if closed { CLOSING_TRIES } else { 0 });
                }
                Event::Written => {}
                Event::DirectoryGone { .. } => self.due.place = now,
                Event::Overflow => {
                    self.shared.metrics.lost(LostEvents::InotifyQueue, 1);
                    tracing::warn!(
                        filesystem = self.label.as_str(),
                        "inotify events were lost; scanning everything"
                    );
                    rescan = true;
                }
            }
        }
        if now >= self.due.place {
            self.due.place = Monotonic(now.0 + PLACE_EVERY);
            self.check_places();
        }
        if rescan {
            self.retry_leftovers();
            let rests: Vec<_> = (0..self.directories.len()).map(|index| self.scan(index)).collect();
            self.scan_again_after(rests.into_iter().try_fold(SCAN_EVERY, |most, rest| Some(most.max(rest?))));
        }
        if self.catalog.lacks_leases() {
            let asked = |it: &Directory| it.detail == Detail::Entries && it.holds() == Some(Holds::Archives);
            let those: Vec<_> =
                (0..self.directories.len()).filter(|at| asked(&self.directories[*at])).collect();
            those.into_iter().for_each(|index| self.ask_for_closes(index));
        }
        if self.catalog.settles_at().is_some_and(|at| now >= at) {
            self.look_at_unsettled();
        }
        let directories = &self.directories;
        let fd = |index: u16| directories.get(usize::from(index))?.fd.clone();
        if self.reader.exchange(&mut self.catalog, fd) > 0 {
            self.heard = now;
            self.relief.catalog_changed();
        }
    }

    /// Looks at one entry again. The kernel tells that a writer has closed a file a moment before it takes the writer out
    /// of its books (`fsnotify_close` is the first step of `__fput`), and nothing tells the end of that moment: so up to
    /// `tries` more looks are taken, one a turn.
    pub(super) fn refresh(&mut self, directory: u16, name: OsString, tries: u32) {
        let Some(it) = self.directories.get(usize::from(directory)) else { return };
        if it.config.layout == Layout::Staging {
            self.shared.staging.poke();
        }
        if let (false, Some(holds)) = (it.gone, it.holds()) {
            let dir = self.dirs[usize::from(directory)].as_fd();
            let is_written = self.catalog.refresh(directory, dir, holds, &name);
            self.relief.catalog_changed();
            match is_written {
                true if tries > 0 => self.closing.push((directory, name, tries - 1)),
                true => self.await_close(directory, &name),
                false => self.watcher.iter_mut().for_each(|watcher| watcher.forget(directory, &name)),
            }
        }
    }

    /// Has itself told when a writer closes an archive.
    fn await_close(&mut self, directory: u16, name: &OsStr) {
        let index = usize::from(directory);
        let (it, dir) = (&mut self.directories[index], self.dirs[index].as_fd());
        let (Some(watcher), Detail::Entries, Some(holds)) = (&mut self.watcher, it.detail, it.holds()) else {
            return;
        };
        match watcher.await_close(dir, directory, name) {
            Ok(false) | Err(Errno::ENOENT) => {}
            // The writer may have closed it a moment before, or be about to have closed it.
            Ok(true) => match self.catalog.refresh(directory, dir, holds, name) {
                true => self.closing.push((directory, name.to_owned(), OPENING_TRIES)),
                false => watcher.forget(directory, name),
            },
            Err(errno) => {
                tracing::warn!(directory = %it.config.path.display(), %errno,
                    "no inotify watch for a file that is being written (fs.inotify.max_user_watches?); asking of the whole \
                     directory instead, which makes each write there a little more expensive");
                self.ask_for_closes(index);
                self.closing.push((directory, name.to_owned(), OPENING_TRIES));
            }
        }
    }

    /// Has itself told of every file of a directory that a writer closes.
    fn ask_for_closes(&mut self, index: usize) {
        let (it, dir) = (&mut self.directories[index], self.dirs[index].as_fd());
        it.detail = Detail::Closes;
        if let Some(watcher) = &mut self.watcher
            && let Err(errno) = watcher.add(dir, index as u16, it.detail)
        {
            tracing::warn!(directory = %it.config.path.display(), %errno, "inotify refused");
        }
    }

    fn scan_again_after(&mut self, rest: Option<Duration>) {
        self.due.scan = Monotonic(monotonic().0 + rest.unwrap_or(SCAN_AGAIN));
    }

    /// Reads a directory in full. How long that is enough for; `None`: it failed.
    fn scan(&mut self, index: usize) -> Option<Duration> {
        let it = &self.directories[index];
        let (false, Some(holds)) = (it.gone, it.holds()) else { return Some(SCAN_EVERY) };
        let began = monotonic();
        let result = self.catalog.scan(index as u16, self.dirs[index].as_fd(), holds);
        let took = monotonic().since(began);
        if holds == Holds::Archives && it.detail == Detail::Entries {
            let written = self.catalog.written_in(index as u16, self.dirs[index].as_fd());
            written.iter().for_each(|name| self.await_close(index as u16, name));
        }
        let it = &self.directories[index];
        match result {
            Ok(summary) => {
                self.shared.health.scanned(&it.config.path);
                tracing::debug!(directory = %it.config.path.display(), ?summary, ?took, "scanned");
                self.shared.metrics.filesystem(&self.label).scanned(wall(), took);
                self.relief.catalog_changed();
                Some(SCAN_EVERY.max(took * SCAN_SHARE))
            }
            Err(errno) => {
                tracing::error!(directory = %it.config.path.display(), %errno, "cannot read the directory");
                self.shared.metrics.filesystem(&self.label).scan_failed();
                None
            }
        }
    }

    /// Takes up again deletions that could not be finished. No round is under way where this is called.
    fn retry_leftovers(&self) {
        for (it, dir) in self.directories.iter().zip(&self.dirs).filter(|(it, _)| !it.gone) {
            for leftover in dir.retry_leftovers() {
                self.shared.record_leftover(&it.config.path, &leftover);
            }
        }
    }

    /// Looks at pod checkpoints that may be finished by now.
    fn look_at_unsettled(&mut self) {
        for (index, (it, dir)) in self.directories.iter().zip(&self.dirs).enumerate() {
            if !it.gone {
                self.catalog.look_at_unsettled(index as u16, dir.as_fd());
            }
        }
        self.relief.catalog_changed();
    }

    /// Looks again at what was in use or had another name: while a need cannot be met, it matters when that ends.
    pub(super) fn look_again(&mut self) {
        self.catalog.set_now(moment());
        for (index, (it, dir)) in self.directories.iter().zip(&self.dirs).enumerate() {
            if !it.gone {
                self.catalog.look_again(index as u16, dir.as_fd());
            }
        }
    }

    /// Takes away second names that a failing disk has left, and looks again at whose they were.
    pub(super) fn drop_second_names(&mut self) {
        for (index, (it, dir)) in self.directories.iter().zip(&self.dirs).enumerate() {
            if !it.gone && dir.has_second_names() && dir.drop_second_names() {
                self.catalog.look_again(index as u16, dir.as_fd());
            }
        }
    }

    /// Notices directories that were replaced, unmounted or mounted over, and has them opened anew.
    fn check_places(&mut self) {
        for index in 0..self.directories.len() {
            let it = &self.directories[index];
            if it.gone || self.dirs[index].is_still_at(&it.config.path) {
                continue;
            }
            tracing::warn!(directory = %it.config.path.display(), "the path leads to another directory now; opening it again");
            let _ = self.outbox.send(Happened::Lost(it.config.clone()));
            self.let_go(index);
        }
    }

    /// No longer watches a directory.
    fn let_go(&mut self, index: usize) {
        if std::mem::replace(&mut self.directories[index].gone, true) {
            return;
        }
        if let Some(watcher) = &mut self.watcher {
            watcher.remove(index as u16);
        }
        if let Some(watched) = self.watched.as_ref().or(self.staging.as_ref()) {
            watched.remove(self.dirs[index].as_fd());
        }
        let DirectoryConfig { path, layout, .. } = &self.directories[index].config;
        self.shared.is_taken_by(path, None);
        match layout {
            Layout::Staging => self.shared.staging.remove(path),
            Layout::PodCheckpoints => self.shared.growths.remove_tree(path),
            Layout::Archives => {}
        }
        braking::let_go(self, index);
        self.directories[index].fd = None;
        self.catalog.forget_directory(index as u16);
        self.relief.catalog_changed();
    }

    /// How far ahead of the hard threshold to act.
    pub(super) fn lead(&self, seen: &Observation) -> Bytes {
        let steps = self.directories.iter().filter(|it| !it.gone).map(|it| it.step);
        self.lead.bytes(&self.thresholds, seen, steps.max().unwrap_or_default())
    }

    /// What is on its way here. To be asked after the filesystem was measured: what has arrived since then counts as arrived,
    /// so that no byte is both gone from `seen` and still to come.
    pub(super) fn announced(&mut self, seen: &Observation) -> Option<Announced> {
        if self.shared.staging.staged().is_zero() || !self.is_destination() {
            if self.announced.take().is_some() {
                self.due.publish = monotonic();
            }
            return None;
        }
        self.measure_growing();
        let arrived = self.arrivals.total(self.catalog.inventory());
        let most = self.config.staging_ahead.as_ref().map_or(0, |amount| amount.resolve(seen.capacity.0));
        let announced = self.shared.staging.announced(&self.bell, arrived, Bytes(most));
        if announced.is_some() != self.announced.is_some() {
            self.due.publish = monotonic();
        }
        self.announced = announced.clone();
        announced
    }

    /// How much is on its way here, as of the last look.
    pub(super) fn on_its_way(&self) -> Bytes {
        self.announced.as_ref().map_or(Bytes::ZERO, |announced| announced.bytes)
    }

    /// Tells what has arrived while nothing is known to be on its way: it may have come and gone between two looks.
    fn account_arrivals(&mut self, now: Monotonic) {
        if now >= self.due.arrivals && !self.shared.staging.is_idle() && self.is_destination() {
            self.due.arrivals = Monotonic(now.0 + ARRIVALS_EVERY);
            let arrived = self.arrivals.total(self.catalog.inventory());
            self.shared.staging.arrived(&self.bell, arrived);
        }
    }

    /// Whether archives are expected here.
    fn is_destination(&self) -> bool {
        let destination = self.config.destination();
        self.directories.iter().any(|it| !it.gone && Some(&it.config) == destination)
    }

    /// Looks at the sizes of what is being written: nothing else tells them before it is closed.
    fn measure_growing(&mut self) {
        let checkpoints = self.catalog.inventory().checkpoints.iter();
        let growing: Vec<_> = checkpoints
            .filter(|checkpoint| checkpoint.states.contains(States::BEING_WRITTEN))
            .map(|checkpoint| (checkpoint.directory, checkpoint.name.clone()))
            .collect();
        for (directory, name) in growing {
            let it = &self.directories[usize::from(directory)];
            if let (false, Some(holds)) = (it.gone, it.holds()) {
                self.catalog.refresh(directory, self.dirs[usize::from(directory)].as_fd(), holds, &name);
            }
        }
    }

    /// Sets the budgets to what is left.
    ///
    /// Staging directories on the same filesystem have one of their own. Each has half, so that both together never use up
    /// more than all unseen. What is staged uses up the archive's room as well: the wake for that comes when half of what is
    /// not spoken for yet may be, but not for every few bytes.
    fn arm(&self, seen: &Observation) {
        let left = self.headroom(seen).saturating_sub(self.lead(seen));
        let now = monotonic();
        if let Some(watched) = &self.watched {
            watched.arm(if self.staging.is_some() { Bytes(left.0 / 2) } else { left }, now);
        }
        if self.is_destination() {
            self.shared.staging.set_room(left.saturating_sub(self.on_its_way()));
        }
        if let Some(staging) = &self.staging {
            let step = Bytes(self.shared.staging.room().0 / 2).max(STAGING_STEP);
            staging.arm(step.min(Bytes(left.0 / 2)), now);
        }
    }

    /// Whether nothing is written unseen.
    fn is_exact(&self) -> bool {
        let has_staging = self.directories.iter().any(|it| !it.gone && it.config.layout == Layout::Staging);
        self.watched.as_ref().is_some_and(Watched::is_exact)
            && (!has_staging || self.staging.as_ref().is_some_and(Watched::is_exact))
    }

    /// Says whose checkpoints have grown, and looks again at those that were thought to be complete.
    fn take_growth(&mut self) {
        for watched in [&self.watched, &self.staging].into_iter().flatten() {
            self.shared.growths.take(watched.slot(), self.catalog.inventory());
        }
        let slot = self.watched.as_ref().map(Watched::slot);
        let rewritten = slot.map(|slot| self.shared.growths.rewritten(slot, self.catalog.inventory()));
        for (directory, name) in rewritten.unwrap_or_default() {
            self.refresh(directory, name, 0);
        }
    }

    /// Bytes until the next threshold.
    fn headroom(&self, seen: &Observation) -> Bytes {
        Bytes(threshold::headroom(&self.thresholds, Signal::Available, seen).unwrap_or(seen.available.0))
    }

    /// How long nothing can go wrong unseen.
    fn rest(&self, seen: &Observation, now: Monotonic) -> Rest {
        let deadlines = [
            self.pressure.next_deadline(&self.thresholds),
            self.relief.deadline(),
            self.brake.deadline(self),
            Some(self.due.place),
        ];
        let limit = deadlines.into_iter().flatten().map(|deadline| deadline.since(now)).min();
        // While a need waits for something to change, every change counts.
        let deaf = if self.relief.is_stuck() {
            Duration::ZERO
        } else {
            HEAR_APART.saturating_sub(now.since(self.heard))
        };
        let longest = if self.closing.is_empty() { SLEEP_MAX } else { SLEEP_MIN.max(deaf) };
        let limit = limit.unwrap_or(SLEEP_MAX).clamp(SLEEP_MIN, longest);
        if self.is_exact() || self.relief.is_stuck() {
            return Rest { limit, hears_directory: true, deaf };
        }
        let safe = next_look(self.headroom(seen), FASTEST_WRITERS, SLEEP_MIN..=SLEEP_MAX);
        // Where inotify tells of each write there is no hurry once it is listened to; until then, no need to listen.
        let is_rung = self.directories.iter().any(|it| it.detail == Detail::Writes && !it.gone)
            && self.watcher.is_some();
        match is_rung {
            true if safe > LISTEN_BELOW => Rest { limit: limit.min(safe), hears_directory: false, deaf },
            // Here an event is what a wake is elsewhere.
            true => Rest { limit, hears_directory: true, deaf: Duration::ZERO },
            false => Rest { limit: limit.min(safe), hears_directory: true, deaf },
        }
    }

    /// Sleeps until something happens; says what.
    fn wait(&self, rest: Rest) -> Wake {
        let bell = || PollFd::new(self.bell.as_fd(), PollFlags::POLLIN);
        let deaf = rest.deaf.min(rest.limit);
        if !deaf.is_zero() && has_rung(&mut [bell()], deaf)[0] {
            return Wake::Request;
        }
        let left = rest.limit - deaf;
        if left.is_zero() {
            return Wake::Timer;
        }
        let mut fds = vec![bell(), PollFd::new(self.answers.as_fd(), PollFlags::POLLIN)];
        if let Some(watcher) = self.watcher.as_ref().filter(|_| rest.hears_directory) {
            fds.push(PollFd::new(watcher.as_fd(), PollFlags::POLLIN));
        }
        match has_rung(&mut fds, left)[..] {
            [false, false, true] => Wake::Directory,
            [false, false, ..] => Wake::Timer,
            _ => Wake::Request,
        }
    }

    /// Brings the gauges up to date.
    fn publish(&mut self, seen: &Observation) {
        let unencrypted = self.unencrypted();
        let is_refusing = braking::is_refusing(self);
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

    /// How many directories nothing encrypts. Looked into once for each, and not before the first decisions are made: it
    /// reads the table of mounts, which is long on a node with many pods.
    fn unencrypted(&mut self) -> usize {
        for (it, dir) in self.directories.iter_mut().zip(&self.dirs).filter(|(it, _)| !it.gone) {
            it.is_unencrypted.get_or_insert_with(|| {
                let mount = Mount::of(&dir.resolved());
                matches!(Encryption::of(dir.as_fd(), mount.as_ref()), Encryption::None { .. })
            });
        }
        self.directories.iter().filter(|it| !it.gone && it.is_unencrypted == Some(true)).count()
    }

    /// The path of a directory, for messages.
    pub(super) fn path_of(&self, directory: u16) -> &Path {
        self.directories.get(usize::from(directory)).map_or(Path::new(""), |it| &it.config.path)
    }
}

/// Sleeps until one of `fds` is readable, for `limit` at most; the result is which are. EINTR is a turn too many, no more.
fn has_rung(fds: &mut [PollFd<'_>], limit: Duration) -> Vec<bool> {
    // Rounded up: whoever wakes a moment before a deadline wakes a second time for it.
    let millis = u16::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(u16::MAX).max(1);
    let _ = poll(fds, PollTimeout::from(millis));
    fds.iter().map(|fd| fd.any().unwrap_or(false)).collect()
}
