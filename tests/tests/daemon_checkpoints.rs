//! CASES.md, checkpoints, through the real guard.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use guard::model::Bytes;
use tests::archives::Archive;
use tests::loopfs::{Filesystem, LoopMount};
use tests::sampler::Sampler;
use tests::scene::{Scene, TARGET, directory_table, hour_of_2026, make_old};
use tests::setting::Daemon;

const UNHURRIED: &str = "[eviction]\nmin-age = \"0s\"";

#[test]
fn case_01_a_container_checkpointed_again_and_again_never_brings_the_kubelet_to_its_threshold() {
    let scene = Scene::on(LoopMount::new(Filesystem::Ext4, Bytes::gib(1)));
    // The kubelet evicts pods below 10 %; 40 archives of 20 MB do not fit beside what is there.
    scene.configure_fully(&format!(
        r#"
        [pressure]
        soft = false
        hard = {{ available = "15%" }}
        critical = {{ available = "11%" }}
        kubelet-config = "off"
        {UNHURRIED}
        "#
    ));
    scene.leave(Bytes::mib(700));
    let daemon = scene.setting.start();
    let sampler = Sampler::start(scene.mount.path(), Duration::from_millis(1)).unwrap();
    for second in 0..40 {
        let at = hour_of_2026(1) + jiff::SignedDuration::from_secs(5 * second);
        Archive::new("team", "web", "main", at, 20_000_000).write_in(&scene.directory()).unwrap();
    }
    let lowest = sampler.stop().lowest.unwrap().available;
    assert!(lowest.0 > (1 << 30) / 10, "lowest {lowest}\n{}", daemon.log());
    assert!(!daemon.deleted().is_empty());
    let newest =
        Archive::new("team", "web", "main", hour_of_2026(1) + jiff::SignedDuration::from_secs(195), 0);
    assert!(scene.has(&newest.kubelet_name()));
}

#[test]
fn case_02_in_the_night_the_clock_goes_back_the_earlier_instant_goes_first() {
    let scene = Scene::new();
    let place = |at: &str, time: &str| {
        let archive = Archive::new("team", "web", "main", at.parse().unwrap(), 16 << 20);
        let path = archive.write_in(&scene.directory()).unwrap();
        let name = format!("checkpoint-web_team-main-{time}.tar");
        std::fs::rename(path, scene.directory().join(&name)).unwrap();
        name
    };
    let later = place("2025-10-26T01:10:00Z", "2025-10-26T02:10:00+01:00");
    let earlier = place("2025-10-26T00:30:00Z", "2025-10-26T02:30:00+02:00");
    let last = scene.archive("web", 1, Bytes::mib(16));
    scene.configure(&format!("{UNHURRIED}\nage-bucket = \"0s\""));
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting", |daemon| !daemon.deleted().is_empty());
    daemon.keeps_running_for(Duration::from_millis(300));
    assert_eq!(daemon.deleted(), [earlier]);
    assert!(scene.has(&later) && scene.has(&last));
}

#[test]
fn case_05_one_that_is_open_for_writing_is_no_candidate_however_long_the_pause() {
    let scene = Scene::new();
    scene.configure(&format!("{UNHURRIED}\nkeep-last = 0"));
    scene.leave(Bytes::mib(66));
    let mut daemon = scene.setting.start();
    let archive = Archive::new("team", "web", "main", hour_of_2026(1), 20 << 20);
    let mut content = Vec::new();
    archive.write_to(&mut content).unwrap();
    let mut file = File::create(scene.directory().join(archive.kubelet_name())).unwrap();
    file.write_all(&content[..10 << 20]).unwrap();
    file.sync_all().unwrap();
    daemon.keeps_running_for(Duration::from_secs(3));
    let listed = scene.setting.json(&["list"]);
    assert!(listed["items"][0]["states"].as_array().unwrap().contains(&"being-written".into()), "{listed}");
    file.write_all(&content[10 << 20..]).unwrap();
    file.sync_all().unwrap();
    daemon.keeps_running_for(Duration::from_millis(500));
    assert_eq!(daemon.deleted(), [""; 0]);
    drop(file);
    daemon.wait_until("deleting what is closed", |daemon| daemon.deleted() == [archive.kubelet_name()]);
    let reason =
        daemon.audit().iter().find(|line| line["outcome"] == "deleted").unwrap()["reason"].to_string();
    assert!(!reason.contains("incomplete"), "read before the end: {reason}");
}

