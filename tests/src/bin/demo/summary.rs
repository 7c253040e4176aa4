//! What was measured, in words.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use guard::model::Bytes;
use tests::exposition::{Histogram, info, sum};
use tests::sampler::Samples;
use tests::storm::Totals;

use crate::audit::Deleted;
use crate::scene::{CRITICAL_PERCENT, HARD_PERCENT, MINIMUM_RECLAIM_PERCENT, SOFT_PERCENT, share};

/// How far below the hard threshold the guard may let a writer at full speed come.
const TOLERANCE: Bytes = Bytes::mib(32);

/// So much of the guard's log is shown when it failed.
const LOG_LINES: usize = 12;

/// Everything that was measured.
#[derive(Debug)]
pub(crate) struct Summary {
    pub capacity: Bytes,
    pub samples: Samples,
    pub totals: Totals,
    pub survivors: BTreeMap<String, (u64, Bytes)>,
    /// How many things there were that had to survive, and which did not.
    pub kept: usize,
    pub lost: Vec<&'static str>,
    pub guarded: Option<Guarded>,
}

/// What the guard itself says.
#[derive(Debug)]
pub(crate) struct Guarded {
    pub deletions: Vec<Deleted>,
    pub metrics: String,
    pub log: String,
    /// `None`: it did not end by itself.
    pub ended_in: Option<Duration>,
}

impl Summary {
    fn hard(&self) -> Bytes {
        share(self.capacity, HARD_PERCENT)
    }

    fn lowest(&self) -> Bytes {
        self.samples.lowest.map_or(Bytes::ZERO, |lowest| lowest.available)
    }

    /// Whether the guard did what it is for. Without one there is nothing promised.
    pub(crate) fn kept_every_promise(&self) -> bool {
        let Some(guarded) = &self.guarded else { return true };
        self.lost.is_empty()
            && self.totals.out_of_space == 0
            && self.lowest() + TOLERANCE >= self.hard()
            && guarded.ended_in.is_some()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let totals = &self.totals;
        let rate = Bytes((totals.bytes.0 as f64 / totals.took.as_secs_f64().max(1e-3)) as u64);
        writeln!(f, "\nMeasured")?;
        writeln!(
            f,
            "  storm         {} as {} whole archives in {:.1} s, {rate}/s",
            totals.bytes,
            totals.archives,
            totals.took.as_secs_f64()
        )?;
        match totals.out_of_space {
            0 => writeln!(f, "  ENOSPC        none")?,
            failed => {
                writeln!(f, "  ENOSPC        {failed} archives were cut off and stay behind, truncated")?
            }
        }
        self.write_lowest(f)?;
        if let Some(guarded) = &self.guarded {
            guarded.write(f, self)?;
        }
        write!(f, "  on disk now  ")?;
        for (namespace, (count, bytes)) in &self.survivors {
            write!(f, " {namespace} {count} ({bytes})")?;
        }
        writeln!(f)?;
        match self.lost.as_slice() {
            [] => writeln!(
                f,
                "  kept          all {} of protected, pinned, in use, not a checkpoint",
                self.kept
            )?,
            lost => writeln!(f, "  LOST          {}", lost.join(", "))?,
        }
        match &self.guarded {
            None => writeln!(f, "Without the guard the disk is full; the kubelet would evict pods now."),
            Some(_) if self.kept_every_promise() => {
                writeln!(
                    f,
                    "The guard kept the disk within {TOLERANCE} of the hard threshold, and from filling."
                )
            }
            Some(guarded) => {
                writeln!(f, "The guard did NOT keep its promise. Its last warnings and errors:")?;
                // Deletions are told above; a day of them would hide what matters.
                let is_info = |line: &&str| line.contains("\"level\":\"INFO\"");
                let lines: Vec<_> = guarded.log.lines().filter(|line| !is_info(line)).collect();
                let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
                last.iter().try_for_each(|line| writeln!(f, "  {line}"))
            }
        }
    }
}

