//! The ClusterRole as it is shipped: enough, and nothing too much. Each verb has a test that fails without it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tests::api_server::{ApiServer, shared, shipped_rules};
use tests::archives::Archive;
use tests::scene::{Scene, hour_of_2026};
use tests::setting::{Daemon, Setting};

/// Every verb that the guard uses, on what.
const USED: [(&str, &str); 10] = [
    ("list", "nodes"),
    ("watch", "nodes"),
    ("get", "pods"),
    ("list", "pods"),
    ("watch", "pods"),
    ("list", "namespaces"),
    ("watch", "namespaces"),
    ("create", "events"),
    ("list", "podcheckpoints"),
    ("watch", "podcheckpoints"),
];

/// A guard that wants to use every verb there is: its node has a label, a pod, and a checkpoint of nobody, and its directory is
/// under pressure, of which it tells.
fn start(server: &ApiServer, node: &str) -> (Scene, Daemon) {
    server.node(node, &json!({}));
    server.pod_checkpoints();
    let mut scene = Scene::new();
    scene.setting = Setting::new().in_cluster(&server.kubeconfig("guard"), node, "");
    scene.configure("[eviction]\nmin-age = \"0s\"\nkeep-last = 0\n");
    let archive = Archive::new("none", "never-was", "main", hour_of_2026(1), 8 << 20);
    archive.write_in(&scene.directory()).unwrap();
    scene.leave(guard::model::Bytes::mib(70));
    let mut daemon = scene.setting.start();
    let get = "checkpoint_guard_cluster_calls_total{call=\"get\"}";
    daemon.wait_until("looking up", |daemon| daemon.metric(get).is_some_and(|calls| calls >= 1.0));
    // What makes it tell an Event comes last, for with it the checkpoint goes.
    scene.leave(guard::model::Bytes::mib(50));
    (scene, daemon)
}

fn forbidden(daemon: &Daemon) -> f64 {
    daemon.metric("checkpoint_guard_cluster_failures_total{cause=\"forbidden\"}").unwrap_or(0.0)
}

/// The shipped rules without one verb.
fn without(verb: &str, resource: &str) -> Value {
    let mut rules = shipped_rules();
    for rule in rules.as_array_mut().unwrap().iter_mut().filter(|rule| rule["resources"] == json!([resource]))
    {
        rule["verbs"].as_array_mut().unwrap().retain(|it| it != verb);
    }
    // The API takes no rule without verbs.
    rules.as_array_mut().unwrap().retain(|rule| rule["verbs"] != json!([]));
    assert_ne!(rules, shipped_rules(), "{verb} {resource} is not in the shipped role");
    rules
}

/// That without `verb` on `resource` the guard is told no about just that, and lives on.
#[track_caller]
fn check(verb: &str, resource: &str) {
    let Some(server) = shared() else { return };
    server.grant(&without(verb, resource));
    let (_scene, mut daemon) = start(&server, &format!("without-{verb}-{resource}"));
    daemon.wait_until("told no", |daemon| forbidden(daemon) >= 1.0);
    let line = format!("{verb} {resource}: ");
    daemon.wait_until("saying what it may not", |daemon| daemon.log().contains(&line));
    let others = USED.iter().filter(|used| **used != (verb, resource));
    for (verb, resource) in others {
        let line = format!("{verb} {resource}: ");
        assert!(!daemon.log().contains(&line), "{line}\n{}", daemon.log());
    }
    daemon.stop();
}

#[test]
fn with_the_shipped_role_nothing_is_forbidden() {
    let Some(server) = shared() else { return };
    server.grant(&shipped_rules());
    let (_scene, mut daemon) = start(&server, "with-all");
    let is_done = |daemon: &Daemon| {
        daemon.metric("checkpoint_guard_cluster_current") == Some(4.0)
            && daemon
                .metric("checkpoint_guard_cluster_calls_total{call=\"get\"}")
                .is_some_and(|calls| calls >= 1.0)
            && daemon
                .metric("checkpoint_guard_events_total{outcome=\"published\"}")
                .is_some_and(|it| it >= 1.0)
    };
    daemon.wait_until("done with everything", is_done);
    daemon.keeps_running_for(Duration::from_millis(500));
    assert_eq!(forbidden(&daemon), 0.0, "{}", daemon.log());
    daemon.stop();
}

#[test]
fn the_shipped_role_has_no_verb_that_is_not_used() {
    let rules = shipped_rules();
    let verbs = rules.as_array().unwrap().iter().flat_map(|rule| {
        let resource = rule["resources"][0].as_str().unwrap();
        assert_eq!(rule["resources"].as_array().unwrap().len(), 1);
        rule["verbs"].as_array().unwrap().iter().map(move |verb| (verb.as_str().unwrap(), resource))
    });
    let mut granted: Vec<_> = verbs.collect();
    granted.sort_unstable();
    let mut used = USED.to_vec();
    used.sort_unstable();
    assert_eq!(granted, used);
}

