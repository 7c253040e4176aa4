//! The metrics of a real guard under a storm: all of them move, and they agree with the audit log and the disk.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use guard::model::Bytes;
use guard::observe::host::encryption::Encryption;
use guard::observe::host::mounts::Mount;
use guard::report::metrics::Metrics;
use jiff::Timestamp;
use serde_json::Value;
use tests::archives::Archive;
use tests::daemon::Daemon;
use tests::http::get;
use tests::loopfs::{Filesystem, LoopMount};
use tests::storm::{Method, Options, Storm, Totals, Until};

/// Families that stay at zero under a storm on a healthy disk, and the test program that moves each and looks at it.
const QUIET: [(&str, &str); 32] = [
    ("checkpoint_guard_staging_bytes", "daemon_staging"),
    ("checkpoint_guard_announced_bytes", "daemon_staging"),
    ("checkpoint_guard_cluster_current", "cluster_edge"),
    ("checkpoint_guard_cluster_last_current_timestamp_seconds", "cluster_outages"),
    ("checkpoint_guard_cluster_calls_total", "cluster_rbac"),
    ("checkpoint_guard_cluster_failures_total", "cluster_edge"),
    ("checkpoint_guard_cluster_misread_annotations_total", "cluster_edge"),
    ("checkpoint_guard_cluster_state_failures_total", "cluster_edge"),
    ("checkpoint_guard_events_total", "cluster_edge"),
    ("checkpoint_guard_webhook_rounds_total", "notify_webhook"),
    ("checkpoint_guard_webhook_failures_total", "notify_webhook"),
    ("checkpoint_guard_webhook_waiting", "notify_webhook"),
    ("checkpoint_guard_command_runs_total", "notify_command"),
    ("checkpoint_guard_command_seconds_total", "notify_command"),
    ("checkpoint_guard_unreclaimable_bytes", "daemon_pressure"),
    ("checkpoint_guard_unreclaimable_inodes", "daemon_pressure"),
    ("checkpoint_guard_brake_engaged", "brake_fanotify"),
    ("checkpoint_guard_brake_failing", "brake_fanotify"),
    ("checkpoint_guard_brake_refused_calls_total", "brake_fanotify"),
    ("checkpoint_guard_brake_refused_bytes_total", "brake_fanotify"),
    ("checkpoint_guard_exposed_checkpoints", "view_doctor"),
    ("checkpoint_guard_unencrypted_directories", "report_daemon"),
    ("checkpoint_guard_deletion_failures_total", "daemon_faults"),
    ("checkpoint_guard_deletion_refusals_total", "notify_command"),
    ("checkpoint_guard_dry_run", "notify_webhook"),
    ("checkpoint_guard_backend_degraded", "daemon_surroundings"),
    ("checkpoint_guard_lost_events_total", "daemon_surroundings"),
    ("checkpoint_guard_loop_panics_total", "daemon_panics"),
    ("checkpoint_guard_missing_directories", "daemon_surroundings"),
    ("checkpoint_guard_scan_failures_total", "daemon_faults"),
    ("checkpoint_guard_audit_failures_total", "daemon_surroundings"),
    ("checkpoint_guard_config_reload_failures_total", "daemon_surroundings"),
];

/// One guard after one storm.
struct Aftermath {
    metrics: String,
    deletions: Vec<Value>,
    written: Totals,
    /// Its directory, by what lies beneath.
    is_encrypted: bool,
}

/// `None`, loudly, without the right to mount.
fn storm() -> Option<Aftermath> {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED report_daemon: mounting a filesystem needs root");
        return None;
    }
    let disk = LoopMount::new(Filesystem::Ext4, Bytes::mib(256));
    let directory = disk.path().join("checkpoints");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("README.txt"), "not a checkpoint\n").unwrap();
    let long_ago = "2026-01-01T00:00:00Z".parse().unwrap();
    let pinned = Archive::new("team", "golden", "main", long_ago, Bytes::mib(2).0);
    let pinned = pinned.write_in(&directory).unwrap();
    std::fs::write(format!("{}.keep", pinned.display()), "").unwrap();
    let mut daemon = Daemon::start(&directory, "").unwrap();
    let written = Storm::start(options(&directory)).join();
    let metrics = daemon.metrics_after(now()).unwrap();
    let opened = std::fs::File::open(&directory).unwrap();
    let encryption = Encryption::of(opened.as_fd(), Mount::of(&directory).as_ref());
    let is_encrypted = !matches!(encryption, Encryption::None { .. });
    assert!(pinned.exists());
    assert_eq!(get(daemon.http(), "/healthz").unwrap(), (200, "ok\n".to_owned()));
    assert!(daemon.terminate().unwrap().unwrap() < Duration::from_secs(2), "{}", daemon.log());
    let audit = std::fs::read_to_string(daemon.audit_log()).unwrap();
    let records = audit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let is_done = |record: &Value| record["kind"] == "Deletion" && record["outcome"] == "deleted";
    Some(Aftermath { metrics, deletions: records.filter(is_done).collect(), written, is_encrypted })
}

