//! CASES.md, thresholds and pressure, through the real guard.

use std::fs::File;
use std::time::Duration;

use guard::model::Bytes;
use tests::loopfs::{Filesystem, LoopMount};
use tests::sampler::Sampler;
use tests::scene::{HARD, Scene, TARGET, directory_table};
use tests::setting::Daemon;

const UNHURRIED: &str = "[eviction]\nmin-age = \"0s\"";

fn count(daemon: &Daemon, kind: &str) -> usize {
    daemon.audit().iter().filter(|line| line["kind"] == kind).count()
}

#[test]
fn case_20_a_reclaim_goes_on_past_the_threshold_to_the_target() {
    let scene = Scene::new();
    let names: Vec<_> = (1..=8).map(|hour| scene.archive("web", hour, Bytes::mib(4))).collect();
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(62));
    let mut daemon = scene.setting.start();
    daemon.wait_until("at its target", |_| scene.available() >= TARGET);
    daemon.keeps_running_for(Duration::from_millis(300));
    // 62 MiB and three of 4 MiB are 74 MiB; the first alone would have been beyond hard.
    assert_eq!(daemon.deleted(), names[..3]);
}

#[test]
fn case_21_toggling_around_the_threshold_enters_once_and_leaves_once() {
    let scene = Scene::new();
    scene.configure(&format!("{UNHURRIED}\n[protection]\ndefault = 100"));
    scene.archive("web", 1, Bytes::mib(8));
    let mut daemon = scene.setting.start();
    for _ in 0..8 {
        let filler = scene.leave(Bytes::mib(60));
        daemon.keeps_running_for(Duration::from_millis(300));
        File::create(filler).unwrap();
        daemon.keeps_running_for(Duration::from_millis(300));
    }
    daemon.wait_until("calm again", |daemon| {
        daemon.audit().iter().any(|line| line["kind"] == "Pressure" && line["to"] == "normal")
    });
    assert_eq!(count(&daemon, "Pressure"), 2, "{:?}", daemon.audit());
    assert_eq!(daemon.deleted(), [""; 0]);
}

#[test]
fn case_22_a_burst_of_four_seconds_is_met_long_before_a_poll_of_ten_would_come() {
    let scene = Scene::on(LoopMount::new(Filesystem::Ext4, Bytes::gib(1)));
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(160));
    let daemon = scene.setting.start();
    let sampler = Sampler::start(scene.mount.path(), Duration::from_millis(1)).unwrap();
    for hour in 0..20 {
        scene.archive("web", hour, Bytes::mib(20));
        std::thread::sleep(Duration::from_millis(150));
    }
    let lowest = sampler.stop().lowest.unwrap().available;
    assert!(lowest + Bytes::mib(32) >= HARD, "lowest {lowest}\n{}", daemon.log());
    assert!(daemon.deleted().len() >= 14, "{}", daemon.log());
    assert!(daemon.metric("checkpoint_guard_reaction_seconds_count").unwrap() >= 1.0);
}

#[track_caller]
fn check_helplessness(pinned: &[u32]) {
    let scene = Scene::new();
    for hour in pinned {
        let name = scene.archive("web", *hour, Bytes::mib(8));
        File::create(scene.directory().join(format!("{name}.keep"))).unwrap();
    }
    scene.configure(UNHURRIED);
    let filler = scene.leave(Bytes::mib(20));
    let mut daemon = scene.setting.start();
    daemon.wait_until("at its wits' end", |daemon| count(daemon, "Unreachable") > 0);
    daemon.wait_until("showing what is missing", |daemon| {
        daemon.metric("checkpoint_guard_unreclaimable_bytes").is_some_and(|bytes| bytes > 40.0 * 1e6)
    });
    let before = cpu_time(&daemon);
    daemon.keeps_running_for(Duration::from_secs(3));
    let spent = cpu_time(&daemon) - before;
    assert!(spent < Duration::from_millis(90), "{spent:?} of CPU in 3 s of waiting");
    assert_eq!(count(&daemon, "Unreachable"), 1);
    assert_eq!(daemon.log().matches("pressure is not from checkpoints").count(), 1, "{}", daemon.log());
    assert_eq!(daemon.deleted(), [""; 0]);
    assert!(filler.exists());
}