#[test]
fn without_list_of_nodes() {
    check("list", "nodes");
}

#[test]
fn without_watch_of_nodes() {
    check("watch", "nodes");
}

#[test]
fn without_get_of_pods() {
    check("get", "pods");
}

#[test]
fn without_list_of_pods() {
    check("list", "pods");
}

#[test]
fn without_watch_of_pods() {
    check("watch", "pods");
}

#[test]
fn without_list_of_namespaces() {
    check("list", "namespaces");
}

#[test]
fn without_watch_of_namespaces() {
    check("watch", "namespaces");
}

#[test]
fn without_create_of_events() {
    check("create", "events");
}

#[test]
fn the_server_takes_every_manifest_of_the_base() {
    let Some(server) = shared() else { return };
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes/base");
    let mut taken = 0;
    for file in ["serviceaccount.yaml", "rbac.yaml", "daemonset.yaml", "networkpolicy.yaml"] {
        let text = std::fs::read_to_string(base.join(file)).unwrap();
        for document in text.split("\n---\n") {
            let object: Value = serde_saphyr::from_str(document).unwrap();
            let kind = object["kind"].as_str().unwrap();
            let path = match kind {
                "ServiceAccount" => "/api/v1/namespaces/kube-system/serviceaccounts",
                "DaemonSet" => "/apis/apps/v1/namespaces/kube-system/daemonsets",
                "NetworkPolicy" => "/apis/networking.k8s.io/v1/namespaces/kube-system/networkpolicies",
                "ClusterRole" => "/apis/rbac.authorization.k8s.io/v1/clusterroles",
                "ClusterRoleBinding" => "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
                other => panic!("{file}: {other} has no row in this test"),
            };
            // One of the same name is there from another test.
            let mut object = object.clone();
            if kind.starts_with("ClusterRole") {
                object["metadata"]["name"] = json!("another-name");
            }
            if kind == "ClusterRoleBinding" {
                // As kustomize does.
                object["subjects"][0]["namespace"] = json!("kube-system");
            }
            server.accepts(path, &object).unwrap_or_else(|error| panic!("{file} {kind}: {error}"));
            taken += 1;
        }
    }
    assert_eq!(taken, 5);
}

#[test]
fn the_server_takes_every_overlay() {
    let Some(server) = shared() else { return };
    let overlays = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes/overlays");
    for overlay in ["general", "gpu", "edge", "forensics"] {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("--kubeconfig").arg(server.kubeconfig("admin"));
        // This server is older than `appArmorProfile`, and drops it; everything else it judges.
        kubectl.args(["apply", "--dry-run=server", "--validate=false", "--kustomize"]);
        let output = match kubectl.arg(overlays.join(overlay)).output() {
            Ok(output) => output,
            Err(error) => return println!("SKIPPED kubectl apply: {error}"),
        };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{overlay}: {errors}");
        // Account, role, binding, configuration, DaemonSet, policy.
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 6, "{errors}");
    }
}

#[test]
fn without_list_of_podcheckpoints() {
    check("list", "podcheckpoints");
}

#[test]
fn without_watch_of_podcheckpoints() {
    check("watch", "podcheckpoints");
}

#[test]
fn the_server_takes_what_the_chart_renders() {
    let Some(server) = shared() else { return };
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/helm/checkpoint-guard");
    let Some(mut helm) = tests::tools::helm() else { return };
    helm.args([
        "template",
        "guard",
        ".",
        "--namespace",
        "kube-system",
        "--values",
        "ci/all-pools-values.yaml",
    ]);
    // What is the Prometheus operator's, this server does not know.
    helm.args(["--set", "podMonitor.enabled=false,prometheusRule.enabled=false"]);
    let rendered = helm.current_dir(chart).output().unwrap();
    assert!(rendered.status.success(), "{rendered:?}");
    let manifest = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(manifest.path(), &rendered.stdout).unwrap();
    let mut kubectl = Command::new("kubectl");
    kubectl.arg("--kubeconfig").arg(server.kubeconfig("admin"));
    kubectl.args(["apply", "--dry-run=server", "--validate=false", "--filename"]).arg(manifest.path());
    let output = match kubectl.output() {
        Ok(output) => output,
        Err(error) => return println!("SKIPPED kubectl apply: {error}"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let taken = String::from_utf8_lossy(&output.stdout).lines().count();
    let kinds =
        String::from_utf8_lossy(&rendered.stdout).lines().filter(|line| line.starts_with("kind: ")).count();
    assert_eq!(taken, kinds);
}
