//! The rules in deploy/prometheus: right, complete, and about metrics that exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use guard::report::metrics::Metrics;
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every rule of every group.
fn rules() -> Vec<Value> {
    let file: Value = serde_saphyr::from_str(&read("deploy/prometheus/checkpoint-guard.rules.yaml")).unwrap();
    let groups = file["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).cloned().collect()
}

fn alerts() -> Vec<Value> {
    rules().into_iter().filter(|rule| rule["alert"].is_string()).collect()
}

/// Runs promtool in deploy/prometheus; `None`, loudly, where there is none.
fn promtool(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("promtool").args(arguments).current_dir(root().join("deploy/prometheus")).output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED promtool {}: {error}", arguments.join(" "));
            return None;
        }
    };
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}:\n{said}");
    Some(said)
}

#[test]
fn case_40_alerts_fire_when_they_should_and_the_guards_own_sawtooth_fires_none() {
    if let Some(said) = promtool(&["test", "rules", "checkpoint-guard.tests.yaml"]) {
        assert!(said.contains("SUCCESS"), "{said}");
    }
}

#[test]
fn the_rules_are_valid() {
    if let Some(said) = promtool(&["check", "rules", "checkpoint-guard.rules.yaml"]) {
        assert!(said.contains(&format!("{} rules found", rules().len())), "{said}");
    }
}

#[test]
fn the_scrape_configuration_of_the_page_of_installation_is_valid() {
    let page = read("docs/INSTALL.md");
    let config = page.split("```yaml\n").find(|block| block.starts_with("scrape_configs:")).unwrap();
    let config = config.split("```").next().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    // Debian's Prometheus cannot look for pods.
    let of_debian = config
        .replace("kubernetes_sd_configs:", "static_configs:")
        .replace("{role: pod, namespaces: {names: [kube-system]}}", "{targets: [127.0.0.1:9477]}");
    std::fs::write(file.path(), of_debian).unwrap();
    promtool(&["check", "config", file.path().to_str().unwrap()]);
    let config: Value = serde_saphyr::from_str(config).unwrap();
    let job = config["scrape_configs"][0]["job_name"].as_str().unwrap();
    assert!(job.contains("checkpoint-guard"), "CheckpointGuardDown looks for it: {job}");
}

#[test]
fn every_alert_has_a_severity_a_summary_a_description_and_a_runbook() {
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let severity = alert["labels"]["severity"].as_str().unwrap();
        assert!(["info", "warning", "critical"].contains(&severity), "{name}: {severity}");
        for annotation in ["summary", "description"] {
            assert!(alert["annotations"][annotation].as_str().unwrap().len() > 20, "{name}: {annotation}");
        }
        let url = alert["annotations"]["runbook_url"].as_str().unwrap();
        let page = url.split_once("/blob/main/").expect("a page of this repository").1;
        assert_eq!(page, format!("docs/runbooks/{name}.md"));
        let page = read(page);
        for heading in ["What it means", "What to look at", "What to do"] {
            assert!(page.contains(&format!("## {heading}\n")), "{name}: {heading}");
        }
    }
}

#[test]
fn every_alert_is_tested_firing_and_not_firing() {
    let tests: Value =
        serde_saphyr::from_str(&read("deploy/prometheus/checkpoint-guard.tests.yaml")).unwrap();
    let tests = tests["tests"].as_array().unwrap();
    let checks: Vec<&Value> =
        tests.iter().filter_map(|test| test["alert_rule_test"].as_array()).flatten().collect();
    for alert in alerts() {
        let is_firing = |check: &&Value| !check["exp_alerts"].as_array().unwrap().is_empty();
        let (firing, quiet): (Vec<_>, Vec<_>) = checks
            .iter()
            .copied()
            .filter(|check| check["alertname"] == alert["alert"])
            .partition(|check| is_firing(check));
        assert!(!firing.is_empty() && !quiet.is_empty(), "{}: {firing:?} {quiet:?}", alert["alert"]);
    }
}

#[test]
fn rules_runbooks_and_readme_speak_of_metrics_that_exist() {
    let metrics = Metrics::new();
    let known: BTreeSet<&str> = metrics.families().iter().map(|family| family.name).collect();
    let mut texts = vec![read("deploy/prometheus/checkpoint-guard.rules.yaml"), read("README.md")];
    for entry in std::fs::read_dir(root().join("docs/runbooks")).unwrap() {
        texts.push(std::fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    for text in &texts {
        // A recording rule's name has colons, and is promtool's to check.
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !"_:".contains(c));
        for word in words.filter(|word| word.starts_with("checkpoint_guard_")) {
            assert!(known.contains(word), "there is no metric {word}");
        }
    }
}

#[test]
fn the_operators_rules_are_the_plain_rules() {
    let plain = read("deploy/prometheus/checkpoint-guard.rules.yaml");
    let path = root().join("deploy/prometheus/prometheusrule.yaml");
    let now = prometheus_rule(&plain);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    assert!(std::fs::read_to_string(&path).unwrap() == now, "UPDATE_DOCS=1 rewrites prometheusrule.yaml");
    let wrapped: Value = serde_saphyr::from_str(&now).unwrap();
    let plain: Value = serde_saphyr::from_str(&plain).unwrap();
    assert_eq!(wrapped["spec"], plain);
}

/// The plain rules as a resource of the Prometheus operator.
fn prometheus_rule(plain: &str) -> String {
    const HEAD: &str = "\
# checkpoint-guard.rules.yaml for the Prometheus operator. Made from it; a test fails when the two differ
# (UPDATE_DOCS=1 rewrites this file).
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: checkpoint-guard
  labels:
    app.kubernetes.io/name: checkpoint-guard
spec:
";
    let groups = &plain[plain.find("groups:").unwrap()..];
    let indented = groups.lines().map(|line| match line {
        "" => "\n".to_owned(),
        line => format!("  {line}\n"),
    });
    HEAD.to_owned() + &indented.collect::<String>()
}
