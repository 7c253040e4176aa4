//! [`GrowthTracker`]: rates by namespace and by writer, from what files grew by.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::decide::Forecast;
use crate::model::{Bytes, Growth, KnownBy, Monotonic, NamespaceGrowth, Owner, WriterGrowth};

/// What one file grew by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grown {
    /// By so much.
    pub bytes: Bytes,
    /// For whom.
    pub owner: Owner,
    /// What says so.
    pub known_by: KnownBy,
    /// Process id of the last writer.
    pub pid: u32,
    /// Its command name.
    pub comm: Arc<str>,
}

/// How fast the checkpoints of each namespace grow, and through whom; forgets those that have stopped.
#[derive(Clone, Debug, Default)]
pub struct GrowthTracker {
    namespaces: BTreeMap<Option<Arc<str>>, Series>,
    writers: BTreeMap<(u32, Arc<str>, Owner), (KnownBy, Series)>,
}

/// A namespace whose checkpoints have not grown for so long has no rate any more, and no series.
const NAMESPACE_IDLE: Duration = Duration::from_secs(600);
/// A process that has not written for so long is no writer.
const WRITER_IDLE: Duration = Duration::from_secs(60);
/// More are not told apart: those that have written least are forgotten first.
const WRITERS_MAX: usize = 256;

/// One counter that grows.
#[derive(Clone, Debug, Default)]
struct Series {
    bytes: Bytes,
    forecast: Forecast,
    last: Monotonic,
}

impl Series {
    /// Grew by `bytes` between `since` and `now`.
    fn grow(&mut self, bytes: Bytes, since: Monotonic, now: Monotonic) {
        if self.bytes.is_zero() {
            self.forecast.sample(since, Bytes::ZERO);
        }
        self.bytes += bytes;
        self.last = self.last.max(now);
        self.forecast.sample(now, self.bytes);
    }
}

impl GrowthTracker {
    /// Takes note of what files grew by between `since` and `now`.
    pub fn note(&mut self, since: Monotonic, now: Monotonic, grown: &[Grown]) {
        let mut namespaces: BTreeMap<_, Bytes> = BTreeMap::new();
        let mut writers: BTreeMap<_, (KnownBy, Bytes)> = BTreeMap::new();
        // Added up first: several files of one owner are one reading, not several in no time.
        for one in grown.iter().filter(|one| !one.bytes.is_zero()) {
            *namespaces.entry(one.owner.namespace.clone()).or_default() += one.bytes;
            let writer = (one.pid, one.comm.clone(), one.owner.clone());
            let sum = writers.entry(writer).or_insert((one.known_by, Bytes::ZERO));
            sum.1 += one.bytes;
        }
        for (namespace, bytes) in namespaces {
            self.namespaces.entry(namespace).or_default().grow(bytes, since, now);
        }
        for (writer, (known_by, bytes)) in writers {
            let known = self.writers.entry(writer).or_default();
            known.0 = known_by;
            known.1.grow(bytes, since, now);
        }
        self.forget(now);
    }

    /// The rates as of `now`, fastest first.
    pub fn at(&self, now: Monotonic) -> Growth {
        let is_fresh = |series: &Series, limit| now.since(series.last) < limit;
        let namespaces = self.namespaces.iter().filter(|(_, series)| is_fresh(series, NAMESPACE_IDLE));
        let mut namespaces: Vec<_> = namespaces
            .map(|(namespace, series)| NamespaceGrowth {
                namespace: namespace.clone(),
                rate: series.forecast.rate(now),
                bytes: series.bytes,
            })
            .collect();
        let writers = self.writers.iter().filter(|(_, (_, series))| is_fresh(series, WRITER_IDLE));
        let mut writers: Vec<_> = writers
            .map(|((pid, comm, owner), (known_by, series))| WriterGrowth {
                pid: *pid,
                comm: comm.clone(),
                owner: owner.clone(),
                known_by: *known_by,
                rate: series.forecast.rate(now),
                bytes: series.bytes,
            })
            .collect();
        namespaces.sort_by(|a, b| b.rate.cmp(&a.rate).then_with(|| a.namespace.cmp(&b.namespace)));
        writers.sort_by(|a, b| b.rate.cmp(&a.rate).then_with(|| a.pid.cmp(&b.pid)));
        Growth { namespaces, writers }
    }

