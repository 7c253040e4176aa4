//! deploy/helm: that the chart is the manifests of deploy/kubernetes with values, and that its page lists those.
//!
//! What a green run does not prove, where helm is missing: that the templates render.

use std::path::{Path, PathBuf};

use serde_json::Value;

const CHART: &str = "deploy/helm/checkpoint-guard";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn chart(file: &str) -> String {
    read(&format!("{CHART}/{file}"))
}

/// Runs helm on the chart; `None`, loudly, where there is none.
fn helm(arguments: &[&str]) -> Option<String> {
    let output = tests::tools::helm()?.args(arguments).current_dir(root().join(CHART)).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "helm {arguments:?}:\n{said}{errors}");
    Some(said.into_owned())
}

#[test]
fn every_sample_renders_and_no_pool_is_without_its_table() {
    helm(&["lint", "--strict", ".", "--values", "ci/all-pools-values.yaml"]);
    let Some(rendered) = helm(&["template", "guard", ".", "--values", "ci/all-pools-values.yaml"]) else {
        return;
    };
    let documents: Vec<Value> =
        rendered.split("\n---").map(|text| serde_saphyr::from_str(text).unwrap()).collect();
    let of = |kind: &'static str| documents.iter().filter(move |it| it["kind"] == kind);
    let values: Value = serde_saphyr::from_str(&chart("ci/all-pools-values.yaml")).unwrap();
    assert_eq!(of("DaemonSet").count(), values["pools"].as_array().unwrap().len());
    let rules: Value =
        serde_saphyr::from_str(&read("deploy/prometheus/checkpoint-guard.rules.yaml")).unwrap();
    assert_eq!(of("PrometheusRule").map(|it| &it["spec"]).collect::<Vec<_>>(), [&rules]);
    let dashboards = of("ConfigMap").filter_map(|it| it["data"]["checkpoint-guard.json"].as_str());
    assert_eq!(dashboards.collect::<Vec<_>>(), [read("deploy/grafana/checkpoint-guard.json")]);
    for daemonset in of("DaemonSet") {
        let pod = &daemonset["spec"]["template"]["spec"];
        assert_eq!(pod["nodeSelector"]["kubernetes.io/os"], "linux");
        let config =
            of("ConfigMap").find(|it| it["metadata"]["name"] == pod["volumes"][0]["configMap"]["name"]);
        let text = config.unwrap()["data"]["guard.toml"].as_str().unwrap();
        let file = guard::config::ConfigFile::parse(text, Path::new("guard.toml"))
            .unwrap_or_else(|problems| panic!("{problems}"));
        let pool = pod["containers"][0]["env"][0]["value"].as_str();
        let config = file.effective(pool).unwrap_or_else(|problems| panic!("{problems}"));
        let listen = config.metrics.listen.unwrap();
        assert_eq!(pod["containers"][0]["ports"][0]["containerPort"], listen.port());
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        for directory in &config.directories {
            let below = |mount: &Value| directory.path.starts_with(mount["mountPath"].as_str().unwrap());
            assert!(mounts.iter().any(below), "{:?} is not in {mounts:?}", directory.path);
        }
    }
}

#[test]
fn the_chart_brings_the_rules_and_the_dashboard() {
    for (copy, original) in [
        ("checkpoint-guard.rules.yaml", "deploy/prometheus/checkpoint-guard.rules.yaml"),
        ("checkpoint-guard.json", "deploy/grafana/checkpoint-guard.json"),
    ] {
        let (copy, original) = (format!("{CHART}/files/{copy}"), read(original));
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(root().join(&copy), &original).unwrap();
        }
        assert!(read(&copy) == original, "UPDATE_DOCS=1 copies {copy}");
    }
}

#[test]
fn the_samples_are_those_of_config() {
    for pool in ["general", "gpu", "edge", "forensics"] {
        let same = chart(&format!("files/{pool}.toml")) == read(&format!("config/{pool}.toml"));
        assert!(same, "{CHART}/files/{pool}.toml is not config/{pool}.toml: copy it");
    }
}

