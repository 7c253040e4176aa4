//! The brake of one filesystem: lets the backend follow what `decide` says, and reports what was refused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
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
use crate::decide::brake::{Change, Ending, Sight, is_near};
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
    /// The directories that it holds, by their place. While there is none, it is not engaged.
    keys: Vec<(usize, Key)>,
    /// The directories that it cannot hold, by their place, and why.
    unheld: BTreeMap<usize, String>,
    /// When holding them is tried again, while it matters.
    hold_again: Monotonic,
    /// Whether writers were refused when somebody looked last, and whether they should have been and were not.
    was: (bool, bool),
    /// It is time to refuse writers, and no directory is held.
    is_wanted_in_vain: bool,
    /// That nobody is refused though it is time, because no directory is held.
    has_said_unheld: bool,
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
    directories: Vec<String>,
    writers: Vec<RefusedWriter>,
    cleared: u64,
}

impl FilesystemBrake {
    /// Whether writers are to be refused.
    fn is_engaged(&self) -> bool {
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
    if let Some(nested) = fs.holds_nested(index) {
        hold(fs, &braking, index, nested);
    }
    remember(fs, &braking);
}

/// Lets those who ask know how it is, also when the loop hangs.
fn remember(fs: &Filesystem, braking: &Braking) {
    fs.shared.brakes.learn(&fs.label, record(fs, braking, monotonic()));
}

fn hold(fs: &mut Filesystem, braking: &Braking, index: usize, nested: bool) {
    let directory = fs.path_of(index as u16).display().to_string();
    match braking.backend.watch(std::os::fd::AsFd::as_fd(&fs.dirs[index]), nested) {
        Ok(key) => {
            braking.backend.set(key, fs.brake.stance);
            fs.brake.keys.push((index, key));
            fs.brake.has_said_unheld = false;
            if fs.brake.unheld.remove(&index).is_some() {
                tracing::info!(directory, "the brake holds it now");
            }
        }
        Err(error) => {
            let why = format!("{directory}: {error}");
            if fs.brake.unheld.insert(index, why.clone()) != Some(why) {
                tracing::error!(directory, %error, "no brake here");
            }
        }
    }
}

/// Tries those once more that could not be held, when writers there are to be refused soon.
fn hold_unheld(fs: &mut Filesystem, braking: &Braking, now: Monotonic) {
    let matters = fs.brake.stance != Stance::Off || fs.brake.is_wanted_in_vain;
    if fs.brake.unheld.is_empty() || !matters || now < fs.brake.hold_again {
        return;
    }
    fs.brake.hold_again = Monotonic(now.0 + HOLD_AGAIN);
    let unheld: Vec<usize> = fs.brake.unheld.keys().copied().collect();
    for index in unheld {
        if let Some(nested) = fs.holds_nested(index) {
            hold(fs, braking, index, nested);
        }
    }
}

/// Between two tries: each attaches programs or asks another process.
const HOLD_AGAIN: Duration = Duration::from_secs(1);

/// Why nobody can be refused here; `None` when somebody can.
fn why_unheld(fs: &Filesystem) -> Option<String> {
    const STAGING: &str =
        "the brake does not hold directories of layout = \"staging\", and there is no other";
    let is_unheld = fs.brake.keys.is_empty();
    is_unheld.then(|| a_problem(fs).filter(|_| may_hold(fs)).unwrap_or_else(|| STAGING.to_owned()))
}

/// Why one of the directories is not held.
fn a_problem(fs: &Filesystem) -> Option<String> {
    fs.brake.unheld.values().next().cloned()
}

/// Whether checkpoints lie in any of the directories.
fn may_hold(fs: &Filesystem) -> bool {
    (0..fs.dirs.len()).any(|index| fs.holds_nested(index).is_some())
}

/// Lets go of it.
pub(super) fn let_go(fs: &mut Filesystem, index: usize) {
    let Some(braking) = fs.shared.braking.clone() else { return };
    // What it has refused is told before nobody can be asked any more.
    if fs.brake.keys.iter().all(|(place, _)| *place == index) {
        finish(fs, &braking, Ending::Unheld);
    } else {
        take_in(fs, &braking);
    }
    fs.brake.unheld.remove(&index);
    for (_, key) in fs.brake.keys.extract_if(.., |(place, _)| *place == index) {
        braking.backend.forget(key);
    }
    remember(fs, &braking);
}

/// Releases it, if it is engaged: nobody can be refused any more.
fn finish(fs: &mut Filesystem, braking: &Braking, ending: Ending) {
    let Some(change) = fs.brake.decision.end(ending) else { return };
    take(fs, braking, Stance::Off);
    take_in(fs, braking);
    report(fs, braking, change, fs.available_lately());
}

/// Lets go of everything; the loop ends.
pub(super) fn end(fs: &mut Filesystem) {
    if let Some(braking) = fs.shared.braking.clone() {
        let is_stopped = fs.shared.stop.load(Ordering::Relaxed);
        finish(fs, &braking, if is_stopped { Ending::Stopped } else { Ending::Unheld });
    }
    for index in 0..fs.dirs.len() {
        let_go(fs, index);
    }
}

/// How to speak to a loop: messages, and the bell to ring after each.
#[derive(Debug)]
struct Line {
    messages: Sender<Message>,
    bell: Arc<EventFd>,
    /// What is known of its brake, for when it does not answer.
    known: BrakeRecord,
}

/// The loops, for those who ask about their brakes.
#[derive(Debug, Default)]
pub(super) struct Brakes(Mutex<BTreeMap<FilesystemLabel, Line>>);

impl Brakes {
    pub(super) fn enter(&self, label: &FilesystemLabel, messages: Sender<Message>, bell: Arc<EventFd>) {
        let known = BrakeRecord { filesystem: label.as_str().to_owned(), ..BrakeRecord::default() };
        self.lock().insert(label.clone(), Line { messages, bell, known });
    }

