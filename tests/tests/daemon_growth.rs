//! Growth by namespace, as the real guard sees it. Root only.

use std::time::Duration;

use guard::model::Bytes;
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::Scene;

fn check(filesystem: Filesystem) {
    let scene = Scene::on(LoopMount::new(filesystem, Bytes::gib(1)));
    scene.configure("[eviction]\nmin-age = \"0s\"");
    let mut daemon = scene.setting.start();
    // One process, like a runtime, writes for two namespaces: three times as much for one of them.
    for hour in 0..20 {
        scene.archive_of("team-prod", "web", hour, Bytes::mib(12));
        scene.archive_of("ci", "job", hour, Bytes::mib(4));
        std::thread::sleep(Duration::from_millis(200));
    }
    let rate = |daemon: &tests::setting::Daemon, namespace: &str| {
        daemon.metric(&format!("checkpoint_guard_growth_bytes_per_second{{namespace=\"{namespace}\"}}"))
    };
    daemon.wait_until("knowing both", |daemon| {
        rate(daemon, "team-prod").is_some_and(|rate| rate > 1e6)
            && rate(daemon, "ci").is_some_and(|rate| rate > 3e5)
    });
    let (team, ci) = (rate(&daemon, "team-prod").unwrap(), rate(&daemon, "ci").unwrap());
    assert!((2.0..4.5).contains(&(team / ci)), "{team} and {ci} bytes a second");
    // Nobody else has written, so nobody else is there.
    let unknown = rate(&daemon, "unknown").unwrap_or(0.0);
    assert!(unknown < 0.05 * team, "{unknown} bytes a second of nobody");
    daemon.wait_until("slower, now that nobody writes", |daemon| {
        rate(daemon, "team-prod").unwrap_or(0.0) < team / 2.0
    });
}

#[test]
fn what_a_runtime_writes_counts_for_the_namespace_whose_checkpoint_it_is() {
    check(Filesystem::Ext4);
}

#[test]
fn the_same_where_only_pages_are_counted() {
    check(Filesystem::Xfs);
}

#[test]
fn what_lies_deep_in_a_pod_checkpoint_counts_for_its_namespace() {
    let scene = Scene::on(LoopMount::new(Filesystem::Ext4, Bytes::mib(512)));
    let pods = scene.mount.path().join("pod-checkpoints");
    std::fs::create_dir(&pods).unwrap();
    scene.configure(&format!("[[directory]]\npath = {pods:?}\nlayout = \"pod-checkpoints\""));
    let mut daemon = scene.setting.start();
    let container = pods.join("checkpoint-web_team-prod-2026-01-01T00:00:00Z/main/checkpoint");
    std::fs::create_dir_all(&container).unwrap();
    for n in 0..20 {
        std::fs::write(container.join(format!("pages-{n}.img")), vec![1; 4 << 20]).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    daemon.wait_until("knowing the namespace", |daemon| {
        let series = "checkpoint_guard_growth_bytes_per_second{namespace=\"team-prod\"}";
        daemon.metric(series).is_some_and(|rate| rate > 1e6)
    });
    let list = scene.setting.json(&["list", "--namespace", "team-*"]);
    assert_eq!(list["growth"][0]["namespace"], "team-prod", "{list}");
    let table = String::from_utf8(scene.setting.run(&["list"]).stdout).unwrap();
    assert!(table.lines().any(|line| line.starts_with("growing: team-prod ")), "{table}");
    assert!(scene.setting.json(&["list", "--namespace", "ci"])["growth"].as_array().unwrap().is_empty());
    let unknown = daemon.metric("checkpoint_guard_growth_bytes_per_second{namespace=\"unknown\"}");
    assert!(unknown.unwrap_or(0.0) < 1e5, "{unknown:?} bytes a second of nobody");
}
