//! Samples and documentation say what the code does.

use std::path::{Path, PathBuf};

use guard::config::{ASSUMED_WRITE_SPEED, ConfigFile, load, reference};
use guard::model::{Bytes, Level, Observation, OrderKey, PressurePolicy};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn samples() -> Vec<ConfigFile> {
    let files = std::fs::read_dir(root().join("config")).expect("the samples lie in config/");
    let mut paths: Vec<_> = files.map(|file| file.expect("a directory can be read").path()).collect();
    paths.sort();
    paths.iter().map(|path| load(path).unwrap_or_else(|problems| panic!("{problems}"))).collect()
}

#[test]
fn every_sample_is_valid_in_every_pool() {
    let names: Vec<_> =
        samples().iter().map(|file| file.path().file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["edge.toml", "forensics.toml", "general.toml", "gpu.toml"]);
    for file in samples() {
        for pool in std::iter::once(None).chain(file.pools().map(Some)) {
            assert!(!file.effective(pool).unwrap().directories.is_empty());
        }
    }
}

#[test]
fn every_sample_acts_before_a_kubelet_with_its_defaults() {
    // The disks that each sample is meant for.
    let sizes = |name: &str| if name == "edge.toml" { [16, 64, 128] } else { [100, 1000, 8000] };
    let kubelet = tempfile::NamedTempFile::new().unwrap();
    for file in samples() {
        let name = file.path().file_name().unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let with_kubelet =
            text.replacen("[pressure]", &format!("[pressure]\nkubelet-config = {:?}", kubelet.path()), 1);
        let file = ConfigFile::parse(&with_kubelet, Path::new(name)).unwrap();
        for gib in sizes(name) {
            let seen = Observation { capacity: Bytes::gib(gib), available: Bytes::gib(gib), inodes: None };
            for pool in std::iter::once(None).chain(file.pools().map(Some)) {
                let later = file.later_than_kubelet(pool, &seen, ASSUMED_WRITE_SPEED).unwrap();
                assert_eq!(later, [], "{name} in {pool:?} on {gib} GiB");
            }
        }
    }
}

const BEGIN: &str =
    "<!-- keys: printed from the key table in guard/src/config/keys.rs; a test compares them -->\n";
const END: &str = "<!-- end of keys -->";

#[test]
fn the_documentation_lists_every_key() {
    let path = root().join("docs/CONFIGURATION.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (keys, after) = rest.split_once(END).unwrap();
    let expect = format!("{}\n", reference());
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{expect}{END}{after}")).unwrap();
    }
    assert_eq!(keys, expect, "the key table changed: run this test with BLESS=1");
}

#[test]
fn the_examples_in_the_documentation_are_valid() {
    let text = std::fs::read_to_string(root().join("docs/CONFIGURATION.md")).unwrap();
    let examples: Vec<_> =
        text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        if let Err(problems) = ConfigFile::parse(example, Path::new("docs/CONFIGURATION.md")) {
            panic!("{problems}\n{example}");
        }
    }
}

#[test]
fn there_is_one_default_order_and_simulations_go_by_the_defaults() {
    let file =
        ConfigFile::parse("[[directory]]\npath = \"/checkpoints\"\n", Path::new("guard.toml")).unwrap();
    let policy = file.effective(None).unwrap().policy;
    assert_eq!(policy.eviction.order, OrderKey::DEFAULT);
    assert_eq!(policy.eviction, guard::simulate::sample_policy().eviction);
    let [ours, theirs] = [policy, guard::simulate::sample_policy()].map(|policy| policy.pressure);
    for level in [Level::Soft, Level::Hard, Level::Critical] {
        let available = |pressure: &PressurePolicy| pressure.threshold(level).unwrap().available.clone();
        assert_eq!(available(&ours), available(&theirs), "{level}");
    }
}

#[test]
fn the_documented_default_is_what_a_short_file_gets() {
    // Each documented default, written out, makes the same configuration as leaving it out.
    let directory = "[[directory]]\npath = \"/checkpoints\"\n";
    let short = ConfigFile::parse(directory, Path::new("guard.toml")).unwrap();
    let mut long = directory.to_owned();
    for key in
        guard::config::KEYS.iter().filter(|key| !key.default.is_empty() && !key.path.contains(['[', '*']))
    {
        // Writing the default path insists on the file.
        if key.path != "pressure.kubelet-config" {
            long = format!("{} = {}\n{long}", key.path, key.default);
        }
    }
    let long =
        ConfigFile::parse(&long, Path::new("guard.toml")).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(short.effective(None).unwrap(), long.effective(None).unwrap());
}