    pub(super) fn leave(&self, label: &FilesystemLabel) {
        self.lock().remove(label);
    }

    /// How the brake of a loop is now.
    fn learn(&self, label: &FilesystemLabel, known: BrakeRecord) {
        if let Some(line) = self.lock().get_mut(label) {
            line.known = known;
        }
    }

    /// Puts a wish to those loops that are meant; the result is their answers to come.
    fn put(&self, filesystem: Option<&String>, wish: Wish) -> Vec<Asked> {
        let mut asked = Vec::new();
        for line in self.lock().values().filter(|line| is_meant(filesystem, &line.known)) {
            let (answer, answered) = oneshot::channel();
            let ask = Ask { filesystem: filesystem.cloned(), wish, answer };
            if line.messages.send(Message::Brake(ask)).is_ok() {
                let _ = line.bell.write(1);
                asked.push(Asked { known: line.known.clone(), answered });
            }
        }
        asked
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<FilesystemLabel, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a wish concerns this filesystem: its name is told, or one of its directories, or none at all.
fn is_meant(filesystem: Option<&String>, it: &BrakeRecord) -> bool {
    filesystem.is_none_or(|name| *name == it.filesystem || it.directories.contains(name))
}

/// A loop that was asked.
#[derive(Debug)]
struct Asked {
    known: BrakeRecord,
    answered: oneshot::Receiver<BrakeRecord>,
}

/// Waits for each of them by itself, until `limit` is over; for those that do not answer until then, what is known.
async fn gather(asked: Vec<Asked>, wish: Wish, limit: Duration) -> Vec<BrakeRecord> {
    let until = tokio::time::Instant::now() + limit;
    let mut items = Vec::new();
    for Asked { known, answered } in asked {
        match tokio::time::timeout_at(until, answered).await {
            Ok(Ok(item)) => items.push(item),
            // It is not meant after all, or its loop has ended.
            Ok(Err(_)) => {}
            Err(_) => {
                let then = match wish {
                    Wish::Tell => "",
                    Wish::Engage(_) => "it was not engaged; ",
                    Wish::Release(_) => "it is released as soon as it does; ",
                };
                let problem =
                    format!("its loop does not answer (does its disk?); {then}this is what was known before");
                items.push(BrakeRecord { problem: Some(problem), ..known });
            }
        }
    }
    items
}

/// A loop that answers does so within milliseconds, or [`IN_FORCE_MAX`], or a round of deletions.
const ANSWER_MAX: Duration = Duration::from_secs(5);

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
    let items = gather(shared.brakes.put(filesystem.as_ref(), wish), wish, ANSWER_MAX).await;
    match filesystem {
        Some(filesystem) if items.is_empty() => {
            refuse(format!("{filesystem:?} is none of the watched directories; `brake status` lists them"))
        }
        None if items.is_empty() && matches!(wish, Wish::Engage(_)) => refuse(
            "none of the watched directories is one that the brake holds (layout = \"staging\" is not)"
                .to_owned(),
        ),
        _ => Reply::Brake { mode: braking.backend.as_str().to_owned(), items },
    }
}

/// Does what somebody wants, at once: a filesystem that cannot be measured just now must not keep the brake engaged.
pub(super) fn obey(fs: &mut Filesystem, ask: Ask) {
    let Some(braking) = fs.shared.braking.clone() else { return };
    let now = monotonic();
    // The directories may have changed meanwhile.
    if !is_meant(ask.filesystem.as_ref(), &record(fs, &braking, now)) {
        return;
    }
    // Nobody waits any more, and was told that it is not engaged.
    if matches!(ask.wish, Wish::Engage(_)) && ask.answer.is_closed() {
        return;
    }
    let change = match ask.wish {
        // Nobody meant those where no checkpoints lie.
        Wish::Engage(_) | Wish::Release(_) if ask.filesystem.is_none() && !may_hold(fs) => return,
        Wish::Tell => None,
        Wish::Engage(_) if fs.brake.keys.is_empty() => None,
        Wish::Engage(time) => fs.brake.decision.engage(time, now),
        Wish::Release(inhibited) => fs.brake.decision.release(inhibited, now),
    };
    let Some(change) = change else {
        take_in(fs, &braking);
        let _ = ask.answer.send(record(fs, &braking, now));
        return;
    };
    let stance = if fs.brake.is_engaged() { Stance::Refusing } else { Stance::Off };
    take(fs, &braking, stance);
    if stance == Stance::Refusing {
        wait_until_in_force(fs, &braking);
    }
    // Before the report, which tells of what was refused up to the end.
    take_in(fs, &braking);
    report(fs, &braking, change, fs.available_lately());
    let _ = ask.answer.send(record(fs, &braking, now));
}

fn record(fs: &Filesystem, braking: &Braking, now: Monotonic) -> BrakeRecord {
    let decision = &fs.brake.decision;
    let seconds = |until: Monotonic| until.since(now).as_secs();
    let writers = fs.brake.episode.as_ref().map_or(&[][..], |episode| &episode.writers);
    let abilities: Vec<_> =
        fs.brake.keys.iter().filter_map(|(_, key)| braking.backend.ability(*key)).collect();
    BrakeRecord {
        filesystem: fs.label.as_str().to_owned(),
        directories: fs.directory_names(),
        engaged: is_refusing(fs),
        reason: decision.engaged().map(|cause| cause.to_string()),
        since: fs.brake.episode.as_ref().map(|episode| episode.began),
        expires_in_seconds: decision.expires().map(seconds),
        inhibited_for_seconds: decision.inhibited_until(now).map(seconds),
        refused_calls: writers.iter().map(|writer| writer.calls).sum(),
        refused_bytes: writers.iter().map(|writer| writer.bytes).sum(),
        stops_writes: abilities.iter().map(|ability| ability.stops_writes).reduce(|all, one| all && one),
        problem: why_unheld(fs)
            .or_else(|| a_problem(fs))
            .or_else(|| fs.brake.keys.iter().find_map(|(_, key)| braking.backend.problem(*key))),
    }
}

/// What `top` shows of it; `None` where writes cannot be refused.
pub(super) fn snapshot(fs: &Filesystem) -> Option<BrakeSnapshot> {
    let braking = fs.shared.braking.as_ref()?;
    Some(BrakeSnapshot { mechanism: braking.backend.as_str().to_owned(), is_engaged: is_refusing(fs) })
}

/// Whether writers are refused just now: the decision, and that it is in force.
pub(super) fn is_refusing(fs: &Filesystem) -> bool {
    let Some(braking) = &fs.shared.braking else { return false };
    fs.brake.is_engaged() && fs.brake.keys.iter().any(|(_, key)| braking.backend.is_refusing(*key))
}

/// Whether writers should be refused just now, and are not, in one of the directories at least.
pub(super) fn is_failing(fs: &Filesystem) -> bool {
    let Some(braking) = &fs.shared.braking else { return false };
    let passes = |(_, key): &(usize, Key)| !braking.backend.is_refusing(*key);
    let somebody_passes = || !fs.brake.unheld.is_empty() || fs.brake.keys.iter().any(passes);
    fs.brake.is_wanted_in_vain || fs.brake.is_engaged() && somebody_passes()
}

/// Waits, for a while at most, until what was said last is in force everywhere.
fn wait_until_in_force(fs: &Filesystem, braking: &Braking) {
    let until = Monotonic(monotonic().0 + IN_FORCE_MAX);
    let is_in_force = |(_, key): &(usize, Key)| braking.backend.is_in_force(*key);
    while !fs.brake.keys.iter().all(is_in_force) && monotonic() < until {
        std::thread::sleep(LOOK);
    }
}

/// An operator waits so long for what he wants; setting the marks takes milliseconds, and some hundred on a busy machine.
const IN_FORCE_MAX: Duration = Duration::from_secs(2);
/// How long between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// Lets the brake follow one look at the filesystem.
pub(super) fn follow(fs: &mut Filesystem, seen: &Observation) {
    let Some(braking) = fs.shared.braking.clone() else { return };
    let now = monotonic();
    let is_off = fs.config.brake == BrakeMode::Off || fs.shared.dry_run;
    if !is_off {
        hold_unheld(fs, &braking, now);
    }
    let sight = Sight { seen, policy: &fs.thresholds, reclaim: fs.relief.reclaim() };
    fs.brake.is_wanted_in_vain = false;
    let change = match fs.brake.decision.clone().observe(&sight, now) {
        _ if is_off => fs.brake.decision.switch_off(),
        Some(Change::Engage(cause)) if fs.brake.keys.is_empty() => {
            fs.brake.is_wanted_in_vain = true;
            if !std::mem::replace(&mut fs.brake.has_said_unheld, true) {
                let (filesystem, problem) = (fs.label.as_str(), why_unheld(fs));
                tracing::error!(filesystem, reason = %cause, problem, "writers would be refused, and cannot be");
            }
            None
        }
        _ => fs.brake.decision.observe(&sight, now),
    };
    apply(fs, &braking, seen, is_off);
    let is = (is_refusing(fs), is_failing(fs));
    if std::mem::replace(&mut fs.brake.was, is) != is {
        fs.due_publish();
    }
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
/// So many empty files wait for their second look, about 1 MiB.
const CREATED_MAX: usize = 4096;

fn report(fs: &mut Filesystem, braking: &Braking, change: Change, available: Bytes) {
    let (mode, filesystem) = (braking.backend.as_str(), fs.label.as_str());
    let (engaged, reason, episode) = match change {
        Change::Engage(cause) => {
            let began = wall();
            let directories = fs.directory_names();
            fs.brake.episode = Some(Episode { began, directories, writers: Vec::new(), cleared: 0 });
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
    // At the end it may have none any more.
    let directories = episode.as_ref().map_or_else(|| fs.directory_names(), |it| it.directories.clone());
    fs.shared.record(&Event::Brake {
        directories: &directories,
        engaged,
        mode,
        reason: &reason,
        available_bytes: available.0,
        refusals,
    });
    remember(fs, braking);
    fs.due_publish();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(filesystem: &str) -> BrakeRecord {
        let directories = vec![format!("{filesystem}/checkpoints")];
        BrakeRecord { filesystem: filesystem.to_owned(), directories, ..BrakeRecord::default() }
    }

    #[test]
    fn a_loop_that_hangs_keeps_nobody_elses_answer_back() {
        let (hangs, hanging) = oneshot::channel();
        let (ends, ended) = oneshot::channel();
        let (answers, answering) = oneshot::channel();
        drop(ends);
        answers.send(BrakeRecord { engaged: true, ..known("/b") }).unwrap();
        let asked = [("/a", hanging), ("/c", ended), ("/b", answering)];
        let asked = asked.map(|(name, answered)| Asked { known: known(name), answered });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let gathered = gather(asked.into(), Wish::Release(Duration::ZERO), Duration::from_millis(20));
        let items = runtime.block_on(gathered);
        let told: Vec<_> = items.iter().map(|it| (it.filesystem.as_str(), it.engaged)).collect();
        assert_eq!(told, [("/a", false), ("/b", true)]);
        assert!(items[0].problem.as_ref().unwrap().contains("does not answer"), "{items:?}");
        assert_eq!(items[1].problem, None);
        assert!(hangs.is_closed(), "it can tell that nobody waits any more");
    }

    #[test]
    fn only_those_that_are_meant_are_asked() {
        let brakes = Brakes::default();
        let mut inboxes = Vec::new();
        for name in ["/a", "/b"] {
            let (messages, inbox) = std::sync::mpsc::channel();
            let label = FilesystemLabel::new(std::path::Path::new(name));
            brakes.enter(&label, messages, Arc::new(EventFd::new().unwrap()));
            brakes.learn(&label, known(name));
            inboxes.push(inbox);
        }
        let told = |filesystem: Option<&str>| {
            let filesystem = filesystem.map(str::to_owned);
            drop(brakes.put(filesystem.as_ref(), Wish::Tell));
            inboxes.iter().map(|inbox| inbox.try_iter().count()).collect::<Vec<_>>()
        };
        assert_eq!(told(Some("/b/checkpoints")), [0, 1]);
        assert_eq!(told(Some("/a")), [1, 0]);
        assert_eq!(told(Some("/c")), [0, 0]);
        assert_eq!(told(None), [1, 1]);
    }
}
