//! docs/SCALE.md: what one guard asks a real API server for, and how many series it has, counted.

use std::path::Path;
use std::time::Duration;

use guard::model::Bytes;
use serde_json::json;
use tests::api_server::{ApiServer, shared, shipped_rules};
use tests::cluster::{archive, eventually, is_current, scene_at};
use tests::loopfs::{Filesystem, LoopMount};
use tests::receiver::{Answer, Receiver};
use tests::scene::{Scene, directory_table, hour_of_2026};
use tests::setting::Daemon;

fn page() -> String {
    std::fs::read_to_string(path()).expect("the repository is whole")
}

fn path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/SCALE.md")
}

/// All three levels, as the samples have them.
const PRESSURE: &str = r#"
[pressure]
soft = { available = "66MiB", inodes-free = "3%", grace-period = "1h" }
hard = { available = "64MiB", inodes-free = "2%" }
critical = { available = "16MiB", inodes-free = "1%" }
minimum-reclaim = { available = "8MiB", inodes-free = "1%" }
kubelet-config = "off"
[eviction]
min-age = "0s"
keep-last = 0
"#;

/// How often a guard with that configuration is counted.
struct Counted {
    namespaces: u32,
    filesystems: usize,
    more: &'static str,
}

/// The series of a guard at `server`, if any, that has deleted a checkpoint of each namespace.
fn series(counted: &Counted, server: Option<&ApiServer>) -> usize {
    let Counted { namespaces, filesystems, more } = counted;
    let scene = match server {
        Some(server) => scene_at(&server.kubeconfig("guard"), "scale-1", ""),
        None => Scene::new(),
    };
    for namespace in 0..*namespaces {
        for hour in 1..=3 {
            scene.archive_of(&format!("team-{namespace}"), "web", hour, Bytes::mib(8));
        }
    }
    let others: Vec<_> =
        (1..*filesystems).map(|_| LoopMount::new(Filesystem::Ext4, Bytes::mib(256))).collect();
    let tables: String = others.iter().map(|other| directory_table(other.path()) + "\n").collect();
    let receiver = Receiver::start(|_| Answer::Status(200));
    let more = more.replace("URL", &format!("{:?}", receiver.url()));
    scene.configure_fully(&format!("{PRESSURE}{tables}{more}"));
    let mut daemon = scene.setting.start();
    if server.is_some() {
        daemon.wait_until("current", is_current);
    }
    // Two have to go of one namespace, three of two; the one that holds more loses one first.
    scene.leave(Bytes::mib(68 - 8 * u64::from(*namespaces)));
    let lost = |daemon: &Daemon| daemon.deleted().len() > *namespaces as usize;
    daemon.wait_until("making room", lost);
    let text = || daemon.get("/metrics").expect("it answers").1;
    let count = || text().lines().filter(|line| !line.starts_with('#')).count();
    // What comes with the first look and the first deletion is there, or comes within a turn.
    let mut before = 0;
    eventually(&daemon, "counted", || std::mem::replace(&mut before, count()) == before);
    for namespace in 0..*namespaces {
        assert!(text().contains(&format!("namespace_deletions_total{{namespace=\"team-{namespace}\"}}")));
    }
    daemon.stop();
    before
}