    fn forget(&mut self, now: Monotonic) {
        self.namespaces.retain(|_, series| now.since(series.last) < NAMESPACE_IDLE);
        self.writers.retain(|_, (_, series)| now.since(series.last) < WRITER_IDLE);
        if self.writers.len() > WRITERS_MAX {
            let mut written: Vec<_> = self.writers.values().map(|(_, series)| series.bytes).collect();
            written.sort_unstable_by(|a, b| b.cmp(a));
            let least = written[WRITERS_MAX - 1];
            self.writers.retain(|_, (_, series)| series.bytes >= least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// Rounded: an average comes near its value from below.
    fn mb(bytes: Bytes) -> u64 {
        (bytes.0 + MB / 2) / MB
    }

    fn at(milliseconds: u64) -> Monotonic {
        Monotonic(Duration::from_millis(milliseconds))
    }

    fn grown(owner: &str, pid: u32, bytes: u64) -> Grown {
        let owner = crate::decide::fixture::owner(owner);
        Grown { bytes: Bytes(bytes), owner, known_by: KnownBy::Checkpoint, pid, comm: "containerd".into() }
    }

    /// Two namespaces, of which one container is written by the runtime in two files, for `seconds`.
    fn told(seconds: u64) -> GrowthTracker {
        let mut tracker = GrowthTracker::default();
        for second in 0..seconds {
            let (since, now) = (at(second * 1000), at(second * 1000 + 1000));
            let those = [
                grown("team/web/app", 7, 30 * MB),
                grown("team/web/app", 7, 10 * MB),
                grown("ci/a/b", 7, MB),
            ];
            tracker.note(since, now, &those);
        }
        tracker
    }

    #[test]
    fn rates_are_those_of_the_owners_and_a_runtime_is_told_apart_by_whom_it_writes_for() {
        let growth = told(120).at(at(120_000));
        let namespaces: Vec<_> =
            growth.namespaces.iter().map(|it| (it.namespace.as_deref(), mb(it.rate), mb(it.bytes))).collect();
        assert_eq!(namespaces, [(Some("team"), 40, 4800), (Some("ci"), 1, 120)]);
        let writers: Vec<_> =
            growth.writers.iter().map(|it| (it.pid, it.owner.to_string(), mb(it.rate))).collect();
        assert_eq!(writers, [(7, "team/web/app".to_owned(), 40), (7, "ci/a/b".to_owned(), 1)]);
    }

    #[test]
    fn one_who_stops_is_slow_within_seconds_and_forgotten_within_minutes() {
        let tracker = told(120);
        assert!(tracker.at(at(180_000)).namespaces[0].rate.0 <= 20 * MB);
        assert_eq!(tracker.at(at(181_000)).writers, []);
        assert_eq!(tracker.at(at(719_000)).namespaces.len(), 2);
        assert_eq!(tracker.at(at(721_000)), Growth::default());
    }

    #[test]
    fn a_first_burst_is_no_gigabytes_per_second() {
        let mut tracker = GrowthTracker::default();
        tracker.note(at(10_000), at(11_000), &[grown("team/web/app", 7, 100 * MB)]);
        let rate = tracker.at(at(11_000)).namespaces[0].rate.0 / MB;
        assert!((20..=40).contains(&rate), "{rate} MB/s");
        tracker.note(at(11_000), at(12_000), &[grown("?/?/?", 8, 0)]);
        assert_eq!(tracker.at(at(12_000)).namespaces.len(), 1, "nothing written is nobody");
    }

    #[test]
    fn of_too_many_writers_those_that_wrote_most_stay() {
        let mut tracker = GrowthTracker::default();
        let those: Vec<_> = (1..=1000).map(|pid| grown("team/web/app", pid, u64::from(pid))).collect();
        tracker.note(at(0), at(1000), &those);
        let mut pids: Vec<_> = tracker.at(at(1000)).writers.iter().map(|it| it.pid).collect();
        pids.sort_unstable();
        assert_eq!((pids.len(), pids[0]), (WRITERS_MAX, 745));
    }
}
