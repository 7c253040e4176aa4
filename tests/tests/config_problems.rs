//! A configuration with many mistakes: each is told, with its line, at once.

use std::path::Path;

use guard::config::ConfigFile;

/// One mistake of each kind.
const BROKEN: &str = r#"
[[directory]]
path = "/var/lib/kubelet/checkpoints"
layuot = "archives"

[[directory]]
path = "/var/lib/kubelet/checkpoints/"

[[directory]]
path = "checkpoints"
layout = "archive"

[[directory]]
layout = "staging"

[pressure]
soft = { available = "10%", grace-period = 30 }
hard = { available = "15", inodes-free = "101%", grace-period = "5s" }
critical = true
minimum-reclaim = "2%"
transition-period = "1 minute"
kubelet-config = false

[eviction]
order = ["oldest", "larges", "oldest"]
min-age = "-2m"
keep-last = "1"

[protection]
default = 101
namespaces = { "" = 5, "ci-[" = 5, kube-system = "90" }
[[protection.rule]]
pod = " "
protection = 95
[[protection.rule]]
protection = 95
[[protection.rule]]
container = "db"

[[retention]]
namespace = "*"
max-count = 10
max-size = "10%"
[[retention]]
namespace = "*"
max-age = "soon"
[[retention]]
namespace = "quiet"

[brake]
mode = "bpf"
[metrics]
listen = "9477"
[audit]
path = "audit.jsonl"
max-size = 16
keep = -1
[kubernets]
mode = "on"

[pool.gpu]
extends = "cpu"
[pool.edge]
extends = "tiny"
[pool.tiny]
extends = "edge"
[pool.big]
pressure.hard.available = "9%"
pressure.hard.max-size = "1GiB"
pool.inner.brake.mode = "off"
"pressure.soft.available" = "30%"
kubernetes.pool-labels = ["size"]

[notify]
url = "https://user:secret@example.com/x"
ca-file = "ca.crt"
command = "/bin/cp"
command-timeout = "0s"
command-failure = "keep"
"#;

const TOLD: &str = include_str!("config_problems.txt");

#[test]
fn all_problems_are_told_at_once_with_their_lines() {
    let problems = ConfigFile::parse(BROKEN, Path::new("guard.toml")).unwrap_err();
    let told = problems.to_string() + "\n";
    if std::env::var_os("BLESS").is_some() {
        std::fs::write("tests/config_problems.txt", &told).unwrap();
    }
    assert_eq!(told, TOLD, "run with BLESS=1 and read the difference when a message changed");
}

#[test]
fn every_mistake_names_a_line() {
    let problems = ConfigFile::parse(BROKEN, Path::new("guard.toml")).unwrap_err();
    for problem in &problems {
        assert!(problem.line.is_some(), "{problem}");
    }
}
