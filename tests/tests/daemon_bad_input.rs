//! What the node may have in store: the guard says what is wrong and goes on where it can.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use guard::model::Bytes;
use tests::archives::Archive;
use tests::scene::{Scene, directory_table, hour_of_2026};
use tests::setting::{Daemon, Setting};

const UNHURRIED: &str = "[eviction]\nmin-age = \"0s\"";

/// With `bad` as its first directory, the guard started by `start` says `message` and protects the second.
#[track_caller]
fn check_bad_directory(bad: &Path, message: &[&str], start: impl FnOnce(&Setting) -> Daemon) {
    let scene = Scene::new();
    let names: Vec<_> = (1..=3).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    scene.configure(&format!("{UNHURRIED}\n{}", directory_table(bad)));
    scene.leave(Bytes::mib(60));
    let mut daemon = start(&scene.setting);
    daemon.wait_until("protecting the other", |daemon| daemon.deleted() == names[..1]);
    let log = daemon.log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(told.len(), 1, "{log}");
    let path = bad.to_str().unwrap();
    assert!(message.iter().chain([&path]).all(|part| told[0].contains(part)), "{}", told[0]);
    daemon.keeps_running_for(Duration::from_secs(2));
}

fn launch(setting: &Setting) -> Daemon {
    setting.launch(&[], &mut |_| {})
}

#[test]
fn a_missing_directory_is_said_once_and_the_others_are_protected() {
    check_bad_directory(Path::new("/no/such/checkpoints"), &["does not exist", "optional = true"], launch);
}

#[test]
fn what_is_not_a_directory_is_said_once_and_the_others_are_protected() {
    let file = tempfile::NamedTempFile::new().unwrap();
    check_bad_directory(file.path(), &["is not a directory"], launch);
}

#[test]
fn a_directory_that_may_not_be_read_is_said_once_and_the_others_are_protected() {
    let closed = tempfile::tempdir().unwrap();
    std::fs::set_permissions(closed.path(), PermissionsExt::from_mode(0o000)).unwrap();
    chown(closed.path(), Some(65534), Some(65534)).unwrap();
    check_bad_directory(closed.path(), &["permission denied", "CAP_DAC_OVERRIDE"], |setting| {
        setting.launch_through(&["setpriv", "--bounding-set=-dac_override,-dac_read_search"])
    });
}

#[test]
fn without_its_port_it_protects_all_the_same() {
    let scene = Scene::new();
    let names: Vec<_> = (1..=3).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(60));
    let _taken = TcpListener::bind(scene.setting.address()).unwrap();
    let mut daemon = scene.setting.launch(&[], &mut |_| {});
    daemon.wait_until("protecting", |daemon| daemon.deleted() == names[..1]);
    let log = daemon.log();
    let told = log.lines().find(|line| line.contains("no metrics; protecting all the same")).unwrap();
    assert!(told.contains(&scene.setting.address().to_string()), "{told}");
    assert!(daemon.stop() < Duration::from_secs(2));
}

#[test]
fn names_of_255_bytes_and_of_invalid_utf8_are_listed_deleted_and_recorded() {
    let scene = Scene::new();
    let place = |hour: u32, name: &[u8]| {
        let archive = Archive::new("team", "web", "main", hour_of_2026(hour), 8 << 20);
        let path = archive.write_in(&scene.directory()).unwrap();
        let renamed = scene.directory().join(OsStr::from_bytes(name));
        std::fs::rename(path, &renamed).unwrap();
        renamed
    };
    let long = format!("checkpoint-{}_team-main-2026-01-01T01:00:00Z.tar", "w".repeat(209));
    assert_eq!(long.len(), 255);
    let long = place(1, long.as_bytes());
    let invalid = place(2, b"checkpoint-we\xffb_team-main-2026-01-01T02:00:00Z.tar");
    let foreign = place(3, b"\xff\xfe\n\"quoted\".tar");
    let last = scene.archive("web", 4, Bytes::mib(8));
    std::fs::write(scene.directory().join("x".repeat(255)), "mine").unwrap();
    scene.configure(&format!("{UNHURRIED}\nkeep-last = 0"));
    assert_eq!(scene.setting.json(&["list"])["items"].as_array().unwrap().len(), 4);
    scene.leave(Bytes::mib(50));
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting three", |daemon| daemon.deleted().len() == 3);
    daemon.keeps_running_for(Duration::from_millis(300));
    assert!(!long.exists() && !invalid.exists() && !foreign.exists(), "{}", daemon.log());
    assert!(scene.has(&last) && scene.has(&"x".repeat(255)));
}

#[test]
fn it_ends_within_two_seconds_of_sigterm_whatever_it_is_at() {
    let scene = Scene::new();
    (0..24).for_each(|hour| drop(scene.archive("web", hour, Bytes::mib(4))));
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(20));
    let mut deleting = scene.setting.start();
    deleting.wait_until("deleting", |daemon| !daemon.deleted().is_empty());
    assert!(deleting.stop() < Duration::from_secs(2));
    let lines = tests::setting::read_audit(&scene.setting.audit_path());
    let count = |phase: &str| lines.iter().filter(|line| line["phase"] == phase).count();
    assert_eq!(count("intent"), count("outcome"), "the deletion in hand is finished");
    assert!(scene.setting.start().stop() < Duration::from_secs(2));
}
