//! Being ahead of the kubelet: whether our thresholds act before its own, and deriving ours from them.

use super::kubelet::{KubeletThreshold, KubeletThresholds};
use super::kubernetes_quantity::in_our_notation;
use super::problem::Problem;
use super::thresholds::key;
use crate::model::{Amount, Bytes, Level, Percent, PressurePolicy, Quantity, Signal};

/// Write speed that margins are derived from until one is measured: what a SATA SSD takes.
pub const ASSUMED_WRITE_SPEED: Bytes = Bytes(500_000_000);

/// How far ahead of the kubelet an `auto` threshold of a level lies.
struct Margin {
    /// So many seconds of writing at full speed…
    seconds: u64,
    /// …but no less than this many per cent of the filesystem…
    percent_min: u64,
    /// …and no more than this many: a fast writer on a small disk must not mean permanent pressure.
    percent_max: u64,
}

/// The kubelet looks every 10 s (monitoringInterval, pkg/kubelet/eviction/eviction_manager.go): hard must be
/// crossed one such interval before its threshold is, soft long enough before to be gentle, critical just before.
const fn margin(level: Level) -> Margin {
    match level {
        Level::Normal | Level::Soft => Margin { seconds: 30, percent_min: 10, percent_max: 25 },
        Level::Hard => Margin { seconds: 10, percent_min: 5, percent_max: 15 },
        Level::Critical => Margin { seconds: 2, percent_min: 1, percent_max: 5 },
    }
}

/// The thresholds `auto`, on a filesystem of `capacity` bytes and `inodes`, filled into `pressure`.
///
/// `kubelet's value + clamp(seconds × write_speed, percent_min, percent_max)`, per level as docs/CONFIGURATION.md lists them; for
/// inodes, which have no speed, `percent_min`. `write_speed` is in bytes per second: the most that was measured,
/// else [`ASSUMED_WRITE_SPEED`].
pub fn resolve_auto(
    pressure: &PressurePolicy,
    auto: &[(Level, Signal)],
    kubelet: &KubeletThresholds,
    capacity: Bytes,
    inodes: Option<u64>,
    write_speed: Bytes,
) -> PressurePolicy {
    let mut resolved = pressure.clone();
    for (level, signal) in auto {
        let total = match signal {
            Signal::Available => Some(capacity.0),
            Signal::InodesFree => inodes,
        };
        let amount = total.map(|total| {
            let margin = margin(*level);
            let per_cent = |n: u64| total / 100 * n;
            let least = per_cent(margin.percent_min);
            let ahead = match signal {
                Signal::Available => {
                    write_speed.0.saturating_mul(margin.seconds).clamp(least, per_cent(margin.percent_max))
                }
                Signal::InodesFree => least,
            };
            let theirs = kubelet_value(kubelet, *level, *signal, total);
            Amount::one(Quantity::Absolute(theirs.saturating_add(ahead).min(total)))
        });
        set(&mut resolved, *level, *signal, amount);
    }
    resolved
}

/// `auto` before the filesystem is known: the kubelet's own form of the threshold plus the least margin, or, of a
/// threshold in bytes, the margin at [`ASSUMED_WRITE_SPEED`].
pub(super) fn estimate_auto(
    pressure: &PressurePolicy,
    auto: &[(Level, Signal)],
    kubelet: &KubeletThresholds,
) -> PressurePolicy {
    let mut estimated = pressure.clone();
    for (level, signal) in auto {
        // Which of several thresholds comes first depends on the size; any size above the usual will do here.
        let theirs = KubeletThresholds::earliest(&kubelet.hard, *signal, 1 << 40);
        let Margin { seconds, percent_min, .. } = margin(*level);
        let least = Percent::from_hundredths(percent_min as u16 * 100).expect("margins are below 100 %");
        let quantity = match theirs.map_or(Quantity::Share(Percent::default()), |theirs| theirs.value) {
            Quantity::Share(share) => Quantity::Share(share.saturating_add(least)),
            Quantity::Absolute(bytes) if *signal == Signal::Available => {
                Quantity::Absolute(bytes.saturating_add(ASSUMED_WRITE_SPEED.0 * seconds))
            }
            Quantity::Absolute(inodes) => Quantity::Absolute(inodes),
        };
        set(&mut estimated, *level, *signal, Some(Amount::one(quantity)));
    }
    estimated
}

