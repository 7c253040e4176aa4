//! The guard and a real API server: pool, annotations, orphans, Events. tests/tests/cluster_outages.rs has the ways to fail.

use std::fs::File;
use std::time::Duration;

use guard::model::Bytes;
use serde_json::json;
use tests::api_server::{ApiServer, shared, shipped_rules};
use tests::cluster::{
    NO_ORPHANS, NOBODY, UNHURRIED, archive, eventually, is_current, pool_is, protection, scene_at,
};
use tests::scene::Scene;

/// A scene whose guard is the Node `node`.
fn scene(server: &ApiServer, user: &str, node: &str, more: &str) -> Scene {
    scene_at(&server.kubeconfig(user), node, more)
}

#[test]
fn the_nodes_label_names_the_pool_and_a_changed_label_another_one() {
    let Some(server) = shared() else { return };
    server.grant(&shipped_rules());
    server.node("pool-1", &json!({"agentpool": "gpu"}));
    let scene = scene(&server, "guard", "pool-1", "pool-labels = [\"agentpool\"]\n");
    scene.configure("[pool.gpu]\n[pool.edge]\nprotection.default = 7\n");
    let name = archive(&scene, "team", "web", NOBODY, 1);
    let mut daemon = scene.setting.start();
    // The first start has nothing but the API server to know it from, and waits for that a moment.
    assert!(pool_is(&daemon, "gpu"), "{}", daemon.log());
    server.patch("/api/v1/nodes/pool-1", &json!({"metadata": {"labels": {"agentpool": "edge"}}}));
    daemon.wait_until("in pool edge", |daemon| pool_is(daemon, "edge"));
    server.patch("/api/v1/nodes/pool-1", &json!({"metadata": {"labels": {"agentpool": "unheard-of"}}}));
    daemon.wait_until("in no pool", |daemon| pool_is(daemon, ""));
    assert!(daemon.log().contains("no pool is called"), "{}", daemon.log());
    server.patch("/api/v1/nodes/pool-1", &json!({"metadata": {"labels": {"agentpool": "edge"}}}));
    daemon.wait_until("in pool edge again", |daemon| pool_is(daemon, "edge"));
    // Commands see what the daemon sees.
    eventually(&daemon, "kept on disk", || protection(&scene, &name) == 7);
    daemon.stop();
}

#[test]
fn a_kubeconfig_without_an_authority_trusts_whom_the_system_trusts() {
    let Some(server) = shared() else { return };
    server.grant(&shipped_rules());
    server.node("trust-1", &json!({}));
    let kubeconfig = server.kubeconfig("guard");
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let (before, rest) = text.split_once(", certificate-authority: ").unwrap();
    let (authority, after) = rest.split_once('}').unwrap();
    let folder = tempfile::tempdir().unwrap();
    let bare = folder.path().join("kubeconfig");
    std::fs::write(&bare, format!("{before}}}{after}")).unwrap();
    let scene = scene_at(&bare, "trust-1", "");
    scene.configure("");
    let mut daemon = scene.setting.start();
    let unreachable = "checkpoint_guard_cluster_failures_total";
    daemon.wait_until("refusing it", |daemon| daemon.metric(unreachable).is_some_and(|count| count >= 1.0));
    assert!(daemon.log().contains("certificate"), "{}", daemon.log());
    daemon.stop();
    let mut daemon = scene.setting.start_with(&[], &mut |command| {
        command.env("SSL_CERT_FILE", authority.trim_matches('"'));
    });
    daemon.wait_until("current", is_current);
    daemon.stop();
}

