//! One filesystem: how full it is, how bad that is, how soon it will be worse.

use std::time::Duration;

use jiff::Timestamp;
use prometheus::{GaugeVec, IntCounterVec};

use super::agent::unix_seconds;
use super::families::Families;
use super::labels::{
    FILESYSTEM, FilesystemLabel, LEVEL, THRESHOLD, THRESHOLD_LEVELS, WRITER, WRITERS, writer_of,
};
use crate::model::{Bytes, Level, Need, Observation, PressurePolicy, Signal};

/// What one turn of the loop knows of a filesystem.
#[derive(Clone, Copy, Debug)]
pub struct FilesystemState<'a> {
    /// The look at it.
    pub observation: &'a Observation,
    /// When that look was taken.
    pub observed: Timestamp,
    /// Its level.
    pub level: Level,
    /// The thresholds in force.
    pub policy: &'a PressurePolicy,
    /// How much more can be written until the next threshold.
    pub headroom: Need,
    /// By how many bytes a second `available` shrinks; negative while it grows.
    pub fill_rate: f64,
    /// When the soft, hard and critical thresholds are reached at that rate; `None` is never.
    pub time_to: [Option<Duration>; 3],
    /// What is missing to the target and no deletion may free.
    pub unreclaimable: Need,
    /// Whether writers are being refused.
    pub brake: bool,
    /// Writers should be refused, and are not.
    pub brake_failing: bool,
}

/// The families of all filesystems.
#[derive(Debug)]
pub(super) struct FilesystemFamilies {
    size: GaugeVec,
    available: GaugeVec,
    inodes: GaugeVec,
    inodes_free: GaugeVec,
    observed: GaugeVec,
    level: GaugeVec,
    threshold_bytes: GaugeVec,
    threshold_inodes: GaugeVec,
    headroom_bytes: GaugeVec,
    headroom_inodes: GaugeVec,
    time_to_threshold: GaugeVec,
    fill_rate: GaugeVec,
    unreclaimable_bytes: GaugeVec,
    unreclaimable_inodes: GaugeVec,
    brake: GaugeVec,
    brake_failing: GaugeVec,
    refused_calls: IntCounterVec,
    refused_bytes: IntCounterVec,
    unencrypted: GaugeVec,
    written: IntCounterVec,
}

