//! Our thresholds and the kubelet's: read from its files, compared on real sizes, derived by `auto`.

use std::path::Path;

use guard::config::{ASSUMED_WRITE_SPEED, ConfigFile, load};
use guard::model::{Bytes, Inodes, Level, Observation, Signal};

/// A configuration on disk beside a kubelet's.
struct Node {
    directory: tempfile::TempDir,
}

impl Node {
    /// `pressure` are lines of `[pressure]`; `KUBELET` in them stands for the path of the kubelet's file.
    fn new(pressure: &str, kubelet: Option<&str>) -> Node {
        let node = Node { directory: tempfile::tempdir().expect("a temporary directory can be made") };
        if let Some(text) = kubelet {
            node.write("config.yaml", text);
        }
        let kubelet_path = node.path("config.yaml");
        let pressure = pressure.replace("KUBELET", &kubelet_path.display().to_string());
        node.write(
            "guard.toml",
            &format!("[[directory]]\npath = \"/checkpoints\"\n[pressure]\n{pressure}\n"),
        );
        node
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("it lies in the directory")).expect("writable");
        std::fs::write(path, text).expect("writable");
    }

    fn load(&self) -> ConfigFile {
        load(&self.path("guard.toml")).unwrap_or_else(|problems| panic!("{problems}"))
    }

    /// What start-up would say on a filesystem of this size, without the path in front.
    fn later(&self, capacity: Bytes) -> Vec<String> {
        let seen = filesystem(capacity);
        let problems =
            self.load().later_than_kubelet(None, &seen, ASSUMED_WRITE_SPEED).expect("no pool is asked for");
        let here = format!("{}/", self.directory.path().display());
        problems.iter().map(|problem| problem.to_string().replace(&here, "")).collect()
    }
}

fn filesystem(capacity: Bytes) -> Observation {
    Observation { capacity, available: capacity, inodes: Some(Inodes { total: 1_000_000, free: 1_000_000 }) }
}

#[test]
fn drop_ins_are_not_laid_over_what_a_running_kubelet_answered() {
    // Its flags had won over its drop-ins; merged once more, these would win over the flags.
    let answer = r#"{"kubeletconfig":{"evictionHard":{"nodefs.available":"30%"}}}"#;
    let alone = Node::new(KUBELET, Some(answer));
    let kubelet = alone.load().effective(None).unwrap().kubelet.unwrap();
    assert_eq!(kubelet.hard.iter().map(ToString::to_string).collect::<Vec<_>>(), ["nodefs.available<30%"]);
    let both = Node::new("kubelet-config = \"KUBELET\"\nkubelet-config-dir = \"/etc\"", Some(answer));
    let problems = load(&both.path("guard.toml")).unwrap_err().to_string();
    assert!(problems.contains("leave kubelet-config-dir out"), "{problems}");
}

const KUBELET: &str = "kubelet-config = \"KUBELET\"";

#[test]
fn case_32_a_customised_map_leaves_nothing_of_the_defaults() {
    let kubelet = "kind: KubeletConfiguration\nevictionHard:\n  nodefs.available: 12%\n";
    let config = Node::new(KUBELET, Some(kubelet)).load().effective(None).unwrap();
    let hard: Vec<_> = config.kubelet.unwrap().hard.iter().map(ToString::to_string).collect();
    assert_eq!(hard, ["nodefs.available<12%"], "imagefs<15% and inodesFree<5% are gone");
}

#[test]
fn case_28_of_several_quantities_the_smaller_counts() {
    let node = Node::new("hard = { available = [\"15%\", \"100GiB\"] }\nkubelet-config = false", None);
    let pressure = node.load().effective(None).unwrap().policy.pressure;
    let amount = pressure.threshold(Level::Hard).unwrap().amount(Signal::Available).unwrap().clone();
    assert_eq!(Bytes(amount.resolve(Bytes::gib(100).0)), Bytes::gib(15));
    assert_eq!(Bytes(amount.resolve(Bytes::gib(4096).0)), Bytes::gib(100));
}

#[test]
fn thresholds_that_act_later_than_the_kubelet_are_refused_with_both_numbers() {
    let node = Node::new(&format!("hard = {{ available = [\"15%\", \"100GiB\"] }}\n{KUBELET}"), Some(""));
    assert_eq!(node.later(Bytes::gib(100)), Vec::<String>::new());
    assert_eq!(
        node.later(Bytes::gib(4000)),
        ["guard.toml:4: pressure.hard.available: 440 GiB acts later than the kubelet's evictionHard \
          imagefs.available<15%, which is 600 GiB of 3.91 TiB: it would evict pods first; write \"15%\" or more, or \
          \"auto\""],
        "critical, 11%, comes before hard there and is what counts"
    );
}