#[test]
fn what_is_known_is_used_though_it_cannot_be_kept_on_disk() {
    let Some(server) = shared() else { return };
    server.grant(&shipped_rules());
    server.node("state-1", &json!({"agentpool": "gpu"}));
    let scene = scene(&server, "guard", "state-1", "pool-labels = [\"agentpool\"]\n");
    scene.configure("[pool.gpu]\n");
    // A file where the directory should be.
    std::fs::write(scene.setting.state_path().parent().unwrap(), "").unwrap();
    let mut daemon = scene.setting.start();
    let failures = "checkpoint_guard_cluster_state_failures_total";
    daemon.wait_until("failing", |daemon| daemon.metric(failures).is_some_and(|count| count >= 1.0));
    assert!(is_current(&daemon) && pool_is(&daemon, "gpu"), "{}", daemon.log());
    daemon.stop();
}

#[test]
fn a_pool_that_is_named_is_not_changed_by_labels() {
    let Some(server) = shared() else { return };
    server.grant(&shipped_rules());
    server.node("pool-2", &json!({"agentpool": "gpu"}));
    let scene = scene(&server, "guard", "pool-2", "pool-labels = [\"agentpool\"]\n");
    scene.configure("[pool.gpu]\n[pool.edge]\n");
    let mut daemon = scene.setting.start_with(&["--pool", "edge"], &mut |_| {});
    daemon.wait_until("current", is_current);
    daemon.keeps_running_for(Duration::from_millis(500));
    assert!(pool_is(&daemon, "edge"), "{}", daemon.log());
}

#[test]
fn annotations_protect_up_to_the_maximum_and_never_take_away_what_the_administrator_gave() {
    let Some(server) = shared() else { return };
    server.grant(&shipped_rules());
    server.node("notes-1", &json!({}));
    server.namespace("notes-a", &json!({"checkpoint-guard.io/protection": "70"}));
    server.namespace("notes-b", &json!({"checkpoint-guard.io/keep": "true"}));
    server.namespace("notes-c", &json!({"checkpoint-guard.io/protection": "very much"}));
    server.namespace("notes-forensics", &json!({"checkpoint-guard.io/protection": "0"}));
    let low = json!({"checkpoint-guard.io/protection": "5"});
    let uid = server.pod("notes-a", "web", "notes-1", &low);
    server.pod("notes-a", "elsewhere", "notes-other", &low);
    let scene = scene(&server, "guard", "notes-1", "max-from-annotations = 80\n");
    scene.configure(&format!("{UNHURRIED}[protection]\nnamespaces = {{ notes-forensics = 100 }}\n"));
    let of_a = archive(&scene, "notes-a", "db", NOBODY, 1);
    let of_pod = archive(&scene, "notes-a", "web", &uid, 2);
    let elsewhere = archive(&scene, "notes-a", "elsewhere", NOBODY, 3);
    let of_b = archive(&scene, "notes-b", "db", NOBODY, 4);
    let of_c = archive(&scene, "notes-c", "db", NOBODY, 5);
    let forensics = archive(&scene, "notes-forensics", "db", NOBODY, 6);
    let mut daemon = scene.setting.start();
    daemon.wait_until("current", is_current);
    eventually(&daemon, "kept on disk", || protection(&scene, &of_a) == 70);
    for (name, expect) in [(&of_pod, 5), (&elsewhere, 70), (&of_b, 80), (&of_c, 50), (&forensics, 100)] {
        assert_eq!(protection(&scene, name), expect, "{name}");
    }
    assert_eq!(daemon.metric("checkpoint_guard_cluster_misread_annotations_total"), Some(1.0));
    let plan = scene.setting.json(&["plan", "--assume-available", "0B"]);
    let delete = plan["filesystems"][0]["delete"].as_array().unwrap();
    let reason = delete.iter().find(|it| it["name"] == *of_b).unwrap()["reason"].to_string();
    let source = "annotation checkpoint-guard.io/keep of Namespace notes-b, 100 asked for";
    assert!(reason.contains(source), "{reason}");

    // The daemon decides by the same: the least protected goes first, and a changed annotation counts at once.
    let least = json!({"metadata": {"annotations": {"checkpoint-guard.io/protection": "1"}}});
    server.patch("/api/v1/namespaces/notes-c", &least);
    eventually(&daemon, "changed", || protection(&scene, &of_c) == 1);
    scene.leave(Bytes::mib(60));
    daemon.wait_until("deleting two", |daemon| daemon.deleted().len() == 2);
    assert_eq!(daemon.deleted(), [of_c, of_pod]);
    daemon.stop();
}