fn options(directory: &Path) -> Options {
    Options {
        directory: directory.to_owned(),
        writers: 2,
        size: (Bytes::mib(2), Bytes::mib(12)),
        namespaces: vec!["team".to_owned(), "team-prod".to_owned(), "ci".to_owned()],
        pods: 1,
        method: Method::Write,
        first_age: Duration::from_secs(24 * 3600),
        until: Until { bytes: Some(Bytes::gib(1)), ..Until::default() },
    }
}

#[expect(clippy::disallowed_methods, reason = "the guard's last look is waited for")]
fn now() -> Timestamp {
    Timestamp::now()
}

/// Series → value.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect()
}

#[test]
fn what_a_storm_does_not_move_another_test_does() {
    for (family, program) in QUIET {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{program}.rs"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{program}: {error}"));
        // Not the table above, where its name ends with the literal.
        let asked = text.matches(family).count() - usize::from(program == "report_daemon");
        assert!(asked > 0, "{program} does not look at {family}");
    }
}

#[test]
fn the_metrics_of_a_guard_under_a_storm_move_and_agree_with_its_audit_log() {
    let Some(Aftermath { metrics: text, deletions, written, is_encrypted }) = storm() else { return };
    let samples = samples(&text);
    let of = |family: &str| -> Vec<f64> {
        let is_of = |series: &str| series.split('{').next() == Some(family);
        samples.iter().filter(|(series, _)| is_of(series)).map(|(_, value)| *value).collect()
    };
    let sum = |family: &str| -> f64 { of(family).iter().sum() };

    let is_quiet = |family: &str| QUIET.iter().any(|(name, _)| *name == family);
    let moves =
        |family: &str| samples.iter().any(|(series, value)| series.starts_with(family) && *value != 0.0);
    let encrypted =
        samples.iter().find(|(series, _)| series.starts_with("checkpoint_guard_unencrypted_directories"));
    assert_eq!(encrypted.map(|(_, count)| *count), Some(f64::from(u8::from(!is_encrypted))));
    let declared = Metrics::new();
    let names = declared.families().iter().map(|family| family.name);
    let unmoved: Vec<_> = names.filter(|family| !is_quiet(family) && !moves(family)).collect();
    assert!(unmoved.is_empty(), "nothing moves {unmoved:?}");

    assert!(!deletions.is_empty(), "a gigabyte does not fit into 256 MiB");
    assert_eq!(sum("checkpoint_guard_deletions_total"), deletions.len() as f64);
    assert_eq!(sum("checkpoint_guard_namespace_deletions_total"), deletions.len() as f64);
    let freed: u64 = deletions.iter().map(|deletion| deletion["freedBytes"].as_u64().unwrap()).sum();
    assert_eq!(sum("checkpoint_guard_freed_bytes_total"), freed as f64);
    let at_team = deletions.iter().filter(|deletion| deletion["namespace"] == "team").count();
    let team = samples.get("checkpoint_guard_namespace_deletions_total{namespace=\"team\"}");
    assert_eq!(team.copied().unwrap_or(0.0), at_team as f64);

    let counted = sum("checkpoint_guard_written_bytes_total");
    if text.contains("backend=\"inotify\"") {
        println!("SKIPPED counting bytes: this kernel grants no eBPF");
    } else {
        let share = counted / written.bytes.0 as f64;
        // A write that finds the disk full for a moment reserves, gives back and reserves again, up to a folio of 2 MiB.
        assert!((0.999..1.01).contains(&share), "counted {counted} of {}", written.bytes.0);
    }
    check_with_promtool(&text);
}

fn check_with_promtool(text: &str) {
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        println!("SKIPPED promtool check metrics: there is no promtool");
        return;
    };
    std::io::Write::write_all(&mut promtool.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim().is_empty(), "{said}");
}
