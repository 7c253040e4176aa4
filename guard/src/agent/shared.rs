//! What all loops share: metrics, health, the audit log, and the flag that ends them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::act::checkpoint_dir::Leftover;
use crate::act::journal::{Intent, Journal, Outcome, Verdict};
use crate::agent::awaited::Awaited;
use crate::agent::braking::{Brakes, Braking};
use crate::agent::clock::{up, wall};
use crate::agent::cluster::{Link, Questions};
use crate::agent::growth::Growths;
use crate::agent::notify::Notify;
use crate::agent::priority;
use crate::agent::probing::Probing;
use crate::agent::staging::Staging;
use crate::agent::stumbles;
use crate::agent::view::View;
use crate::config::Config;
use crate::decide::{Transition, WallClock, wall_clock};
use crate::model::{Cluster, Inventory, Monotonic, Observation, Plan, PodName};
use crate::observe::probe::{Backend, Coverage};
use crate::report::audit::{AuditSettings, AuditWriter, Event};
use crate::report::events::{Notice, Notices};
use crate::report::health::Health;
use crate::report::metrics::{FilesystemLabel, Holdings, LostEvents, Metrics};

/// A loop turns at least every second. This much longer means that statfs or a deletion hangs: the slowest healthy
/// deletion measured, 16 GiB on a busy disk, took less than a tenth of it.
const STALE_AFTER: Duration = Duration::from_secs(60);

pub(super) struct Shared {
    pub(super) metrics: Arc<Metrics>,
    pub(super) health: Arc<Health>,
    pub(super) probing: Option<Arc<Probing>>,
    pub(super) staging: Arc<Staging>,
    pub(super) growths: Arc<Growths>,
    pub(super) braking: Option<Arc<Braking>>,
    pub(super) brakes: Brakes,
    pub(super) view: View,
    pub(super) notify: Notify,
    pub(super) awaited: Awaited,
    pub(super) dry_run: bool,
    pub(super) stop: Arc<AtomicBool>,
    wall_clock: Mutex<WallClock>,
    audit: Option<AuditWriter>,
    /// Failed audit writes that the metric knows of.
    audit_failures: AtomicU64,
    /// Panics of threads beside the loops that the metric knows of.
    panics: AtomicU64,
    holdings: Mutex<BTreeMap<FilesystemLabel, Holdings>>,
    /// How the writes to each watched directory are seen.
    taken_by: Mutex<BTreeMap<PathBuf, Coverage>>,
    /// eBPF was not switched off.
    wants_ebpf: bool,
    is_degraded: AtomicBool,
    cluster: Mutex<Arc<Cluster>>,
    questions: Option<Questions>,
    notices: Option<Notices>,
}

impl Shared {
    /// Opens the audit log, loads the probe, and gets the brake ready.
    ///
    /// # Errors
    /// The configuration names a backend or a brake that does not work here.
    pub(super) fn new(
        config: &Config,
        dry_run: bool,
        metrics: Arc<Metrics>,
        link: Option<&Link>,
    ) -> anyhow::Result<Shared> {
        metrics.config_loaded(wall());
        metrics.pool(config.pool.as_deref());
        metrics.dry_run(dry_run);
        let stop = Arc::new(AtomicBool::new(false));
        let probing = Probing::start(config.probe, stop.clone())?;
        let braking = Braking::start(config.brake, dry_run, stop.clone())?;
        let health = Arc::new(Health::new(STALE_AFTER));
        health.configured();
        let settings = config.audit.path.clone().map(|path| AuditSettings {
            path,
            max_size: config.audit.max_size,
            keep: config.audit.keep,
        });
        let audit = settings.map(|settings| AuditWriter::open(settings, wall, priority::raise));
        let (audit_failures, holdings) = (AtomicU64::new(0), Mutex::default());
        let (staging, growths) = (Arc::<Staging>::default(), Arc::<Growths>::default());
        if let Some(probing) = &probing {
            growths.start(probing.clone(), staging.clone());
        }
        let shared = Shared {
            metrics,
            health,
            probing,
            staging,
            growths,
            braking,
            brakes: Brakes::default(),
            view: View::default(),
            notify: Notify::new(config),
            awaited: Awaited::default(),
            dry_run,
            stop,
            wall_clock: Mutex::default(),
            audit,
            audit_failures,
            panics: AtomicU64::new(0),
            holdings,
            taken_by: Mutex::default(),
            wants_ebpf: config.probe != crate::config::ProbeMode::Off,
            is_degraded: AtomicBool::new(false),
            cluster: Mutex::new(link.map(Link::latest).unwrap_or_default()),
            questions: link.map(|link| link.questions.clone()),
            notices: link.and_then(|link| link.notices.clone()),
        };
        shared.count_degraded(&BTreeMap::new());
        Ok(shared)
    }

    /// How the writes to a directory are seen from now on; `None`: it is no longer watched.
    pub(super) fn is_taken_by(&self, directory: &Path, coverage: Option<Coverage>) {
        let mut taken_by = lock(&self.taken_by);
        match coverage {
            Some(coverage) => taken_by.insert(directory.to_owned(), coverage),
            None => taken_by.remove(directory),
        };
        self.count_degraded(&taken_by);
    }

