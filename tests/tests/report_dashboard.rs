//! deploy/grafana: every query is valid, about metrics that exist, and answered by a real Prometheus that scrapes a real
//! guard under a storm.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guard::model::Bytes;
use guard::report::metrics::Metrics;
use serde_json::{Value, json};
use tests::api_server::{ApiServer, Line, shipped_rules};
use tests::cluster::{eventually, is_current, scene_at};
use tests::daemon::Daemon;
use tests::http::{free_address, get, percent_encoded};
use tests::loopfs::{Filesystem, LoopMount};
use tests::receiver::{Answer, Receiver};
use tests::scene::Scene;
use tests::storm::{self, Method, Storm, Until};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn dashboard() -> Value {
    let text = std::fs::read_to_string(deploy().join("grafana/checkpoint-guard.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn panels(dashboard: &Value) -> Vec<&Value> {
    dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row").collect()
}

/// Every query with its panel's title, variables replaced as Grafana does for "All".
fn queries() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let mut queries = Vec::new();
    for panel in panels(&dashboard) {
        for target in panel["targets"].as_array().unwrap() {
            let mut query = target["expr"].as_str().unwrap().replace("$__rate_interval", "10s");
            for variable in ["$job", "$instance", "$filesystem"] {
                query = query.replace(variable, ".*");
            }
            assert!(!query.contains('$'), "an unknown variable: {query}");
            queries.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    queries
}

#[test]
fn panels_are_titled_explained_and_do_not_overlap() {
    let dashboard = dashboard();
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is taken");
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{title}: wider than the page");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(cells.insert((x, y)), "{title}: lies over another panel");
            }
        }
    }
    for panel in panels(&dashboard) {
        assert!(panel["description"].as_str().unwrap().len() > 15, "{}", panel["title"]);
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{}", panel["title"]);
    }
}

#[test]
fn queries_are_about_metrics_that_exist() {
    let metrics = Metrics::new();
    let known: BTreeSet<&str> = metrics.families().iter().map(|family| family.name).collect();
    for (title, query) in queries() {
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for word in words.filter(|word| word.starts_with("checkpoint_guard_") || word.starts_with("process_"))
        {
            let family = word.strip_suffix("_bucket").unwrap_or(word);
            assert!(known.contains(family), "{title}: there is no metric {word}");
        }
    }
}

#[test]
fn queries_are_valid() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("rules.yaml");
    let rule = |(number, (_, query)): (usize, &(String, String))| {
        format!("- record: dashboard:query{number}\n  expr: {}\n", serde_json::to_string(query).unwrap())
    };
    let rules: String = queries().iter().enumerate().map(rule).collect();
    let indented = rules.replace('\n', "\n    ");
    std::fs::write(&path, format!("groups:\n- name: dashboard\n  rules:\n    {}\n", indented.trim_end()))
        .unwrap();
    match Command::new("promtool").args(["check", "rules"]).arg(&path).output() {
        Err(error) => println!("SKIPPED queries_are_valid: promtool: {error}"),
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
    }
}

fn rules() -> String {
    std::fs::read_to_string(deploy().join("prometheus/checkpoint-guard.rules.yaml")).unwrap()
}

/// The rules with a second for each minute, which is what they are scraped and looked at by here. Names such as `max10m` stay.
fn hurried_rules() -> String {
    let mut rules = rules();
    for minutes in 1..=30 {
        for [before, after] in [["[", "]"], [" ", "\n"], [" ", ")"]] {
            let time = |unit| format!("{before}{minutes}{unit}{after}");
            rules = rules.replace(&time("m"), &time("s"));
        }
    }
    rules
}

/// A Prometheus that scrapes one target every second and evaluates our rules; ended on drop.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    _scratch: tempfile::TempDir,
}

