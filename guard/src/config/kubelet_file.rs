//! Reading the kubelet's configuration as the kubelet reads it.
//!
//! Sources: loadConfigFile and mergeKubeletConfigurations (cmd/kubelet/app/server.go), DefaultEvictionHard
//! (pkg/kubelet/eviction/defaults_linux.go), parseThresholdStatement (pkg/kubelet/eviction/helpers.go).
//! What is given on the kubelet's command line (`--eviction-hard=…`) wins over its file and is not seen here;
//! `/configz` has the result of both, and a file holding its answer is understood.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::duration::parse_duration;
use super::kubelet::{KubeletError, KubeletFilesystem, KubeletThreshold, KubeletThresholds, signal_name};
use super::kubernetes_quantity;
use crate::model::{Percent, Quantity, Signal};

/// What the kubelet does when its configuration says nothing (pkg/kubelet/eviction/defaults_linux.go).
const DEFAULT_EVICTION_HARD: [(&str, &str); 4] = [
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// Signals that the kubelet knows and we have no use for. It ignores what is written for containerfs itself.
const OTHER_SIGNALS: [&str; 5] = [
    "memory.available",
    "allocatableMemory.available",
    "pid.available",
    "containerfs.available",
    "containerfs.inodesFree",
];

impl KubeletThresholds {
    /// Reads the file and the drop-in directory, as far as each is given.
    pub fn load(file: Option<&Path>, drop_ins: Option<&Path>) -> Result<KubeletThresholds, KubeletError> {
        let mut merged = Merged::default();
        if let Some(path) = file {
            merged.merge(path, &read(path)?)?;
        }
        merged.default_eviction_hard();
        if let Some(directory) = drop_ins {
            if merged.is_answer {
                // Laid over it again, they would win over the flags that had won over them.
                let problem =
                    "/configz has answered with its drop-ins merged already; leave kubelet-config-dir out";
                return Err(KubeletError::Refused {
                    key: format!("{}", directory.display()),
                    problem: problem.to_owned(),
                });
            }
            for path in conf_files(directory)? {
                merged.merge(&path, &read(&path)?)?;
            }
        }
        merged.finish()
    }

    /// The same of one file's text; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<KubeletThresholds, KubeletError> {
        let mut merged = Merged::default();
        merged.merge(path, text)?;
        merged.default_eviction_hard();
        merged.finish()
    }
}

fn read(path: &Path) -> Result<String, KubeletError> {
    std::fs::read_to_string(path).map_err(|source| KubeletError::Unreadable { path: path.to_owned(), source })
}

/// Every `*.conf` below `directory`, in the order of Go's filepath.WalkDir: lexical, links not followed.
fn conf_files(directory: &Path) -> Result<Vec<PathBuf>, KubeletError> {
    let unreadable = |source| KubeletError::Unreadable { path: directory.to_owned(), source };
    let mut entries = std::fs::read_dir(directory)
        .and_then(|entries| entries.collect::<Result<Vec<_>, _>>())
        .map_err(unreadable)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.path();
        if entry.file_type().map_err(unreadable)?.is_dir() {
            files.extend(conf_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "conf") {
            files.push(path);
        }
    }
    Ok(files)
}

/// The few fields of a KubeletConfiguration that we look at. JSON is YAML, so `/configz` is read the same way.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    /// The wrapper of `/configz`.
    kubeletconfig: Option<Box<Document>>,
    kind: Option<String>,
    eviction_hard: Option<BTreeMap<String, Option<String>>>,
    eviction_soft: Option<BTreeMap<String, Option<String>>>,
    eviction_soft_grace_period: Option<BTreeMap<String, Option<String>>>,
    eviction_minimum_reclaim: Option<BTreeMap<String, Option<String>>>,
    merge_default_eviction_settings: Option<bool>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    image_gc_high_threshold_percent: Option<u16>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    image_gc_low_threshold_percent: Option<u16>,
}

/// A statement and the file that made it; `None`: a default.
type Statements = BTreeMap<String, (String, Option<PathBuf>)>;

