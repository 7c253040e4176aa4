//! Metrics: what Prometheus sees.
//!
//! Setters are plain functions that any thread may call; nothing here looks anything up by itself, except the
//! process's own numbers at the time of a scrape. Series that do not apply are absent rather than zero.
//! docs/METRICS.md is made from these declarations.

mod agent;
mod checkpoints;
mod cluster;
mod deletions;
mod document;
mod families;
mod filesystem;
mod growth;
mod labels;
mod notify;
mod process;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use prometheus::TextEncoder;

pub use checkpoints::{Holdings, NAMESPACES_MAX, OTHER, UNKNOWN};
pub use cluster::EventOutcome;
pub use families::{Family, FamilyKind, LabelKey};
pub use filesystem::FilesystemState;
pub use labels::{FailureCause, FilesystemLabel, LostEvents, RefusalCause, Wake};
pub use notify::RoundOutcome;

use crate::model::{Bytes, Growth, Trigger};
use agent::AgentFamilies;
use checkpoints::CheckpointFamilies;
use cluster::ClusterFamilies;
use deletions::DeletionFamilies;
use families::Families;
use filesystem::FilesystemFamilies;
use growth::GrowthFamilies;
use notify::NotifyFamilies;
use process::ProcessFamilies;

/// Every metric of one guard, in a registry of its own.
#[derive(Debug)]
pub struct Metrics {
    families: Families,
    filesystems: FilesystemFamilies,
    checkpoints: CheckpointFamilies,
    growth: GrowthFamilies,
    deletions: DeletionFamilies,
    agent: AgentFamilies,
    cluster: ClusterFamilies,
    notify: NotifyFamilies,
    process: ProcessFamilies,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    /// Declares every family; all counters with known labels start at zero.
    pub fn new() -> Metrics {
        let mut families = Families::default();
        Metrics {
            filesystems: FilesystemFamilies::declare(&mut families),
            checkpoints: CheckpointFamilies::declare(&mut families),
            growth: GrowthFamilies::declare(&mut families),
            deletions: DeletionFamilies::declare(&mut families),
            agent: AgentFamilies::declare(&mut families),
            cluster: ClusterFamilies::declare(&mut families),
            notify: NotifyFamilies::declare(&mut families),
            process: ProcessFamilies::declare(&mut families),
            families,
        }
    }

    /// Every family, in the order of declaration.
    pub fn families(&self) -> &[Family] {
        &self.families.list
    }

    /// docs/METRICS.md.
    pub fn document(&self) -> String {
        document::render(self.families())
    }

    /// Everything in Prometheus' text format (0.0.4).
    ///
    /// # Errors
    /// Only on a bug: the encoder refuses a family without samples or name.
    pub fn encode(&self) -> Result<String, prometheus::Error> {
        self.process.refresh();
        TextEncoder::new().encode_to_string(&self.families.registry.gather())
    }

    /// The metrics of one filesystem.
    pub fn filesystem<'a>(&'a self, label: &'a FilesystemLabel) -> FilesystemMetrics<'a> {
        FilesystemMetrics { metrics: self, label }
    }