/// User and system time of a process: fields 14 and 15 of proc_pid_stat(5), in ticks of 10 ms.
fn cpu_time(daemon: &Daemon) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
    let fields: Vec<_> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

#[test]
fn case_24_an_empty_directory_on_a_full_filesystem_is_said_once_and_costs_nothing() {
    check_helplessness(&[]);
}

#[test]
fn case_24_a_directory_of_pinned_ones_on_a_full_filesystem_is_said_once_and_costs_nothing() {
    check_helplessness(&[1, 2, 3]);
}

#[test]
fn case_25_exactly_one_of_five_is_deleted_when_one_is_enough() {
    let scene = Scene::new();
    let names: Vec<_> = (1..=5).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting", |daemon| !daemon.deleted().is_empty());
    daemon.keeps_running_for(Duration::from_millis(500));
    assert_eq!(daemon.deleted(), names[..1]);
}

#[test]
fn case_26_a_grace_period_runs_out_though_the_value_never_changes() {
    let scene = Scene::new();
    let names: Vec<_> = (1..=3).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    scene.configure_fully(&format!(
        r#"
        [pressure]
        soft = {{ available = "64MiB", inodes-free = false, grace-period = "2s" }}
        hard = {{ available = "32MiB", inodes-free = false }}
        critical = {{ available = "16MiB", inodes-free = false }}
        minimum-reclaim = {{ available = "8MiB" }}
        kubelet-config = "off"
        {UNHURRIED}
        "#
    ));
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_millis(1200));
    assert_eq!(daemon.deleted(), [""; 0], "within the grace period");
    daemon.wait_until("past the grace period", |daemon| daemon.deleted() == names[..1]);
    assert_eq!(daemon.audit().iter().filter(|line| line["trigger"] == "soft").count(), 2);
}

#[test]
fn case_27_each_filesystem_is_judged_by_itself() {
    let scene = Scene::new();
    let other = Scene::new();
    let ours: Vec<_> = (1..=3).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    let theirs: Vec<_> = (1..=3).map(|hour| other.archive("db", hour, Bytes::mib(16))).collect();
    scene.configure(&format!("{UNHURRIED}\n{}", directory_table(&other.directory())));
    let mut daemon = scene.setting.start();
    scene.leave(Bytes::mib(60));
    daemon.wait_until("relieving the first", |_| scene.available() >= TARGET);
    daemon.keeps_running_for(Duration::from_millis(300));
    assert_eq!(daemon.deleted(), ours[..1]);
    other.leave(Bytes::mib(60));
    daemon.wait_until("relieving the second", |_| other.available() >= TARGET);
    daemon.keeps_running_for(Duration::from_millis(300));
    assert_eq!(daemon.deleted(), [ours[0].as_str(), &theirs[0]]);
}

/// A tmpfs of 24 inodes, of which the root, `checkpoints` and so many archives are in use, the youngest a large one.
/// The guard deletes the oldest until 6 are free: 20 % of 24, rounded down, and 10 % beyond.
#[track_caller]
fn check_inodes(archives: u32, deleted: usize) {
    let mount = LoopMount::with_options(Filesystem::Tmpfs, Bytes::mib(64), &[], "nr_inodes=24").unwrap();
    let scene = Scene::on(mount);
    let tiny: Vec<_> = (1..archives).map(|hour| scene.archive("web", hour, Bytes(32 << 10))).collect();
    let large = scene.archive("large", 23, Bytes::mib(16));
    scene.configure_fully(&format!(
        r#"
        [pressure]
        soft = false
        hard = {{ available = "4MiB", inodes-free = "20%" }}
        critical = {{ available = "1MiB", inodes-free = "5%" }}
        minimum-reclaim = {{ inodes-free = "10%" }}
        kubelet-config = "off"
        {UNHURRIED}
        "#
    ));
    let mut daemon = scene.setting.start();
    let free = || nix::sys::statvfs::statvfs(scene.mount.path()).unwrap().files_available();
    daemon.wait_until("at its target", |_| free() >= 6);
    daemon.keeps_running_for(Duration::from_millis(300));
    assert_eq!(daemon.deleted(), tiny[..deleted]);
    assert!(scene.has(&large));
    assert!(daemon.log().contains("inodes-free"), "{}", daemon.log());
}