#[test]
fn the_page_has_todays_count_of_series() {
    let Some(server) = shared() else { return };
    server.grant(&shipped_rules());
    server.node("scale-1", &json!({}));
    let count =
        |namespaces, filesystems, more, server| series(&Counted { namespaces, filesystems, more }, server);
    let alone = count(1, 1, "", None);
    let asking = count(1, 1, "", Some(&*server)) - alone;
    let url = count(1, 1, "[notify]\nurl = URL\n", None) - alone;
    let command = count(1, 1, "[notify]\ncommand = [\"/bin/true\"]\n", None) - alone;
    let filesystem = count(1, 2, "", None) - alone;
    let namespace = count(2, 1, "", None) - alone;
    let mut rows = vec![
        "| a guard with | series |".to_owned(),
        "| --- | ---: |".to_owned(),
        format!("| one filesystem and one namespace, no API server | {alone} |"),
        format!("| the API server | {asking} more |"),
        format!("| `[notify] url` | {url} more |"),
        format!("| `[notify] command` | {command} more |"),
        format!("| each further filesystem | {filesystem} more |"),
        format!(
            "| each further namespace that has lost checkpoints, up to 50 and `other` | {namespace} more |"
        ),
        String::new(),
        "| with the API server, one filesystem | 10 nodes | 1,000 nodes | 15,000 nodes |".to_owned(),
        "| --- | ---: | ---: | ---: |".to_owned(),
    ];
    for (title, per_node) in [
        ("series, 1 namespace a node", alone + asking),
        ("series, 51 namespaces a node (the most)", alone + asking + 50 * namespace),
    ] {
        rows.push(format!("| {title} |{}", fleet(|nodes| nodes * per_node)));
    }
    rows.push(format!(
        "| samples a second at 15 s, 1 namespace |{}",
        fleet(|nodes| nodes * (alone + asking) / 15)
    ));
    check_section("series", &rows.join("\n"));
}

/// A cell for each size of a fleet.
fn fleet(of: impl Fn(usize) -> usize) -> String {
    [10, 1000, 15_000].map(|nodes| format!(" {} |", with_commas(of(nodes)))).concat()
}

fn with_commas(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<_> =
        digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group)).collect();
    groups.join(",")
}

/// That the page has `now` between its marks; with UPDATE_DOCS it is made so.
#[track_caller]
fn check_section(name: &str, now: &str) {
    let marks = [
        format!("<!-- {name}: counted by a test; UPDATE_DOCS=1 rewrites them -->\n"),
        format!("\n<!-- end of {name} -->"),
    ];
    let page = page();
    let (before, rest) = page.split_once(&marks[0]).expect("the page has the mark");
    let (said, after) = rest.split_once(&marks[1]).expect("the page has the mark");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path(), format!("{before}{}{now}{}{after}", marks[0], marks[1])).unwrap();
        return;
    }
    assert_eq!(said, now, "UPDATE_DOCS=1 rewrites docs/SCALE.md");
}

/// What a start asks for: verb and URI, without the version it is watched from and the time it is watched for.
fn calls_of_a_start(server: &ApiServer, scene: &Scene) -> Vec<String> {
    let before = server.calls().len();
    let mut daemon = scene.setting.start();
    daemon.wait_until("current", is_current);
    daemon.keeps_running_for(Duration::from_secs(2));
    daemon.stop();
    let mut calls: Vec<_> = server.calls()[before..]
        .iter()
        .map(|(verb, uri)| {
            let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
            let varies = |part: &&str| {
                verb == "watch"
                    && (part.starts_with("resourceVersion=") || part.starts_with("timeoutSeconds="))
            };
            let query: Vec<_> = query.split('&').filter(|part| !part.is_empty() && !varies(part)).collect();
            format!("{verb} {path}?{}", query.join("&"))
        })
        .collect();
    calls.sort();
    calls
}