#[test]
fn case_11_an_orphan_is_whose_pod_is_known_to_be_gone() {
    let Some(server) = shared() else { return };
    server.grant(&shipped_rules());
    server.node("orphan-1", &json!({}));
    server.namespace("orphans", &json!({}));
    let stays = server.pod("orphans", "stays", "orphan-1", &json!({}));
    let leaves = server.pod("orphans", "leaves", "orphan-1", &json!({}));
    let away = server.pod("orphans", "away", "orphan-other", &json!({}));
    let old = server.pod("orphans", "db-0", "orphan-1", &json!({}));
    server.delete("/api/v1/namespaces/orphans/pods/db-0");
    let new = server.pod("orphans", "db-0", "orphan-1", &json!({}));
    let scene = scene(&server, "guard", "orphan-1", "");
    scene.configure(&format!("{UNHURRIED}{NO_ORPHANS}"));
    let kept = [
        archive(&scene, "orphans", "stays", &stays, 1),
        archive(&scene, "orphans", "away", &away, 2),
        archive(&scene, "orphans", "db-0", &new, 3),
    ];
    let later = archive(&scene, "orphans", "leaves", &leaves, 4);
    let gone =
        [archive(&scene, "orphans", "db-0", &old, 5), archive(&scene, "orphans", "never-was", NOBODY, 6)];
    let mut daemon = scene.setting.start();
    daemon.wait_until("two orphans deleted", |daemon| daemon.deleted().len() == 2);
    let mut deleted = daemon.deleted();
    deleted.sort();
    let mut expect = gone.to_vec();
    expect.sort();
    assert_eq!(deleted, expect);
    server.delete("/api/v1/namespaces/orphans/pods/leaves");
    daemon.wait_until("the third deleted", |daemon| daemon.deleted().len() == 3);
    assert_eq!(daemon.deleted()[2], later);
    daemon.keeps_running_for(Duration::from_secs(1));
    assert!(kept.iter().all(|name| scene.has(name)), "{}", daemon.log());
    daemon.stop();
}

#[test]
fn case_11_without_permission_nobody_is_an_orphan_and_pressure_is_relieved_all_the_same() {
    let Some(server) = shared() else { return };
    server.node("nobody-1", &json!({}));
    let scene = scene(&server, "nobody", "nobody-1", "");
    scene.configure(&format!("{UNHURRIED}{NO_ORPHANS}"));
    let names: Vec<_> = (1..=3).map(|hour| archive(&scene, "none", "never-was", NOBODY, hour)).collect();
    let mut daemon = scene.setting.start();
    let forbidden = "checkpoint_guard_cluster_failures_total{cause=\"forbidden\"}";
    // Three watches and the look-up.
    daemon.wait_until("told no", |daemon| daemon.metric(forbidden).is_some_and(|count| count >= 4.0));
    assert_eq!(daemon.metric("checkpoint_guard_cluster_current"), Some(0.0));
    daemon.keeps_running_for(Duration::from_secs(1));
    assert!(daemon.deleted().is_empty(), "{}", daemon.log());
    scene.leave(Bytes::mib(60));
    daemon.wait_until("making room", |daemon| daemon.deleted().len() == 2);
    assert_eq!(daemon.deleted(), names[..2]);
    // And the Events that nobody took are counted, not kept.
    let refused = "checkpoint_guard_events_total{outcome=\"refused\"}";
    daemon.wait_until("refused", |daemon| daemon.metric(refused).is_some_and(|count| count >= 1.0));
    daemon.stop();
}