    /// Takes over what the last scans found, of *all* filesystems. Namespaces that are no longer among them
    /// disappear.
    pub fn checkpoints<'a>(&self, filesystems: impl IntoIterator<Item = &'a Holdings>) {
        self.checkpoints.set(filesystems);
    }

    /// How fast the checkpoints of each namespace grow. Those that are no longer among them disappear.
    pub fn growth(&self, growth: &Growth) {
        self.growth.set(growth);
    }

    /// What is new in the staging directories.
    pub fn staged(&self, bytes: Bytes) {
        self.growth.staged(bytes);
    }

    /// A deletion that was tried did not succeed.
    pub fn deletion_failed(&self, cause: FailureCause) {
        self.deletions.failed(cause);
    }

    /// A planned deletion was given up at the last look.
    pub fn deletion_refused(&self, cause: RefusalCause) {
        self.deletions.refused(cause);
    }

    /// The time from the write that used up the headroom to the first deletion.
    pub fn reacted(&self, after: Duration) {
        self.deletions.reacted(after);
    }

    /// How long making a plan took.
    pub fn planned(&self, took: Duration) {
        self.deletions.planned(took);
    }

    /// Whether writes are seen less well than was asked for.
    pub fn backend_degraded(&self, degraded: bool) {
        self.agent.backend_degraded(degraded);
    }

    /// Whether a layer of the sandbox limits the guard itself.
    pub fn sandbox(&self, layer: &str, active: bool) {
        self.agent.sandbox(layer, active);
    }

    /// The node's pool.
    pub fn pool(&self, pool: Option<&str>) {
        self.agent.pool(pool);
    }

    /// Whether the guard deletes at all.
    pub fn dry_run(&self, dry_run: bool) {
        self.agent.dry_run(dry_run);
    }

    /// So many directories that should be there are not.
    pub fn missing_directories(&self, count: usize) {
        self.agent.missing_directories(count);
    }

    /// So many *more* events were lost.
    pub fn lost(&self, kind: LostEvents, count: u64) {
        self.agent.lost(kind, count);
    }

    /// The loop begins a turn.
    pub fn woke(&self, cause: Wake) {
        self.agent.woke(cause);
    }

    /// The loop of a filesystem, or a thread beside the loops, panicked.
    pub fn panicked(&self) {
        self.agent.panicked();
    }

    /// A line could not be written to the audit log.
    pub fn audit_failed(&self) {
        self.agent.audit_failed();
    }

    /// A configuration came into force.
    pub fn config_loaded(&self, at: Timestamp) {
        self.agent.config_loaded(at);
    }

    /// A changed configuration was refused; the old one stays.
    pub fn config_rejected(&self) {
        self.agent.config_rejected();
    }

    /// The API server is asked from now on.
    pub fn cluster_begin(&self) {
        self.cluster.begin();
    }

    /// What is known of a resource is current as of `at`.
    pub fn cluster_current(&self, resource: &str, at: Timestamp) {
        self.cluster.current(resource, at);
    }

    /// What is known of a resource is what it was at `at`, if anything is known.
    pub fn cluster_known_since(&self, resource: &str, at: Option<Timestamp>) {
        self.cluster.known_since(resource, at);
    }

    /// The API server was called.
    pub fn cluster_called(&self, call: &str) {
        self.cluster.called(call);
    }

    /// A call failed, or a watch broke.
    pub fn cluster_failed(&self, cause: &str) {
        self.cluster.failed(cause);
    }

    /// So many *more* annotations were not understood.
    pub fn cluster_misread(&self, count: u64) {
        self.cluster.misread(count);
    }

    /// What is known could not be kept on disk.
    pub fn cluster_state_failed(&self) {
        self.cluster.state_failed();
    }

    /// So many *more* Events ended like this.
    pub fn event(&self, outcome: EventOutcome, count: u64) {
        self.cluster.event(outcome, count);
    }

    /// Rounds are posted from now on.
    pub fn webhook_begin(&self) {
        self.notify.begin_webhook();
    }

    /// So many *more* rounds ended like this.
    pub fn webhook_rounds(&self, outcome: RoundOutcome, count: u64) {
        self.notify.rounds(outcome, count);
    }

    /// A try to post a round failed.
    pub fn webhook_failed(&self) {
        self.notify.failed();
    }

    /// So many rounds wait.
    pub fn webhook_waiting(&self, count: usize) {
        self.notify.waiting(count);
    }

    /// A command is run before deletions from now on.
    pub fn command_begin(&self) {
        self.notify.begin_command();
    }

    /// It was run, or should have been.
    pub fn command_ran(&self, outcome: &str, took: Duration) {
        self.notify.ran(outcome, took);
    }
}

/// The metrics of one filesystem: [`Metrics::filesystem`].
#[derive(Clone, Copy, Debug)]
pub struct FilesystemMetrics<'a> {
    metrics: &'a Metrics,
    label: &'a FilesystemLabel,
}

impl FilesystemMetrics<'_> {
    /// Starts its counters at zero; to be called when watching it begins.
    pub fn begin(&self) {
        self.metrics.deletions.begin(self.label);
        self.metrics.agent.begin(self.label);
        self.metrics.filesystems.written(self.label, Bytes::ZERO);
        self.metrics.filesystems.begin(self.label);
    }

    /// Takes over what one turn of the loop knows.
    pub fn set(&self, state: &FilesystemState<'_>) {
        self.metrics.filesystems.set(self.label, state);
    }

    /// So many of its checkpoint directories are not encrypted, as far as can be seen.
    pub fn unencrypted(&self, directories: usize) {
        self.metrics.filesystems.unencrypted(self.label, directories);
    }

    /// So much is on its way to it.
    pub fn announced(&self, bytes: Bytes) {
        self.metrics.growth.announced(self.label, bytes);
    }

    /// So many *more* bytes were written into its checkpoint directories.
    pub fn written(&self, bytes: Bytes) {
        self.metrics.filesystems.written(self.label, bytes);
    }

    /// So many *more* calls of the program `comm` were refused, that would have written so much.
    pub fn refused(&self, comm: &str, calls: u64, bytes: Bytes) {
        self.metrics.filesystems.refused(self.label, comm, calls, bytes);
    }

    /// A checkpoint of `namespace` was deleted; `freed` is measured.
    pub fn deleted(&self, trigger: &Trigger, namespace: Option<&str>, freed: Bytes) {
        self.metrics.deletions.deleted(self.label, trigger, namespace, freed);
    }

    /// How writes to it are seen.
    pub fn backend(&self, name: &str) {
        self.metrics.agent.backend(self.label, name);
    }

    /// Its directories were read in full.
    pub fn scanned(&self, at: Timestamp, took: Duration) {
        self.metrics.agent.scanned(self.label, at, took);
    }

    /// One of its directories could not be read.
    pub fn scan_failed(&self) {
        self.metrics.agent.scan_failed(self.label);
    }

    /// It is no longer watched: all its series disappear.
    pub fn forget(&self) {
        self.metrics.filesystems.forget(self.label);
        self.metrics.deletions.forget(self.label);
        self.metrics.growth.forget(self.label);
        self.metrics.agent.forget(self.label);
    }
}