#[test]
fn no_call_grows_with_the_checkpoints_and_each_is_for_one_node() {
    let Some(server) = shared() else { return };
    server.grant(&shipped_rules());
    server.node("scale-2", &json!({}));
    server.namespace("scale", &json!({}));
    let uid = server.pod("scale", "web", "scale-2", &json!({}));
    let scene = scene_at(&server.kubeconfig("guard"), "scale-2", "");
    scene.configure("");
    archive(&scene, "scale", "web", &uid, 1);
    let with_one = calls_of_a_start(&server, &scene);
    for second in 0..50 {
        let made = hour_of_2026(2) + Duration::from_secs(second);
        let mut archive = tests::archives::Archive::new("scale", "web", "main", made, 1 << 20);
        archive.uid = uid.clone();
        archive.write_in(&scene.directory()).unwrap();
    }
    let with_many = calls_of_a_start(&server, &scene);
    assert_eq!(with_one, with_many);
    let of = |start: &str| with_one.iter().filter(|call| call.starts_with(start)).collect::<Vec<_>>();
    for verb in ["list", "watch"] {
        for (resource, filter) in
            [("nodes", "metadata.name%3Dscale-2"), ("pods", "spec.nodeName%3Dscale-2"), ("namespaces", "")]
        {
            let calls = of(&format!("{verb} /api/v1/{resource}?"));
            let [call] = calls[..] else { panic!("{verb} {resource}: {with_one:#?}") };
            assert!(call.contains(filter), "{call}");
            // From the server's cache, not from etcd.
            assert!(verb == "watch" || call.contains("resourceVersion=0"), "{call}");
        }
    }
    assert_eq!(with_one.len(), 6 + of("get /apis").len(), "{with_one:#?}");
}

const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// The number in the first cell of the page's row that begins with `title`.
#[track_caller]
fn said(page: &str, title: &str) -> f64 {
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| {title}")))
        .unwrap_or_else(|| panic!("no row {title}"));
    let cell = row.split('|').nth(2).unwrap().trim();
    let (number, unit) = cell.split_once(' ').unwrap();
    let number: f64 = number.replace(',', "").parse().unwrap();
    number * if unit.starts_with("KB") { 1000.0 } else { 1.0 }
}

#[test]
fn the_page_has_todays_sizes() {
    let Some(server) = shared() else { return };
    server.grant(&shipped_rules());
    server.node("scale-3", &json!({}));
    server.namespace("scale-sizes", &json!({"checkpoint-guard.io/protection": "70"}));
    let pods = "/api/v1/namespaces/scale-sizes/pods";
    // As a ReplicaSet makes them.
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4f8c7b9d",
        "uid": "19799841-684a-43df-95e8-50ad687b8d68", "controller": true, "blockOwnerDeletion": true}]);
    server.create(pods, &json!({
        "metadata": {"name": "web-5d4f8c7b9d-x2x7k", "generateName": "web-5d4f8c7b9d-", "ownerReferences": owner,
            "labels": {"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "web", "pod-template-hash": "5d4f8c7b9d"},
            "annotations": {"checkpoint-guard.io/protection": "70"}},
        "spec": {"nodeName": "scale-3", "containers": [{"name": "main", "image": "none"}]},
    }));
    let page = page();
    let check = |title: &str, size: usize| {
        let said = said(&page, title);
        println!("{title}: {size} B");
        assert!(
            (said * 0.85..said * 1.15).contains(&(size as f64)),
            "{title}: {size}, and docs/SCALE.md says {said}"
        );
    };
    check("a pod's metadata", server.size(&format!("{pods}/web-5d4f8c7b9d-x2x7k"), METADATA));
    check("a namespace's", server.size("/api/v1/namespaces/scale-sizes", METADATA));

    let scene = scene_at(&server.kubeconfig("guard"), "scale-3", "");
    scene.configure("[eviction]\nmin-age = \"0s\"\nkeep-last = 0\n");
    archive(&scene, "scale-sizes", "web", tests::cluster::NOBODY, 1);
    let mut daemon = scene.setting.start();
    daemon.wait_until("current", is_current);
    scene.leave(Bytes::mib(60));
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    eventually(&daemon, "told", || !server.events("default", "Node", "scale-3").is_empty());
    let list = server.get(events);
    let items = list["items"].as_array().unwrap().iter().filter(|it| it["regarding"]["name"] == "scale-3");
    let sizes: Vec<_> = items.map(|it| it.to_string().len()).collect();
    check("an Event", sizes.iter().sum::<usize>() / sizes.len());
    let (_, text) = daemon.get("/metrics").unwrap();
    check("one scrape", text.len());
    daemon.stop();
}
