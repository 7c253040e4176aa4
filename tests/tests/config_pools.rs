//! Pools: what they inherit, what they override, which one a node gets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use guard::config::{ConfigFile, Layout, Origin, PoolChoice, load};
use guard::model::{Bytes, Level, Max, Signal};

fn write(directory: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = directory.path().join("guard.toml");
    std::fs::write(&path, text).expect("a temporary directory is writable");
    path
}

fn parse(text: &str) -> ConfigFile {
    ConfigFile::parse(text, Path::new("guard.toml")).unwrap_or_else(|problems| panic!("{problems}"))
}

/// A threshold as a person writes it; `off` when it does not count.
fn threshold(file: &ConfigFile, pool: Option<&str>, level: Level, signal: Signal) -> String {
    let pressure = file.effective(pool).expect("the pool exists").policy.pressure;
    let amount = pressure.threshold(level).and_then(|threshold| threshold.amount(signal));
    amount.map_or("off".to_owned(), |amount| amount.display(signal))
}

#[test]
fn case_09_one_directory_and_one_pool_are_enough() {
    let directory = tempfile::tempdir().unwrap();
    let file = load(&write(&directory, "[[directory]]\npath = \"/checkpoints\"\n[pool.x]\n")).unwrap();
    assert_eq!(file.pools().collect::<Vec<_>>(), ["x"]);
    for pool in [None, Some("x")] {
        let config = file.effective(pool).unwrap();
        assert_eq!(config.directories[0].path, Path::new("/checkpoints"));
        assert_eq!(config.directories[0].layout, Layout::Archives);
        assert_eq!(threshold(&file, pool, Level::Soft, Signal::Available), "20%");
        assert_eq!(threshold(&file, pool, Level::Hard, Signal::Available), "15%");
        assert_eq!(threshold(&file, pool, Level::Critical, Signal::InodesFree), "6%");
        assert_eq!(config.policy.protection.default.get(), 50);
        assert_eq!(config.metrics.listen.unwrap().port(), 9477);
        assert_eq!(config.audit.max_size, Bytes::mib(16));
        let written: Vec<_> =
            file.settings(pool).unwrap().iter().filter(|it| it.origin != Origin::Default).collect();
        assert_eq!(written.len(), 1, "{written:?}");
    }
}

#[test]
fn every_table_is_read() {
    let file = parse(include_str!("../fixtures/config/every-table.toml"));
    let config = file.effective(None).unwrap();
    assert_eq!(config.directories[1].layout, Layout::PodCheckpoints);
    assert!(config.directories[1].optional);
    assert_eq!(threshold(&file, None, Level::Hard, Signal::Available), "min(15%, 100 GiB)");
    assert_eq!(threshold(&file, Some("gpu"), Level::Hard, Signal::Available), "120 GiB");
    assert_eq!(config.policy.pressure.soft.unwrap().grace_period.as_secs(), 30);
    assert_eq!(config.policy.protection.rules.len(), 4);
    let rule = &config.policy.retention[0];
    assert_eq!(
        (rule.max_count.pod, rule.max_total_size.pod, rule.max_size),
        (Some(Max::At(30)), None, Some(Max::At(Bytes::gib(20))))
    );
    assert_eq!(rule.retain_orphans, Some(true));
    assert_eq!(config.audit.path.as_deref(), Some(Path::new("/var/log/checkpoint-guard/audit.jsonl")));
}

#[test]
fn an_empty_file_says_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(&directory, "# nothing yet\n");
    let problems = load(&path).unwrap_err().to_string();
    assert_eq!(
        problems,
        format!(
            "{}: directory: no directory to watch; write [[directory]] and path = \"/var/lib/kubelet/checkpoints\"",
            path.display()
        )
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let problems = load(Path::new("/nowhere/guard.toml")).unwrap_err().to_string();
    assert!(problems.starts_with("/nowhere/guard.toml: cannot read the configuration"), "{problems}");
    assert!(problems.contains("--config"), "{problems}");
}

const FLEET: &str = r#"
[[directory]]
path = "/var/lib/kubelet/checkpoints"

[pressure]
hard = { available = ["15%", "100GiB"] }
kubelet-config = false

[protection]
namespaces = { team = 20, "ci-*" = 5 }

[[retention]]
namespace = "*"
max-age = "14d"
max-size = "20GiB"

