use std::collections::BTreeSet;

use super::*;
use crate::model::{
    Amount, Certainty, Checkpoint, FileId, Identity, Inodes, Kind, Level, MinimumReclaim, NamespaceGrowth,
    Need, Observation, Owner, PressurePolicy, Quantity, Signal, States, Threshold,
};

fn threshold(available: &str, inodes: Option<&str>) -> Option<Threshold> {
    let amount = |text, signal| Amount::one(Quantity::parse(text, signal).unwrap());
    Some(Threshold {
        available: Some(amount(available, Signal::Available)),
        inodes_free: inodes.map(|text| amount(text, Signal::InodesFree)),
        grace_period: Duration::ZERO,
    })
}

fn policy() -> PressurePolicy {
    PressurePolicy {
        soft: threshold("20%", Some("10%")),
        hard: threshold("15%", None),
        critical: threshold("100MiB", None),
        minimum_reclaim: MinimumReclaim::default(),
        transition_period: Duration::from_secs(60),
    }
}

fn observation() -> Observation {
    Observation {
        capacity: Bytes::gib(1),
        available: Bytes::mib(300),
        inodes: Some(Inodes { total: 1000, free: 900 }),
    }
}

fn state<'a>(observation: &'a Observation, policy: &'a PressurePolicy, level: Level) -> FilesystemState<'a> {
    FilesystemState {
        observation,
        observed: Timestamp::from_second(1_700_000_000).unwrap(),
        level,
        policy,
        headroom: Need { bytes: Bytes::mib(95), inodes: 800 },
        fill_rate: 1e6,
        time_to: [Some(Duration::from_secs(90)), None, None],
        unreclaimable: Need { bytes: Bytes::mib(7), inodes: 3 },
        brake: true,
        brake_failing: true,
    }
}

fn checkpoint(namespace: &str, size: Bytes, states: States) -> Checkpoint {
    Checkpoint {
        directory: 0,
        kind: Kind::Archive,
        states,
        name: std::ffi::OsStr::new("checkpoint-web_team-app-2026-01-01T00:00:00Z.tar").into(),
        file: FileId { dev: 1, ino: 2 },
        created: Timestamp::UNIX_EPOCH,
        modified: Timestamp::UNIX_EPOCH,
        len: size,
        allocated: size,
        inodes: 1,
        identity: Identity {
            owner: Owner::new(namespace, "web", "app"),
            certainty: Certainty::Exact,
            ..Identity::default()
        }
        .into(),
    }
}

fn inventory(checkpoints: Vec<Checkpoint>) -> Holdings {
    Holdings::of(&crate::model::Inventory { checkpoints, foreign: 2, ..Default::default() })
}

fn ext4() -> FilesystemLabel {
    FilesystemLabel::new(std::path::Path::new("/var/lib/kubelet/checkpoints"))
}

fn growth() -> Growth {
    let namespace =
        NamespaceGrowth { namespace: Some("team".into()), rate: Bytes::mib(3), bytes: Bytes::gib(1) };
    Growth { namespaces: vec![namespace], writers: Vec::new() }
}

