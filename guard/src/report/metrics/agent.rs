//! The guard itself: does its loop run, does it see everything, is it configured?

use std::time::Duration;

use jiff::Timestamp;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec};

use super::families::Families;
use super::labels::{
    BACKEND, BACKENDS, FILESYSTEM, FilesystemLabel, LAYER, LOST, LostEvents, POOL, VERSION, WAKE, Wake,
};

#[derive(Debug)]
pub(super) struct AgentFamilies {
    build: GaugeVec,
    pool: GaugeVec,
    dry_run: Gauge,
    backend: GaugeVec,
    backend_degraded: Gauge,
    sandbox: GaugeVec,
    lost: IntCounterVec,
    wakes: IntCounterVec,
    panics: IntCounter,
    missing: Gauge,
    scans: IntCounterVec,
    scan_failures: IntCounterVec,
    last_scan: GaugeVec,
    last_scan_duration: GaugeVec,
    audit_failures: IntCounter,
    config_valid: Gauge,
    config_loaded: Gauge,
    config_rejections: IntCounter,
}

impl AgentFamilies {
    pub(super) fn declare(families: &mut Families) -> AgentFamilies {
        let agent = AgentFamilies {
            build: families.gauge_by(
                "checkpoint_guard_build_info",
                &[VERSION],
                "Always 1; the label says which version runs.",
            ),
            pool: families.gauge_by(
                "checkpoint_guard_pool_info",
                &[POOL],
                "Always 1; the label says which pool's configuration this node uses.",
            ),
            dry_run: families.gauge(
                "checkpoint_guard_dry_run",
                "1 while the guard only says what it would delete: the node is not protected.",
            ),
            backend: families.gauge_by(
                "checkpoint_guard_backend_info",
                &[FILESYSTEM, BACKEND],
                "Always 1; the label says how the guard sees writes to the filesystem.",
            ),
            backend_degraded: families.gauge(
                "checkpoint_guard_backend_degraded",
                "1 while writes to any directory are seen by inotify and the timer only, though eBPF was asked for, or by eBPF without \
                 one of its usual hooks: reactions take longer.",
            ),
            sandbox: families.gauge_by(
                "checkpoint_guard_sandbox_active",
                &[LAYER],
                "1 while this layer limits what the guard itself can do; 0 where the kernel or the configuration has \
                 none of it (docs/SECURITY.md).",
            ),
            lost: families.counter_by(
                "checkpoint_guard_lost_events_total",
                &[LOST],
                "Events the guard did not see; statfs and a rescan make up for them, a little later.",
            ),
            wakes: families.counter_by(
                "checkpoint_guard_wakes_total",
                &[WAKE],
                "Turns of the loop, by what woke it; hundreds per second without writers would be a busy loop.",
            ),
            panics: families.counter(
                "checkpoint_guard_loop_panics_total",
                "Loops, threads beside them and connections that ended by a bug of the guard. Another one begins with a fresh look; the log \
                 says where it was. Please report it.",
            ),
            missing: families.gauge(
                "checkpoint_guard_missing_directories",
                "Configured directories, but for optional ones, that are not there or cannot be opened: nobody looks after \
                 what is in them.",
            ),
            scans: families.counter_by(
                "checkpoint_guard_scans_total",
                &[FILESYSTEM],
                "Scans of the checkpoint directories that succeeded.",
            ),
            scan_failures: families.counter_by(
                "checkpoint_guard_scan_failures_total",
                &[FILESYSTEM],
                "Scans that failed: a directory cannot be read. Until one succeeds the guard acts on what it last knew.",
            ),
            last_scan: families.gauge_by(
                "checkpoint_guard_last_scan_timestamp_seconds",
                &[FILESYSTEM],
                "When the directories were last read in full (Unix time).",
            ),
            last_scan_duration: families.gauge_by(
                "checkpoint_guard_last_scan_duration_seconds",
                &[FILESYSTEM],
                "How long that took.",
            ),
            audit_failures: families.counter(
                "checkpoint_guard_audit_failures_total",
                "Audit lines that could not be written to the audit log, or not in time; they went to the process's log.",
            ),
            config_valid: families.gauge(
                "checkpoint_guard_config_valid",
                "1 when the configuration on disk is in force; 0 when it is invalid and the last valid one still is.",
            ),
            config_loaded: families.gauge(
                "checkpoint_guard_config_last_reload_timestamp_seconds",
                "When the configuration in force was loaded (Unix time).",
            ),
            config_rejections: families.counter(
                "checkpoint_guard_config_reload_failures_total",
                "Changed configurations that were refused because they are invalid.",
            ),
        };
        for kind in LostEvents::ALL {
            agent.lost.with_label_values(&[kind.as_str()]);
        }
        for cause in Wake::ALL {
            agent.wakes.with_label_values(&[cause.as_str()]);
        }
        agent.build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        agent
    }

