//! [`Row`]: how soon the guard reacts through a backend, from the write that uses the budget up to the first name gone.
//!
//! `tests/fixtures/reaction/<kernel>.tsv` holds the rows of each kernel that was tried in a VM (`cargo xtask vm-test --bless`
//! writes them), and docs/BENCHMARKS.md shows them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guard::model::Bytes;

use crate::crossings::Crossings;
use crate::daemon::Daemon;
use crate::loopfs::{Filesystem, LoopMount};
use crate::setting::read_audit;
use crate::statistics::Times;

/// What stands before a row that a test prints.
pub const MARK: &str = "REACTION\t";

const HARD: Bytes = Bytes::mib(64);
/// The first crossings find cold caches.
const WARM_UP: usize = 2;

/// Through one backend on one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// `[probe] mode` that it was measured with.
    pub mode: String,
    /// How often the threshold was crossed.
    pub crossings: usize,
    /// How often a wake of the kernel's told the guard, rather than its timer.
    pub by_wake: usize,
    /// Of those, median and ninetieth percentile by the kernel's clock.
    pub own: Option<(Duration, Duration)>,
    /// Of all, the same as seen from outside.
    pub outside: (Duration, Duration),
}

impl Row {
    /// Crosses the hard threshold of an ext4 so often, with a guard in this mode that is given `limit` for each; `None` when
    /// it does not start, which says why.
    pub fn measure(mode: &str, crossings: usize, limit: Duration) -> Result<Option<Row>> {
        let mount = LoopMount::with_options(Filesystem::Ext4, Bytes::mib(300), &[], "")?;
        let directory = mount.path().join("checkpoints");
        std::fs::create_dir(&directory)?;
        let settings = format!(
            "[pressure]\nsoft = false\nhard = {{ available = \"{}KiB\" }}\ncritical = false\nminimum-reclaim = {{ available = \"1MiB\" }}\n\
             transition-period = \"0s\"\nkubelet-config = \"off\"\n[eviction]\nmin-age = \"0s\"\n[probe]\nmode = \"{mode}\"\n",
            HARD.0 >> 10
        );
        let mut brink = Crossings::prepare(&directory, HARD)?;
        let mut daemon = match Daemon::start(&directory, &settings) {
            Ok(daemon) => daemon,
            Err(error) => {
                println!("not by {mode}: {error:#}");
                return Ok(None);
            }
        };
        let mut outside = Vec::new();
        for _ in 0..WARM_UP + crossings {
            daemon.check_running()?;
            outside.push(brink.next(limit).with_context(|| format!("{mode}\n{}", daemon.log()))?);
        }
        daemon.terminate()?;
        let records = read_audit(&daemon.audit_log());
        let deleted = || records.iter().filter(|record| record["outcome"] == "deleted");
        ensure!(deleted().count() >= outside.len(), "{mode}: not one deletion a crossing\n{}", daemon.log());
        let own = deleted().skip(WARM_UP).filter_map(|record| record["reactionMicros"].as_u64());
        let own = Times::new(own.map(Duration::from_micros).collect());
        let middle = |times: &Times| times.percentile(50).zip(times.percentile(90));
        Ok(Some(Row {
            mode: mode.to_owned(),
            crossings,
            by_wake: own.count(),
            own: middle(&own),
            outside: middle(&Times::new(outside.split_off(WARM_UP))).context("no crossing was asked for")?,
        }))
    }

    /// What [`fmt::Display`] writes.
    pub fn parse(line: &str) -> Option<Row> {
        let words: Vec<&str> = line.split('\t').collect();
        let [mode, crossings, by_wake, own, own_90, outside, outside_90] = words.as_slice() else {
            return None;
        };
        let micros = |word: &str| word.parse().ok().map(Duration::from_micros);
        Some(Row {
            mode: (*mode).to_owned(),
            crossings: crossings.parse().ok()?,
            by_wake: by_wake.parse().ok()?,
            own: micros(own).zip(micros(own_90)),
            outside: (micros(outside)?, micros(outside_90)?),
        })
    }
}

/// Words apart by tabs, times in microseconds.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { mode, crossings, by_wake, own, outside } = self;
        write!(f, "{mode}\t{crossings}\t{by_wake}")?;
        match own {
            Some((median, p90)) => write!(f, "\t{}\t{}", median.as_micros(), p90.as_micros())?,
            None => write!(f, "\t-\t-")?,
        }
        write!(f, "\t{}\t{}", outside.0.as_micros(), outside.1.as_micros())
    }
}

/// The rows of each kernel series that has some, the oldest kernel first.
pub fn records() -> Result<Vec<(String, Vec<Row>)>> {
    let directory: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/reaction");
    let mut kernels = Vec::new();
    for entry in
        std::fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?
    {
        let path = entry?.path();
        let series = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path)?;
        let row = |line: &str| Row::parse(line).with_context(|| format!("{}: {line}", path.display()));
        kernels.push((series, text.lines().map(row).collect::<Result<Vec<Row>>>()?));
    }
    kernels.sort_by_key(|(series, _)| {
        series.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>()
    });
    Ok(kernels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let micros = Duration::from_micros;
        let row = Row {
            mode: "fexit".to_owned(),
            crossings: 20,
            by_wake: 19,
            own: Some((micros(900), micros(1200))),
            outside: (micros(1000), micros(1400)),
        };
        assert_eq!(Row::parse(&row.to_string()), Some(row.clone()));
        let without = Row { own: None, by_wake: 0, ..row };
        assert_eq!(Row::parse(&without.to_string()), Some(without));
        assert_eq!(Row::parse("fexit\t20"), None);
    }

    #[test]
    fn every_record_can_be_read() {
        assert!(!records().unwrap().is_empty());
    }
}