    fn count_degraded(&self, taken_by: &BTreeMap<PathBuf, Coverage>) {
        let is_degraded = self.wants_ebpf && is_degraded(self.probing.is_some(), taken_by);
        self.metrics.backend_degraded(is_degraded);
        if !self.is_degraded.swap(is_degraded, Ordering::Relaxed) && is_degraded {
            self.leave(Notice::backend_degraded(&degradation(taken_by)));
        }
    }

    /// What sees the writes.
    pub(super) fn backend(&self) -> Backend {
        backend_of(self.probing.as_deref())
    }

    /// The audit log, for the executor: rounds of several filesystems write one after the other, line by line. `woken` is when the write happened that called for the first deletion, until that is done.
    pub(super) fn journal<'s>(&'s self, woken: &'s Cell<Option<Monotonic>>) -> SharedJournal<'s> {
        SharedJournal { shared: self, woken }
    }

    /// Records an event.
    pub(super) fn record(&self, event: &Event<'_>) {
        if let Some(audit) = &self.audit {
            audit.record(event);
        }
        self.count_audit_failures();
        if let Some(notice) = Notice::from_audit(event) {
            self.leave(notice);
        }
    }

    /// Whether the wall clock tells how old something is; says so when somebody has set it.
    pub(super) fn tells_age(&self) -> bool {
        let (wall, up) = (wall(), up());
        let mut clock = lock(&self.wall_clock);
        if let Some(step) = clock.see(wall, up) {
            tracing::warn!(
                seconds = step.as_secs(), held = ?wall_clock::HELD_FOR,
                "the wall clock was set; for a while nothing is deleted for its age alone (max-age)"
            );
        }
        !clock.is_doubtful(up)
    }

    /// Whether anybody reads notices.
    pub(super) fn has_readers(&self) -> bool {
        self.notices.is_some()
    }

    /// Leaves a notice for the API server, where one is spoken with.
    pub(super) fn leave(&self, notice: Notice) {
        if let Some(notices) = &self.notices {
            notices.leave(wall(), notice);
        }
    }

    /// What is known of the cluster.
    pub(super) fn cluster(&self) -> Arc<Cluster> {
        lock(&self.cluster).clone()
    }

    /// Something else is known of the cluster.
    pub(super) fn set_cluster(&self, cluster: Arc<Cluster>) {
        *lock(&self.cluster) = cluster;
    }

    /// Which pods a loop does not know enough of; `pods` is not called when there is nobody to ask.
    pub(super) fn ask(&self, label: &FilesystemLabel, pods: impl FnOnce() -> Vec<PodName>) {
        if let Some(questions) = &self.questions {
            questions.ask(label, pods());
        }
    }

    /// Records a change of level.
    pub(super) fn record_pressure(
        &self,
        directories: &[String],
        transition: &Transition,
        seen: &Observation,
    ) {
        let Transition { from, to, .. } = *transition;
        self.record(&Event::Pressure { directories, from, to, available_bytes: seen.available.0 });
    }

    /// Records that a need cannot be met.
    pub(super) fn record_unreachable(&self, directories: &[String], plan: &Plan, reason: &str) {
        let reclaimable_bytes = plan.frees.bytes.0;
        self.record(&Event::Unreachable {
            directories,
            needed_bytes: plan.need.bytes.0,
            reclaimable_bytes,
            reason,
        });
    }

    /// Records what became of a deletion that a crash or a failure had interrupted.
    pub(super) fn record_leftover(&self, directory: &Path, leftover: &Leftover) {
        let left_as = leftover.left_as.to_string_lossy();
        match &leftover.outcome {
            Ok(removed) => {
                tracing::info!(directory = %directory.display(), %left_as, freed = %removed.allocated,
                    "finished a deletion that had been interrupted");
            }
            Err(refused) => {
                tracing::warn!(directory = %directory.display(), %left_as, %refused,
                    "did not finish a deletion that had been interrupted");
            }
        }
        if let Some(audit) = &self.audit {
            audit.record_leftover(directory, leftover);
        }
        self.count_audit_failures();
    }

    /// The name that the audit log has for an id.
    pub(super) fn name_of(&self, id: u64) -> Option<std::ffi::OsString> {
        self.audit.as_ref()?.name_of(id)
    }

    /// Brings what the audit log and the probe count by themselves into the metrics.
    pub(super) fn publish_losses(&self) {
        self.count_audit_failures();
        let panics = stumbles::panics() + self.audit.as_ref().map_or(0, AuditWriter::panics);
        for _ in self.panics.fetch_max(panics, Ordering::Relaxed)..panics {
            self.metrics.panicked();
        }
        if let Some(probing) = &self.probing {
            let lost = probing.newly_lost();
            self.metrics.lost(LostEvents::Ledger, lost.ledger_full);
            self.metrics.lost(LostEvents::RingBuffer, lost.wakes_dropped);
        }
    }

    /// Brings the gauges of what is being written, and of what is staged, up to date.
    pub(super) fn publish_growth(&self) {
        self.metrics.growth(&self.growths.now());
        self.metrics.staged(self.staging.staged());
    }

