//! A guard that asks an API server, and what it shows of that.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::archives::Archive;
use crate::scene::{Scene, hour_of_2026};
use crate::setting::{Daemon, Setting};

/// Nothing is spared for being young or last.
pub const UNHURRIED: &str = "[eviction]\nmin-age = \"0s\"\nkeep-last = 0\n";
/// Orphans are deleted.
pub const NO_ORPHANS: &str = "[[retention]]\nnamespace = \"*\"\nretain-orphans = false\n";
/// The uid of a pod that nobody has made.
pub const NOBODY: &str = "19799841-684a-43df-95e8-50ad687b8d68";

/// A scene whose guard is the Node `node`, with these credentials and other keys of `[kubernetes]`.
pub fn scene_at(kubeconfig: &Path, node: &str, more: &str) -> Scene {
    let mut scene = Scene::new();
    scene.setting = Setting::new().in_cluster(kubeconfig, node, more);
    scene
}

/// Writes an archive of a pod with this uid; gives its name.
pub fn archive(scene: &Scene, namespace: &str, pod: &str, uid: &str, hour: u32) -> String {
    let mut archive = Archive::new(namespace, pod, "main", hour_of_2026(hour), 8 << 20);
    archive.uid = uid.to_owned();
    archive.write_in(&scene.directory()).expect("the archive fits");
    archive.kubelet_name()
}

/// Whether the three watches of what every server has are heard.
pub fn is_current(daemon: &Daemon) -> bool {
    let is_heard = |resource: &str| {
        daemon.metric(&format!("checkpoint_guard_cluster_current{{resource=\"{resource}\"}}")) == Some(1.0)
    };
    ["nodes", "pods", "namespaces"].into_iter().all(is_heard)
}

/// Whether this pool is in force.
pub fn pool_is(daemon: &Daemon, pool: &str) -> bool {
    daemon.metric(&format!("checkpoint_guard_pool_info{{pool=\"{pool}\"}}")) == Some(1.0)
}

/// The protection that `list` shows of each checkpoint, by name.
pub fn protection(scene: &Scene, name: &str) -> Value {
    let list = scene.setting.json(&["list"]);
    let items = list["items"].as_array().expect("a list has items");
    items.iter().find(|item| item["name"] == name).map_or(Value::Null, |item| item["protection"].clone())
}

/// Waits for what another process than the guard shows.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "waits for other processes, so it measures time")]
pub fn eventually(daemon: &Daemon, what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(90), "not {what}:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(200));
    }
}