/// Calls every setter there is.
fn exercise(metrics: &Metrics) {
    let (label, observation, policy) = (ext4(), observation(), policy());
    let filesystem = metrics.filesystem(&label);
    filesystem.begin();
    filesystem.set(&state(&observation, &policy, Level::Hard));
    filesystem.written(Bytes(4096));
    filesystem.unencrypted(1);
    filesystem.announced(Bytes::mib(300));
    metrics.staged(Bytes::mib(400));
    metrics.growth(&growth());
    filesystem.deleted(&Trigger::Pressure(Level::Hard), Some("team"), Bytes::mib(20));
    filesystem.refused("containerd-shim", 3, Bytes(4096));
    filesystem.refused("storm-1", 1, Bytes(1));
    filesystem.scanned(Timestamp::from_second(1_700_000_000).unwrap(), Duration::from_millis(3));
    filesystem.scan_failed();
    metrics.checkpoints([&inventory(vec![
        checkpoint("team", Bytes::mib(20), States::PINNED | States::EXPOSED),
        checkpoint("team-prod", Bytes::mib(30), States::empty()),
    ])]);
    metrics.deletion_failed(FailureCause::Permission);
    metrics.deletion_refused(RefusalCause::Pinned);
    metrics.reacted(Duration::from_micros(400));
    metrics.planned(Duration::from_micros(80));
    filesystem.backend("fexit");
    filesystem.backend("raw-tracepoint");
    metrics.backend_degraded(true);
    metrics.sandbox("seccomp", true);
    metrics.pool(Some("gpu"));
    metrics.dry_run(true);
    metrics.lost(LostEvents::Ledger, 1);
    metrics.woke(Wake::Budget);
    metrics.audit_failed();
    metrics.panicked();
    metrics.missing_directories(1);
    metrics.config_loaded(Timestamp::from_second(1_700_000_000).unwrap());
    metrics.config_rejected();
    metrics.cluster_begin();
    metrics.cluster_current("nodes", Timestamp::from_second(1_700_000_000).unwrap());
    metrics.cluster_known_since("pods", Some(Timestamp::from_second(1_600_000_000).unwrap()));
    metrics.cluster_called("list");
    metrics.cluster_failed("forbidden");
    metrics.cluster_misread(1);
    metrics.cluster_state_failed();
    metrics.event(EventOutcome::Published, 1);
    metrics.webhook_begin();
    metrics.webhook_rounds(RoundOutcome::Delivered, 1);
    metrics.webhook_failed();
    metrics.webhook_waiting(1);
    metrics.command_begin();
    metrics.command_ran("done", Duration::from_secs(1));
}

/// The samples of `text`: series → value.
fn samples(text: &str) -> std::collections::BTreeMap<String, f64> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(series, value)| (series.to_owned(), value.parse().unwrap()))
        .collect()
}

#[track_caller]
fn check(metrics: &Metrics, series: &str, expect: Option<f64>) {
    assert_eq!(samples(&metrics.encode().unwrap()).get(series).copied(), expect, "{series}");
}

const FS: &str = "filesystem=\"/var/lib/kubelet/checkpoints\"";

#[test]
fn every_family_moves_when_everything_happens() {
    let metrics = Metrics::new();
    exercise(&metrics);
    let samples = samples(&metrics.encode().unwrap());
    for family in metrics.families() {
        let moved = samples.iter().any(|(series, value)| series.starts_with(family.name) && *value != 0.0);
        // config_valid went to 0 with the last setter.
        assert!(moved || family.name == "checkpoint_guard_config_valid", "{} does not move", family.name);
    }
}

#[test]
fn labels_hold_only_documented_values() {
    let metrics = Metrics::new();
    exercise(&metrics);
    let text = metrics.encode().unwrap();
    for family in metrics.families() {
        for label in family.labels.iter().filter(|label| label.values.starts_with('`')) {
            let key = format!("{}=\"", label.name);
            for line in text.lines().filter(|line| line.starts_with(&format!("{}{{", family.name))) {
                let value = line.split_once(&key).unwrap().1.split('"').next().unwrap();
                assert!(label.values.contains(&format!("`{value}`")), "{}: {key}{value}\"", family.name);
            }
        }
    }
}

#[test]
fn case_43_no_metric_has_a_label_for_a_pod_a_file_or_a_time() {
    let known = BTreeSet::from([
        "filesystem",
        "namespace",
        "level",
        "trigger",
        "state",
        "identity",
        "cause",
        "writer",
        "kind",
        "backend",
        "layer",
        "pool",
        "version",
        "resource",
        "call",
        "outcome",
    ]);
    for family in Metrics::new().families() {
        for label in family.labels {
            assert!(known.contains(label.name), "{} of {}", label.name, family.name);
        }
    }
}

#[test]
fn case_43_five_thousand_archives_of_five_hundred_namespaces_stay_few_series() {
    let metrics = Metrics::new();
    let name = |n: usize| format!("ci-{}", n % 500);
    let many: Vec<_> = (0..5000).map(|n| checkpoint(&name(n), Bytes::mib(1), States::empty())).collect();
    metrics.checkpoints([&inventory(many)]);
    let label = ext4();
    for n in 0..5000 {
        metrics.filesystem(&label).deleted(&Trigger::Manual, Some(&name(n)), Bytes::mib(1));
    }
    let samples = samples(&metrics.encode().unwrap());
    let with_namespace = samples.keys().filter(|series| series.contains("namespace=")).count();
    assert_eq!(with_namespace, 4 * (NAMESPACES_MAX + 1));
    let sum = |family: &str| -> f64 {
        samples.iter().filter(|(series, _)| series.starts_with(family)).map(|(_, value)| value).sum()
    };
    assert_eq!(sum("checkpoint_guard_checkpoints{"), 5000.0, "nothing is lost in the bound");
    assert_eq!(sum("checkpoint_guard_namespace_deletions_total{"), 5000.0);
}

