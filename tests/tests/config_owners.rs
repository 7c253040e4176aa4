//! Which rules match whom, and what `check-config` says of it in advance.

use std::path::{Path, PathBuf};

use guard::cli::Output;
use guard::cli::check_config::{Args, Checked, check};
use guard::config::ConfigFile;
use guard::model::Owner;

const RULES: &str = r#"
[[directory]]
path = "/no/such/directory"
optional = true

[pressure]
kubelet-config = false

[protection]
namespaces = { team = 10, team-prod = 90, "kube-*" = 99, forensics = 100 }
[[protection.rule]]
namespace = "team-prod"
pod = "cache-*"
protection = 5

[[retention]]
namespace = "team"
max-count.container = 1
[[retention]]
namespace = "*"
max-count = { container = 9, pod = 20 }
max-age = "14d"

[pool.gpu]
protection.namespaces.team = 60
"#;

fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let path = directory.path().join("guard.toml");
    std::fs::write(&path, text).expect("writable");
    (directory, path)
}

fn report(text: &str, output: Output, pool: Option<&str>, owners: &[&str]) -> Checked {
    let (_directory, path) = written(text);
    let owner = owners.iter().map(ToString::to_string).collect();
    let args = Args { file: Some(path), pool: pool.map(str::to_owned), owner };
    check(&args, Path::new("/not/this/one.toml"), output).expect("the report can be made")
}

fn json(text: &str, owners: &[&str]) -> serde_json::Value {
    serde_json::from_str(&report(text, Output::Json, None, owners).text).expect("it is JSON")
}

#[test]
fn case_10_a_rule_for_team_never_touches_team_prod() {
    let config = ConfigFile::parse(RULES, Path::new("guard.toml")).unwrap().effective(None).unwrap();
    let matching = |namespace: &str| {
        let owner = Owner::new(namespace, "pod", "container");
        let rules = config.policy.protection.rules.iter().filter(|rule| rule.owner.matches(&owner));
        rules.map(|rule| rule.protection.get()).collect::<Vec<_>>()
    };
    assert_eq!(matching("team"), [10]);
    assert_eq!(matching("team-prod"), [90]);
    // "team-prod" and container "x" share every byte of a file name with "team" and container "prod-x".
    assert_eq!(matching("team-pro"), Vec::<u8>::new());
    let limited = |namespace: &str| {
        let owner = Owner::new(namespace, "pod", "prod-x");
        config.policy.retention.iter().filter(|rule| rule.owner.matches(&owner)).count()
    };
    assert_eq!((limited("team"), limited("team-prod")), (2, 1));
}

#[test]
fn case_35_which_rule_matches_what_is_shown_in_advance() {
    let report =
        json(RULES, &["kube-system", "forensics/a/b", "team-prod/cache-0/db", "team/web/app", "other"]);
    let owners = report["pools"][0]["owners"].as_array().unwrap();
    let shown: Vec<_> = owners
        .iter()
        .map(|owner| {
            let source = owner["protectionSource"].as_str().unwrap().split(" (").next().unwrap();
            format!(
                "{} {} {} {source}",
                owner["owner"].as_str().unwrap(),
                owner["protection"],
                owner["never"]
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            "kube-system/?/? 99 false protection.namespaces.\"kube-*\"",
            "forensics/a/b 100 true protection.namespaces.forensics",
            "team-prod/cache-0/db 5 false protection.rule[0] namespace=\"team-prod\" pod=\"cache-*\"",
            "team/web/app 10 false protection.namespaces.team",
            "other/?/? 50 false protection.default",
        ]
    );
}

#[test]
fn retention_is_told_limit_by_limit() {
    let report = json(RULES, &["team/web/app"]);
    let limits: Vec<_> = report["pools"][0]["owners"][0]["retention"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| format!("{} {}", limit["limit"].as_str().unwrap(), limit["value"].as_str().unwrap()))
        .collect();
    assert_eq!(limits, ["max-count.container 1", "max-count.pod 20", "max-age 14d"]);
}

#[test]
fn the_report_has_every_pool_with_lines_or_defaults() {
    let report = json(RULES, &[]);
    assert_eq!(report["apiVersion"], "checkpoint-guard/v1");
    assert_eq!(report["kind"], "EffectiveConfiguration");
    let pools: Vec<_> = report["pools"].as_array().unwrap().iter().map(|pool| pool["pool"].clone()).collect();
    assert_eq!(pools, [serde_json::Value::Null, "gpu".into()]);
    let setting = |pool: usize, key: &str| {
        let settings = report["pools"][pool]["settings"].as_array().unwrap();
        settings.iter().find(|setting| setting["key"] == key).unwrap().clone()
    };
    assert_eq!(setting(0, "protection.namespaces.team")["origin"]["line"], 10);
    assert_eq!(setting(1, "protection.namespaces.team")["origin"]["line"], 25);
    assert_eq!(setting(1, "protection.namespaces.team")["value"], "60");
    assert_eq!(setting(1, "eviction.min-age")["origin"], serde_json::Value::Null);
}

#[test]
fn the_table_fits_a_terminal_and_holds_no_colour_elsewhere() {
    let text = report(RULES, Output::Table, Some("gpu"), &["forensics"]).text;
    for line in text.lines() {
        assert!(line.chars().count() <= 120, "{} columns: {line}", line.chars().count());
    }
    assert!(!text.contains('\u{1b}'));
    assert!(text.contains("Pool gpu") && !text.contains("Without a pool"), "{text}");
    assert!(text.contains("100 never"), "{text}");
}

#[test]
fn a_filesystem_that_is_here_is_compared_and_a_late_threshold_makes_it_fail() {
    let (_directory, kubelet) = written("evictionHard:\n  nodefs.available: 90%\n");
    let text = format!(
        "[[directory]]\npath = {:?}\n[pressure]\nkubelet-config = {kubelet:?}\n",
        std::env::temp_dir()
    );
    let checked = report(&text, Output::Json, None, &[]);
    assert!(!checked.valid);
    let report: serde_json::Value = serde_json::from_str(&checked.text).unwrap();
    let pool = &report["pools"][0];
    assert!(
        pool["problems"][0]["message"].as_str().unwrap().contains("acts later than the kubelet's"),
        "{pool}"
    );
    let here =
        &pool["thresholds"].as_array().unwrap().iter().find(|row| row["total"].is_u64()).unwrap().clone();
    let total = here["total"].as_u64().unwrap();
    assert_eq!(here["kubeletHard"]["absolute"].as_u64().unwrap(), (u128::from(total) * 90 / 100) as u64);
}

#[test]
fn an_invalid_file_is_told_in_both_forms() {
    let text = "[[directory]]\npath = \"relative\"\n";
    let checked = report(text, Output::Table, None, &[]);
    assert!(!checked.valid && checked.text.contains("guard.toml:2: directory[0].path"), "{}", checked.text);
    let problems = &json(text, &[])["problems"];
    assert_eq!(problems[0]["line"], 2);
    assert_eq!(problems[0]["key"], "directory[0].path");
}