    /// Brings the gauges of what lies on a filesystem up to date; `None` when it is no longer watched.
    pub(super) fn publish_holdings(&self, label: &FilesystemLabel, inventory: Option<&Inventory>) {
        let mut holdings = lock(&self.holdings);
        match inventory {
            Some(inventory) => holdings.insert(label.clone(), Holdings::of(inventory)),
            None => holdings.remove(label),
        };
        self.metrics.checkpoints(holdings.values());
    }

    /// Waits until the audit log is on the disk, for `limit` at most.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        self.audit.as_ref().is_none_or(|audit| audit.flush(limit))
    }

    /// Shows how many directories are missing.
    pub(super) fn count_missing(&self) {
        self.metrics.missing_directories(self.awaited.missed());
    }

    fn count_audit_failures(&self) {
        let now = self.audit.as_ref().map_or(0, AuditWriter::failures);
        let before = self.audit_failures.fetch_max(now, Ordering::Relaxed);
        for _ in before..now {
            self.metrics.audit_failed();
        }
    }
}

/// Whether writes to any directory are seen by less than eBPF, or by eBPF without one of its usual hooks. That it is loaded
/// says little: without CAP_PERFMON, or under lockdown=confidentiality, no directory can be watched by it.
fn is_degraded(is_loaded: bool, taken_by: &BTreeMap<PathBuf, Coverage>) -> bool {
    let falls_short = |coverage: &Coverage| *coverage == Coverage::Nothing || !coverage.lacking().is_empty();
    !is_loaded || taken_by.values().any(falls_short)
}

/// How the worst of them are seen, for people.
fn degradation(taken_by: &BTreeMap<PathBuf, Coverage>) -> String {
    let torn = taken_by.values().find(|coverage| !coverage.lacking().is_empty());
    match torn.filter(|_| !taken_by.values().any(|coverage| *coverage == Coverage::Nothing)) {
        Some(coverage) => format!("{} without {}", coverage.backend(), coverage.lacking()),
        None => format!("{} only", Backend::Inotify),
    }
}

fn backend_of(probing: Option<&Probing>) -> Backend {
    probing.map_or(Backend::Inotify, Probing::backend)
}

/// The audit log as the executor sees it.
pub(super) struct SharedJournal<'s> {
    shared: &'s Shared,
    woken: &'s Cell<Option<Monotonic>>,
}

impl Journal for SharedJournal<'_> {
    fn intent(&mut self, intent: &Intent<'_>) -> u64 {
        self.shared.audit.as_ref().map_or_else(next_id, |audit| audit.intent(intent))
    }

    fn outcome(&mut self, intent: &Intent<'_>, outcome: &Outcome) {
        if let Some(audit) = &self.shared.audit {
            audit.record_outcome(intent, outcome, reaction(outcome, self.woken.get()));
        }
        self.shared.count_audit_failures();
    }
}

/// From the write that used the budget up, at `woken`, to the deletion that followed it.
pub(super) fn reaction(outcome: &Outcome, woken: Option<Monotonic>) -> Option<Duration> {
    let is_deletion = matches!(outcome.verdict, Verdict::Deleted(_));
    woken.filter(|_| is_deletion).map(|at| outcome.removed_at.since(at))
}

/// An id where no audit log gives one: it makes the private names of deletions in progress unique.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What these mutexes guard is whole between any two statements: a panic elsewhere must not end the guard.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::probe::{Unseen, Writing};

    #[track_caller]
    fn check(is_loaded: bool, taken_by: &[Coverage], expect: bool) {
        assert_eq!(is_degraded(is_loaded, &named(taken_by)), expect, "{taken_by:?}");
    }

    fn named(taken_by: &[Coverage]) -> BTreeMap<PathBuf, Coverage> {
        let named = taken_by.iter().enumerate();
        named.map(|(number, coverage)| (PathBuf::from(number.to_string()), *coverage)).collect()
    }

    fn calls_without(writings: &[Writing]) -> Coverage {
        let for_lack_of_hooks = writings.iter().copied().collect();
        Coverage::Calls(Unseen { for_lack_of_hooks, ..Unseen::default() })
    }

    #[test]
    fn a_directory_that_is_left_to_inotify_is_what_degraded_means() {
        check(false, &[], true);
        check(true, &[], false);
        check(true, &[Coverage::Blocks, calls_without(&[])], false);
        check(true, &[Coverage::Blocks, Coverage::Nothing], true);
    }

    #[test]
    fn so_is_one_whose_usual_hooks_are_not_all_there() {
        // Linux 5.10 does not tell who io_uring writes for.
        check(true, &[calls_without(&[Writing::IoUring])], false);
        let torn = calls_without(&[Writing::Vector, Writing::IoUring]);
        check(true, &[Coverage::Blocks, torn], true);
        assert_eq!(degradation(&named(&[Coverage::Blocks, torn])), "fexit without writev");
        assert_eq!(degradation(&named(&[torn, Coverage::Nothing])), "inotify only");
        assert_eq!(degradation(&named(&[])), "inotify only");
    }
}