[pool.gpu]
pressure.hard.available = "120GiB"
pressure.soft = false
protection.namespaces.team = 80

[[pool.gpu.retention]]
namespace = "*"
max-size = "unlimited"
[[pool.gpu.retention]]
namespace = "training"
max-count.container = 2

[pool.gpu-spot]
extends = "gpu"
eviction.keep-last = 0

[[pool.gpu-spot.directory]]
path = "/mnt/scratch/checkpoints"
"#;

#[test]
fn a_pool_overrides_field_by_field() {
    let file = parse(FLEET);
    assert_eq!(threshold(&file, None, Level::Hard, Signal::Available), "min(15%, 100 GiB)");
    assert_eq!(threshold(&file, Some("gpu"), Level::Hard, Signal::Available), "120 GiB");
    assert_eq!(threshold(&file, Some("gpu"), Level::Hard, Signal::InodesFree), "7%");
    assert_eq!(threshold(&file, Some("gpu"), Level::Soft, Signal::Available), "off");
    let protection = |pool| {
        let rules = file.effective(pool).unwrap().policy.protection.rules;
        rules.iter().map(|rule| (rule.source.clone(), rule.protection.get())).collect::<Vec<_>>()
    };
    let ci = ("protection.namespaces.\"ci-*\" (guard.toml:10)".to_owned(), 5);
    assert_eq!(protection(None), [ci.clone(), ("protection.namespaces.team (guard.toml:10)".to_owned(), 20)]);
    assert_eq!(
        protection(Some("gpu")),
        [ci, ("pool.gpu.protection.namespaces.team (guard.toml:20)".to_owned(), 80)]
    );
}

#[test]
fn rules_of_a_pool_are_added_and_win_over_those_about_the_same_owners() {
    let rules = parse(FLEET).effective(Some("gpu")).unwrap().policy.retention;
    assert_eq!(rules.len(), 2);
    assert_eq!(rules[0].max_size, Some(Max::Unlimited), "\"unlimited\" lifts the inherited limit");
    let two_weeks = Duration::from_secs(14 * 86_400);
    assert_eq!(rules[0].max_age, Some(Max::At(two_weeks)), "what the pool does not say is inherited");
    assert_eq!(rules[1].max_count.container, Some(Max::At(2)));
}

#[test]
fn a_pool_that_extends_another_begins_with_its_values() {
    let file = parse(FLEET);
    let spot = file.effective(Some("gpu-spot")).unwrap();
    assert_eq!(threshold(&file, Some("gpu-spot"), Level::Hard, Signal::Available), "120 GiB");
    assert_eq!(spot.policy.eviction.keep_last, 0);
    assert_eq!(spot.policy.retention.len(), 2);
    let paths: Vec<_> = spot.directories.iter().map(|directory| directory.path.as_path()).collect();
    assert_eq!(paths, [Path::new("/mnt/scratch/checkpoints")], "a pool's directories replace the others");
}

#[test]
fn every_value_says_where_it_came_from() {
    let file = parse(FLEET);
    let origin = |pool, key: &str| {
        let settings = file.settings(pool).unwrap();
        settings.iter().find(|setting| setting.key == key).unwrap().origin.to_string()
    };
    assert_eq!(origin(None, "pressure.hard.available"), "guard.toml:6");
    assert_eq!(origin(Some("gpu"), "pressure.hard.available"), "guard.toml:18");
    assert_eq!(origin(Some("gpu-spot"), "pressure.hard.available"), "guard.toml:18");
    assert_eq!(origin(Some("gpu-spot"), "eviction.keep-last"), "guard.toml:31");
    assert_eq!(origin(Some("gpu-spot"), "eviction.min-age"), "default");
}

/// A key as the key table spells it: `retention[0].max-age` is `retention[].max-age`.
fn in_key_table(key: &str) -> String {
    let mut path = String::new();
    let mut in_brackets = false;
    for c in key.chars() {
        in_brackets = (in_brackets || c == '[') && c != ']';
        if !in_brackets || c == '[' {
            path.push(c);
        }
    }
    match path.strip_prefix("protection.namespaces.") {
        Some(_) => "protection.namespaces.*".to_owned(),
        None => path,
    }
}

