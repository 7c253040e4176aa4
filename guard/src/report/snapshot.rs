//! [`Snapshot`]: what the daemon knows right now, as `top` shows it and the socket tells it. Stable like all records.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::{Bytes, Level, Monotonic};

/// Everything, at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// When it was taken.
    pub time: Timestamp,
    /// The daemon's version.
    pub version: String,
    /// The pool whose settings apply.
    pub pool: Option<String>,
    /// Nothing is deleted.
    pub dry_run: bool,
    /// What sees the writes.
    pub backend: String,
    /// Every watched filesystem, by its first directory.
    pub filesystems: Vec<FilesystemSnapshot>,
}

/// One filesystem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilesystemSnapshot {
    /// What it is called in metrics: its first directory.
    pub filesystem: String,
    /// The directories watched on it.
    pub directories: Vec<String>,
    /// When the guard looked at it. Older than a few seconds: it is busy deleting, or statfs(2) hangs.
    pub observed_at: Timestamp,
    /// Its level.
    pub level: Level,
    /// Its size.
    pub size_bytes: u64,
    /// What an unprivileged writer can still use.
    pub available_bytes: u64,
    /// `null` where it does not count inodes.
    pub inodes: Option<InodesSnapshot>,
    /// The thresholds in force, mildest first; a level without one is not here.
    pub thresholds: Vec<ThresholdSnapshot>,
    /// Bytes that can be written until the next threshold; `null` below all of them, or when there is none.
    pub headroom_bytes: Option<u64>,
    /// By how much available shrinks, whoever writes; smoothed.
    pub fill_bytes_per_second: u64,
    /// What is needed and nothing may be deleted for.
    pub unreclaimable_bytes: u64,
    /// How many checkpoints lie there.
    pub checkpoints: u64,
    /// What deleting all of them would free.
    pub checkpoint_bytes: u64,
    /// Available over the last five minutes.
    pub history: HistorySnapshot,
    /// Who writes into the watched directories of this node, whichever filesystem they lie on; `null` without eBPF.
    pub growth: Option<Growth>,
    /// What would be deleted next; `null` until it has been decided once.
    pub next: Option<NextVictims>,
    /// What was deleted lately, newest first.
    pub deletions: Vec<DeletionSnapshot>,
    /// `null` where writes cannot be refused.
    pub brake: Option<BrakeSnapshot>,
}

/// The inodes of a filesystem that counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InodesSnapshot {
    /// All.
    pub total: u64,
    /// What an unprivileged writer can still use.
    pub free: u64,
}

/// One threshold, in absolute numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThresholdSnapshot {
    /// The level that begins below it.
    pub level: Level,
    /// `null`: available does not count for this level.
    pub available_bytes: Option<u64>,
    /// `null`: free inodes do not count for this level.
    pub inodes_free: Option<u64>,
    /// When available falls below it if it goes on as now; 0 when it has, `null` when it does not look like it.
    pub seconds_until: Option<f64>,
}

/// Available over time, in steps of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistorySnapshot {
    /// The length of a step.
    pub step_seconds: u64,
    /// The least in each step, oldest first; 300 steps at most.
    pub available_bytes: Vec<u64>,
}

/// By the kernel's ledger, which is read every second; rates are smoothed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Growth {
    /// By the namespace of the checkpoint that is written, fastest first; `null` for what nobody could identify.
    pub namespaces: Vec<NamespaceGrowth>,
    /// By writer and owner, fastest first; 20 at most.
    pub writers: Vec<WriterGrowth>,
}

/// One namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceGrowth {
    /// Whose checkpoint is written.
    pub namespace: Option<String>,
    /// How fast.
    pub bytes_per_second: u64,
    /// All of it since it was first seen.
    pub bytes: u64,
}

/// One process writing for one owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WriterGrowth {
    /// The process, in the initial pid namespace.
    pub pid: u32,
    /// Its command name.
    pub comm: String,
    /// For whom it writes: the runtime writes the checkpoint of this container. `null` where not known.
    pub namespace: Option<String>,
    /// Its pod.
    pub pod: Option<String>,
    /// Its container.
    pub container: Option<String>,
    /// What says so: `checkpoint` (the file is one, or part of one), `path` (of a staging directory), `cgroup`, `nothing`.
    pub known_by: String,
    /// How fast.
    pub bytes_per_second: u64,
    /// All of it since it was first seen.
    pub bytes: u64,
}

/// What would be deleted next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NextVictims {
    /// At which level.
    pub level: Level,
    /// The level has not been reached: this is what happens when it is.
    pub is_forecast: bool,
    /// What has to be freed then.
    pub need_bytes: u64,
    /// What deleting all `victims` frees.
    pub frees_bytes: u64,
    /// What is missing even then.
    pub shortfall_bytes: u64,
    /// How many would be deleted.
    pub count: u64,
    /// The first 20 of them, in order; then as many of those held in reserve.
    pub victims: Vec<VictimSnapshot>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VictimSnapshot {
    /// Place in the order, from 1.
    pub rank: u64,
    /// Not needed if all goes well.
    pub is_reserve: bool,
    /// The checkpoint.
    #[serde(flatten)]
    pub of: Subject,
    /// How old it is.
    pub age_seconds: u64,
    /// What deleting it frees.
    pub size_bytes: u64,
    /// Why this one.
    pub reason: String,
}

