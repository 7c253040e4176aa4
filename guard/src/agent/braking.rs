//! The brake of one filesystem: lets the backend follow what `decide` says, and reports what was refused.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nix::sys::eventfd::EventFd;
use tokio::sync::oneshot;

use crate::act::brake::fanotify::Fanotify;
use crate::act::brake::lsm::LsmBrake;
use crate::act::brake::{Backend, BrakeError, Created, Key, RefusedWriter, Stance, add_writer};
use crate::act::refusal::Refused;
use crate::agent::clock::{monotonic, wall};
use crate::agent::filesystem::{Filesystem, Message};
use crate::agent::priority;
use crate::agent::shared::Shared;
use crate::agent::stumbles;
use crate::config::BrakeMode;
use crate::decide::Brake;
use crate::decide::brake::{Change, Sight, is_near};
use crate::model::{Bytes, Monotonic, Observation};
use crate::report::audit::{Event, Refusals};
use crate::report::metrics::FilesystemLabel;
use crate::report::record::BrakeRecord;
use crate::report::snapshot::BrakeSnapshot;
use crate::report::socket::Reply;

/// The brake's means, for all filesystems.
#[derive(Debug)]
pub(super) struct Braking {
    backend: Backend,
}

impl Braking {
    /// What `mode` asks for; `None` when that is none, or when none works here. Both are said.
    ///
    /// # Errors
    /// A means that was asked for by name does not work.
    pub(super) fn start(
        mode: BrakeMode,
        dry_run: bool,
        stop: Arc<AtomicBool>,
    ) -> Result<Option<Arc<Braking>>, BrakeError> {
        if mode == BrakeMode::Off {
            tracing::info!("writers are never refused ([brake] mode = \"off\")");
            return Ok(None);
        }
        let found = match mode {
            BrakeMode::Lsm => Braking::lsm(),
            BrakeMode::Fanotify => Braking::fanotify(),
            BrakeMode::Auto | BrakeMode::Off => Braking::any(),
        };
        let backend = match found {
            Ok(backend) => backend,
            Err(error) if mode == BrakeMode::Auto => {
                tracing::warn!(%error, "no brake here: at critical, when nothing more may be deleted, writers go on");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        tracing::info!(mode = backend.as_str(), dry_run, "the brake is ready");
        let this = Arc::new(Braking { backend });
        let tender = this.clone();
        let spawned = std::thread::Builder::new().name("brake".to_owned()).spawn(move || {
            priority::raise();
            stumbles::go_on("brake", || tender.backend.tend(&stop));
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread for the brake; writers are not refused");
            return Ok(None);
        }
        Ok(Some(this))
    }

    /// BPF LSM, else fanotify.
    fn any() -> Result<Backend, BrakeError> {
        Braking::lsm().or_else(|lsm| {
            tracing::debug!(%lsm, "no brake by BPF LSM");
            let neither = |fanotify| BrakeError::Neither { lsm: Box::new(lsm), fanotify: Box::new(fanotify) };
            Braking::fanotify().map_err(neither)
        })
    }

    fn lsm() -> Result<Backend, BrakeError> {
        Ok(Backend::Lsm(Box::new(LsmBrake::load(monotonic)?)))
    }

    fn fanotify() -> Result<Backend, BrakeError> {
        Fanotify::new(monotonic).map(Backend::Fanotify)
    }
}

/// What one loop knows of its brake.
#[derive(Debug, Default)]
pub(super) struct FilesystemBrake {
    decision: Brake,
    /// The directories that it holds, by their place.
    keys: Vec<(usize, Key)>,
    stance: Stance,
    /// The largest checkpoint that lay there lately.
    largest: Bytes,
    /// While writers are refused.
    episode: Option<Episode>,
    /// Files to be cleared away whose event was still being answered; the place of the directory, and since when writers
    /// were refused there.
    created: Vec<(usize, Created, Timestamp)>,
}

/// From engaging to releasing.
#[derive(Debug)]
struct Episode {
    began: Timestamp,
    writers: Vec<RefusedWriter>,
    cleared: u64,
}

impl FilesystemBrake {
    /// Whether writers are refused.
    pub(super) fn is_engaged(&self) -> bool {
        self.decision.engaged().is_some()
    }

    /// When the decision changes by the clock.
    pub(super) fn deadline(&self, fs: &Filesystem) -> Option<Monotonic> {
        self.decision.next_deadline(&fs.thresholds)
    }

    /// Learns how large checkpoints are here.
    pub(super) fn learn_largest(&mut self, largest: Bytes) {
        self.largest = largest;
    }
}

/// Takes up the directory at `index`. Only where checkpoints lie: an engine's work directory holds more than those.
pub(super) fn add(fs: &mut Filesystem, index: usize) {
    let Some(braking) = fs.shared.braking.clone() else { return };
    let Some(nested) = fs.holds_nested(index) else { return };
    match braking.backend.watch(std::os::fd::AsFd::as_fd(&fs.dirs[index]), nested) {
        Ok(key) => fs.brake.keys.push((index, key)),
        Err(error) => {
            tracing::error!(directory = %fs.path_of(index as u16).display(), %error, "no brake here")
        }
    }
}

/// Lets go of it.
pub(super) fn let_go(fs: &mut Filesystem, index: usize) {
    let Some(braking) = fs.shared.braking.clone() else { return };
    for (_, key) in fs.brake.keys.extract_if(.., |(place, _)| *place == index) {
        braking.backend.forget(key);
    }
}

/// Lets go of everything; the loop ends.
pub(super) fn end(fs: &mut Filesystem) {
    for index in 0..fs.dirs.len() {
        let_go(fs, index);
    }
}

/// How to speak to a loop: messages, and the bell to ring after each.
type Line = (Sender<Message>, Arc<EventFd>);

/// The loops, for those who ask about their brakes.
#[derive(Debug, Default)]
pub(super) struct Brakes(Mutex<BTreeMap<FilesystemLabel, Line>>);

impl Brakes {
    pub(super) fn enter(&self, label: &FilesystemLabel, messages: Sender<Message>, bell: Arc<EventFd>) {
        self.lock().insert(label.clone(), (messages, bell));
    }

    pub(super) fn leave(&self, label: &FilesystemLabel) {
        self.lock().remove(label);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<FilesystemLabel, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What somebody wants of a brake.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wish {
    /// To know how it is.
    Tell,
    /// That it is engaged, for so long or until it is released.
    Engage(Option<Duration>),
    /// That it is released, and does not engage by itself for so long.
    Release(Duration),
}

/// A wish that was put to a loop.
#[derive(Debug)]
pub(super) struct Ask {
    /// Only if this is one of its directories, or its name.
    filesystem: Option<String>,
    wish: Wish,
    answer: oneshot::Sender<BrakeRecord>,
}

/// Puts a wish to the loops, and waits until they have done it.
pub(super) async fn ask(shared: &Shared, filesystem: Option<String>, wish: Wish) -> Reply {
    let refuse = |message: String| Reply::Error { message };
    let Some(braking) = &shared.braking else {
        return refuse(
            "there is no brake on this node; the log of the start says why ([brake] mode)".to_owned(),
        );
    };
    if shared.dry_run && matches!(wish, Wish::Engage(_)) {
        return refuse("this is a dry run: nobody is refused".to_owned());
    }
    let mut answers = Vec::new();
    for (messages, bell) in shared.brakes.lock().values() {
        let (answer, answered) = oneshot::channel();
        if messages.send(Message::Brake(Ask { filesystem: filesystem.clone(), wish, answer })).is_ok() {
            let _ = bell.write(1);
            answers.push(answered);
        }
    }
    let mut items = Vec::new();
    for answered in answers {
        // Err: it is not the filesystem that was meant, or its loop has ended.
        items.extend(answered.await.ok());
    }
    match filesystem {
        Some(filesystem) if items.is_empty() => {
            refuse(format!("{filesystem:?} is none of the watched directories; `brake status` lists them"))
        }
        _ => Reply::Brake { mode: braking.backend.as_str().to_owned(), items },
    }
}

/// Does what somebody wants, at once: a filesystem that cannot be measured just now must not keep the brake engaged.
pub(super) fn obey(fs: &mut Filesystem, ask: Ask) {
    let directories = fs.directory_names();
    let is_meant = |name: &String| name == fs.label.as_str() || directories.contains(name);
    let (Some(braking), true) = (fs.shared.braking.clone(), ask.filesystem.as_ref().is_none_or(is_meant))
    else {
        return;
    };
    let now = monotonic();
    let change = match ask.wish {
        Wish::Tell => None,
        Wish::Engage(time) => fs.brake.decision.engage(time, now),
        Wish::Release(inhibited) => fs.brake.decision.release(inhibited, now),
    };
    let Some(change) = change else {
        take_in(fs, &braking);
        let _ = ask.answer.send(record(fs, &braking, directories, now));
        return;
    };
    let stance = if fs.brake.is_engaged() { Stance::Refusing } else { Stance::Off };
    take(fs, &braking, stance);
    // Before the report, which tells of what was refused up to the end.
    take_in(fs, &braking);
    report(fs, &braking, change, fs.available_lately());
    let _ = ask.answer.send(record(fs, &braking, directories, now));
}

fn record(fs: &Filesystem, braking: &Braking, directories: Vec<String>, now: Monotonic) -> BrakeRecord {
    let decision = &fs.brake.decision;
    let seconds = |until: Monotonic| until.since(now).as_secs();
    let writers = fs.brake.episode.as_ref().map_or(&[][..], |episode| &episode.writers);
    let abilities: Vec<_> =
        fs.brake.keys.iter().filter_map(|(_, key)| braking.backend.ability(*key)).collect();
    BrakeRecord {
        filesystem: fs.label.as_str().to_owned(),
        directories,
        engaged: fs.brake.is_engaged(),
        reason: decision.engaged().map(|cause| cause.to_string()),
        since: fs.brake.episode.as_ref().map(|episode| episode.began),
        expires_in_seconds: decision.expires().map(seconds),
        inhibited_for_seconds: decision.inhibited_until(now).map(seconds),
        refused_calls: writers.iter().map(|writer| writer.calls).sum(),
        refused_bytes: writers.iter().map(|writer| writer.bytes).sum(),
        stops_writes: abilities.iter().map(|ability| ability.stops_writes).reduce(|all, one| all && one),
        problem: abilities.into_iter().find_map(|ability| ability.problem),
    }
}

/// What `top` shows of it; `None` where writes cannot be refused.
pub(super) fn snapshot(fs: &Filesystem) -> Option<BrakeSnapshot> {
    let braking = fs.shared.braking.as_ref()?;
    Some(BrakeSnapshot { mechanism: braking.backend.as_str().to_owned(), is_engaged: fs.brake.is_engaged() })
}

/// Lets the brake follow one look at the filesystem.
pub(super) fn follow(fs: &mut Filesystem, seen: &Observation) {
    let Some(braking) = fs.shared.braking.clone() else { return };
    let now = monotonic();
    let is_off = fs.config.brake == BrakeMode::Off || fs.shared.dry_run;
    let sight = Sight { seen, policy: &fs.thresholds, reclaim: fs.relief.reclaim() };
    let change = if is_off { fs.brake.decision.switch_off() } else { fs.brake.decision.observe(&sight, now) };
    apply(fs, &braking, seen, is_off);
    if let Some(change) = change {
        report(fs, &braking, change, seen.available);
    }
}

/// Says to the backend what holds now, and takes in what was refused.
fn apply(fs: &mut Filesystem, braking: &Braking, seen: &Observation, is_off: bool) {
    let is_ready = !is_off && is_near(fs.pressure.level(), seen, &fs.thresholds, fs.brake.largest);
    let stance = match fs.brake.decision.engaged() {
        Some(_) => Stance::Refusing,
        None if is_ready => Stance::Ready,
        None => Stance::Off,
    };
    let before = take(fs, braking, stance);
    if before == Stance::Refusing || stance == Stance::Refusing || !fs.brake.created.is_empty() {
        take_in(fs, braking);
    }
}

/// Says a stance to the backend; gives the one before.
fn take(fs: &mut Filesystem, braking: &Braking, stance: Stance) -> Stance {
    for (_, key) in &fs.brake.keys {
        braking.backend.set(*key, stance);
    }
    let before = std::mem::replace(&mut fs.brake.stance, stance);
    if before == Stance::Refusing && stance != before {
        for (_, key) in &fs.brake.keys {
            braking.backend.hear_out(*key);
        }
    }
    before
}

/// Counts what was refused, and clears away what that left.
fn take_in(fs: &mut Filesystem, braking: &Braking) {
    let since = fs.brake.episode.as_ref().map(|episode| episode.began - TICK_MAX);
    let mut created = std::mem::take(&mut fs.brake.created);
    for (index, key) in fs.brake.keys.clone() {
        let refusals = braking.backend.take_refusals(key);
        for writer in &refusals.writers {
            fs.shared.metrics.filesystem(&fs.label).refused(&writer.comm, writer.calls, Bytes(writer.bytes));
            if let Some(episode) = &mut fs.brake.episode {
                add_writer(&mut episode.writers, &writer.comm, writer.calls, writer.bytes);
            }
        }
        // Without an episode nobody knows since when a file may be one of ours: it stays.
        if let Some(since) = since {
            created.extend(refusals.created.into_iter().map(|created| (index, created, since)));
        }
    }
    for (index, it, since) in created {
        let directory = fs.path_of(index as u16).display().to_string();
        match fs.dirs[index].clear_refused(&it.name, it.file, since) {
            Ok(()) => {
                tracing::info!(directory, name = ?it.name, "cleared away the empty file of a refused creation");
                if let Some(episode) = &mut fs.brake.episode {
                    episode.cleared += 1;
                }
            }
            Err(Refused::Gone) => {}
            // Once more; the next event tells of it again.
            Err(Refused::InUse { .. }) if fs.brake.created.len() < CREATED_MAX => {
                fs.brake.created.push((index, it, since))
            }
            Err(refused) => tracing::debug!(directory, name = ?it.name, %refused, "the empty file stays"),
        }
    }
}

/// Files bear the time of the kernel's last tick, which is so long ago at most (`CONFIG_HZ=100`).
const TICK_MAX: SignedDuration = SignedDuration::from_millis(10);
/// So many empty files wait for their second look.
const CREATED_MAX: usize = 64;

fn report(fs: &mut Filesystem, braking: &Braking, change: Change, available: Bytes) {
    let (mode, filesystem) = (braking.backend.as_str(), fs.label.as_str());
    let (engaged, reason, episode) = match change {
        Change::Engage(cause) => {
            let began = wall();
            fs.brake.episode = Some(Episode { began, writers: Vec::new(), cleared: 0 });
            tracing::error!(filesystem, mode, %available, reason = %cause, "writers into the checkpoint directories are refused");
            (true, cause.to_string(), None)
        }
        Change::Release(ending) => {
            let episode = fs.brake.episode.take();
            let calls: u64 = episode.iter().flat_map(|it| &it.writers).map(|writer| writer.calls).sum();
            tracing::info!(filesystem, mode, %available, reason = %ending, calls, "writers are no longer refused");
            (false, ending.to_string(), episode)
        }
    };
    let writers = episode.as_ref().map_or(&[][..], |episode| &episode.writers);
    let refusals = episode.as_ref().map(|episode| Refusals {
        refused_calls: writers.iter().map(|writer| writer.calls).sum(),
        refused_bytes: writers.iter().map(|writer| writer.bytes).sum(),
        writers: writers.iter().map(|it| (it.comm.as_str(), it.calls, it.bytes).into()).collect(),
        cleared_files: episode.cleared,
    });
    fs.shared.record(&Event::Brake {
        directories: &fs.directory_names(),
        engaged,
        mode,
        reason: &reason,
        available_bytes: available.0,
        refusals,
    });
    fs.due_publish();
}
