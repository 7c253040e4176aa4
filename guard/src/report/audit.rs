//! The audit log: JSON lines (DESIGN, section 13), one for the intent and one for the outcome of each deletion,
//! and one for whatever else must be told afterwards.
//!
//! - A line is in the page cache (write(2)) before the deletion it announces, so it survives the death of the
//!   process, by whatever signal; it is on the disk (fsync(2), in a thread) some milliseconds later, so a power
//!   failure may lose the last lines. Deletions wait for neither.
//! - Its space is set aside beforehand, so that the full disk it tells of cannot silence it. Where that fails all
//!   the same, the line goes to stderr and is counted, and nothing else waits for it. Neither does the daemon wait for a
//!   filesystem that hangs ([`AuditWriter`]); the line comes late then, in its place.
//! - Ids grow and never repeat, across restarts and rotation: they continue from what the files say. A line that
//!   could not be written has used its id up.
//! - Each line holds the hash of the one before, through rotation and restarts, so that one that was changed, taken
//!   out or slipped in is found (`history --verify`), and so is a file that was taken away. Cutting off the end is only
//!   while the guard runs: compare with a copy elsewhere.
//! - Mode 0600; names, sizes and reasons, nothing from inside an archive (kubernetes#104907).

mod event;
mod file;
mod history;
mod sync;
mod writer;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;

use self::event::Recorded;
pub use self::event::{Deletion, DeletionOutcome, Event, Refusals, RefusedWriter};
use self::file::{LogFile, NO_LINE, Tail};
pub use self::history::{Broken, Entry, HistoryError, read, verify};
use self::sync::Syncer;
pub use self::writer::AuditWriter;
use crate::act::checkpoint_dir::Leftover;
use crate::act::journal::{Intent, Journal, Outcome};
use crate::model::Bytes;
use crate::report::record::CheckpointRecord;

/// Where the log lies and how much of it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// The current file; older ones are `<path>.1` (newest) to `<path>.<keep>`.
    pub path: PathBuf,
    /// A file of this size is rotated away. Set aside from the start.
    pub max_size: Bytes,
    /// How many older files are kept.
    pub keep: u32,
}

/// The open log.
#[derive(Debug)]
pub struct AuditLog {
    settings: AuditSettings,
    now: fn() -> Timestamp,
    file: Option<LogFile>,
    tail: Tail,
    /// The file that `tail` was last read from or written to, and how much of it.
    known: Option<(u64, u64)>,
    /// It could not be rotated away at this length; said.
    unrotated: Option<u64>,
    syncer: Syncer,
    /// Lines that could not be written, and times that the disk refused to make some durable.
    failures: Arc<AtomicU64>,
    /// Why the last line could not be written.
    problem: Option<String>,
}

impl AuditLog {
    /// Opens the log. Never fails, because nothing may depend on it: [`AuditLog::problem`] tells what is wrong, and
    /// opening is tried again with each line.
    pub fn open(settings: AuditSettings, now: fn() -> Timestamp) -> AuditLog {
        AuditLog::open_counting(settings, now, Arc::default())
    }

    fn open_counting(settings: AuditSettings, now: fn() -> Timestamp, failures: Arc<AtomicU64>) -> AuditLog {
        let tail = Tail { last_id: 0, hash: NO_LINE.to_owned() };
        let mut log = AuditLog {
            settings,
            now,
            file: None,
            tail,
            known: None,
            unrotated: None,
            syncer: Syncer::start(failures.clone()),
            failures,
            problem: None,
        };
        match log.lock() {
            Ok(file) => {
                file.unlock();
                log.file = Some(file);
            }
            Err(error) => log.fail(&error, None),
        }
        log
    }

    /// Why the last line could not be written; `None` when it was.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// How many lines could not be written, and how many times the disk refused to make them durable.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Records `event`, and tells its id.
    pub fn record(&mut self, event: &Event<'_>) -> u64 {
        self.write(None, &Recorded::new((self.now)(), event))
    }

    /// Records what became of a deletion that a crash or a failure had interrupted.
    pub fn record_leftover(&mut self, directory: &Path, leftover: &Leftover) {
        let event = taken_up_again(directory, leftover);
        self.write(Some(leftover.id), &Recorded::new((self.now)(), &event));
    }

    /// Records how a deletion ended. `reaction`: since the write that called for it, in the first one after a wake.
    pub fn record_outcome(&mut self, intent: &Intent<'_>, outcome: &Outcome, reaction: Option<Duration>) {
        let now = (self.now)();
        self.write(Some(outcome.id), &Recorded::new(now, &ended(intent, outcome, now, reaction)));
    }

    /// Waits until everything is on the disk, for `limit` at most. False when it ran out.
    pub fn flush(&self, limit: Duration) -> bool {
        self.syncer.flush(limit)
    }

    /// The name of the checkpoint whose deletion was announced under `id`; `None` when the log does not go back so
    /// far, or cannot express it.
    pub fn name_of(&self, id: u64) -> Option<OsString> {
        name_of(&self.settings.path, id)
    }

    /// Appends a line, under `id` or the next one.
    fn write(&mut self, id: Option<u64>, recorded: &Recorded) -> u64 {
        match self.try_write(id, recorded) {
            Ok(id) => {
                self.problem = None;
                id
            }
            Err(error) => {
                let id = id.unwrap_or_else(|| {
                    self.tail.last_id += 1;
                    self.tail.last_id
                });
                let line = recorded.line(id, &self.tail.hash);
                self.fail(&error, Some(&line));
                id
            }
        }
    }

