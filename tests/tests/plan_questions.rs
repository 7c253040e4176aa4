//! `plan` and `simulate` asked "what if", through the real binary on real archives.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use tests::archives::Archive;
use tests::scene::hour_of_2026;
use tests::setting::run;

/// Archives of 128 KiB, and a configuration by which somebody with 9.75 MiB available needs two of them.
struct Here {
    scratch: tempfile::TempDir,
}

/// 256 KiB below the threshold.
const SHORT: [&str; 2] = ["--assume-available", "10223616B"];

impl Here {
    fn new() -> Here {
        let scratch = tempfile::tempdir().expect("a temporary directory can be made");
        std::fs::create_dir(scratch.path().join("checkpoints")).expect("it is writable");
        Here { scratch }
    }

    fn archive(&self, namespace: &str, pod: &str, hour: u32) {
        let archive = Archive::new(namespace, pod, "main", hour_of_2026(hour), 128 << 10);
        archive.write_in(&self.scratch.path().join("checkpoints")).expect("the archive fits");
    }

    fn config(&self, name: &str, more: &str) -> PathBuf {
        let path = self.scratch.path().join(name);
        let text = format!(
            "[[directory]]\npath = {:?}\n[pressure]\nsoft = false\ncritical = false\nkubelet-config = false\n\
             hard = {{ available = \"10MiB\", inodes-free = false }}\nminimum-reclaim = {{ available = false }}\n\
             [eviction]\nmin-age = \"0s\"\n{more}",
            self.scratch.path().join("checkpoints")
        );
        std::fs::write(&path, text).expect("the configuration can be written");
        path
    }
}

#[track_caller]
fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("no JSON ({error}): {}", String::from_utf8_lossy(&output.stderr)))
}

fn ask(config: &Path, arguments: &[&str]) -> Output {
    let mut all = arguments.to_vec();
    all.extend(["--config", config.to_str().expect("temporary paths are UTF-8")]);
    run(&all)
}

/// Namespace and pod of each member of a list, in order.
fn pods(list: &Value) -> Vec<String> {
    let members = list.as_array().expect("a list").iter();
    members
        .map(|it| format!("{}/{}", it["namespace"].as_str().unwrap(), it["pod"].as_str().unwrap()))
        .collect()
}

#[test]
fn what_would_go_if_a_namespace_were_gone() {
    let here = Here::new();
    for (namespace, pod, hour) in
        [("ci-7", "job", 9), ("ci-8", "job", 8), ("shop", "web", 1), ("shop", "web", 2)]
    {
        here.archive(namespace, pod, hour);
    }
    let config = here.config("guard.toml", "");
    let plan = |more: &[&str]| {
        let arguments: Vec<&str> =
            ["plan", "-o", "json"].into_iter().chain(SHORT).chain(more.iter().copied()).collect();
        let output = ask(&config, &arguments);
        let document = json(&output);
        (pods(&document["filesystems"][0]["delete"]), output.status.code())
    };
    // Three are the last of their containers: one may go, and the target is out of reach.
    assert_eq!(plan(&[]), (vec!["shop/web".to_owned()], Some(3)));
    assert_eq!(
        plan(&["--assume-namespace-gone", "ci-*"]),
        (vec!["ci-8/job".into(), "ci-7/job".into()], Some(0))
    );
    let one = plan(&["--assume-namespace-gone", "ci-7"]);
    assert_eq!(one, (vec!["ci-7/job".into(), "shop/web".into()], Some(0)));
}

#[test]
fn what_retention_would_let_go_if_a_namespace_were_gone() {
    let here = Here::new();
    here.archive("ci-7", "job", 9);
    here.archive("shop", "web", 1);
    let config = here.config("guard.toml", "[[retention]]\nnamespace = \"*\"\nretain-orphans = false\n");
    let output = ask(
        &config,
        &["plan", "-o", "json", "--assume-available", "1GiB", "--assume-namespace-gone", "ci-7"],
    );
    let filesystem = &json(&output)["filesystems"][0];
    assert_eq!(pods(&filesystem["delete"]), ["ci-7/job"]);
    assert_eq!(filesystem["delete"][0]["trigger"], "orphan");
    let blank = ask(&config, &["plan", "--assume-namespace-gone", " "]);
    assert_eq!(blank.status.code(), Some(2));
}