#[test]
fn case_12_events_tell_the_node_and_the_pod_what_happened() {
    let Some(server) = shared() else { return };
    server.grant(&shipped_rules());
    server.node("events-1", &json!({}));
    server.namespace("events", &json!({}));
    let uid = server.pod("events", "web", "events-1", &json!({}));
    let scene = scene(&server, "guard", "events-1", "");
    scene.configure(UNHURRIED);
    let first = archive(&scene, "events", "web", &uid, 1);
    archive(&scene, "events", "web", &uid, 2);
    archive(&scene, "events", "web", &uid, 3);
    let mut daemon = scene.setting.start();
    daemon.wait_until("current", is_current);
    let filler = scene.leave(Bytes::mib(60));
    daemon.wait_until("making room", |daemon| !daemon.deleted().is_empty());
    std::fs::write(scene.setting.config(), "pressure = 1\n").unwrap();
    let of_node = || server.events("default", "Node", "events-1");
    let has = |kind: &str, reason: &str, words: &str| {
        let is_it = |event: &(String, String, String)| {
            event.0 == kind && event.1 == reason && event.2.contains(words)
        };
        of_node().iter().any(is_it)
    };
    eventually(&daemon, "told of pressure", || has("Warning", "CheckpointPressure", "hard pressure on"));
    eventually(&daemon, "told of deletions", || has("Warning", "CheckpointsDeleted", &first));
    eventually(&daemon, "told of the configuration", || {
        has("Warning", "CheckpointGuardConfigInvalid", "old configuration")
    });
    let of_pod = || server.events("events", "Pod", "web");
    eventually(&daemon, "telling the pod", || of_pod().iter().any(|event| event.2.contains(&first)));
    std::fs::write(filler, "").unwrap();
    eventually(&daemon, "told that it is over", || has("Normal", "CheckpointPressureOver", "available"));
    let published = daemon.metric("checkpoint_guard_events_total{outcome=\"published\"}").unwrap();
    assert!((5.0..=12.0).contains(&published), "{published}\n{:#?}", of_node());
    daemon.stop();
}

#[test]
fn the_node_is_told_when_writers_are_refused_and_when_they_are_let_through_again() {
    let Some(server) = shared() else { return };
    server.grant(&shipped_rules());
    server.node("brake-1", &json!({}));
    let scene = scene(&server, "guard", "brake-1", "");
    let pinned = archive(&scene, "team", "web", NOBODY, 1);
    std::fs::write(scene.directory().join(format!("{pinned}.keep")), "").unwrap();
    scene.configure(&format!("{UNHURRIED}[brake]\nmode = \"auto\"\n"));
    let mut daemon = scene.setting.start();
    if daemon.log().contains("no brake here") {
        println!("SKIPPED cluster_edge: this kernel has no brake");
        return;
    }
    daemon.wait_until("current", is_current);
    let has = |kind: &str, reason: &str, words: &[&str]| {
        let events = server.events("default", "Node", "brake-1");
        events.iter().any(|event| {
            event.0 == kind && event.1 == reason && words.iter().all(|word| event.2.contains(word))
        })
    };
    let filler = scene.leave(Bytes::mib(8));
    let directory = scene.directory().display().to_string();
    eventually(&daemon, "told of the brake", || {
        has("Warning", "CheckpointBrakeEngaged", &["are refused", &directory, "fanotify", "critical"])
            || has("Warning", "CheckpointBrakeEngaged", &["are refused", &directory, "lsm", "critical"])
    });
    let refused = File::create(scene.directory().join("attempt.tar"));
    assert!(refused.is_err(), "the Event is true");
    std::fs::write(filler, "").unwrap();
    eventually(&daemon, "told that it lets go", || {
        has("Normal", "CheckpointBrakeReleased", &["are let through again", &directory])
    });
    daemon.stop();
}