#[test]
fn case_06_the_oldest_is_pinned_and_one_message_names_what_blocks_the_target() {
    let scene = Scene::new();
    let names: Vec<_> = (1..=3).map(|hour| scene.archive("web", hour, Bytes::mib(4))).collect();
    File::create(scene.directory().join(format!("{}.keep", names[0]))).unwrap();
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("blocked", |daemon| daemon.log().contains("pressure is not from checkpoints"));
    daemon.keeps_running_for(Duration::from_millis(500));
    assert_eq!(daemon.deleted(), names[1..2]);
    assert!(scene.has(&names[0]));
    let held = daemon.metric("checkpoint_guard_checkpoints_by_state_bytes{state=\"pinned\"}").unwrap();
    assert!(held >= 4.0 * 1024.0 * 1024.0, "pinned ones count as usage: {held}");
    let lines = daemon.audit();
    let told: Vec<_> = lines.iter().filter(|line| line["kind"] == "Unreachable").collect();
    assert_eq!(told.len(), 1);
    let reason = told[0]["reason"].as_str().unwrap();
    assert!(reason.contains(&names[0]) && reason.contains("pinned"), "{reason}");
}

#[test]
fn case_07_no_archive_that_was_pinned_before_its_turn_is_deleted() {
    let scene = Scene::new();
    let names: Vec<_> = (0..24).map(|hour| scene.archive("web", hour, Bytes::mib(4))).collect();
    scene.configure(UNHURRIED);
    let mut daemon = scene.setting.start();
    let directory = scene.directory();
    // Each is pinned while the guard is choosing and deleting among them; from then on it must be there.
    let pinner = std::thread::spawn({
        let names = names.clone();
        move || {
            let pin = |name: &String| {
                File::create(directory.join(format!("{name}.keep"))).unwrap();
                directory.join(name).exists()
            };
            names.into_iter().filter(pin).collect::<Vec<_>>()
        }
    });
    scene.leave(Bytes::mib(40));
    let pinned = pinner.join().unwrap();
    daemon.keeps_running_for(Duration::from_secs(1));
    assert!(pinned.iter().all(|name| scene.has(name)), "{:?}", daemon.deleted());
}

#[test]
fn case_09_a_directory_and_a_pool_are_a_whole_configuration() {
    let scene = Scene::new();
    scene.configure_fully("[pool.gpu]\npressure.critical.available = \"12%\"");
    let printed = scene.setting.run(&["check-config"]);
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let text = String::from_utf8(printed.stdout).unwrap();
    assert!(text.contains("gpu") && text.contains("12%") && text.contains("15%"), "{text}");
    let daemon = scene.setting.start_with(&["--pool", "gpu"], &mut |_| {});
    assert_eq!(daemon.metric("checkpoint_guard_pool_info{pool=\"gpu\"}"), Some(1.0));
}

#[test]
fn case_10_a_rule_for_team_never_costs_team_prod_anything() {
    let scene = Scene::new();
    // Both names fit both namespaces; only what lies inside tells them apart, and team-prod's is the older one.
    let prod = scene.archive_of("team-prod", "x", 1, Bytes::mib(16));
    scene.archive_of("team-prod", "x", 2, Bytes::mib(16));
    let team = scene.archive_of("team", "y", 3, Bytes::mib(16));
    scene.archive_of("team", "y", 4, Bytes::mib(16));
    scene.configure(&format!("{UNHURRIED}\n[protection]\nnamespaces = {{ team = 5, team-prod = 90 }}"));
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting", |daemon| !daemon.deleted().is_empty());
    daemon.keeps_running_for(Duration::from_millis(300));
    assert_eq!(daemon.deleted(), [team]);
    assert!(scene.has(&prod));
}

#[test]
fn case_12_what_was_deleted_is_told_with_who_what_why_and_how_much() {
    let scene = Scene::new();
    let names: Vec<_> = (1..=4).map(|hour| scene.archive("web", hour, Bytes::mib(8))).collect();
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(50));
    let mut daemon = scene.setting.start();
    daemon.wait_until("done", |daemon| daemon.deleted() == names[..3]);
    for line in daemon.audit().iter().filter(|line| line["outcome"] == "deleted") {
        assert_eq!(
            (&line["namespace"], &line["pod"], &line["container"]),
            (&"team".into(), &"web".into(), &"main".into())
        );
        assert_eq!(line["trigger"], "hard", "{line}");
        assert!(line["reason"].as_str().unwrap().contains("superseded"), "{line}");
        assert!(line["freedBytes"].as_u64().unwrap() >= 8_000_000, "{line}");
    }
    let of_team = "checkpoint_guard_namespace_deletions_total{namespace=\"team\"}";
    daemon.wait_until("counting", |daemon| daemon.metric(of_team) == Some(3.0));
}