/// The document and its drop-ins, merged as RFC 7386 patches.
#[derive(Default)]
struct Merged {
    /// `None` until somebody says anything: then, and only then, the defaults hold.
    hard: Option<Statements>,
    soft: Statements,
    grace_periods: Statements,
    minimum_reclaims: Statements,
    merge_defaults: bool,
    image_gc_high: Option<u16>,
    image_gc_low: Option<u16>,
    files: Vec<PathBuf>,
    /// What a running kubelet answered: everything it goes by, flags and drop-ins too.
    is_answer: bool,
}

impl Merged {
    /// Lays one file over those before it.
    fn merge(&mut self, path: &Path, text: &str) -> Result<(), KubeletError> {
        let malformed = |problem: String| KubeletError::Malformed { path: path.to_owned(), problem };
        let mut document: Document = if text.trim().is_empty() {
            Document::default()
        } else {
            serde_saphyr::from_str(text).map_err(|error| malformed(first_line(&error)))?
        };
        if let Some(inner) = document.kubeletconfig.take() {
            document = *inner;
            self.is_answer = true;
        }
        if let Some(kind) = &document.kind
            && kind != "KubeletConfiguration"
        {
            return Err(malformed(format!("its kind is {kind}")));
        }
        if let Some(hard) = document.eviction_hard {
            patch(self.hard.get_or_insert_default(), hard, path);
        }
        patch(&mut self.soft, document.eviction_soft.unwrap_or_default(), path);
        patch(&mut self.grace_periods, document.eviction_soft_grace_period.unwrap_or_default(), path);
        patch(&mut self.minimum_reclaims, document.eviction_minimum_reclaim.unwrap_or_default(), path);
        self.merge_defaults = document.merge_default_eviction_settings.unwrap_or(self.merge_defaults);
        self.image_gc_high = document.image_gc_high_threshold_percent.or(self.image_gc_high);
        self.image_gc_low = document.image_gc_low_threshold_percent.or(self.image_gc_low);
        self.files.push(path.to_owned());
        Ok(())
    }

    /// The kubelet fills evictionHard in when its file has none, before the drop-ins are merged over it. When the
    /// file has one, signals that it does not name are off, not at their defaults.
    fn default_eviction_hard(&mut self) {
        self.hard.get_or_insert_with(defaults);
    }

    fn finish(mut self) -> Result<KubeletThresholds, KubeletError> {
        let mut hard = self.hard.take().unwrap_or_default();
        // Since Kubernetes 1.35 a configuration can ask for the defaults of what it does not name.
        if self.merge_defaults {
            for (signal, statement) in defaults() {
                hard.entry(signal).or_insert(statement);
            }
        }
        let minimum_reclaim = |signal: &str| match self.minimum_reclaims.get(signal) {
            Some((value, _)) => quantity("evictionMinimumReclaim", signal, value).map(Some),
            None => Ok(None),
        };
        let thresholds = |map: &str, statements: &Statements| {
            let mut thresholds = Vec::new();
            for (name, (value, source)) in statements {
                let Some((filesystem, signal)) = known(map, name)? else { continue };
                // The kubelet ignores these two (parseThresholdStatement).
                if value == "0%" || value == "100%" {
                    continue;
                }
                let grace_period = if map == "evictionSoft" {
                    let (grace, _) = self.grace_periods.get(name).ok_or_else(|| KubeletError::Refused {
                        key: format!("evictionSoftGracePeriod.{name}"),
                        problem: "missing; the kubelet does not start without it".to_owned(),
                    })?;
                    go_duration(name, grace)?
                } else {
                    Duration::ZERO
                };
                thresholds.push(KubeletThreshold {
                    filesystem,
                    signal,
                    value: quantity(map, name, value)?,
                    grace_period,
                    minimum_reclaim: minimum_reclaim(name)?,
                    source: source.clone(),
                });
            }
            Ok(thresholds)
        };
        Ok(KubeletThresholds {
            hard: thresholds("evictionHard", &hard)?,
            soft: thresholds("evictionSoft", &self.soft)?,
            image_gc_high: whole_percent("imageGCHighThresholdPercent", self.image_gc_high.unwrap_or(85))?,
            image_gc_low: whole_percent("imageGCLowThresholdPercent", self.image_gc_low.unwrap_or(80))?,
            files: self.files,
        })
    }
}

