//! `check-config`: validate, and show every pool's effective values with where each came from.

mod owner;
mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;

use crate::cli::Output;
use crate::config::{
    ASSUMED_WRITE_SPEED, Config, ConfigFile, KubeletThreshold, KubeletThresholds, Origin, Problem, Setting,
    format_duration, load,
};
use crate::model::{Bytes, Inodes, Level, Observation, ProtectionRule, Signal};

/// Validate the configuration and print what is in force in each pool, with the kubelet's thresholds beside it.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The file to check instead of the one in force.
    pub file: Option<PathBuf>,
    /// Only this pool.
    #[arg(long)]
    pub pool: Option<String>,
    /// Also say which rules apply to this owner: namespace, namespace/pod or namespace/pod/container.
    #[arg(long, value_name = "NAMESPACE[/POD[/CONTAINER]]")]
    pub owner: Vec<String>,
}

/// Prints the report. Exit code 2 when the configuration is invalid, or would act later than the kubelet on the
/// filesystems that are here.
pub fn run(args: &Args, config: &Path, output: Output) -> anyhow::Result<ExitCode> {
    let checked = check(args, config, output)?;
    let written = match (checked.valid, output) {
        (false, Output::Table) => std::io::stderr().write_all(checked.text.as_bytes()),
        _ => std::io::stdout().write_all(checked.text.as_bytes()),
    };
    written.context("cannot write the report")?;
    Ok(if checked.valid { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// What `check-config` has to say.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The report, as it is printed.
    pub text: String,
    /// Whether the daemon would start with it.
    pub valid: bool,
}

/// Makes the report.
pub fn check(args: &Args, config: &Path, output: Output) -> anyhow::Result<Checked> {
    let path = args.file.as_deref().unwrap_or(config);
    let chosen = args.pool.as_deref().filter(|pool| !pool.is_empty());
    let file = match load(path).and_then(|file| file.effective(chosen).map(|_| file)) {
        Ok(file) => file,
        Err(problems) => {
            let text = match output {
                Output::Table => format!("{problems}\n"),
                Output::Json => json(&Invalid::new(path, problems.iter().map(Shown::from).collect()))?,
            };
            return Ok(Checked { text, valid: false });
        }
    };
    let report = Report::new(&file, chosen, &args.owner)?;
    let text = match output {
        Output::Table => table::render(&report),
        Output::Json => json(&report)?,
    };
    Ok(Checked { text, valid: report.pools.iter().all(|pool| pool.problems.is_empty()) })
}

fn json(report: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(report).context("cannot write the report as JSON")? + "\n")
}

const API_VERSION: &str = "checkpoint-guard/v1";
const KIND: &str = "EffectiveConfiguration";

/// What `-o json` prints for an invalid configuration.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Invalid {
    api_version: &'static str,
    kind: &'static str,
    file: String,
    problems: Vec<Shown>,
}

impl Invalid {
    fn new(file: &Path, problems: Vec<Shown>) -> Invalid {
        Invalid { api_version: API_VERSION, kind: KIND, file: file.display().to_string(), problems }
    }
}