impl FilesystemFamilies {
    pub(super) fn declare(families: &mut Families) -> FilesystemFamilies {
        FilesystemFamilies {
            size: families.gauge_by(
                "checkpoint_guard_filesystem_size_bytes",
                &[FILESYSTEM],
                "Size of the filesystem, as the kubelet counts it (f_blocks * f_frsize).",
            ),
            available: families.gauge_by(
                "checkpoint_guard_filesystem_available_bytes",
                &[FILESYSTEM],
                "What an unprivileged writer can still use (f_bavail * f_frsize); root's reserve is not in it.",
            ),
            inodes: families.gauge_by(
                "checkpoint_guard_filesystem_inodes",
                &[FILESYSTEM],
                "Inodes of the filesystem; absent where it does not count them (btrfs).",
            ),
            inodes_free: families.gauge_by(
                "checkpoint_guard_filesystem_inodes_free",
                &[FILESYSTEM],
                "Inodes an unprivileged writer can still use; absent where the filesystem does not count them.",
            ),
            observed: families.gauge_by(
                "checkpoint_guard_filesystem_observed_timestamp_seconds",
                &[FILESYSTEM],
                "When the guard last looked at the filesystem (Unix time). Old: the loop hangs, or statfs does.",
            ),
            level: families.gauge_by(
                "checkpoint_guard_level",
                &[FILESYSTEM, LEVEL],
                "1 for the level the filesystem is at, 0 for the others.",
            ),
            threshold_bytes: families.gauge_by(
                "checkpoint_guard_threshold_bytes",
                &[FILESYSTEM, THRESHOLD],
                "The level begins when available is below this; percentages are resolved for this filesystem.",
            ),
            threshold_inodes: families.gauge_by(
                "checkpoint_guard_threshold_inodes",
                &[FILESYSTEM, THRESHOLD],
                "The level begins when the free inodes are below this.",
            ),
            headroom_bytes: families.gauge_by(
                "checkpoint_guard_headroom_bytes",
                &[FILESYSTEM],
                "Bytes that can be written until the next threshold; 0 below the last one.",
            ),
            headroom_inodes: families.gauge_by(
                "checkpoint_guard_headroom_inodes",
                &[FILESYSTEM],
                "Inodes that can be used until the next threshold; absent where they are not counted.",
            ),
            time_to_threshold: families.gauge_by(
                "checkpoint_guard_time_to_threshold_seconds",
                &[FILESYSTEM, THRESHOLD],
                "When available falls below the threshold if it goes on as now; +Inf when it is not shrinking.",
            ),
            fill_rate: families.gauge_by(
                "checkpoint_guard_fill_rate_bytes_per_second",
                &[FILESYSTEM],
                "By how much available shrinks per second, whoever writes; negative while it grows.",
            ),
            unreclaimable_bytes: families.gauge_by(
                "checkpoint_guard_unreclaimable_bytes",
                &[FILESYSTEM],
                "Missing to the reclaim target, and no deletion may free it: the rest is pinned, protected, in use \
                 or not checkpoints at all.",
            ),
            unreclaimable_inodes: families.gauge_by(
                "checkpoint_guard_unreclaimable_inodes",
                &[FILESYSTEM],
                "Inodes missing to the reclaim target that no deletion may free.",
            ),
            brake: families.gauge_by(
                "checkpoint_guard_brake_engaged",
                &[FILESYSTEM],
                "1 while writers into the checkpoint directories get ENOSPC; new checkpoints fail.",
            ),
            brake_failing: families.gauge_by(
                "checkpoint_guard_brake_failing",
                &[FILESYSTEM],
                "1 while writers should be refused and are not, in one of the directories at least; the last column of \
                 checkpoint-guard brake status says why.",
            ),
            refused_calls: families.counter_by(
                "checkpoint_guard_brake_refused_calls_total",
                &[FILESYSTEM, WRITER],
                "Calls that the brake let fail: opening, creating, writing, allocating; by the kind of program.",
            ),
            refused_bytes: families.counter_by(
                "checkpoint_guard_brake_refused_bytes_total",
                &[FILESYSTEM, WRITER],
                "What these calls would have written, as far as the kernel tells; who tries again is counted again.",
            ),
            unencrypted: families.gauge_by(
                "checkpoint_guard_unencrypted_directories",
                &[FILESYSTEM],
                "Checkpoint directories that nothing seen from here encrypts (dm-crypt, fscrypt); they hold the memory of \
                 containers, and deleting does not erase it. checkpoint-guard doctor says which device.",
            ),
            written: families.counter_by(
                "checkpoint_guard_written_bytes_total",
                &[FILESYSTEM],
                "Bytes written into the checkpoint directories, as the kernel hooks count them; 0 without eBPF.",
            ),
        }
    }

    /// Takes over what one turn of the loop knows.
    pub(super) fn set(&self, filesystem: &FilesystemLabel, state: &FilesystemState<'_>) {
        let name = filesystem.as_str();
        let set = |family: &GaugeVec, value: f64| family.with_label_values(&[name]).set(value);
        set(&self.size, state.observation.capacity.0 as f64);
        set(&self.available, state.observation.available.0 as f64);
        set(&self.observed, unix_seconds(state.observed));
        set(&self.headroom_bytes, state.headroom.bytes.0 as f64);
        set(&self.fill_rate, state.fill_rate);
        set(&self.unreclaimable_bytes, state.unreclaimable.bytes.0 as f64);
        set(&self.unreclaimable_inodes, state.unreclaimable.inodes as f64);
        set(&self.brake, f64::from(u8::from(state.brake)));
        set(&self.brake_failing, f64::from(u8::from(state.brake_failing)));
        let inodes = state.observation.inodes;
        set_or_remove(&self.inodes, &[name], inodes.map(|inodes| inodes.total as f64));
        set_or_remove(&self.inodes_free, &[name], inodes.map(|inodes| inodes.free as f64));
        set_or_remove(&self.headroom_inodes, &[name], inodes.map(|_| state.headroom.inodes as f64));
        for level in Level::ALL {
            let is_current = f64::from(u8::from(level == state.level));
            self.level.with_label_values(&[name, level.as_str()]).set(is_current);
        }
        for (level, time_to) in THRESHOLD_LEVELS.into_iter().zip(state.time_to) {
            let labels = [name, level.as_str()];
            let value = |signal| resolved(state.policy, level, signal, state.observation);
            let available = value(Signal::Available);
            set_or_remove(&self.threshold_bytes, &labels, available);
            set_or_remove(&self.threshold_inodes, &labels, value(Signal::InodesFree));
            let seconds = time_to.map_or(f64::INFINITY, |time| time.as_secs_f64());
            set_or_remove(&self.time_to_threshold, &labels, available.map(|_| seconds));
        }
        // Zero until the first byte, so that the first byte is an increase.
        self.written.with_label_values(&[name]);
    }