#[test]
fn every_key_is_shown_with_the_line_that_says_so() {
    const TEXT: &str = include_str!("../fixtures/config/every-table.toml");
    let file = parse(TEXT);
    let mut shown = std::collections::BTreeSet::new();
    for pool in std::iter::once(None).chain(file.pools().map(Some)) {
        for setting in file.settings(pool).unwrap() {
            let path = in_key_table(&setting.key);
            let known = guard::config::KEYS.iter().find(|key| key.path == path);
            let known = known.unwrap_or_else(|| panic!("{} is no key", setting.key));
            match &setting.origin {
                Origin::Default => assert_eq!(setting.value, known.default, "{path}"),
                Origin::Written(place) => {
                    let line = TEXT.lines().nth(place.line as usize - 1).unwrap();
                    let name = setting.key.rsplit('.').next().unwrap().trim_matches('"');
                    assert!(
                        line.contains(name),
                        "{} in {pool:?} is not on line {}: {line}",
                        setting.key,
                        place.line
                    );
                }
            }
            shown.insert(path);
        }
    }
    // Tables as a whole, and what pools are made of, have no value of their own.
    let whole = ["pressure.soft", "pressure.hard", "pressure.critical", "pool.*.extends"];
    let missing: Vec<_> = guard::config::KEYS
        .iter()
        .map(|key| key.path)
        .filter(|path| !shown.contains(*path) && !whole.contains(path))
        .collect();
    assert_eq!(missing, Vec::<&str>::new(), "write them into fixtures/config/every-table.toml");
}

#[test]
fn a_rule_about_a_part_cannot_limit_the_whole() {
    let problems = |rule: &str| {
        let text = format!("[[directory]]\npath = \"/checkpoints\"\n[[retention]]\n{rule}\n");
        ConfigFile::parse(&text, Path::new("guard.toml")).map_or_else(|it| it.to_string(), |_| String::new())
    };
    for (rule, key, part) in [
        ("pod = \"web-*\"\nmax-count.namespace = 5", "max-count.namespace", "pod"),
        ("container = \"db\"\nmax-count = { pod = 5 }", "max-count.pod", "container"),
        (
            "namespace = \"a\"\ncontainer = \"db\"\nmax-total-size.namespace = \"unlimited\"",
            "max-total-size.namespace",
            "container",
        ),
    ] {
        let told = problems(rule);
        assert!(told.contains(&format!("retention[0].{key}: limits what a ")), "{rule}: {told}");
        assert!(told.contains(&format!("write it in a rule without {part}")), "{rule}: {told}");
    }
    assert_eq!(problems("namespace = \"a\"\npod = \"*\"\nmax-count.namespace = 5"), "");
    assert_eq!(problems("pod = \"web-*\"\nmax-count = { pod = 5, container = 1 }"), "");
}

#[test]
fn a_pool_by_name_must_exist_and_one_by_label_need_not() {
    let file = parse(FLEET);
    let unknown = file.choose(&PoolChoice::Named("gpuu".into())).unwrap_err().to_string();
    assert_eq!(
        unknown,
        "guard.toml: no pool is called \"gpuu\"; did you mean \"gpu\"?; known: gpu, gpu-spot"
    );

    let label = |pool: &str| PoolChoice::Label { label: "agentpool".into(), pool: pool.into() };
    let (config, note) = file.choose(&label("gpu")).unwrap();
    assert_eq!((config.pool.as_deref(), note), (Some("gpu"), None));
    let (config, note) = file.choose(&label("default-pool")).unwrap();
    assert_eq!(config.pool, None);
    assert!(note.unwrap().to_string().contains("agentpool"));
}

#[test]
fn a_mistake_in_an_unused_pool_is_still_a_mistake() {
    let text = format!("{FLEET}\n[pool.edge]\npressure.hard.available = \"5\"\n");
    let problems = ConfigFile::parse(&text, Path::new("guard.toml")).unwrap_err().to_string();
    assert!(
        problems.starts_with("guard.toml:37: pool.edge.pressure.hard.available: \"5\" has no unit"),
        "{problems}"
    );
}

#[test]
fn an_edit_that_changes_nothing_is_no_change() {
    let before = parse(FLEET).effective(Some("gpu")).unwrap();
    let after = parse(&FLEET.replace("\"14d\"", "\"336h\"   # two weeks")).effective(Some("gpu")).unwrap();
    assert_eq!(before, after);
    let other = parse(&FLEET.replace("\"14d\"", "\"15d\"")).effective(Some("gpu")).unwrap();
    assert_ne!(before, other);
}