/// The lines of a manifest that say something.
fn lines(text: &str) -> Vec<&str> {
    let said = text.lines().map(|line| line.split(" #").next().unwrap_or_default().trim());
    said.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

#[test]
fn the_template_says_what_the_base_of_kustomize_says() {
    let (base, template) = (read("deploy/kubernetes/base/daemonset.yaml"), chart("templates/daemonset.yaml"));
    let template = lines(&template);
    let only_in_base: Vec<_> = lines(&base).into_iter().filter(|line| !template.contains(line)).collect();
    // What is a value or made from one.
    let values = [
        "name: checkpoint-guard",
        "matchLabels:",
        "app.kubernetes.io/name: checkpoint-guard",
        "maxUnavailable: 1",
        "labels:",
        "app.kubernetes.io/name: checkpoint-guard",
        "serviceAccountName: checkpoint-guard",
        "image: checkpoint-guard",
        "imagePullPolicy: IfNotPresent",
        "args: [run]",
        "containerPort: 9477",
        "resources:",
        "requests:",
        "cpu: 10m",
        "memory: 40Mi",
        "limits:",
        "memory: 160Mi",
        "mountPath: /var/lib/kubelet",
        "mountPath: /var/log/checkpoint-guard",
        "name: checkpoint-guard",
        "path: /var/lib/kubelet",
        "path: /var/log/checkpoint-guard",
    ];
    assert_eq!(only_in_base, values);
    let chosen: Value = serde_saphyr::from_str(&chart("values.yaml")).unwrap();
    let base: Value = serde_saphyr::from_str(&base).unwrap();
    assert_eq!(chosen["resources"], base["spec"]["template"]["spec"]["containers"][0]["resources"]);
}

#[test]
fn the_chart_grants_what_the_base_of_kustomize_grants() {
    let rules = |text: &str| {
        let said = lines(text);
        let begin = said.iter().position(|line| *line == "rules:").unwrap();
        let end = said.iter().position(|line| *line == "---").unwrap();
        said[begin..end].iter().map(|line| (*line).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(rules(&chart("templates/rbac.yaml")), rules(&read("deploy/kubernetes/base/rbac.yaml")));
}

/// A row for each value that has a comment above it, with its default.
fn table() -> String {
    let text = chart("values.yaml");
    let defaults: Value = serde_saphyr::from_str(&text).unwrap();
    let mut table = "| value | default | meaning |\n| --- | --- | --- |\n".to_owned();
    let mut parents: Vec<(usize, &str)> = Vec::new();
    let mut meaning = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim();
        if let Some(comment) = line.strip_prefix("# ") {
            meaning.push(comment);
            continue;
        }
        let meaning = std::mem::take(&mut meaning).join(" ");
        parents.retain(|(outer, _)| *outer < indent);
        let member = line.starts_with("- ");
        let Some(key) =
            (if member { Some("[]") } else { line.split(':').next().filter(|key| !key.is_empty()) })
        else {
            continue;
        };
        parents.push((indent, key));
        if meaning.is_empty() {
            continue;
        }
        let path = parents.iter().map(|(_, key)| *key).collect::<Vec<_>>().join(".").replace(".[]", "[]");
        let default = defaults.pointer(&format!("/{}", path.replace('.', "/")));
        let default = default.map(|value| format!("`{value}`")).unwrap_or_default();
        table += &format!("| `{path}` | {default} | {meaning} |\n");
    }
    table
}

#[test]
fn the_page_lists_every_value() {
    const MARKS: [&str; 2] = ["rewrites them -->\n", "<!-- end of values -->"];
    let page = chart("README.md");
    let (before, rest) = page.split_once(MARKS[0]).unwrap();
    let (_, after) = rest.split_once(MARKS[1]).unwrap();
    let now = format!("{before}{}{}{}{after}", MARKS[0], table(), MARKS[1]);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(root().join(CHART).join("README.md"), &now).unwrap();
    }
    assert!(chart("README.md") == now, "UPDATE_DOCS=1 rewrites {CHART}/README.md");
}