impl Summary {
    fn write_lowest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lowest, hard) = (self.lowest(), self.hard());
        let beside = if lowest < hard {
            format!("{} below", hard.saturating_sub(lowest))
        } else {
            format!("{} above", lowest.saturating_sub(hard))
        };
        writeln!(f, "  lowest        {lowest} available, {beside} the hard threshold of {hard}")?;
        writeln!(
            f,
            "                {} looks, blind for {:.1} ms at most{}",
            self.samples.looks,
            self.samples.longest_gap.as_secs_f64() * 1000.0,
            if self.samples.realtime { "" } else { " (no real-time priority)" }
        )
    }

    /// The target of a deletion with this trigger; `None` outside pressure.
    fn target(&self, trigger: &str) -> Option<Bytes> {
        let percent = match trigger {
            "soft" => SOFT_PERCENT,
            "hard" => HARD_PERCENT,
            "critical" => CRITICAL_PERCENT,
            _ => return None,
        };
        Some(share(self.capacity, percent + MINIMUM_RECLAIM_PERCENT))
    }
}

impl Guarded {
    fn write(&self, f: &mut fmt::Formatter<'_>, summary: &Summary) -> fmt::Result {
        let metrics = &self.metrics;
        let backend = info(metrics, "checkpoint_guard_backend_info", "backend").unwrap_or("?");
        match sum(metrics, "checkpoint_guard_written_bytes_total") {
            Some(counted) => {
                let written = summary.totals.bytes.0 as f64;
                let share = 100.0 * counted / written.max(1.0);
                let counted = Bytes(counted as u64);
                writeln!(f, "  counted       {counted} by {backend}, {share:.3} % of what was written")?;
            }
            None => writeln!(f, "  counted       nothing: {backend} does not count bytes")?,
        }
        self.write_reactions(f)?;
        self.write_deletions(f, summary)?;
        match self.ended_in {
            Some(after) => {
                writeln!(f, "  ended         {:.0} ms after SIGTERM", after.as_secs_f64() * 1000.0)
            }
            None => writeln!(f, "  ended         NOT after SIGTERM; it was killed"),
        }
    }

    fn write_reactions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let histogram = Histogram::read(&self.metrics, "checkpoint_guard_reaction_seconds");
        let Some(histogram) = histogram.filter(|histogram| histogram.count() > 0) else {
            return writeln!(f, "  reaction      none measured");
        };
        let at = |quantile| {
            let reaction = histogram.quantile(quantile).unwrap_or_default();
            format!("{:.2} ms", reaction.as_secs_f64() * 1000.0)
        };
        writeln!(
            f,
            "  reaction      {} times, p50 {}, p99 {} (interpolated within the histogram's buckets)",
            histogram.count(),
            at(0.5),
            at(0.99)
        )
    }

    fn write_deletions(&self, f: &mut fmt::Formatter<'_>, summary: &Summary) -> fmt::Result {
        let mut by_trigger: BTreeMap<&str, (u64, Bytes)> = BTreeMap::new();
        let mut by_namespace: BTreeMap<&str, u64> = BTreeMap::new();
        let mut needless = 0;
        for deleted in &self.deletions {
            let entry = by_trigger.entry(&deleted.trigger).or_default();
            entry.0 += 1;
            entry.1 += deleted.held;
            *by_namespace.entry(&deleted.namespace).or_default() += 1;
            let target = summary.target(&deleted.trigger);
            needless += u64::from(target.is_some_and(|target| deleted.available_before >= target));
        }
        write!(f, "  deleted       {}", self.deletions.len())?;
        for (trigger, (count, held)) in &by_trigger {
            write!(f, "; {trigger} {count} ({held})")?;
        }
        write!(f, "\n                by namespace:")?;
        for (namespace, count) in &by_namespace {
            write!(f, " {namespace} {count}")?;
        }
        writeln!(f, "\n                with the target met already: {needless}")
    }
}
