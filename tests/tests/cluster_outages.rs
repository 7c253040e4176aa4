//! A real API server that dies, forgets, or falls silent under a guard.

use std::time::Duration;

use guard::model::Bytes;
use serde_json::json;
use tests::api_server::{ApiServer, Line, shipped_rules};
use tests::cluster::{
    NO_ORPHANS, NOBODY, UNHURRIED, archive, eventually, is_current, pool_is, protection, scene_at,
};

#[test]
fn an_api_server_that_dies_holds_up_nothing_and_is_caught_up_with() {
    let Some(mut server) = ApiServer::start() else { return };
    server.grant(&shipped_rules());
    server.node("outage-1", &json!({"agentpool": "gpu"}));
    server.namespace("outage", &json!({"checkpoint-guard.io/protection": "40"}));
    let uid = server.pod("outage", "web", "outage-1", &json!({}));
    let line = Line::to(server.address());
    let kubeconfig = server.kubeconfig_at("guard", line.address());
    let scene = scene_at(&kubeconfig, "outage-1", "pool-labels = [\"agentpool\"]\n");
    scene.configure(&format!("{UNHURRIED}{NO_ORPHANS}[pool.gpu]\n"));
    let names: Vec<_> = (1..=4).map(|hour| archive(&scene, "outage", "web", &uid, hour)).collect();
    let mut daemon = scene.setting.start();
    daemon.wait_until("current", is_current);
    eventually(&daemon, "kept on disk", || protection(&scene, &names[0]) == 40);

    server.kill();
    daemon.wait_until("alone", |daemon| daemon.metric("checkpoint_guard_cluster_current") == Some(0.0));
    let filler = scene.leave(Bytes::mib(60));
    daemon.wait_until("making room alone", |daemon| daemon.deleted().len() == 2);
    assert_eq!(daemon.deleted(), names[..2]);
    let aged = daemon.metric("checkpoint_guard_cluster_last_current_timestamp_seconds{resource=\"pods\"}");
    assert!(aged.is_some_and(|at| at > 1.7e9), "{aged:?}");
    #[expect(clippy::disallowed_methods, reason = "a test's own filler")]
    std::fs::remove_file(filler).unwrap();

    // A start without the server: pool and annotations are those that it last knew, at once.
    daemon.stop();
    let mut daemon = scene.setting.start();
    assert!(pool_is(&daemon, "gpu"), "{}", daemon.log());
    assert_eq!(protection(&scene, &names[2]), 40);

    // While it cannot be heard, the pod goes and the server forgets what changed when: 410 Gone, and everything is listed anew.
    line.cut();
    server.restart();
    server.delete("/api/v1/namespaces/outage/pods/web");
    server.restart();
    line.mend();
    // A server that is away is asked every 30 s in the end.
    eventually(&daemon, "current again", || is_current(&daemon));
    daemon.wait_until("caught up: the pod is gone", |daemon| daemon.deleted().len() == 4);
    // Events that had waited have left.
    eventually(&daemon, "told", || !server.events("default", "Node", "outage-1").is_empty());
    assert!(daemon.stop() < Duration::from_secs(3));
}

#[test]
fn an_api_server_that_forgot_what_changed_is_listed_again() {
    let Some(mut server) = ApiServer::start() else { return };
    server.grant(&shipped_rules());
    server.node("gone-1", &json!({}));
    server.namespace("gone", &json!({}));
    let line = Line::to(server.address());
    let scene = scene_at(&server.kubeconfig_at("guard", line.address()), "gone-1", "");
    scene.configure(UNHURRIED);
    let name = archive(&scene, "gone", "web", NOBODY, 1);
    let mut daemon = scene.setting.start();
    daemon.wait_until("current", is_current);
    line.cut();
    daemon.wait_until("alone", |daemon| daemon.metric("checkpoint_guard_cluster_current") == Some(0.0));
    for protection in ["10", "20", "30"] {
        let changed = json!({"metadata": {"annotations": {"checkpoint-guard.io/protection": protection}}});
        server.patch("/api/v1/namespaces/gone", &changed);
    }
    server.restart();
    line.mend();
    let expired = "checkpoint_guard_cluster_failures_total{cause=\"expired\"}";
    eventually(&daemon, "told 410", || daemon.metric(expired).is_some_and(|count| count >= 1.0));
    eventually(&daemon, "current again", || is_current(&daemon));
    eventually(&daemon, "caught up", || protection(&scene, &name) == 30);
    daemon.stop();
}

#[test]
fn a_silent_api_server_holds_up_neither_a_deletion_nor_the_end() {
    let Some(server) = ApiServer::start() else { return };
    server.grant(&shipped_rules());
    server.node("silent-1", &json!({}));
    let line = Line::to(server.address());
    line.silence();
    let scene = scene_at(
        &server.kubeconfig_at("guard", line.address()),
        "silent-1",
        "pool-labels = [\"agentpool\"]\n",
    );
    scene.configure(&format!("{UNHURRIED}[pool.gpu]\n"));
    let names: Vec<_> = (1..=3).map(|hour| archive(&scene, "silent", "web", NOBODY, hour)).collect();
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("making room", |daemon| daemon.deleted().len() == 2);
    assert_eq!(daemon.deleted(), names[..2]);
    assert!(pool_is(&daemon, ""), "{}", daemon.log());
    assert!(daemon.stop() < Duration::from_secs(3));
}
