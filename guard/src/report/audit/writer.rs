//! [`AuditWriter`]: the log behind a thread of its own, so that a filesystem that hangs or is frozen stops no deletion.
//!
//! All that is recorded goes through one queue, which keeps its order and with it the chain. An announcement is waited for,
//! because it should be written before the deletion; when that takes too long, nobody waits any more until the thread has
//! caught up, and each line goes to the process's log as well.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use super::{AuditLog, AuditSettings, Event, Recorded, deletion, ended, taken_up_again};
use crate::act::checkpoint_dir::Leftover;
use crate::act::journal::{Intent, Outcome};

/// How long an announcement is waited for. Writing it takes 20 µs; a disk that is busy makes it take milliseconds.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long the log may take to be opened, or to be searched. Reading all of five files of 16 MiB takes a tenth of it.
const OPEN_LIMIT: Duration = Duration::from_secs(2);
/// After a panic.
const PAUSE: Duration = Duration::from_secs(1);
/// So many lines wait at most, of a kilobyte each.
const QUEUE_MAX: usize = 1024;

/// The log, written by a thread.
#[derive(Debug)]
pub struct AuditWriter {
    path: PathBuf,
    now: fn() -> Timestamp,
    queue: SyncSender<Job>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    failures: Arc<AtomicU64>,
    panics: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// The highest id that was given to anything; `None` until the log was opened.
    last_id: Option<u64>,
    /// Lines in the queue.
    queued: usize,
    /// Those among them whose ids the log will give.
    unnumbered: u64,
    /// Nobody waits until all is written.
    hangs: bool,
}

#[derive(Debug)]
enum Job {
    Line { number: Arc<Mutex<Number>>, recorded: Recorded, reply: Option<SyncSender<u64>> },
    Flush(Duration, SyncSender<bool>),
}

/// Where a line has its id from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    /// The log gives it the next one.
    Next,
    /// The log is about to.
    Coming,
    /// This one.
    Given(u64),
}

impl State {
    /// An id that nothing in the queue will get.
    fn fresh(&mut self, now: Timestamp) -> u64 {
        // What the log would go on from is not known: far above it, so that none is used twice.
        let last = self.last_id.unwrap_or_else(|| now.as_microsecond().max(0).unsigned_abs());
        let id = last + self.unnumbered + 1;
        self.last_id = Some(id);
        id
    }
}