#[test]
fn the_defaults_are_in_time_for_a_kubelet_with_its_defaults_on_any_disk() {
    let node = Node::new(KUBELET, Some(""));
    for gib in [1, 10, 100, 1000, 10_000, 100_000] {
        assert_eq!(node.later(Bytes::gib(gib)), Vec::<String>::new(), "{gib} GiB");
    }
}

#[test]
fn bytes_and_inodes_are_compared_on_the_real_size() {
    let kubelet = "evictionHard:\n  nodefs.available: 30Gi\n  nodefs.inodesFree: 8%\n";
    let node = Node::new(KUBELET, Some(kubelet));
    let problems = node.later(Bytes::gib(100));
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(
        problems[0].contains("15.0 GiB acts later") && problems[0].contains("\"30GiB\" or more"),
        "{problems:?}"
    );
    assert!(
        problems[1].contains("70000 acts later") && problems[1].contains("80000 of 1000000"),
        "{problems:?}"
    );
    assert_eq!(node.later(Bytes::gib(400)).len(), 1, "15% of 400 GiB is more than 30 GiB");
}

#[test]
fn a_soft_threshold_of_the_kubelet_is_met_in_time_only_with_a_grace_no_longer_than_its_own() {
    let kubelet =
        "evictionSoft:\n  nodefs.available: 20%\nevictionSoftGracePeriod:\n  nodefs.available: 1m\n";
    let with = |grace: &str| {
        let pressure = format!("soft = {{ available = \"20%\", grace-period = \"{grace}\" }}\n{KUBELET}");
        Node::new(&pressure, Some(kubelet)).later(Bytes::gib(100)).len()
    };
    assert_eq!(with("1m"), 0);
    assert_eq!(with("61s"), 1);
}

#[test]
fn only_the_filesystems_that_the_directories_lie_on_count() {
    let kubelet = "evictionHard:\n  nodefs.available: 10%\n  imagefs.available: 30%\n";
    assert_eq!(Node::new(KUBELET, Some(kubelet)).later(Bytes::gib(100)).len(), 1);
    let nodefs = format!("{KUBELET}\nkubelet-filesystems = [\"nodefs\"]");
    assert_eq!(Node::new(&nodefs, Some(kubelet)).later(Bytes::gib(100)).len(), 0);
}

#[test]
fn drop_ins_are_merged_over_the_file() {
    let node = Node::new("", Some("evictionHard:\n  nodefs.available: 5%\n"));
    node.write("conf.d/20-more.conf", "evictionHard:\n  nodefs.available: 25%\n");
    node.write("conf.d/10-less.conf", "evictionHard:\n  nodefs.available: 1%\n");
    node.write("conf.d/30-readme.md", "evictionHard: nonsense\n");
    let (file, directory) = (node.path("config.yaml"), node.path("conf.d"));
    node.write(
        "guard.toml",
        &format!(
            "[[directory]]\npath = \"/checkpoints\"\n[pressure]\nkubelet-config = {file:?}\nkubelet-config-dir = {directory:?}\n"
        ),
    );
    let kubelet = node.load().effective(None).unwrap().kubelet.unwrap();
    assert_eq!(kubelet.hard[0].to_string(), "nodefs.available<25%");
    assert_eq!(kubelet.hard[0].source.as_deref(), Some(node.path("conf.d/20-more.conf").as_path()));
}

#[test]
fn case_47_a_kubelet_elsewhere_is_configurable_and_a_wrong_path_is_said() {
    let node = Node::new(KUBELET, None);
    let problems = load(&node.path("guard.toml")).unwrap_err().to_string();
    assert!(
        problems.contains("guard.toml:4: pressure.kubelet-config: cannot read the kubelet's configuration"),
        "{problems}"
    );

    // Nobody wrote the default path, so a node without a kubelet there is worth a note and no more.
    let text = "[[directory]]\npath = \"/var/lib/k0s/kubelet/checkpoints\"\n";
    let file = ConfigFile::parse(text, Path::new("guard.toml")).unwrap();
    if !Path::new("/var/lib/kubelet/config.yaml").exists() {
        assert!(file.notes(None).unwrap()[0].message.contains("does not exist"));
        assert_eq!(file.effective(None).unwrap().kubelet, None);
    }
}

#[test]
fn a_broken_kubelet_configuration_is_named_with_our_line() {
    let node = Node::new(KUBELET, Some("evictionHard: [\n"));
    let problems = load(&node.path("guard.toml")).unwrap_err().to_string();
    assert!(
        problems.contains("guard.toml:4: pressure.kubelet-config: the kubelet's configuration"),
        "{problems}"
    );
    assert_eq!(problems.lines().count(), 1, "{problems}");
}