    /// So many of its directories are not encrypted, as far as can be seen.
    pub(super) fn unencrypted(&self, filesystem: &FilesystemLabel, directories: usize) {
        self.unencrypted.with_label_values(&[filesystem.as_str()]).set(directories as f64);
    }

    pub(super) fn written(&self, filesystem: &FilesystemLabel, bytes: Bytes) {
        self.written.with_label_values(&[filesystem.as_str()]).inc_by(bytes.0);
    }

    /// Starts the brake's counters at zero, so that the first refusal is an increase.
    pub(super) fn begin(&self, filesystem: &FilesystemLabel) {
        for writer in WRITERS {
            for family in [&self.refused_calls, &self.refused_bytes] {
                family.with_label_values(&[filesystem.as_str(), writer]);
            }
        }
    }

    pub(super) fn refused(&self, filesystem: &FilesystemLabel, comm: &str, calls: u64, bytes: Bytes) {
        let labels = [filesystem.as_str(), writer_of(comm)];
        self.refused_calls.with_label_values(&labels).inc_by(calls);
        self.refused_bytes.with_label_values(&labels).inc_by(bytes.0);
    }

    /// Drops every series of a filesystem that is no longer watched.
    pub(super) fn forget(&self, filesystem: &FilesystemLabel) {
        let name = filesystem.as_str();
        let one_each = [
            &self.size,
            &self.available,
            &self.inodes,
            &self.inodes_free,
            &self.observed,
            &self.headroom_bytes,
            &self.headroom_inodes,
            &self.fill_rate,
            &self.unreclaimable_bytes,
            &self.unreclaimable_inodes,
            &self.brake,
            &self.brake_failing,
            &self.unencrypted,
        ];
        one_each.into_iter().for_each(|family| set_or_remove(family, &[name], None));
        for level in Level::ALL {
            for family in
                [&self.level, &self.threshold_bytes, &self.threshold_inodes, &self.time_to_threshold]
            {
                set_or_remove(family, &[name, level.as_str()], None);
            }
        }
        for writer in WRITERS {
            for family in [&self.refused_calls, &self.refused_bytes] {
                let _ = family.remove_label_values(&[name, writer]);
            }
        }
        // Err: there was no such series, which is what is wanted.
        let _ = self.written.remove_label_values(&[name]);
    }
}

/// A threshold in absolute numbers; `None` when the level or the signal has none.
fn resolved(policy: &PressurePolicy, level: Level, signal: Signal, seen: &Observation) -> Option<f64> {
    let amount = policy.threshold(level)?.amount(signal)?;
    Some(amount.resolve(seen.total(signal)?) as f64)
}

/// A series that does not apply is absent, not zero: zero inodes free would be an alarm.
fn set_or_remove(family: &GaugeVec, labels: &[&str], value: Option<f64>) {
    match value {
        Some(value) => family.with_label_values(labels).set(value),
        // Err: there was no such series, which is what is wanted.
        None => drop(family.remove_label_values(labels)),
    }
}