/// The kubelet's value that `level` must be ahead of; zero when it has none.
fn kubelet_value(kubelet: &KubeletThresholds, level: Level, signal: Signal, total: u64) -> u64 {
    let of = |thresholds: &[KubeletThreshold]| {
        KubeletThresholds::earliest(thresholds, signal, total)
            .map_or(0, |threshold| threshold.value.resolve(total))
    };
    match level {
        Level::Normal | Level::Soft => of(&kubelet.hard).max(of(&kubelet.soft)),
        Level::Hard | Level::Critical => of(&kubelet.hard),
    }
}

fn set(pressure: &mut PressurePolicy, level: Level, signal: Signal, amount: Option<Amount>) {
    let threshold = match level {
        Level::Normal => None,
        Level::Soft => pressure.soft.as_mut(),
        Level::Hard => pressure.hard.as_mut(),
        Level::Critical => pressure.critical.as_mut(),
    };
    if let Some(threshold) = threshold {
        match signal {
            Signal::Available => threshold.available = amount,
            Signal::InodesFree => threshold.inodes_free = amount,
        }
    }
}

/// Every threshold that would act later than the kubelet does on a filesystem of `capacity` bytes and `inodes`.
///
/// Against evictionHard counts the earlier of our hard and critical; against evictionSoft also our soft, when
/// its grace period is no longer than the kubelet's. Equal values are in time: we act within milliseconds, the
/// kubelet within its ten seconds.
pub fn later_than_kubelet(
    pressure: &PressurePolicy,
    kubelet: &KubeletThresholds,
    capacity: Bytes,
    inodes: Option<u64>,
) -> Vec<Problem> {
    let totals = [(Signal::Available, Some(capacity.0)), (Signal::InodesFree, inodes)];
    let mut problems = Vec::new();
    for (signal, total) in totals {
        let Some(total) = total.filter(|total| *total > 0) else { continue };
        let ours = |level| {
            pressure
                .threshold(level)
                .and_then(|threshold| threshold.amount(signal))
                .map(|amount| amount.resolve(total))
        };
        let at_once = ours(Level::Hard).max(ours(Level::Critical)).unwrap_or(0);
        let mut check = |level: Level, map: &str, theirs: Option<&KubeletThreshold>, mine: u64| {
            let Some(theirs) = theirs else { return };
            // More than there is means always, and more than always is not possible.
            let value = theirs.value.resolve(total).min(total);
            if mine >= value {
                return;
            }
            let shown = |value| Quantity::Absolute(value).display(signal);
            problems.push(Problem::at(
                None,
                key(level, signal),
                format!(
                    "{} acts later than the kubelet's {map} {theirs}, which is {} of {}: it would evict pods \
                     first; write \"{}\" or more, or \"auto\"",
                    shown(mine),
                    shown(value),
                    shown(total),
                    match (theirs.value, signal) {
                        (Quantity::Absolute(bytes), Signal::Available) => in_our_notation(bytes),
                        (value, signal) => value.display(signal),
                    },
                ),
            ));
        };
        let hard = KubeletThresholds::earliest(&kubelet.hard, signal, total);
        check(Level::Hard, "evictionHard", hard, at_once);
        let soft = KubeletThresholds::earliest(&kubelet.soft, signal, total);
        let patient = soft.is_some_and(|theirs| {
            pressure.soft.as_ref().is_some_and(|soft| soft.grace_period <= theirs.grace_period)
        });
        let in_time = if patient { at_once.max(ours(Level::Soft).unwrap_or(0)) } else { at_once };
        check(Level::Soft, "evictionSoft", soft, in_time);
    }
    problems
}