    fn try_write(&mut self, id: Option<u64>, recorded: &Recorded) -> io::Result<u64> {
        let mut file = self.lock()?;
        let id = id.unwrap_or(self.tail.last_id + 1);
        let mut line = recorded.line(id, &self.tail.hash).into_bytes();
        let hash = file::hash_of(&line);
        line.push(b'\n');
        let appended = file.append(&line);
        file.unlock();
        if appended.is_ok() {
            self.tail = Tail { last_id: self.tail.last_id.max(id), hash };
            self.known = Some(file.stands_at());
            self.syncer.request(&file.file);
        }
        self.file = Some(file);
        appended.map(|()| id)
    }

    /// The current file, locked, read to its end, with room for another line and with its space set aside.
    fn lock(&mut self) -> io::Result<LogFile> {
        let AuditSettings { path, max_size, keep } = self.settings.clone();
        // Another guard may rotate it away between opening and locking it, but not again and again.
        for _ in 0..4 {
            let known = self.file.take();
            let is_new = known.is_none();
            let mut file = match known {
                Some(file) => file,
                None => {
                    self.take_older_tail(&path);
                    LogFile::open(&path)?
                }
            };
            if !file.lock(&path)? {
                continue;
            }
            if is_new && keep > 0 {
                file::finish_rotation(&path, keep);
            }
            file.read_on(&mut self.tail, keep == 0)?;
            self.known = Some(file.stands_at());
            let most = self.unrotated.map_or(max_size.0, |len| len.saturating_add(max_size.0));
            if file.len >= most {
                match file.rotate(&path, keep) {
                    Ok(()) => {
                        self.unrotated = None;
                        self.syncer.request(&file.file);
                        file.unlock();
                        if keep == 0 {
                            self.file = Some(file);
                        }
                        continue;
                    }
                    Err(error) => {
                        if self.unrotated.replace(file.len).is_none() {
                            let path = path.display();
                            tracing::error!(%path, %error, "cannot rotate the audit log; it grows beyond its max-size");
                        }
                    }
                }
            }
            file.reserve(max_size.0);
            return Ok(file);
        }
        Err(io::Error::other("it is being rotated all the time"))
    }

    /// Goes on from the newest older file, if the one we knew is among the older ones or if we know none. Else somebody has
    /// taken it away: the chain goes on from what we know, so that this is found.
    fn take_older_tail(&mut self, path: &Path) {
        let is_ours = match self.known {
            None => true,
            Some((inode, _)) => file::is_older(path, self.settings.keep, inode),
        };
        let newest = file::newest_older(path).filter(|it| is_ours && self.known != Some((it.inode, it.len)));
        if let Some(newest) = newest {
            let older = newest.tail();
            self.tail = Tail { last_id: self.tail.last_id.max(older.last_id), ..older };
        }
    }

    fn fail(&mut self, error: &io::Error, line: Option<&str>) {
        self.failures.fetch_add(u64::from(line.is_some()), Ordering::Relaxed);
        let path = self.settings.path.display();
        let line = line.unwrap_or_default();
        tracing::error!(%path, %error, line, "cannot write the audit log");
        self.problem = Some(format!("cannot write the audit log {path}: {error}"));
    }
}

impl Journal for AuditLog {
    fn intent(&mut self, intent: &Intent<'_>) -> u64 {
        let now = (self.now)();
        self.write(None, &Recorded::new(now, &deletion("intent", intent, now, None)))
    }

    fn outcome(&mut self, intent: &Intent<'_>, outcome: &Outcome) {
        self.record_outcome(intent, outcome, None);
    }
}

/// The name of the checkpoint whose deletion was announced under `id` in the log at `path`.
fn name_of(path: &Path, id: u64) -> Option<OsString> {
    let name = history::announced(path, id).ok()??;
    (!name.contains(char::REPLACEMENT_CHARACTER)).then(|| name.into())
}

/// What became of a deletion that a crash or a failure had interrupted.
fn taken_up_again(directory: &Path, leftover: &Leftover) -> Event<'static> {
    let error = leftover.outcome.as_ref().err();
    Event::Leftover {
        phase: "outcome",
        directory: directory.to_string_lossy().into_owned(),
        name: leftover.name.as_ref().map(|name| name.to_string_lossy().into_owned()),
        left_as: leftover.left_as.to_string_lossy().into_owned(),
        reason: "interrupted by a crash or a failure and taken up again",
        outcome: match error {
            None => "deleted",
            Some(refused) if refused.is_failure() => "failed",
            Some(_) => "spared",
        },
        error: error.map(ToString::to_string),
        freed_bytes: leftover.outcome.as_ref().map_or(0, |removed| removed.allocated.0),
    }
}

/// How a deletion ended. `reaction`: since the write that called for it, in the first one after a wake.
fn ended<'a>(
    intent: &'a Intent<'_>,
    outcome: &Outcome,
    now: Timestamp,
    reaction: Option<Duration>,
) -> Event<'a> {
    let reaction_micros = reaction.map(|it| u64::try_from(it.as_micros()).unwrap_or(u64::MAX));
    let details = DeletionOutcome { reaction_micros, ..outcome.into() };
    deletion("outcome", intent, now, Some(details))
}

fn deletion<'a>(
    phase: &'static str,
    intent: &'a Intent<'_>,
    now: Timestamp,
    outcome: Option<DeletionOutcome>,
) -> Event<'a> {
    Event::Deletion(Box::new(Deletion {
        phase,
        checkpoint: CheckpointRecord::new(intent.checkpoint, intent.directory, now, intent.protection, &[]),
        trigger: intent.trigger.to_string(),
        reason: &intent.reason,
        requested_by: intent.requested_by,
        outcome,
    }))
}

#[cfg(test)]
mod tests;
