//! `plan --with`: what one configuration would delete here and another would not.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use super::{Decision, Doomed, Inodes, decide, doomed, row};
use crate::agent::clock;
use crate::cli::{Misconfigured, Output, UNREACHED, node, table};
use crate::config::{ASSUMED_WRITE_SPEED, Config};
use crate::model::{Bytes, Level, Need};
use crate::report::record::API_VERSION;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    api_version: &'static str,
    kind: &'static str,
    /// The configuration files: the one in force, and the other.
    configurations: [String; 2],
    filesystems: Vec<Compared>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Compared {
    directories: Vec<String>,
    filesystem: String,
    available_bytes: u64,
    size_bytes: u64,
    /// What each of the two makes of it.
    plans: [Summary; 2],
    /// How many both would delete.
    both: usize,
    /// What the first would delete and the second would not.
    only_first: Vec<Difference>,
    /// What the second would delete and the first would not.
    only_second: Vec<Difference>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    level: Level,
    target_bytes: u64,
    shortfall_bytes: u64,
    #[serde(flatten)]
    inodes: Inodes,
    deletes: usize,
    frees_bytes: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Difference {
    /// What the one that deletes it says.
    #[serde(flatten)]
    doomed: Doomed,
    /// What the one that spares it says.
    spared_because: String,
}

/// Prints the comparison. Exit code 3 when either cannot reach its target.
pub(super) fn run(
    here: &[node::Filesystem],
    (path, config): (&Path, &Config),
    other_path: &Path,
    pool: Option<&str>,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let other =
        crate::config::load(other_path).and_then(|file| file.effective(pool)).map_err(Misconfigured::new)?;
    let unseen = other
        .directories
        .iter()
        .filter(|theirs| config.directories.iter().all(|ours| ours.path != theirs.path));
    for directory in unseen {
        let (theirs, ours) = (other_path.display(), path.display());
        eprintln!(
            "checkpoint-guard: {theirs} also watches {}, {ours} does not: it is left out here",
            directory.path.display()
        );
    }
    let filesystems: Vec<_> = here.iter().map(|it| Compared::new(it, [config, &other])).collect();
    let is_unreachable =
        filesystems.iter().flat_map(|it| &it.plans).any(|summary| !summary.shortfall().is_met());
    let configurations = [path, other_path].map(|path| path.display().to_string());
    let mut out = std::io::stdout().lock();
    match output {
        Output::Json => {
            let document =
                Document { api_version: API_VERSION, kind: "PlanComparison", configurations, filesystems };
            serde_json::to_writer_pretty(&mut out, &document)?;
            writeln!(out)?;
        }
        Output::Table => {
            for filesystem in &filesystems {
                print(&mut out, filesystem, &configurations)?;
            }
        }
    }
    Ok(if is_unreachable { ExitCode::from(UNREACHED) } else { ExitCode::SUCCESS })
}

impl Compared {
    fn new(it: &node::Filesystem, configs: [&Config; 2]) -> Compared {
        let decisions =
            configs.map(|config| decide(config, &config.pressure_on(&it.seen, ASSUMED_WRITE_SPEED), it));
        let [first, second] = &decisions;
        let [only_first, only_second] =
            [(first, second, configs[0]), (second, first, configs[1])].map(|(deletes, spares, config)| {
                let records = node::records(&it.inventory, &config.policy, clock::wall());
                let reasons: HashMap<u32, String> = spares
                    .plan
                    .spared
                    .iter()
                    .map(|spared| (spared.index, spared.reason.to_string()))
                    .collect();
                let doomed = deletes.plan.victims.iter().zip(doomed(&deletes.plan, &records));
                doomed
                    .filter_map(|(victim, doomed)| {
                        let spared_because = reasons.get(&victim.index)?.clone();
                        Some(Difference { doomed, spared_because })
                    })
                    .collect::<Vec<_>>()
            });
        Compared {
            directories: it.directories(),
            filesystem: it.name().display().to_string(),
            available_bytes: it.seen.available.0,
            size_bytes: it.seen.capacity.0,
            both: first.plan.victims.len() - only_first.len(),
            plans: decisions.map(|decision| Summary::new(it, &decision)),
            only_first,
            only_second,
        }
    }
}

impl Summary {
    fn new(it: &node::Filesystem, decision: &Decision) -> Summary {
        let Decision { level, need, plan } = decision;
        Summary {
            inodes: Inodes::new(it, decision),
            level: *level,
            target_bytes: (it.seen.available + need.bytes).0,
            shortfall_bytes: plan.shortfall.bytes.0,
            deletes: plan.victims.len(),
            frees_bytes: plan.frees.bytes.0,
        }
    }

    fn shortfall(&self) -> Need {
        Need { bytes: Bytes(self.shortfall_bytes), inodes: self.inodes.shortfall_inodes }
    }
}

fn print(out: &mut impl Write, it: &Compared, configurations: &[String; 2]) -> std::io::Result<()> {
    let (available, size) = (Bytes(it.available_bytes), Bytes(it.size_bytes));
    writeln!(out, "{}: {available} of {size} available", it.directories.join(", "))?;
    let mut rows = table::new(vec!["CONFIGURATION", "LEVEL", "DELETES", "FREES", "STILL MISSING"]);
    for (path, plan) in configurations.iter().zip(&it.plans) {
        rows.add_row(vec![
            path.clone(),
            plan.level.to_string(),
            plan.deletes.to_string(),
            Bytes(plan.frees_bytes).to_string(),
            plan.shortfall().to_string(),
        ]);
    }
    writeln!(out, "\n{rows}")?;
    let [first, second] = configurations;
    for (deletes, spares, differences) in [(first, second, &it.only_first), (second, first, &it.only_second)]
    {
        if differences.is_empty() {
            continue;
        }
        writeln!(out, "\nDeleted by {deletes}, not by {spares}:")?;
        let mut rows = table::new(vec!["DELETE", "CHECKPOINT OF", "AGE", "SIZE", "BECAUSE"]);
        for Difference { doomed, spared_because } in differences {
            let reasons = format!("{}\nspared there: {spared_because}", doomed.reason);
            rows.add_row(row(doomed.rank.to_string(), &doomed.checkpoint, &reasons));
        }
        writeln!(out, "\n{rows}")?;
    }
    let count = it.only_first.len() + it.only_second.len();
    match count {
        0 => writeln!(out, "\nBoth delete the same {}.\n", it.both),
        _ => writeln!(out, "\n{count} differ; {} are deleted by both.\n", it.both),
    }
}
