//! CASES.md, victims, through the real guard.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::process::Command;
use std::time::Duration;

use guard::model::Bytes;
use tests::archives::Archive;
use tests::immutable::Immutable;
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::{Scene, hour_of_2026, make_old};

const UNHURRIED: &str = "[eviction]\nmin-age = \"0s\"";

#[test]
fn case_33_one_that_cannot_be_deleted_is_passed_over_and_counted() {
    let scene = Scene::new();
    let names: Vec<_> = (1..=4).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    let _immutable = Immutable::new(scene.directory().join(&names[0]));
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting the next", |daemon| daemon.deleted() == [names[1].clone()]);
    daemon.keeps_running_for(Duration::from_secs(2));
    assert_eq!(daemon.deleted(), names[1..2]);
    let failures = "checkpoint_guard_deletion_failures_total{cause=\"permission\"}";
    assert_eq!(daemon.metric(failures), Some(1.0), "{}", daemon.log());
    assert_eq!(daemon.audit().iter().filter(|line| line["outcome"] == "failed").count(), 1);
}

#[test]
fn case_33_only_undeletable_ones_are_tried_now_and_then_not_all_the_time() {
    let scene = Scene::new();
    let names: Vec<_> = (1..=3).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    let _immutable =
        names.iter().map(|name| Immutable::new(scene.directory().join(name))).collect::<Vec<_>>();
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_secs(4));
    let failed = daemon.audit().iter().filter(|line| line["outcome"] == "failed").count();
    // The third is the last of its container. Each of the two: once, and perhaps after an event.
    assert!((2..=6).contains(&failed), "{failed} attempts in 4 s\n{}", daemon.log());
    assert_eq!(daemon.audit().iter().filter(|line| line["kind"] == "Unreachable").count(), 1);
}

#[test]
fn case_34_superseded_ones_go_and_the_large_sole_one_of_its_container_survives() {
    let scene = Scene::on(LoopMount::new(Filesystem::Ext4, Bytes::gib(1)));
    let sole = scene.archive("batch", 0, Bytes::mib(500));
    let names: Vec<_> = (1..=5).map(|hour| scene.archive("web", hour, Bytes::mib(20))).collect();
    scene.configure(UNHURRIED);
    // 50 MiB up to the target at 72.
    scene.leave(Bytes::mib(22));
    let plan = scene.setting.json(&["plan"]);
    let filesystem = &plan["filesystems"][0];
    let told = |list: &str| filesystem[list].as_array().unwrap().clone();
    assert_eq!(told("delete").len() + told("spare").len(), 6, "{plan}");
    for (place, victim) in told("delete").iter().enumerate() {
        assert_eq!(victim["rank"], place + 1, "{victim}");
        assert!(victim["reason"].as_str().unwrap().contains("superseded"), "{victim}");
    }
    assert!(told("spare").iter().all(|spared| !spared["reason"].as_str().unwrap().is_empty()), "{plan}");
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting three", |daemon| daemon.deleted().len() >= 3);
    daemon.keeps_running_for(Duration::from_millis(300));
    assert_eq!(daemon.deleted(), names[..3]);
    assert!(scene.has(&sole));
}

#[test]
fn case_36_what_deleting_frees_counts_and_not_what_a_file_is_long() {
    let scene = Scene::new();
    let linked = scene.archive("web", 1, Bytes::mib(16));
    std::fs::hard_link(scene.directory().join(&linked), scene.mount.path().join("elsewhere")).unwrap();
    let sparse = Archive::new("team", "web", "main", hour_of_2026(2), 1 << 30);
    let file = File::create(scene.directory().join(sparse.kubelet_name())).unwrap();
    sparse.write_sparse(&file).unwrap();
    drop(file);
    let solid = scene.archive("web", 3, Bytes::mib(16));
    scene.archive("web", 4, Bytes::mib(16));
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting the solid one", |daemon| daemon.deleted().contains(&solid));
    daemon.keeps_running_for(Duration::from_millis(300));
    assert_eq!(daemon.deleted(), [solid]);
    assert!(scene.has(&linked) && scene.has(&sparse.kubelet_name()));
}

#[test]
fn case_36_a_deleted_file_that_is_still_open_is_not_waited_for() {
    let scene = Scene::new();
    let names: Vec<_> = (1..=4).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    let hidden = scene.leave(Bytes::mib(60));
    let _open = File::open(&hidden).unwrap();
    std::fs::rename(&hidden, scene.mount.path().join("renamed")).unwrap();
    assert!(Command::new("rm").arg(scene.mount.path().join("renamed")).status().unwrap().success());
    scene.configure(UNHURRIED);
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting", |daemon| !daemon.deleted().is_empty());
    daemon.keeps_running_for(Duration::from_millis(300));
    assert_eq!(daemon.deleted(), names[..1]);
}