#[test]
fn case_41_gauges_are_back_as_soon_as_pressure_and_checkpoints_are_gone() {
    let metrics = Metrics::new();
    exercise(&metrics);
    let hard = format!("checkpoint_guard_level{{{FS},level=\"hard\"}}");
    check(&metrics, &hard, Some(1.0));
    check(&metrics, "checkpoint_guard_checkpoints{namespace=\"team\"}", Some(1.0));

    let (label, observation, policy) = (ext4(), observation(), policy());
    let calm = FilesystemState {
        unreclaimable: Need::default(),
        brake: false,
        brake_failing: false,
        ..state(&observation, &policy, Level::Normal)
    };
    metrics.filesystem(&label).set(&calm);
    metrics.checkpoints([&inventory(vec![])]);

    check(&metrics, &hard, Some(0.0));
    check(&metrics, &format!("checkpoint_guard_level{{{FS},level=\"normal\"}}"), Some(1.0));
    check(&metrics, &format!("checkpoint_guard_unreclaimable_bytes{{{FS}}}"), Some(0.0));
    check(&metrics, &format!("checkpoint_guard_brake_engaged{{{FS}}}"), Some(0.0));
    check(&metrics, &format!("checkpoint_guard_brake_failing{{{FS}}}"), Some(0.0));
    check(&metrics, "checkpoint_guard_checkpoints{namespace=\"team\"}", None);
    check(&metrics, "checkpoint_guard_checkpoints_by_state{state=\"pinned\"}", Some(0.0));
}

#[test]
fn case_45_a_filesystem_without_inodes_has_no_inode_series() {
    let metrics = Metrics::new();
    let (label, policy) = (ext4(), policy());
    let counted = observation();
    metrics.filesystem(&label).set(&state(&counted, &policy, Level::Normal));
    check(&metrics, &format!("checkpoint_guard_threshold_inodes{{{FS},level=\"soft\"}}"), Some(100.0));

    let btrfs = Observation { inodes: None, ..counted };
    metrics.filesystem(&label).set(&state(&btrfs, &policy, Level::Normal));
    let text = metrics.encode().unwrap();
    for gone in ["filesystem_inodes", "filesystem_inodes_free", "threshold_inodes", "headroom_inodes"] {
        assert!(!text.contains(&format!("\ncheckpoint_guard_{gone}{{")), "{gone}");
    }
}

#[test]
fn thresholds_are_shown_as_they_are_on_this_filesystem() {
    let metrics = Metrics::new();
    exercise(&metrics);
    let at = |level| format!("checkpoint_guard_threshold_bytes{{{FS},level=\"{level}\"}}");
    check(&metrics, &at("soft"), Some((Bytes::gib(1).0 / 5) as f64));
    check(&metrics, &at("critical"), Some(Bytes::mib(100).0 as f64));
    let time_to = |level| format!("checkpoint_guard_time_to_threshold_seconds{{{FS},level=\"{level}\"}}");
    check(&metrics, &time_to("soft"), Some(90.0));
    check(&metrics, &time_to("hard"), Some(f64::INFINITY));
}

#[test]
fn a_level_that_is_switched_off_has_no_threshold() {
    let metrics = Metrics::new();
    let (label, observation) = (ext4(), observation());
    metrics.filesystem(&label).set(&state(&observation, &policy(), Level::Normal));
    let policy = PressurePolicy { soft: None, ..policy() };
    metrics.filesystem(&label).set(&state(&observation, &policy, Level::Normal));
    check(&metrics, &format!("checkpoint_guard_threshold_bytes{{{FS},level=\"soft\"}}"), None);
    check(&metrics, &format!("checkpoint_guard_time_to_threshold_seconds{{{FS},level=\"soft\"}}"), None);
}