#[test]
fn case_13_a_truncated_one_is_first_in_line_but_not_while_it_is_young() {
    let scene = Scene::new();
    scene.archive("web", 1, Bytes::mib(16));
    scene.archive("web", 2, Bytes::mib(16));
    let truncated = |pod: &str| {
        let at = hour_of_2026(3);
        let path = Archive::new("team", pod, "main", at, 16 << 20).write_in(&scene.directory()).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(12 << 20).unwrap();
        path
    };
    let old = truncated("old");
    make_old(&old);
    scene.configure("[eviction]\nmin-age = \"10m\"");
    scene.leave(Bytes::mib(62));
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting", |daemon| !daemon.deleted().is_empty());
    daemon.keeps_running_for(Duration::from_millis(300));
    assert_eq!(daemon.deleted(), [old.file_name().unwrap().to_str().unwrap()]);
    let lines = daemon.audit();
    let line = lines.iter().find(|line| line["outcome"] == "deleted").unwrap();
    assert!(line["reason"].as_str().unwrap().contains("incomplete"), "{line}");
}

/// No event tells that a complete one is opened once more: the engine overwrites in place when two checkpoints fall into one
/// second.
#[test]
fn one_that_is_written_over_is_known_as_what_it_is_now() {
    let scene = Scene::new();
    let name = scene.archive("web", 1, Bytes::mib(4));
    scene.configure("");
    let mut daemon = scene.setting.start();
    daemon.wait_until_ready();
    let shown = |daemon: &Daemon| daemon.metric("checkpoint_guard_checkpoints_bytes{namespace=\"team\"}");
    daemon.wait_until("counting", |daemon| shown(daemon).is_some_and(|bytes| bytes >= f64::from(4 << 20)));
    let mut file = File::options().append(true).open(scene.directory().join(name)).unwrap();
    file.write_all(&vec![1; 8 << 20]).unwrap();
    daemon.wait_until("seeing it grow", |daemon| {
        shown(daemon).is_some_and(|bytes| bytes >= f64::from(12 << 20))
    });
    drop(file);
    daemon.keeps_running_for(Duration::from_millis(300));
}

#[test]
fn case_14_pressure_from_elsewhere_costs_nothing_elsewhere_and_is_said() {
    let scene = Scene::new();
    scene.archive("web", 1, Bytes::mib(4));
    let name = scene.archive("web", 2, Bytes::mib(4));
    let log = scene.mount.path().join("container.log");
    std::fs::write(&log, "not ours").unwrap();
    std::fs::write(scene.directory().join("notes.txt"), "not ours either").unwrap();
    scene.configure(UNHURRIED);
    let filler = scene.leave(Bytes::mib(30));
    let mut daemon = scene.setting.start();
    daemon.wait_until("helpless", |daemon| daemon.log().contains("pressure is not from checkpoints: need"));
    daemon.keeps_running_for(Duration::from_millis(300));
    assert!(log.exists() && filler.exists() && scene.has("notes.txt") && scene.has(&name));
    assert!(daemon.log().contains("can free"), "{}", daemon.log());
}

#[test]
fn case_18_the_audit_log_is_private_and_holds_nothing_from_inside_an_archive() {
    let scene = Scene::new();
    for hour in 1..=4 {
        scene.archive("web", hour, Bytes::mib(8));
    }
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(50));
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting", |daemon| daemon.deleted().len() == 3);
    let path = scene.setting.audit_path();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // `PATH=` is in the environment that each archive's spec.dump holds.
    for text in [std::fs::read_to_string(path).unwrap(), daemon.log()] {
        assert!(!text.contains("PATH=") && !text.contains("/bin/sh"), "{text}");
    }
}

#[test]
fn case_19_a_pod_checkpoint_goes_whole_or_not_at_all() {
    let scene = Scene::new();
    let mut names = Vec::new();
    for hour in 1..=3 {
        let name = format!("checkpoint-web_team-{}", hour_of_2026(hour));
        let tree = scene.directory().join(&name);
        std::fs::create_dir_all(tree.join("deep/er")).unwrap();
        for part in ["main.tar", "deep/images", "deep/er/pages"] {
            std::fs::write(tree.join(part), vec![1; 6 << 20]).unwrap();
        }
        names.push(name);
    }
    let table = directory_table(&scene.directory());
    scene.setting.configure(&format!(
        r#"
        {table}
        layout = "pod-checkpoints"
        [pressure]
        soft = false
        hard = {{ available = "64MiB" }}
        critical = {{ available = "16MiB" }}
        minimum-reclaim = {{ available = "8MiB" }}
        kubelet-config = "off"
        {UNHURRIED}
        "#
    ));
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("at its target", |daemon| scene.available() >= TARGET && !daemon.deleted().is_empty());
    daemon.keeps_running_for(Duration::from_millis(300));
    assert_eq!(daemon.deleted(), names[..1]);
    assert!(!scene.has(&names[0]));
    // What was deleted went through the guard's private directory, and nothing of it is left there.
    assert_eq!(std::fs::read_dir(scene.directory().join(".evicting-guard")).unwrap().count(), 0);
    for part in ["main.tar", "deep/images", "deep/er/pages"] {
        assert!(names[1..].iter().all(|name| scene.has(&format!("{name}/{part}"))), "{part}");
    }
}
