//! [`Event`]: what the audit log records.

use jiff::Timestamp;
use serde::Serialize;

use crate::act::journal::Outcome;
use crate::model::{Holder, Level};
use crate::report::record::{API_VERSION, CheckpointRecord};

/// An event as it will stand in a line, which needs an id and the hash of the line before to be part of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    time: Timestamp,
    /// Its fields as JSON, without the braces.
    fields: String,
}

impl Recorded {
    pub(super) fn new(time: Timestamp, event: &Event<'_>) -> Recorded {
        let object = serde_json::to_string(event).expect("texts and numbers are JSON");
        let fields = object.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        Recorded { time, fields: fields.expect("an event has its kind").to_owned() }
    }

    /// The line, without its end. `prev`: SHA-256 of the line before, in hexadecimal; zeros in the first.
    pub(super) fn line(&self, id: u64, prev: &str) -> String {
        let Recorded { time, fields } = self;
        format!(r#"{{"apiVersion":"{API_VERSION}","id":{id},"time":"{time}",{fields},"prev":"{prev}"}}"#)
    }
}

/// What is recorded.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all_fields = "camelCase")]
pub enum Event<'a> {
    /// A deletion, before (`intent`) and after (`outcome`) it was tried. Both lines have the same `id`.
    Deletion(Box<Deletion<'a>>),
    /// A deletion that a crash or a failure had interrupted, taken up again: the outcome to an `intent` of old.
    #[serde(rename = "Deletion")]
    Leftover {
        /// Always `outcome`.
        phase: &'static str,
        /// Where it lies.
        directory: String,
        /// Its name before; `null` when the log does not go back so far.
        name: Option<String>,
        /// Its name since.
        left_as: String,
        /// A sentence.
        reason: &'static str,
        /// `deleted`, `spared`, `failed`.
        outcome: &'static str,
        /// Why not.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// By `st_blocks`.
        freed_bytes: u64,
    },
    /// A filesystem entered another level.
    Pressure {
        /// The watched directories on it.
        directories: &'a [String],
        /// The level it left.
        from: Level,
        /// The level it entered.
        to: Level,
        /// What was available then.
        available_bytes: u64,
    },
    /// Deleting everything that may be deleted is not enough. Once per episode.
    Unreachable {
        /// The watched directories on the filesystem.
        directories: &'a [String],
        /// What is missing to the target.
        needed_bytes: u64,
        /// What may be deleted.
        reclaimable_bytes: u64,
        /// A sentence, with what stands in the way.
        reason: &'a str,
    },
    /// Who has a checkpoint open that would have been deleted. Follows the outcome or the `Unreachable` that says so, as soon
    /// as it is known: some 100 ms later.
    InUse {
        /// The watched directory.
        directory: &'a str,
        /// The checkpoint's name.
        name: &'a str,
        /// Each process, with its pid as the guard sees it.
        holders: &'a [Holder],
        /// The same as a sentence.
        reason: &'a str,
    },
    /// Writes into the watched directories are refused, or no longer.
    Brake {
        /// The watched directories.
        directories: &'a [String],
        /// Whether they are refused now.
        engaged: bool,
        /// `lsm` or `fanotify`.
        mode: &'a str,
        /// A sentence.
        reason: &'a str,
        /// What was available then.
        available_bytes: u64,
        /// What was refused; only when they no longer are.
        #[serde(flatten)]
        refusals: Option<Refusals<'a>>,
    },
    /// The command before a deletion was run, or should have been. Before the `Deletion` that it is about.
    Command {
        /// The watched directory.
        directory: &'a str,
        /// The checkpoint's name.
        name: &'a str,
        /// `done`, `failed`, `timed-out`, `given-up`.
        outcome: &'static str,
        /// What went wrong, or why it was not run.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
        /// How long it took.
        took_millis: u64,
    },
    /// A round of deletions was posted, or could not be.
    Webhook {
        /// The server, without what may be a secret.
        server: &'a str,
        /// The `id` of the posted round.
        round: &'a str,
        /// `delivered`, `refused`, `dropped`.
        outcome: &'static str,
        /// The last answer, where it was not the right one.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
        /// How often it was tried.
        attempts: u32,
    },
    /// A configuration was taken up or turned down.
    Configuration {
        /// The file.
        path: &'a str,
        /// Whether it is in force now.
        accepted: bool,
        /// What is wrong with it, or a summary.
        reason: &'a str,
    },
    /// The guard has started.
    Start {
        /// Its version.
        version: &'a str,
        /// Its process.
        pid: u32,
        /// What it watches.
        directories: &'a [String],
        /// Whether it only decides and reports.
        dry_run: bool,
    },
    /// The guard ends, and knows it. A `Start` that follows no `Stop` follows a crash.
    Stop {
        /// Why.
        reason: &'a str,
    },
}

/// What was refused while the brake was engaged.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusals<'a> {
    /// Calls that failed: opening or creating for writing, writing, allocating.
    pub refused_calls: u64,
    /// What they would have written, as far as the kernel tells.
    pub refused_bytes: u64,
    /// By program; `others` are all beyond the first sixteen.
    pub writers: Vec<RefusedWriter<'a>>,
    /// Empty files that refused creations had left, and that were cleared away.
    pub cleared_files: u64,
}

/// One program that was refused.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedWriter<'a> {
    /// Its command name.
    pub comm: &'a str,
    /// Calls.
    pub calls: u64,
    /// Bytes.
    pub bytes: u64,
}

impl<'a> From<(&'a str, u64, u64)> for RefusedWriter<'a> {
    fn from((comm, calls, bytes): (&'a str, u64, u64)) -> RefusedWriter<'a> {
        RefusedWriter { comm, calls, bytes }
    }
}

impl From<&Outcome> for DeletionOutcome {
    fn from(outcome: &Outcome) -> DeletionOutcome {
        DeletionOutcome {
            outcome: outcome.label(),
            error: outcome.refused().map(ToString::to_string),
            freed_bytes: outcome.freed.bytes.0,
            available_before_bytes: outcome.before.available.0,
            available_after_bytes: outcome.after.map(|after| after.available.0),
            reaction_micros: None,
        }
    }
}

/// The fields of a `Deletion`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deletion<'a> {
    /// `intent` or `outcome`.
    pub phase: &'static str,
    /// The checkpoint.
    #[serde(flatten)]
    pub checkpoint: CheckpointRecord,
    /// `soft`, `hard`, `critical`, `retention:<rule>`, `orphan`, `manual`.
    pub trigger: String,
    /// Why this one.
    pub reason: &'a str,
    /// Who asked, when it was a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<&'a str>,
    /// Only in an outcome.
    #[serde(flatten)]
    pub outcome: Option<DeletionOutcome>,
}

/// What an outcome adds.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletionOutcome {
    /// `deleted`, `spared`, `gone`, `failed`.
    pub outcome: &'static str,
    /// Why it was not deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What the filesystem showed beyond before.
    pub freed_bytes: u64,
    /// What was available before.
    pub available_before_bytes: u64,
    /// What was available afterwards; `null` when the filesystem did not answer.
    pub available_after_bytes: Option<u64>,
    /// From the write that used the budget up to this name being gone, both by the kernel's monotonic clock: only in
    /// the first deletion after a wake, for nobody waited for the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reaction_micros: Option<u64>,
}