/// What `-o json` prints, and what the tables are made from.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    api_version: &'static str,
    kind: &'static str,
    file: String,
    pools: Vec<PoolReport>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PoolReport {
    /// `null`: what stands outside any pool.
    pool: Option<String>,
    settings: Vec<SettingReport>,
    thresholds: Vec<ThresholdReport>,
    kubelet: Option<KubeletReport>,
    /// Most specific first, as they are looked up.
    protection: Vec<RuleReport>,
    owners: Vec<owner::OwnerReport>,
    notes: Vec<Shown>,
    problems: Vec<Shown>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SettingReport {
    key: String,
    /// As TOML.
    value: String,
    /// `null`: the default.
    origin: Option<PlaceReport>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PlaceReport {
    file: String,
    line: u32,
}

/// One signal's thresholds: as written, or on a filesystem that is here.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ThresholdReport {
    signal: Signal,
    /// `null`: as written.
    directory: Option<String>,
    /// The filesystem's bytes or inodes.
    total: Option<u64>,
    soft: Option<Amount>,
    hard: Option<Amount>,
    critical: Option<Amount>,
    kubelet_hard: Option<Amount>,
    kubelet_soft: Option<Amount>,
}

/// As people read it and, on a filesystem that is here, in bytes or inodes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Amount {
    text: String,
    absolute: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KubeletReport {
    /// Empty: its defaults.
    files: Vec<String>,
    /// Every threshold with where it is written.
    thresholds: Vec<KubeletThresholdReport>,
    eviction_hard: Vec<String>,
    eviction_soft: Vec<String>,
    eviction_minimum_reclaim: Vec<String>,
    image_gc_high_percent: f64,
    image_gc_low_percent: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KubeletThresholdReport {
    /// `evictionHard` or `evictionSoft`.
    map: &'static str,
    signal: String,
    value: String,
    /// `null` for evictionHard, which has none.
    grace_period: Option<String>,
    minimum_reclaim: Option<String>,
    /// `null`: the kubelet's default.
    file: Option<String>,
}

impl KubeletThresholdReport {
    fn new(map: &'static str, threshold: &KubeletThreshold) -> KubeletThresholdReport {
        let is_soft = map == "evictionSoft";
        KubeletThresholdReport {
            map,
            signal: threshold.name(),
            value: threshold.value.display(threshold.signal),
            grace_period: is_soft.then(|| format_duration(threshold.grace_period)),
            minimum_reclaim: threshold.minimum_reclaim.map(|value| value.display(threshold.signal)),
            file: threshold.source.as_ref().map(|file| file.display().to_string()),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleReport {
    namespace: Option<String>,
    pod: Option<String>,
    container: Option<String>,
    protection: u8,
    /// 100 is never, everything below is only rather not.
    never: bool,
    source: String,
}

/// A problem or a note.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    file: Option<String>,
    line: Option<u32>,
    key: String,
    message: String,
}

impl From<&Problem> for Shown {
    fn from(problem: &Problem) -> Shown {
        Shown {
            file: problem.file.as_ref().map(|file| file.display().to_string()),
            line: problem.line,
            key: problem.key.clone(),
            message: problem.message.clone(),
        }
    }
}

impl Report {
    fn new(file: &ConfigFile, chosen: Option<&str>, owners: &[String]) -> anyhow::Result<Report> {
        let pools: Vec<Option<&str>> = match chosen {
            Some(pool) => vec![Some(pool)],
            None => std::iter::once(None).chain(file.pools().map(Some)).collect(),
        };
        let pools = pools.into_iter().map(|pool| PoolReport::new(file, pool, owners));
        Ok(Report {
            api_version: API_VERSION,
            kind: KIND,
            file: file.path().display().to_string(),
            pools: pools.collect::<Result<_, _>>()?,
        })
    }
}

impl PoolReport {
    fn new(file: &ConfigFile, pool: Option<&str>, owners: &[String]) -> anyhow::Result<PoolReport> {
        let config = file.effective(pool)?;
        let mut thresholds = thresholds(&config, None);
        let mut problems = Vec::new();
        let mut notes: Vec<Shown> = file.notes(pool)?.iter().map(Shown::from).collect();
        for directory in &config.directories {
            match observe(&directory.path) {
                Ok(seen) => {
                    thresholds.extend(self::thresholds(&config, Some((&directory.path, &seen))));
                    problems.extend(file.later_than_kubelet(pool, &seen, ASSUMED_WRITE_SPEED)?);
                }
                Err(error) if !directory.optional => notes.push(Shown {
                    file: None,
                    line: None,
                    key: format!("directory {}", directory.path.display()),
                    message: format!("cannot be looked at here: {}", error.desc()),
                }),
                Err(_) => {}
            }
        }
        // Two directories on one filesystem say the same twice.
        problems.dedup();
        Ok(PoolReport {
            pool: pool.map(str::to_owned),
            settings: file.settings(pool)?.iter().map(SettingReport::from).collect(),
            thresholds,
            kubelet: config.kubelet.as_ref().map(KubeletReport::from),
            protection: owner::by_specificity(&config).into_iter().map(RuleReport::from).collect(),
            owners: owners.iter().map(|owner| owner::OwnerReport::new(owner, &config)).collect(),
            notes,
            problems: problems.iter().map(Shown::from).collect(),
        })
    }
}

impl From<&KubeletThresholds> for KubeletReport {
    fn from(kubelet: &KubeletThresholds) -> KubeletReport {
        let soft = |threshold: &KubeletThreshold| {
            format!("{threshold} for {}", format_duration(threshold.grace_period))
        };
        let mut minimum_reclaim: Vec<_> = kubelet.hard.iter().chain(&kubelet.soft).collect();
        minimum_reclaim.sort_by_key(|threshold| (threshold.filesystem, threshold.signal));
        minimum_reclaim.dedup_by_key(|threshold| (threshold.filesystem, threshold.signal));
        let reclaim = |threshold: &KubeletThreshold| {
            let value = threshold.minimum_reclaim?.display(threshold.signal);
            Some(format!("{}={value}", threshold.name()))
        };
        let hard = kubelet.hard.iter().map(|it| KubeletThresholdReport::new("evictionHard", it));
        let softs = kubelet.soft.iter().map(|it| KubeletThresholdReport::new("evictionSoft", it));
        KubeletReport {
            thresholds: hard.chain(softs).collect(),
            files: kubelet.files.iter().map(|file| file.display().to_string()).collect(),
            eviction_hard: kubelet.hard.iter().map(ToString::to_string).collect(),
            eviction_soft: kubelet.soft.iter().map(soft).collect(),
            eviction_minimum_reclaim: minimum_reclaim.into_iter().filter_map(reclaim).collect(),
            image_gc_high_percent: kubelet.image_gc_high.as_f64(),
            image_gc_low_percent: kubelet.image_gc_low.as_f64(),
        }
    }
}

impl From<&Setting> for SettingReport {
    fn from(setting: &Setting) -> SettingReport {
        let origin = match &setting.origin {
            Origin::Default => None,
            Origin::Written(place) => {
                Some(PlaceReport { file: place.file.display().to_string(), line: place.line })
            }
        };
        SettingReport { key: setting.key.clone(), value: setting.value.clone(), origin }
    }
}

impl From<&ProtectionRule> for RuleReport {
    fn from(rule: &ProtectionRule) -> RuleReport {
        let text = |pattern: &Option<crate::model::Pattern>| pattern.as_ref().map(ToString::to_string);
        RuleReport {
            namespace: text(&rule.owner.namespace),
            pod: text(&rule.owner.pod),
            container: text(&rule.owner.container),
            protection: rule.protection.get(),
            never: rule.protection.is_never(),
            source: rule.source.clone(),
        }
    }
}

/// Both signals' thresholds, as written or on a filesystem.
fn thresholds(config: &Config, on: Option<(&Path, &Observation)>) -> Vec<ThresholdReport> {
    let pressure = match on {
        Some((_, seen)) => config.pressure_on(seen, ASSUMED_WRITE_SPEED),
        None => config.policy.pressure.clone(),
    };
    let signals =
        Signal::ALL.into_iter().filter(|signal| on.is_none_or(|(_, seen)| seen.total(*signal).is_some()));
    let report = |signal: Signal| {
        let total = on.and_then(|(_, seen)| seen.total(signal));
        let shown = |amount: &crate::model::Amount| match total.map(|total| amount.resolve(total)) {
            Some(absolute) => Amount {
                text: crate::model::Quantity::Absolute(absolute).display(signal),
                absolute: Some(absolute),
            },
            None => Amount { text: amount.display(signal), absolute: None },
        };
        let level = |level: Level| {
            let amount = pressure.threshold(level).and_then(|threshold| threshold.amount(signal)).map(&shown);
            match (amount, on) {
                (Some(amount), None) if config.auto.contains(&(level, signal)) => {
                    Some(Amount { text: format!("auto, about {}", amount.text), absolute: None })
                }
                (amount, _) => amount,
            }
        };
        let theirs = |thresholds: &[KubeletThreshold]| {
            let mut about = thresholds.iter().filter(|threshold| threshold.signal == signal).peekable();
            about.peek()?;
            Some(match total {
                Some(total) => {
                    let absolute = about.map(|threshold| threshold.value.resolve(total)).max()?;
                    let text = crate::model::Quantity::Absolute(absolute).display(signal);
                    Amount { text, absolute: Some(absolute) }
                }
                None => {
                    let one = |threshold: &KubeletThreshold| {
                        format!("{} {}", threshold.filesystem.as_str(), threshold.value.display(signal))
                    };
                    Amount { text: about.map(one).collect::<Vec<_>>().join(", "), absolute: None }
                }
            })
        };
        let kubelet = config.kubelet.as_ref();
        ThresholdReport {
            signal,
            directory: on.map(|(path, _)| path.display().to_string()),
            total,
            soft: level(Level::Soft),
            hard: level(Level::Hard),
            critical: level(Level::Critical),
            kubelet_hard: kubelet.and_then(|kubelet| theirs(&kubelet.hard)),
            kubelet_soft: kubelet.and_then(|kubelet| theirs(&kubelet.soft)),
        }
    };
    signals.map(report).collect()
}

/// The filesystem of a directory that is here.
fn observe(path: &Path) -> nix::Result<Observation> {
    let seen = nix::sys::statvfs::statvfs(path)?;
    let unit = seen.fragment_size();
    let inodes = Inodes { total: seen.files(), free: seen.files_available() };
    Ok(Observation {
        capacity: Bytes(seen.blocks().saturating_mul(unit)),
        available: Bytes(seen.blocks_available().saturating_mul(unit)),
        inodes: (inodes.total > 0).then_some(inodes),
    })
}
