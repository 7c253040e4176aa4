//! PodCheckpoint objects (KEP-5823) at a real API server: whose the data is, what is being restored, whom an Event tells.
//!
//! What a green run does not prove: that a server with the built-in resource behaves as one with a definition of it, and that
//! it takes the field selector `status.nodeName`, which this one refuses.

use std::fs;
use std::time::Duration;

use guard::model::Bytes;
use serde_json::{Value, json};
use tests::api_server::{ApiServer, shared, shipped_rules};
use tests::cluster::{UNHURRIED, eventually, is_current, scene_at};
use tests::scene::{Scene, directory_table};

const API: &str = "/apis/checkpoint.k8s.io/v1alpha1/namespaces/snaps/podcheckpoints";

/// Declares that the data of pod `pod` lies in the directory `path` of `node`.
fn declare(server: &ApiServer, name: &str, pod: &str, node: &str, path: &str) {
    let kind = json!({"apiVersion": "checkpoint.k8s.io/v1alpha1", "kind": "PodCheckpoint",
        "metadata": {"name": name}, "spec": {"sourcePodName": pod}});
    server.create(API, &kind);
    let location = json!({"type": "NodeLocal", "nodeLocal": {"path": path}});
    let status = json!({"status": {"nodeName": node, "checkpointLocation": location}});
    server.patch(&format!("{API}/{name}/status"), &status);
}

fn lock(server: &ApiServer, name: &str, finalizers: &Value) {
    server.patch(&format!("{API}/{name}"), &json!({"metadata": {"finalizers": finalizers}}));
}

/// What `list` shows of a checkpoint; null while it does not.
fn listed(scene: &Scene, name: &str) -> Value {
    let list = scene.setting.json(&["list"]);
    let items = list["items"].as_array().unwrap();
    items.iter().find(|item| item["name"] == name).cloned().unwrap_or_default()
}

#[test]
fn objects_say_whose_the_data_is_and_what_is_being_restored_and_are_told_what_is_gone() {
    let Some(server) = shared() else { return };
    server.grant(&shipped_rules());
    server.node("snaps-1", &json!({}));
    server.namespace("snaps", &json!({}));
    let scene = scene_at(&server.kubeconfig("guard"), "snaps-1", "");
    let pods = scene.mount.path().join("pods");
    // As the proposal names them now, and as it did before.
    let by_uid = "checkpoint-0f6c2a8e-5b1d-4e7a-9c3f-8d2b4a6e1f05";
    let by_pod = "checkpoint-web_snaps-2026-01-01T00:00:00Z";
    for name in [by_uid, by_pod] {
        fs::create_dir_all(pods.join(name)).unwrap();
        fs::write(pods.join(name).join("pages.img"), vec![7; 16 << 20]).unwrap();
    }
    let table = format!("{}\nlayout = \"pod-checkpoints\"", directory_table(&pods));
    scene.configure(&format!("{UNHURRIED}{table}\n"));

    // A server without the resource is asked once, and not again soon; a directory of nobody's is nobody's.
    let mut daemon = scene.setting.start();
    daemon.wait_until("current", is_current);
    let discovered = "checkpoint_guard_cluster_calls_total{call=\"discover\"}";
    daemon.wait_until("asking", |daemon| daemon.metric(discovered).is_some_and(|count| count >= 1.0));
    daemon.keeps_running_for(Duration::from_millis(500));
    let asked = daemon.metric(discovered);
    daemon.keeps_running_for(Duration::from_secs(3));
    assert_eq!(daemon.metric(discovered), asked);
    assert_eq!(daemon.metric("checkpoint_guard_cluster_failures_total"), Some(0.0));
    assert_eq!(daemon.metric("checkpoint_guard_cluster_current{resource=\"podcheckpoints\"}"), None);
    assert_eq!(listed(&scene, by_uid), Value::Null);
    daemon.stop();

    server.pod_checkpoints();
    declare(&server, "of-db", "db-0", "snaps-1", by_uid);
    declare(&server, "of-web", "web", "snaps-1", by_pod);
    declare(&server, "elsewhere", "web", "snaps-2", "checkpoint-elsewhere");
    lock(&server, "of-web", &json!(["checkpoint.k8s.io/restore-lock"]));
    let mut daemon = scene.setting.start();
    let current = "checkpoint_guard_cluster_current{resource=\"podcheckpoints\"}";
    daemon.wait_until("current", |daemon| daemon.metric(current) == Some(1.0));
    eventually(&daemon, "kept on disk", || listed(&scene, by_uid)["pod"] == "db-0");
    let db = listed(&scene, by_uid);
    assert_eq!((&db["namespace"], &db["identity"]), (&"snaps".into(), &"exact".into()), "{db}");
    let web = listed(&scene, by_pod);
    assert!(web["states"].as_array().unwrap().contains(&"in-use".into()), "{web}");

    // The older one is being restored: the other one goes, and its object is told.
    scene.leave(Bytes::mib(60));
    daemon.wait_until("making room", |daemon| daemon.deleted() == [by_uid]);
    let told = || server.events("snaps", "PodCheckpoint", "of-db");
    eventually(&daemon, "telling the object", || told().iter().any(|event| event.2.contains(by_uid)));
    assert!(server.events("snaps", "PodCheckpoint", "of-web").is_empty());
    assert!(pods.join(by_pod).exists());

    // Restored: now it may go.
    lock(&server, "of-web", &json!([]));
    scene.leave(Bytes::mib(60));
    daemon.wait_until("making room again", |daemon| daemon.deleted() == [by_uid, by_pod]);
    daemon.stop();
}