fn defaults() -> Statements {
    DEFAULT_EVICTION_HARD
        .iter()
        .map(|(signal, value)| ((*signal).to_owned(), ((*value).to_owned(), None)))
        .collect()
}

/// An RFC 7386 merge patch of one map: null removes.
fn patch(map: &mut Statements, with: BTreeMap<String, Option<String>>, path: &Path) {
    for (key, value) in with {
        match value {
            Some(value) => map.insert(key, (value, Some(path.to_owned()))),
            None => map.remove(&key),
        };
    }
}

/// Which signal a name means; `None` for those that are none of ours.
fn known(map: &str, name: &str) -> Result<Option<(KubeletFilesystem, Signal)>, KubeletError> {
    for filesystem in KubeletFilesystem::ALL {
        for signal in Signal::ALL {
            if signal_name(filesystem, signal) == name {
                return Ok(Some((filesystem, signal)));
            }
        }
    }
    if OTHER_SIGNALS.contains(&name) {
        return Ok(None);
    }
    Err(KubeletError::Refused {
        key: format!("{map}.{name}"),
        problem: "no such eviction signal; the kubelet does not start with it".to_owned(),
    })
}

fn quantity(map: &str, signal: &str, text: &str) -> Result<Quantity, KubeletError> {
    let refused = |problem| KubeletError::Refused { key: format!("{map}.{signal}"), problem };
    let Some(number) = text.strip_suffix('%') else {
        return kubernetes_quantity::parse(text).map(Quantity::Absolute).map_err(refused);
    };
    // Rounded up to the hundredth that we can express: rather earlier than the kubelet than later.
    let hundredths = number.parse::<f64>().ok().map(|percent| (percent * 100.0 - 1e-6).ceil());
    hundredths
        .filter(|hundredths| (0.0..=10_000.0).contains(hundredths))
        .and_then(|hundredths| Percent::from_hundredths(hundredths as u16))
        .map(Quantity::Share)
        .ok_or_else(|| refused(format!("{text:?} is not a percentage from 0% to 100%")))
}