impl AuditWriter {
    /// Opens the log, as [`AuditLog::open`] does, in a thread that calls `begin` first. Waits for it, but not for long.
    pub fn open(settings: AuditSettings, now: fn() -> Timestamp, begin: fn()) -> AuditWriter {
        let (queue, inbox) = sync_channel(QUEUE_MAX);
        let shared = Arc::new(Shared::default());
        let path = settings.path.clone();
        let (of_thread, (opened, is_open)) = (shared.clone(), sync_channel(1));
        let spawned = std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
            begin();
            let work = || {
                let failures = of_thread.failures.clone();
                let mut log = AuditLog::open_counting(settings.clone(), now, failures);
                of_thread.state().note(log.tail.last_id);
                let _ = opened.try_send(());
                of_thread.serve(&inbox, &mut log);
            };
            // The line it was at is lost, and the log told by a panic's own message.
            while catch_unwind(AssertUnwindSafe(work)).is_err() {
                of_thread.failures.fetch_add(1, Ordering::Relaxed);
                of_thread.panics.fetch_add(1, Ordering::Relaxed);
                of_thread.state().done();
                std::thread::sleep(PAUSE);
            }
        });
        match spawned.map(|_| is_open.recv_timeout(OPEN_LIMIT)) {
            Ok(Ok(())) => {}
            Ok(Err(_)) => {
                tracing::error!(path = %path.display(), "the audit log cannot be opened yet: its filesystem does not answer");
                shared.state().hangs = true;
            }
            Err(error) => tracing::error!(%error, "no thread to write the audit log"),
        }
        AuditWriter { path, now, queue, shared }
    }

    /// Records `event`.
    pub fn record(&self, event: &Event<'_>) {
        self.submit(None, event, false);
    }

    /// Records what became of a deletion that a crash or a failure had interrupted.
    pub fn record_leftover(&self, directory: &Path, leftover: &Leftover) {
        self.submit(Some(leftover.id), &taken_up_again(directory, leftover), false);
    }

    /// Announces a deletion, and tells its id. Waits until the line is written, but not for long.
    pub fn intent(&self, intent: &Intent<'_>) -> u64 {
        self.submit(None, &deletion("intent", intent, (self.now)(), None), true)
    }

    /// Records how a deletion ended; see [`AuditLog::record_outcome`].
    pub fn record_outcome(&self, intent: &Intent<'_>, outcome: &Outcome, reaction: Option<Duration>) {
        self.submit(Some(outcome.id), &ended(intent, outcome, (self.now)(), reaction), false);
    }

    /// How many lines could not be written in time or at all, and how many times the disk refused to make them durable.
    pub fn failures(&self) -> u64 {
        self.shared.failures.load(Ordering::Relaxed)
    }

    /// How often the thread has panicked, and gone on.
    pub fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }

    /// Waits until everything is on the disk, for `limit` at most. False when it ran out.
    pub fn flush(&self, limit: Duration) -> bool {
        let (reply, answer) = sync_channel(1);
        self.queue.try_send(Job::Flush(limit, reply)).is_ok() && answer.recv_timeout(limit) == Ok(true)
    }

    /// See [`AuditLog::name_of`]. `None` as well when the log does not answer.
    pub fn name_of(&self, id: u64) -> Option<OsString> {
        if self.shared.state().hangs {
            return None;
        }
        let (reply, answer) = sync_channel(1);
        let path = self.path.clone();
        let look = move || drop(reply.send(super::name_of(&path, id)));
        std::thread::Builder::new().name("audit-name".to_owned()).spawn(look).ok()?;
        answer.recv_timeout(OPEN_LIMIT).ok()?
    }

    /// Has a line written under `id` or the next one; tells which. Without `waits` it tells only what it knows.
    fn submit(&self, id: Option<u64>, event: &Event<'_>, waits: bool) -> u64 {
        let now = (self.now)();
        let recorded = Recorded::new(now, event);
        let mut state = self.shared.state();
        let number = match id {
            Some(id) => Number::Given(id),
            None if state.hangs => Number::Given(state.fresh(now)),
            None => Number::Next,
        };
        state.unnumbered += u64::from(number == Number::Next);
        state.queued += 1;
        let hangs = state.hangs;
        drop(state);
        let (reply, answer) = sync_channel(1);
        let number = Arc::new(Mutex::new(number));
        let reply = (waits && !hangs).then_some(reply);
        let job = Job::Line { number: number.clone(), recorded: recorded.clone(), reply };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.queue.try_send(job) {
            let id = self.number(&number, now);
            self.shared.state().queued -= 1;
            self.say(&recorded, id, "the audit log takes no more lines; this one is lost to it");
            return id;
        }
        if hangs {
            let id = self.number(&number, now);
            self.say(
                &recorded,
                id,
                "the audit log's filesystem does not answer; the line comes late or never",
            );
            return id;
        }
        if !waits {
            return id.unwrap_or_default();
        }
        match answer.recv_timeout(PATIENCE) {
            Ok(id) => id,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                self.shared.state().hangs = true;
                let id = self.number(&number, now);
                self.say(
                    &recorded,
                    id,
                    "the audit log's filesystem does not answer; nothing waits for it from here on",
                );
                id
            }
        }
    }

    /// The id of a line that nobody waits for; from now on it has one.
    fn number(&self, number: &Mutex<Number>, now: Timestamp) -> u64 {
        let mut state = self.shared.state();
        let mut number = number.lock().unwrap_or_else(PoisonError::into_inner);
        match *number {
            Number::Given(id) => id,
            // Whatever was before it is written.
            Number::Coming => state.last_id.unwrap_or_default() + 1,
            Number::Next => {
                state.unnumbered -= 1;
                let id = state.fresh(now);
                *number = Number::Given(id);
                id
            }
        }
    }

    fn say(&self, recorded: &Recorded, id: u64, problem: &str) {
        self.shared.failures.fetch_add(1, Ordering::Relaxed);
        tracing::error!(path = %self.path.display(), line = recorded.line(id, ""), "{problem}");
    }
}

impl State {
    /// Takes note of the highest id in the log.
    fn note(&mut self, id: u64) {
        self.last_id = self.last_id.max(Some(id));
    }

    /// A line has been dealt with.
    fn done(&mut self) {
        self.queued = self.queued.saturating_sub(1);
        if self.queued == 0 && std::mem::take(&mut self.hangs) {
            tracing::info!("the audit log is written again");
        }
    }
}

impl Shared {
    /// Writes what comes, until nobody is left to send anything.
    fn serve(&self, inbox: &Receiver<Job>, log: &mut AuditLog) {
        for job in inbox {
            match job {
                Job::Line { number, recorded, reply } => {
                    let id = self.take(&number);
                    let id = log.write(id, &recorded);
                    let mut state = self.state();
                    state.note(log.tail.last_id);
                    state.done();
                    drop(state);
                    if let Some(reply) = reply {
                        // Err: it took too long.
                        let _ = reply.try_send(id);
                    }
                }
                Job::Flush(limit, reply) => {
                    let _ = reply.try_send(log.flush(limit));
                }
            }
        }
    }

    /// The id that a line has been given; `None`: the next one.
    fn take(&self, number: &Mutex<Number>) -> Option<u64> {
        let mut state = self.state();
        let mut number = number.lock().unwrap_or_else(PoisonError::into_inner);
        match *number {
            Number::Given(id) => Some(id),
            Number::Next | Number::Coming => {
                state.unnumbered -= 1;
                *number = Number::Coming;
                None
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