#[test]
fn case_29_a_shortage_of_inodes_is_met_with_inodes_not_with_bytes() {
    // 3 are free, and the guard's private directory takes one of them.
    check_inodes(19, 4);
}

#[test]
fn case_29_without_a_single_inode_it_still_deletes() {
    check_inodes(22, 7);
}

#[test]
fn inodes_that_no_deletion_can_free_are_shown() {
    let mount = LoopMount::with_options(Filesystem::Tmpfs, Bytes::mib(64), &[], "nr_inodes=24").unwrap();
    let scene = Scene::on(mount);
    for hour in 1..=8 {
        let name = scene.archive("web", hour, Bytes(32 << 10));
        File::create(scene.directory().join(format!("{name}.keep"))).unwrap();
    }
    scene.configure_fully(
        r#"
        [pressure]
        soft = false
        hard = { available = "4MiB", inodes-free = "50%" }
        critical = { available = "1MiB", inodes-free = "5%" }
        minimum-reclaim = { inodes-free = "10%" }
        kubelet-config = "off"
        "#,
    );
    let mut daemon = scene.setting.start();
    let missing = "checkpoint_guard_unreclaimable_inodes";
    daemon.wait_until("short", |daemon| daemon.metric(missing).is_some_and(|count| count >= 1.0));
    assert_eq!(daemon.metric("checkpoint_guard_unreclaimable_bytes"), Some(0.0));
    assert_eq!(daemon.deleted(), [""; 0]);
}

#[test]
fn case_31_critical_acts_at_once_whatever_graces_and_ages_say() {
    let scene = Scene::new();
    scene.configure_fully(
        r#"
        [pressure]
        soft = { available = "96MiB", inodes-free = false, grace-period = "1h" }
        hard = { available = "64MiB", inodes-free = false }
        critical = { available = "48MiB", inodes-free = false }
        minimum-reclaim = { available = "8MiB" }
        kubelet-config = "off"
        [eviction]
        min-age = "900000h"
        "#,
    );
    let first = scene.archive("web", 1, Bytes::mib(32));
    scene.archive("web", 2, Bytes::mib(32));
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("helpless at hard", |daemon| count(daemon, "Unreachable") == 1);
    assert_eq!(daemon.deleted(), [""; 0]);
    scene.leave(Bytes::mib(40));
    daemon.wait_until("relieved", |daemon| daemon.deleted() == [first.clone()]);
    assert!(scene.available() >= Bytes::mib(56));
}

#[test]
fn case_28_of_percent_and_bytes_the_smaller_counts() {
    let scene = Scene::new();
    let name = scene.archive("web", 1, Bytes::mib(32));
    // 90 % of the filesystem would be reached at once; 40 MiB are the smaller.
    scene.configure_fully(&format!(
        r#"
        [pressure]
        soft = false
        hard = {{ available = ["90%", "40MiB"], inodes-free = false }}
        critical = {{ available = ["80%", "16MiB"], inodes-free = false }}
        minimum-reclaim = {{ available = "8MiB" }}
        kubelet-config = "off"
        {UNHURRIED}
        keep-last = 0
        "#
    ));
    let mut daemon = scene.setting.start();
    scene.leave(Bytes::mib(50));
    daemon.keeps_running_for(Duration::from_millis(1500));
    assert_eq!(daemon.deleted(), [""; 0]);
    scene.leave(Bytes::mib(36));
    daemon.wait_until("deleting", |daemon| daemon.deleted() == [name.clone()]);
}