impl Prometheus {
    /// `None`, loudly, where there is none.
    fn start(targets: &[SocketAddr], rules: &str) -> Option<Prometheus> {
        let scratch = tempfile::tempdir().unwrap();
        let rules_path = scratch.path().join("rules.yaml");
        std::fs::write(&rules_path, rules).unwrap();
        let targets: Vec<_> = targets.iter().map(|target| format!("\"{target}\"")).collect();
        let targets = targets.join(", ");
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{}]\nscrape_configs:\n\
             - {{job_name: checkpoint-guard, static_configs: [{{targets: [{targets}]}}]}}\n",
            rules_path.display()
        );
        let path = scratch.path().join("prometheus.yaml");
        std::fs::write(&path, config).unwrap();
        let address = free_address().unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", path.display()))
            .arg(format!("--storage.tsdb.path={}", scratch.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=warn")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Prometheus { child, address, _scratch: scratch }),
            Err(error) => {
                println!("SKIPPED what needs a Prometheus: {error} (Debian: prometheus)");
                None
            }
        }
    }

    /// The `data` of an API call; null while it does not answer.
    fn api(&self, path: &str) -> Value {
        let Ok((200, body)) = get(self.address, &format!("/api/v1/{path}")) else { return Value::Null };
        serde_json::from_str::<Value>(&body).unwrap()["data"].clone()
    }

    /// The alerts that fire.
    fn firing(&self) -> BTreeSet<String> {
        let alerts = self.api("alerts");
        let firing =
            alerts["alerts"].as_array().into_iter().flatten().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until just these alerts fire.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "waits for another process, so it measures time")]
    fn wait_for(&self, alerts: &[&str]) {
        let (wanted, began) =
            (alerts.iter().map(|&it| it.to_owned()).collect::<BTreeSet<_>>(), Instant::now());
        while self.firing() != wanted {
            assert!(began.elapsed() < Duration::from_secs(90), "{wanted:?} and not {:?}", self.firing());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn samples(&self, query: &str) -> usize {
        let data = self.api(&format!("query?query={}", percent_encoded(query)));
        data["result"].as_array().map_or(0, Vec::len)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A guard that asks an API server which has gone away meanwhile, posts its rounds, and runs a command; and its address.
/// `None`, loudly, where there is no API server.
fn clustered() -> Option<(impl Sized, SocketAddr)> {
    let server = ApiServer::start()?;
    server.grant(&shipped_rules());
    server.node("board-1", &json!({}));
    let line = Line::to(server.address());
    let scene = scene_at(&server.kubeconfig_at("guard", line.address()), "board-1", "");
    let receiver = Receiver::start(|_| Answer::Status(200));
    scene.configure(&format!("[notify]\nurl = {:?}\ncommand = [\"/bin/true\"]\n", receiver.url()));
    let mut daemon = scene.setting.start();
    daemon.wait_until("current", is_current);
    line.cut();
    let failures = "checkpoint_guard_cluster_failures_total";
    daemon.wait_until("failing", |daemon| daemon.metric(failures).is_some_and(|count| count >= 1.0));
    let address = scene.setting.address();
    Some(((daemon, scene, line, server), address))
}

#[test]
#[expect(clippy::disallowed_methods, reason = "waits for another process, so it measures time")]
fn every_query_returns_data() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED every_query_returns_data: mounting a filesystem needs root");
        return;
    }
    let disk = LoopMount::new(Filesystem::Ext4, Bytes::mib(256));
    let directory = disk.path().join("checkpoints");
    std::fs::create_dir(&directory).unwrap();
    let daemon = Daemon::start(&directory, "").unwrap();
    let clustered = clustered();
    let targets: Vec<_> = clustered.iter().map(|it| it.1).chain([daemon.http()]).collect();
    let Some(prometheus) = Prometheus::start(&targets, &rules()) else { return };
    let _storm = Storm::start(storm::Options {
        directory,
        writers: 1,
        size: (Bytes::mib(1), Bytes::mib(8)),
        namespaces: vec!["team".to_owned(), "ci".to_owned()],
        pods: 2,
        method: Method::Write,
        first_age: Duration::from_secs(24 * 3600),
        until: Until::default(),
    });

    let began = Instant::now();
    let mut unanswered = queries();
    if clustered.is_none() {
        println!("SKIPPED the queries about the cluster");
        let is_of_one = |query: &str| {
            ["_cluster_", "_events_", "_webhook_", "_command_"].iter().all(|it| !query.contains(it))
        };
        unanswered.retain(|(_, query)| is_of_one(query));
    }
    while !unanswered.is_empty() && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(300));
        unanswered.retain(|(_, query)| prometheus.samples(query) == 0);
    }
    assert!(unanswered.is_empty(), "no data for {unanswered:#?}");

    let groups = prometheus.api("rules");
    for group in groups["groups"].as_array().unwrap() {
        for rule in group["rules"].as_array().unwrap() {
            assert_eq!(rule["health"], "ok", "{rule}");
        }
    }
}

#[test]
fn the_right_alerts_fire_and_clear() {
    let scene = Scene::new();
    scene.configure("");
    let names: Vec<_> = (1..=2).map(|hour| scene.archive("web", hour, Bytes::mib(8))).collect();
    for name in &names {
        std::fs::write(scene.directory().join(format!("{name}.keep")), "").unwrap();
    }
    let daemon = scene.setting.start();
    let rules = hurried_rules();
    assert!(
        rules.contains("for: 2s")
            && rules.contains("[5s]")
            && rules.contains("offset 20s")
            && rules.contains("max10m")
    );
    let Some(prometheus) = Prometheus::start(&[scene.setting.address()], &rules) else { return };
    let is_seen = |query: &str| eventually(&daemon, "scraped", || prometheus.samples(query) > 0);
    is_seen("checkpoint_guard_config_valid == 1");
    prometheus.wait_for(&[]);

    let filler = scene.leave(Bytes::mib(40));
    prometheus.wait_for(&["CheckpointGuardUnderPressure", "CheckpointGuardTargetUnreachable"]);
    let valid = std::fs::read_to_string(scene.setting.config()).unwrap();
    std::fs::write(scene.setting.config(), "pressure = 1\n").unwrap();
    prometheus.wait_for(&[
        "CheckpointGuardUnderPressure",
        "CheckpointGuardTargetUnreachable",
        "CheckpointGuardConfigInvalid",
    ]);
    std::fs::write(filler, "").unwrap();
    std::fs::write(scene.setting.config(), valid).unwrap();
    prometheus.wait_for(&[]);
    assert!(names.iter().all(|name| scene.has(name)));
    drop(daemon);
    prometheus.wait_for(&["CheckpointGuardDown", "CheckpointGuardAbsent"]);
}