/// A checkpoint and whose it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// The directory it lies in.
    pub directory: String,
    /// Its name there.
    pub name: String,
    /// `null` where not known; so with the next two.
    pub namespace: Option<String>,
    /// The pod.
    pub pod: Option<String>,
    /// The container; `null` for a pod checkpoint.
    pub container: Option<String>,
}

impl Subject {
    /// `namespace/pod/container`, with `?` for what is not known.
    pub fn owner(&self) -> String {
        let part = |part: &Option<String>, unknown: &str| part.clone().unwrap_or_else(|| unknown.to_owned());
        format!("{}/{}/{}", part(&self.namespace, "?"), part(&self.pod, "?"), part(&self.container, "-"))
    }
}

/// One deletion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletionSnapshot {
    /// When.
    pub time: Timestamp,
    /// The checkpoint.
    #[serde(flatten)]
    pub of: Subject,
    /// What it freed; in a dry run, what it would have.
    pub freed_bytes: u64,
    /// `soft`, `hard`, `critical`, `retention:<rule>`, `orphan`.
    pub trigger: String,
    /// Why this one.
    pub reason: String,
    /// It is still there.
    pub dry_run: bool,
}

/// Refusing writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BrakeSnapshot {
    /// By which means: `lsm`, `fanotify`.
    pub mechanism: String,
    /// Whether writers are being refused now.
    pub is_engaged: bool,
}

/// Available over the last minutes: fixed in size, a minimum per second.
#[derive(Clone, Debug, Default)]
pub struct History {
    steps: VecDeque<u64>,
    /// The least since the last step ended, and when this one ends.
    current: Option<(Bytes, Monotonic)>,
}

impl History {
    /// How long a step is.
    pub const STEP: Duration = Duration::from_secs(1);
    /// So many steps are kept.
    pub const STEPS: usize = 300;

    /// Takes note of what is available. Steps in which nobody looked get what was seen before.
    pub fn note(&mut self, available: Bytes, now: Monotonic) {
        let Some((least, end)) = self.current else {
            self.current = Some((available, Monotonic(now.0 + History::STEP)));
            return;
        };
        if now < end {
            self.current = Some((least.min(available), end));
            return;
        }
        let passed = 1 + (now.since(end).as_millis() / History::STEP.as_millis()) as usize;
        for _ in 0..passed.min(History::STEPS) {
            if self.steps.len() == History::STEPS {
                self.steps.pop_front();
            }
            self.steps.push_back(least.0);
        }
        let end = Monotonic(end.0 + History::STEP * u32::try_from(passed).unwrap_or(u32::MAX));
        self.current = Some((available, end));
    }

    /// The steps, and the one that has not ended yet as the newest.
    pub fn snapshot(&self) -> HistorySnapshot {
        let current = self.current.map(|(least, _)| least.0);
        let steps = self.steps.iter().copied().chain(current);
        let surplus = (self.steps.len() + 1).saturating_sub(History::STEPS);
        HistorySnapshot {
            step_seconds: History::STEP.as_secs(),
            available_bytes: steps.skip(surplus).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Monotonic {
        Monotonic(Duration::from_millis(milliseconds))
    }

    #[track_caller]
    fn check(looks: &[(u64, u64)], expect: &[u64]) {
        let mut history = History::default();
        for (millis, available) in looks {
            history.note(Bytes(*available), at(*millis));
        }
        assert_eq!(history.snapshot().available_bytes, expect, "{looks:?}");
    }

    #[test]
    fn each_step_shows_its_least_and_gaps_what_was_seen_before() {
        check(&[], &[]);
        check(&[(100, 9)], &[9]);
        check(&[(100, 9), (200, 3), (900, 7)], &[3]);
        check(&[(100, 9), (200, 3), (1200, 7)], &[3, 7]);
        check(&[(100, 9), (4200, 7)], &[9, 9, 9, 9, 7]);
    }

    #[test]
    fn it_never_grows_beyond_its_steps_even_after_a_night_of_sleep() {
        let mut history = History::default();
        for second in 0..1000 {
            history.note(Bytes(second), at(second * 1000));
        }
        let steps = history.snapshot().available_bytes;
        assert_eq!((steps.len(), steps.first(), steps.last()), (300, Some(&700), Some(&999)));
        history.note(Bytes(7), at(1_000_000_000));
        let steps = history.snapshot().available_bytes;
        assert_eq!((steps.len(), steps.first(), steps.last()), (300, Some(&999), Some(&7)));
    }
}