#[test]
fn counters_exist_before_their_first_event() {
    let metrics = Metrics::new();
    metrics.filesystem(&ext4()).begin();
    check(&metrics, &format!("checkpoint_guard_deletions_total{{{FS},trigger=\"retention\"}}"), Some(0.0));
    check(&metrics, &format!("checkpoint_guard_written_bytes_total{{{FS}}}"), Some(0.0));
    check(&metrics, "checkpoint_guard_deletion_failures_total{cause=\"io\"}", Some(0.0));
    check(&metrics, "checkpoint_guard_lost_events_total{kind=\"ring-buffer\"}", Some(0.0));
}

#[test]
fn case_12_deletions_say_who_lost_how_much_and_why() {
    let metrics = Metrics::new();
    let label = ext4();
    for size in [1, 2, 3] {
        metrics.filesystem(&label).deleted(&Trigger::Pressure(Level::Hard), Some("team"), Bytes::mib(size));
    }
    check(&metrics, &format!("checkpoint_guard_deletions_total{{{FS},trigger=\"hard\"}}"), Some(3.0));
    let freed = Some(Bytes::mib(6).0 as f64);
    check(&metrics, &format!("checkpoint_guard_freed_bytes_total{{{FS},trigger=\"hard\"}}"), freed);
    check(&metrics, "checkpoint_guard_namespace_deletions_total{namespace=\"team\"}", Some(3.0));
    check(&metrics, "checkpoint_guard_namespace_freed_bytes_total{namespace=\"team\"}", freed);
}

#[test]
fn case_24_what_no_deletion_may_free_is_a_number() {
    let metrics = Metrics::new();
    exercise(&metrics);
    let missing = Some(Bytes::mib(7).0 as f64);
    check(&metrics, &format!("checkpoint_guard_unreclaimable_bytes{{{FS}}}"), missing);
    check(&metrics, &format!("checkpoint_guard_unreclaimable_inodes{{{FS}}}"), Some(3.0));
}

#[test]
fn case_46_a_filesystem_that_is_no_longer_watched_disappears() {
    let metrics = Metrics::new();
    exercise(&metrics);
    metrics.filesystem(&ext4()).forget();
    let left: Vec<_> =
        samples(&metrics.encode().unwrap()).into_keys().filter(|series| series.contains(FS)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_process_reports_itself() {
    let metrics = Metrics::new();
    let samples = samples(&metrics.encode().unwrap());
    assert!(samples["process_resident_memory_bytes"] > 100_000.0);
    assert!(samples["process_open_fds"] >= 3.0);
    assert!(samples["process_start_time_seconds"] > 1.5e9);
}

#[test]
fn docs_metrics_md_says_what_the_code_declares() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/METRICS.md");
    let now = Metrics::new().document();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(
        written == now,
        "docs/METRICS.md is out of date: UPDATE_DOCS=1 cargo test -p guard docs_metrics_md"
    );
}

#[test]
fn promtool_finds_nothing_wrong_with_the_metrics() {
    use std::process::{Command, Stdio};
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = match promtool {
        Ok(promtool) => promtool,
        Err(error) => {
            eprintln!("SKIPPED promtool_finds_nothing_wrong_with_the_metrics: promtool: {error}");
            return;
        }
    };
    let metrics = Metrics::new();
    exercise(&metrics);
    let text = metrics.encode().unwrap();
    std::io::Write::write_all(&mut promtool.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}\n{text}", output.status);
    assert_eq!(said.trim(), "", "promtool's lint");
}

#[test]
fn calls_and_failures_of_the_api_server_are_counted_from_zero() {
    let metrics = Metrics::new();
    metrics.cluster_begin();
    let before = metrics.encode().unwrap();
    for cause in crate::observe::cluster::trouble::Cause::ALL {
        metrics.cluster_failed(cause.as_str());
        let series = format!("checkpoint_guard_cluster_failures_total{{cause=\"{}\"}} 0\n", cause.as_str());
        assert!(before.contains(&series), "{series}");
    }
    let lines = |text: &str| text.lines().count();
    assert_eq!(lines(&metrics.encode().unwrap()), lines(&before), "a cause that is not in the list");
}