#[test]
fn auto_keeps_ahead_of_the_kubelet_at_the_disks_own_speed() {
    let pressure = format!(
        "soft.available = \"auto\"\nhard = {{ available = \"auto\", inodes-free = \"auto\" }}\ncritical.available = \"auto\"\n{KUBELET}"
    );
    let config =
        Node::new(&pressure, Some("evictionHard:\n  nodefs.available: 10%\n  nodefs.inodesFree: 5%\n"))
            .load()
            .effective(None)
            .unwrap();
    let seen = filesystem(Bytes::gib(100));
    let at = |speed: Bytes| {
        let pressure = config.pressure_on(&seen, speed);
        let gib = |level: Level| {
            pressure.threshold(level).unwrap().amount(Signal::Available).unwrap().resolve(seen.capacity.0)
                >> 30
        };
        [gib(Level::Soft), gib(Level::Hard), gib(Level::Critical)]
    };
    assert_eq!(at(Bytes::ZERO), [20, 15, 11], "the least margins: 10%, 5%, 1%");
    assert_eq!(at(Bytes::gib(1)), [35, 20, 12], "30 s, 10 s and 2 s of writing, soft at its most, 25%");
    assert_eq!(at(Bytes::gib(100)), [35, 25, 15], "the most margins: 25%, 15%, 5%");
    let inodes = config.pressure_on(&seen, Bytes::gib(1));
    assert_eq!(
        inodes.threshold(Level::Hard).unwrap().amount(Signal::InodesFree).unwrap().resolve(1_000_000),
        100_000
    );
}

#[test]
fn auto_is_never_later_than_the_kubelet_and_keeps_the_order_of_levels() {
    let pressure = format!(
        "soft.available = \"auto\"\nhard.available = \"auto\"\ncritical.available = \"auto\"\n{KUBELET}"
    );
    for kubelet in [
        "",
        "evictionHard:\n  nodefs.available: 50Gi\n",
        "evictionHard: {}\n",
        "evictionHard:\n  imagefs.available: 90%\n",
    ] {
        let node = Node::new(&pressure, Some(kubelet));
        let config = node.load().effective(None).unwrap();
        for gib in [10, 64, 100, 1000, 16_000] {
            assert_eq!(node.later(Bytes::gib(gib)), Vec::<String>::new(), "{kubelet:?} on {gib} GiB");
            for speed in [Bytes::ZERO, ASSUMED_WRITE_SPEED, Bytes::gib(8)] {
                let seen = filesystem(Bytes::gib(gib));
                let pressure = config.pressure_on(&seen, speed);
                let values = [Level::Soft, Level::Hard, Level::Critical].map(|level| {
                    pressure
                        .threshold(level)
                        .unwrap()
                        .amount(Signal::Available)
                        .unwrap()
                        .resolve(seen.capacity.0)
                });
                assert!(values.is_sorted_by(|a, b| a >= b), "{values:?} {kubelet:?} on {gib} GiB at {speed}");
            }
        }
    }
}

#[test]
fn auto_without_a_kubelet_is_refused() {
    let node = Node::new("hard.available = \"auto\"\nkubelet-config = false", None);
    let problems = load(&node.path("guard.toml")).unwrap_err().to_string();
    assert!(
        problems.contains("guard.toml:5: pressure.kubelet-config: there is no kubelet for \"auto\""),
        "{problems}"
    );
}

#[test]
fn levels_that_do_not_follow_each_other_are_refused_where_that_is_certain() {
    let told = |pressure: &str| {
        let node = Node::new(&format!("{pressure}\nkubelet-config = false"), None);
        load(&node.path("guard.toml")).map(|file| file.notes(None).unwrap().len()).map_err(|problems| {
            problems.to_string().replace(&format!("{}/", node.directory.path().display()), "")
        })
    };
    assert_eq!(
        told("soft.available = \"10%\"").unwrap_err(),
        "guard.toml:4: pressure.soft.available: pressure.soft.available, 10% (guard.toml:4), is less than \
         pressure.hard.available, 15% (default); soft must begin before hard"
    );
    assert_eq!(
        told("hard.inodes-free = \"50%\"").unwrap_err(),
        "guard.toml:4: pressure.hard.inodes-free: pressure.soft.inodes-free, 10% (default), is less than \
         pressure.hard.inodes-free, 50% (guard.toml:4); soft must begin before hard"
    );
    assert_eq!(told("hard.available = \"120GiB\""), Ok(2), "it depends on the size: worth two notes");
    assert_eq!(told("soft = false\nhard = false"), Ok(0));
    assert!(
        told("hard = false\ncritical.available = \"25%\"").is_err(),
        "soft and critical are compared as well"
    );
}