/// The sentence of a YAML error, without the picture of the text that follows it.
pub(super) fn first_line(error: &serde_saphyr::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// Go's time.ParseDuration, as far as grace periods use it: ours with a fraction allowed.
fn go_duration(signal: &str, text: &str) -> Result<Duration, KubeletError> {
    let refused =
        |problem| KubeletError::Refused { key: format!("evictionSoftGracePeriod.{signal}"), problem };
    // "1.5m" is legal there and rare: the whole part is the stricter reading, since a shorter grace acts earlier.
    let without_fractions: String = {
        let mut in_fraction = false;
        let keep = |c: &char| {
            in_fraction = *c == '.' || (in_fraction && c.is_ascii_digit());
            !in_fraction
        };
        text.chars().filter(keep).collect()
    };
    parse_duration(&without_fractions).map_err(refused)
}

fn whole_percent(key: &str, value: u16) -> Result<Percent, KubeletError> {
    value.checked_mul(100).and_then(Percent::from_hundredths).ok_or_else(|| KubeletError::Refused {
        key: key.to_owned(),
        problem: format!("{value} is not a percentage from 0 to 100"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thresholds that a file and its drop-ins amount to, one line.
    fn read(file: Option<&str>, drop_ins: &[&str]) -> Result<KubeletThresholds, KubeletError> {
        let mut merged = Merged::default();
        if let Some(text) = file {
            merged.merge(Path::new("config.yaml"), text)?;
        }
        merged.default_eviction_hard();
        for text in drop_ins {
            merged.merge(Path::new("10.conf"), text)?;
        }
        merged.finish()
    }

    #[track_caller]
    fn check(file: Option<&str>, drop_ins: &[&str], expect: &str) {
        let thresholds = read(file, drop_ins).unwrap();
        let hard: Vec<_> = thresholds.hard.iter().map(ToString::to_string).collect();
        assert_eq!(hard.join(" "), expect, "{file:?} {drop_ins:?}");
    }

    const DEFAULTS: &str =
        "imagefs.available<15% imagefs.inodesFree<5% nodefs.available<10% nodefs.inodesFree<5%";

    #[test]
    fn a_kubelet_that_says_nothing_has_its_defaults() {
        check(None, &[], DEFAULTS);
        check(Some(""), &[], DEFAULTS);
        check(Some("kind: KubeletConfiguration\nmaxPods: 50\n"), &[], DEFAULTS);
        check(Some("evictionHard: null\n"), &[], DEFAULTS);
    }

    #[test]
    fn case_32_entries_not_named_in_a_customised_map_are_zero() {
        check(Some("evictionHard:\n  nodefs.available: 5%\n"), &[], "nodefs.available<5%");
        check(Some("evictionHard:\n  memory.available: 500Mi\n"), &[], "");
        check(Some("evictionHard: {}\n"), &[], "");
    }

    #[test]
    fn the_defaults_are_merged_when_asked_for() {
        check(
            Some("evictionHard:\n  nodefs.available: 5%\nmergeDefaultEvictionSettings: true\n"),
            &[],
            "imagefs.available<15% imagefs.inodesFree<5% nodefs.available<5% nodefs.inodesFree<5%",
        );
    }

    #[test]
    fn drop_ins_are_merge_patches_in_order() {
        check(
            Some("evictionHard:\n  nodefs.available: 5%\n"),
            &[
                "evictionHard:\n  nodefs.available: 6%\n  imagefs.available: 1Gi\n",
                "evictionHard:\n  imagefs.available: null\n",
            ],
            "nodefs.available<6%",
        );
        // The defaults come before the drop-ins, so these customise them rather than replace them.
        check(
            Some("maxPods: 50\n"),
            &["evictionHard:\n  nodefs.available: 6%\n"],
            "imagefs.available<15% imagefs.inodesFree<5% nodefs.available<6% nodefs.inodesFree<5%",
        );
    }

    #[test]
    fn what_the_kubelet_ignores_is_ignored() {
        check(
            Some("evictionHard:\n  nodefs.available: 0%\n  imagefs.available: 100%\n  pid.available: 1k\n"),
            &[],
            "",
        );
    }

    #[test]
    fn a_saved_configz_is_understood() {
        check(
            Some(
                r#"{"kubeletconfig":{"evictionHard":{"nodefs.available":"7.5%","imagefs.available":"20Gi"}}}"#,
            ),
            &[],
            "imagefs.available<20.0 GiB nodefs.available<7.5%",
        );
    }

    #[test]
    fn soft_thresholds_have_grace_periods() {
        let soft = "evictionSoft:\n  nodefs.available: 20%\n";
        let with = format!("{soft}evictionSoftGracePeriod:\n  nodefs.available: 1m30s\n");
        assert_eq!(read(Some(&with), &[]).unwrap().soft[0].grace_period, Duration::from_secs(90));
        assert!(
            read(Some(soft), &[])
                .unwrap_err()
                .to_string()
                .contains("evictionSoftGracePeriod.nodefs.available")
        );
    }

    #[test]
    fn what_a_kubelet_would_refuse_is_refused() {
        for (text, expect) in [
            ("evictionHard:\n  nodefs.avail: 5%\n", "evictionHard.nodefs.avail: no such eviction signal"),
            ("evictionHard:\n  nodefs.available: 101%\n", "not a percentage"),
            ("evictionHard:\n  nodefs.available: 5GiB\n", "not a Kubernetes quantity"),
            ("kind: Pod\n", "its kind is Pod"),
            ("evictionHard: [\n", "not a KubeletConfiguration"),
        ] {
            let error = read(Some(text), &[]).unwrap_err().to_string();
            assert!(error.contains(expect), "{text:?}: {error}");
        }
    }
}
