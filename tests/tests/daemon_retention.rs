//! Retention outside pressure, through the real guard: when it runs, and when it waits.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use guard::model::Bytes;
use jiff::Timestamp;
use tests::archives::Archive;
use tests::scene::{Scene, hour_of_2026, make_old};
use tests::setting::Daemon;

const SIZE: Bytes = Bytes::mib(1);

fn at_most(count: u32) -> String {
    format!(
        "[eviction]\nmin-age = \"0s\"\n[[retention]]\nnamespace = \"team\"\nmax-count.container = {count}"
    )
}

/// The triggers of all deletions in the audit log.
fn triggers(daemon: &Daemon) -> Vec<String> {
    let lines = daemon.audit();
    let outcomes = lines.iter().filter(|line| line["outcome"] == "deleted");
    outcomes.map(|line| line["trigger"].as_str().expect("it has one").to_owned()).collect()
}

#[test]
fn a_limit_holds_again_as_soon_as_one_more_is_complete() {
    let scene = Scene::new();
    scene.configure(&at_most(2));
    let mut names: Vec<_> = (1..=2).map(|hour| scene.archive("web", hour, SIZE)).collect();
    let other = scene.archive_of("else", "web", 1, SIZE);
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_secs(1));
    assert_eq!(daemon.deleted(), [""; 0], "two are allowed: {}", daemon.log());
    names.push(scene.archive("web", 3, SIZE));
    daemon.wait_until("deleting the oldest", |daemon| daemon.deleted() == names[..1]);
    // Another pod's container has a limit of its own, and another namespace none.
    let quiet = scene.archive("api", 1, SIZE);
    daemon.keeps_running_for(Duration::from_secs(1));
    assert_eq!(daemon.deleted(), names[..1]);
    assert!(scene.has(&names[1]) && scene.has(&names[2]) && scene.has(&quiet) && scene.has(&other));
    let triggers = triggers(&daemon);
    assert!(triggers.iter().all(|trigger| trigger.starts_with("retention:")), "{triggers:?}");
}

#[test]
fn a_container_is_left_alone_while_one_of_its_is_being_written_and_others_are_not() {
    let scene = Scene::new();
    scene.configure(&at_most(1));
    let archive = Archive::new("team", "web", "main", hour_of_2026(9), SIZE.0);
    let mut bytes = Vec::new();
    archive.write_to(&mut bytes).unwrap();
    let (begin, rest) = bytes.split_at(bytes.len() / 2);
    let mut being_written = File::create(scene.directory().join(archive.kubelet_name())).unwrap();
    being_written.write_all(begin).unwrap();
    let web: Vec<_> = (1..=3).map(|hour| scene.archive("web", hour, SIZE)).collect();
    let api: Vec<_> = (1..=2).map(|hour| scene.archive("api", hour, SIZE)).collect();
    let mut daemon = scene.setting.start();
    daemon.wait_until("trimming the other container", |daemon| daemon.deleted() == api[..1]);
    daemon.keeps_running_for(Duration::from_secs(3));
    assert_eq!(daemon.deleted(), api[..1], "the count of web is not settled");
    being_written.write_all(rest).unwrap();
    drop(being_written);
    daemon.wait_until("trimming to the new one", |daemon| daemon.deleted()[1..] == web[..]);
    assert!(scene.has(&archive.kubelet_name()));
}

#[test]
fn a_changed_limit_is_applied_at_once() {
    let scene = Scene::new();
    scene.configure(&at_most(3));
    let names: Vec<_> = (1..=3).map(|hour| scene.archive("web", hour, SIZE)).collect();
    let pinned = scene.directory().join(format!("{}.keep", names[0]));
    File::create(pinned).unwrap();
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_secs(1));
    assert_eq!(daemon.deleted(), [""; 0]);
    scene.configure(&at_most(2));
    // The pinned one counts and stays.
    daemon.wait_until("applying the change", |daemon| daemon.deleted() == names[1..2]);
    assert!(scene.has(&names[0]) && scene.has(&names[2]));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the guard compares with the real time")]
fn an_age_that_nothing_else_brings_to_mind_is_looked_at_every_minute() {
    let scene = Scene::new();
    scene.configure("[[retention]]\nnamespace = \"team\"\nmax-age = \"20s\"");
    let archive = Archive::new("team", "web", "main", Timestamp::now(), SIZE.0);
    archive.write_in(&scene.directory()).unwrap();
    let name = archive.kubelet_name();
    make_old(&scene.directory().join(&name));
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_secs(5));
    assert_eq!(daemon.deleted(), [""; 0], "it is not that old: {}", daemon.log());
    // Nothing happens there from here on: only the timer can tell.
    daemon.keeps_running_for(Duration::from_secs(45));
    daemon.wait_until("deleting it for its age", |daemon| daemon.deleted() == [name.clone()]);
}

#[test]
fn the_last_good_pod_checkpoint_stays_while_the_next_is_written_slowly() {
    let scene = Scene::new();
    let pod = |hour| scene.directory().join(format!("checkpoint-web_team-{}", hour_of_2026(hour)));
    let part = |hour, part: &str| std::fs::write(pod(hour).join(part), vec![1; 4 << 20]).unwrap();
    std::fs::create_dir(pod(1)).unwrap();
    part(1, "main.tar");
    // A count that the next one exceeds, and then a need that either could meet.
    scene.configure_fully(&format!(
        "layout = \"pod-checkpoints\"\n[pressure]\nsoft = false\nhard = {{ available = \"64MiB\" }}\n\
         critical = {{ available = \"16MiB\" }}\nkubelet-config = \"off\"\n{}",
        at_most(1).replace("container", "pod")
    ));
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_secs(11));
    std::fs::create_dir(pod(2)).unwrap();
    daemon.keeps_running_for(Duration::from_secs(4));
    part(2, "main.tar");
    daemon.keeps_running_for(Duration::from_secs(4));
    part(2, "side.tar");
    scene.leave(Bytes::mib(62));
    daemon.keeps_running_for(Duration::from_secs(4));
    assert_eq!(daemon.deleted(), [""; 0], "nothing says that the new one is finished: {}", daemon.log());
    daemon.wait_until("replacing the old one", |_| !pod(1).exists());
    daemon.keeps_running_for(Duration::from_secs(1));
    assert_eq!(daemon.deleted().len(), 1, "{}", daemon.log());
    assert!(pod(2).join("main.tar").exists() && pod(2).join("side.tar").exists());
}