    pub(super) fn pool(&self, pool: Option<&str>) {
        only(&self.pool, pool.unwrap_or_default());
    }

    pub(super) fn dry_run(&self, dry_run: bool) {
        self.dry_run.set(f64::from(u8::from(dry_run)));
    }

    pub(super) fn backend(&self, filesystem: &FilesystemLabel, name: &str) {
        self.forget_backend(filesystem);
        self.backend.with_label_values(&[filesystem.as_str(), name]).set(1.0);
    }

    pub(super) fn backend_degraded(&self, degraded: bool) {
        self.backend_degraded.set(f64::from(u8::from(degraded)));
    }

    fn forget_backend(&self, filesystem: &FilesystemLabel) {
        for name in BACKENDS {
            // Err: that was not the one.
            let _ = self.backend.remove_label_values(&[filesystem.as_str(), name]);
        }
    }

    pub(super) fn sandbox(&self, layer: &str, active: bool) {
        self.sandbox.with_label_values(&[layer]).set(f64::from(u8::from(active)));
    }

    pub(super) fn lost(&self, kind: LostEvents, count: u64) {
        self.lost.with_label_values(&[kind.as_str()]).inc_by(count);
    }

    pub(super) fn woke(&self, cause: Wake) {
        self.wakes.with_label_values(&[cause.as_str()]).inc();
    }

    pub(super) fn panicked(&self) {
        self.panics.inc();
    }

    pub(super) fn missing_directories(&self, count: usize) {
        self.missing.set(count as f64);
    }

    pub(super) fn begin(&self, filesystem: &FilesystemLabel) {
        self.scans.with_label_values(&[filesystem.as_str()]);
        self.scan_failures.with_label_values(&[filesystem.as_str()]);
    }

    pub(super) fn scanned(&self, filesystem: &FilesystemLabel, at: Timestamp, took: Duration) {
        let name = [filesystem.as_str()];
        self.scans.with_label_values(&name).inc();
        self.last_scan.with_label_values(&name).set(unix_seconds(at));
        self.last_scan_duration.with_label_values(&name).set(took.as_secs_f64());
    }

    pub(super) fn scan_failed(&self, filesystem: &FilesystemLabel) {
        self.scan_failures.with_label_values(&[filesystem.as_str()]).inc();
    }

    pub(super) fn audit_failed(&self) {
        self.audit_failures.inc();
    }

    pub(super) fn config_loaded(&self, at: Timestamp) {
        self.config_valid.set(1.0);
        self.config_loaded.set(unix_seconds(at));
    }

    pub(super) fn config_rejected(&self) {
        self.config_valid.set(0.0);
        self.config_rejections.inc();
    }

    pub(super) fn forget(&self, filesystem: &FilesystemLabel) {
        let name = [filesystem.as_str()];
        // Err: there was no such series, which is what is wanted.
        let _ = self.scans.remove_label_values(&name);
        let _ = self.scan_failures.remove_label_values(&name);
        let _ = self.last_scan.remove_label_values(&name);
        let _ = self.last_scan_duration.remove_label_values(&name);
        self.forget_backend(filesystem);
    }
}

/// Milliseconds are kept: they are what a dashboard can show.
pub(super) fn unix_seconds(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1000.0
}

/// Makes `value` the one value of an info family.
fn only(family: &GaugeVec, value: &str) {
    family.reset();
    family.with_label_values(&[value]).set(1.0);
}