#[test]
fn case_36_a_reflink_copy_frees_nothing_and_the_plan_goes_on() {
    let scene = Scene::on(LoopMount::new(Filesystem::Xfs, Bytes::mib(400)));
    let first = scene.archive("web", 1, Bytes::mib(32));
    let copy = Archive::new("team", "web", "main", hour_of_2026(2), 0).kubelet_name();
    let path = |name: &str| scene.directory().join(name);
    let cp = Command::new("cp").arg("--reflink=always").arg(path(&first)).arg(path(&copy)).status().unwrap();
    assert!(cp.success());
    std::fs::set_permissions(path(&copy), PermissionsExt::from_mode(0o600)).unwrap();
    let third = scene.archive("web", 3, Bytes::mib(32));
    let last = scene.archive("web", 4, Bytes::mib(32));
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("at its target", |_| scene.available() >= tests::scene::TARGET);
    daemon.keeps_running_for(Duration::from_millis(300));
    assert_eq!(daemon.deleted(), [first, copy]);
    assert!(scene.has(&third) && scene.has(&last));
}

#[test]
fn case_38_a_directory_swapped_for_a_link_leads_nowhere() {
    let scene = Scene::new();
    let outside = scene.mount.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let archive = Archive::new("team", "web", "main", hour_of_2026(1), 16 << 20);
    let precious = archive.write_in(&outside).unwrap();
    scene.configure(&format!("{UNHURRIED}\nkeep-last = 0"));
    let mut daemon = scene.setting.start();
    std::fs::rename(scene.directory(), scene.mount.path().join("away")).unwrap();
    symlink(&outside, scene.directory()).unwrap();
    scene.leave(Bytes::mib(40));
    daemon.wait_until("refusing the link", |daemon| daemon.log().contains("cannot watch a directory"));
    daemon.keeps_running_for(Duration::from_secs(2));
    assert!(precious.exists(), "{}", daemon.log());
    assert_eq!(daemon.deleted(), [""; 0]);
}

#[test]
fn case_38_an_entry_that_is_a_link_is_never_followed() {
    let scene = Scene::new();
    let names: Vec<_> = (1..=3).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    let precious = scene.mount.path().join("precious");
    File::create(&precious).unwrap().write_all_at(&[1; 1 << 20], 0).unwrap();
    scene.configure(&format!("{UNHURRIED}\nkeep-last = 0"));
    let mut daemon = scene.setting.start();
    for name in &names {
        let path = scene.directory().join(name);
        std::fs::rename(&path, scene.mount.path().join(name)).unwrap();
        symlink(&precious, &path).unwrap();
    }
    scene.leave(Bytes::mib(40));
    daemon.wait_until("helpless", |daemon| daemon.log().contains("pressure is not from checkpoints"));
    daemon.keeps_running_for(Duration::from_millis(300));
    assert!(precious.exists());
    assert!(names.iter().all(|name| scene.has(name)), "{:?}", daemon.audit());
    assert_eq!(daemon.deleted(), [""; 0]);
}

#[test]
fn case_39_one_dated_2039_is_as_old_as_its_file_and_not_young_for_ever() {
    let scene = Scene::new();
    let at = "2039-01-01T00:00:00Z".parse().unwrap();
    let future = Archive::new("team", "web", "main", at, 16 << 20);
    let path = future.write_in(&scene.directory()).unwrap();
    make_old(&path);
    scene.configure("[eviction]\nmin-age = \"2m\"\nkeep-last = 0");
    scene.leave(Bytes::mib(60));
    let listed = scene.setting.json(&["list"]);
    // Its name cannot be true; when it was written, an hour ago, can.
    let age = listed["items"][0]["ageSeconds"].as_u64().unwrap();
    assert!((3600..3700).contains(&age), "{listed}");
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting it", |daemon| daemon.deleted() == [future.kubelet_name()]);
}

#[test]
fn case_39_one_that_is_from_the_future_in_every_way_has_age_zero() {
    let scene = Scene::new();
    let at: jiff::Timestamp = "2039-01-01T00:00:00Z".parse().unwrap();
    let path = Archive::new("team", "web", "main", at, 1 << 20).write_in(&scene.directory()).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    let since_1970 = Duration::from_secs(at.as_second() as u64);
    file.set_modified(std::time::UNIX_EPOCH + since_1970).unwrap();
    scene.configure(UNHURRIED);
    assert_eq!(scene.setting.json(&["list"])["items"][0]["ageSeconds"], 0);
}
