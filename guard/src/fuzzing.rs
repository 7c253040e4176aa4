//! What is fed from outside, as functions of bytes that panic when a promise is broken.
//!
//! The targets in `fuzz/` call these, and an ordinary test feeds every seed and every regression through the same
//! functions, so that what fuzzing once found is looked for in each `cargo test`.

use std::path::Path;

use crate::config::{ConfigFile, KubeletThresholds, import_operator, parse_duration};
use crate::model::{Bytes, Quantity, Signal};
use crate::observe::archive::fuzzing as archive;
use crate::observe::attribution::{is_container_id, of_path, of_proc_cgroup};
use crate::report::socket;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: of the program in `fuzz/fuzz_targets`, of the folders of its seeds and regressions.
    pub name: &'static str,
    /// Panics when a promise is broken.
    pub run: fn(&[u8]),
}

/// Every one.
pub const TARGETS: &[Target] = &[
    Target { name: "archive", run: archive::archive },
    Target { name: "cgroups", run: cgroups },
    Target { name: "configuration", run: configuration },
    Target { name: "dumps", run: archive::dumps },
    Target { name: "kubelet", run: kubelet },
    Target { name: "names", run: archive::name },
    Target { name: "operator", run: operator },
    Target { name: "requests", run: socket::fuzz },
    Target { name: "stream", run: archive::stream },
    Target { name: "tar", run: archive::tar },
    Target { name: "values", run: values },
];

/// Runs the target of that name.
///
/// # Panics
/// When there is none, or when `bytes` break one of its promises.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("no target {name:?}")).run)(bytes);
}

/// Paths of control groups, which whoever may make one chooses: what is made out is well-formed, whatever they say.
fn cgroups(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    for workload in [of_path(text), of_proc_cgroup(text)] {
        assert!(workload.container.as_deref().is_none_or(is_container_id), "{workload:?}");
        let is_uid = |uid: &str| {
            matches!(uid.len(), 32 | 36) && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        };
        assert!(workload.pod_uid.as_deref().is_none_or(is_uid), "{workload:?}");
    }
}

/// A configuration file: it is refused with sentences, or every pool of it can be used.
fn configuration(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    // A configuration names files to read; fuzzing must not read what it names.
    if text.contains("kubelet-config") || text.contains("\\u") {
        return;
    }
    match ConfigFile::parse(text, Path::new("guard.toml")) {
        Ok(file) => {
            for pool in std::iter::once(None).chain(file.pools().map(Some)) {
                let config = file.effective(pool).expect("a pool of a valid file is valid");
                assert!(
                    !config.directories.is_empty()
                        && config.directories.iter().all(|it| it.path.is_absolute())
                );
                assert!(!file.settings(pool).expect("it has settings").is_empty());
            }
        }
        Err(problems) => assert!(!problems.to_string().is_empty()),
    }
}

/// A kubelet's configuration file.
fn kubelet(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match KubeletThresholds::parse(text, Path::new("config.yaml")) {
        Ok(thresholds) => {
            for threshold in thresholds.hard.iter().chain(&thresholds.soft) {
                assert!(!threshold.to_string().is_empty());
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// An operator's resource: what it is turned into is a configuration of exactly one directory.
fn operator(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let Ok(toml) = import_operator(text) else { return };
    // A relative directory is a problem that the next reader tells of.
    match ConfigFile::parse(&toml, Path::new("guard.toml")) {
        Ok(file) => {
            let config = file.effective(None).expect("it has no pools");
            assert_eq!(config.directories.len(), 1, "{toml}");
            assert_eq!(file.pools().count(), 0, "{toml}");
        }
        Err(problems) => {
            let text = problems.to_string();
            assert!(!text.contains("not TOML") && !text.contains("unknown"), "{text}\n{toml}");
        }
    }
}

/// Quantities and durations: what is read back from what was printed is the same.
fn values(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let _ = parse_duration(text);
    let _ = text.parse::<Bytes>();
    for signal in [Signal::Available, Signal::InodesFree] {
        if let Ok(quantity) = Quantity::parse(text, signal) {
            let _ = quantity.resolve(u64::MAX);
            let _ = quantity.resolve(0);
        }
    }
}