#[test]
fn a_namespace_that_nobody_here_has_is_no_answer_without_a_word() {
    let here = Here::new();
    here.archive("ci-7", "job", 9);
    let config = here.config("guard.toml", "");
    let said = |pattern: &str| {
        let output = ask(&config, &["plan", "--assume-namespace-gone", pattern]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(said("c1-*").contains("no checkpoint here is of a namespace c1-*"), "{}", said("c1-*"));
    assert_eq!(said("ci-*"), "");
}

#[test]
fn a_shortage_of_inodes_alone_is_told_and_a_target_out_of_reach_is_an_exit_code() {
    let here = Here::new();
    here.archive("shop", "web", 1);
    here.archive("shop", "web", 2);
    let config = here.config("guard.toml", "");
    // More than any filesystem has free that holds a file.
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text
        .replace("available = \"10MiB\", inodes-free = false", "available = false, inodes-free = \"100%\"");
    std::fs::write(&config, text).unwrap();
    let seen = nix::sys::statvfs::statvfs(here.scratch.path()).expect("a filesystem");
    if seen.files() == 0 {
        eprintln!("skipped: the filesystem of temporary files counts no inodes");
        return;
    }
    let output = ask(&config, &["plan", "-o", "json"]);
    let filesystem = &json(&output)["filesystems"][0];
    assert_eq!((output.status.code(), &filesystem["level"]), (Some(3), &"hard".into()));
    assert_eq!(
        (&filesystem["inodesTotal"], &filesystem["targetInodesFree"]),
        (&seen.files().into(), &seen.files().into())
    );
    assert!(filesystem["shortfallInodes"].as_u64().unwrap() > 0, "{filesystem}");
    assert_eq!(pods(&filesystem["delete"]), ["shop/web"], "the other one is the last");
    let output = ask(&config, &["plan"]);
    let text = String::from_utf8_lossy(&output.stdout);
    for part in [
        "inodes free, level hard",
        "needs ",
        " inodes available",
        "cannot be reached: ",
        " inodes would still",
    ] {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
    let other = config.to_str().unwrap();
    let output = ask(&config, &["plan", "--with", other]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn what_one_configuration_would_delete_and_another_would_not() {
    let here = Here::new();
    for hour in 1..=3 {
        here.archive("shop", "web", hour);
        here.archive("team", "db", hour);
    }
    let protects =
        |name, namespace| here.config(name, &format!("[protection.namespaces]\n{namespace} = 90\n"));
    let (ours, theirs) = (protects("ours.toml", "shop"), protects("theirs.toml", "team"));
    let with = |other: &Path, more: &[&str]| {
        let other = other.to_str().expect("temporary paths are UTF-8");
        let arguments: Vec<&str> =
            ["plan", "--with", other].into_iter().chain(SHORT).chain(more.iter().copied()).collect();
        ask(&ours, &arguments)
    };
    let document = json(&with(&theirs, &["-o", "json"]));
    assert_eq!(document["kind"], "PlanComparison");
    assert_eq!(document["configurations"][1], theirs.to_str().unwrap());
    let compared = &document["filesystems"][0];
    assert_eq!(pods(&compared["onlyFirst"]), ["team/db", "team/db"]);
    assert_eq!(pods(&compared["onlySecond"]), ["shop/web", "shop/web"]);
    assert_eq!(compared["both"], 0);
    let sizes = compared["onlyFirst"].as_array().unwrap().iter().map(|it| it["sizeBytes"].as_u64().unwrap());
    assert_eq!(compared["plans"][0]["freesBytes"], sizes.sum::<u64>());
    let difference = &compared["onlyFirst"][0];
    assert!(difference["reason"].as_str().unwrap().contains("protection 50"), "{difference}");
    assert!(difference["sparedBecause"].as_str().unwrap().starts_with("not needed: rank"), "{difference}");

    let table = with(&theirs, &[]);
    let text = String::from_utf8_lossy(&table.stdout);
    assert!(text.contains("4 differ; 0 are deleted by both."), "{text}");
    let same = with(&protects("same.toml", "shop"), &[]);
    assert!(String::from_utf8_lossy(&same.stdout).contains("Both delete the same 2."));

    std::fs::write(&theirs, "[[directory]]\npath = 7\n").unwrap();
    let broken = with(&theirs, &[]);
    assert_eq!(broken.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&broken.stderr).contains("theirs.toml:2"));
}

#[test]
fn a_simulation_goes_by_the_configuration_and_compares_it_with_another() {
    let here = Here::new();
    let text = |keep: u32, hard: &str| {
        format!(
            "[[directory]]\npath = \"/checkpoints\"\n[pressure]\nkubelet-config = false\nsoft = false\n\
             hard.available = \"{hard}\"\ncritical = false\n[eviction]\nkeep-last = {keep}\n"
        )
    };
    let write = |name: &str, text: String| {
        let path = here.scratch.path().join(name);
        std::fs::write(&path, text).expect("the configuration can be written");
        path
    };
    let (ours, theirs) = (write("ours.toml", text(1, "15%")), write("theirs.toml", text(1, "60%")));
    let small = ["--fleet", "steady", "--nodes", "1", "--days", "3", "-o", "json"];
    let arguments: Vec<&str> =
        ["simulate", "--with", theirs.to_str().unwrap()].into_iter().chain(small).collect();
    let document = json(&ask(&ours, &arguments));
    let items = document["items"].as_array().unwrap();
    let names: Vec<_> = items.iter().map(|item| item["order"].as_str().unwrap()).collect();
    assert_eq!(names, [ours.to_str().unwrap(), theirs.to_str().unwrap(), "(knowing the future)"]);
    let survived = |at: usize| items[at]["survived"].as_u64().unwrap();
    assert!(survived(0) > survived(1), "more is kept where pressure begins later: {document}");

    let arguments: Vec<&str> = ["simulate"].into_iter().chain(small).collect();
    let names: Vec<_> = json(&ask(&ours, &arguments))["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["order"].clone())
        .collect();
    assert_eq!(names[0], ours.to_str().unwrap());
    assert!(!names.contains(&"default".into()), "the configured order is the default: not twice");
    assert_eq!(ask(&here.scratch.path().join("none.toml"), &arguments).status.code(), Some(2));
}
