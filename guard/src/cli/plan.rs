//! `checkpoint-guard plan`: what would go and why, what would stay and why.

use std::io::Write as _;
use std::process::ExitCode;

use serde::Serialize;

use crate::agent::clock;
use crate::cli::{Common, Misconfigured, Output, node, table};
use crate::config::Config;
use crate::decide::{self, Request, threshold};
use crate::model::{Bytes, Level, Observation, Plan, Quantity, Signal, Trigger};
use crate::report::record::{API_VERSION, CheckpointRecord};

/// Arguments of `plan`.
///
/// Decides with the same functions as the daemon, on what lies in the directories now, as if every grace period had
/// run out. Nothing is deleted. Exit code 3 when the target cannot be reached.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How to print.
    #[arg(long, short, default_value = "table", value_name = "FORMAT")]
    output: Output,
    /// Decide as if so much were available: "5%" or "10GiB".
    #[arg(long, value_name = "QUANTITY")]
    assume_available: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    api_version: &'static str,
    kind: &'static str,
    filesystems: Vec<Filesystem>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Filesystem {
    directories: Vec<String>,
    filesystem: String,
    level: Level,
    available_bytes: u64,
    size_bytes: u64,
    /// What is to be available afterwards.
    target_bytes: u64,
    /// What is missing to the target even when every victim is gone.
    shortfall_bytes: u64,
    delete: Vec<Doomed>,
    spare: Vec<Spared>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Doomed {
    #[serde(flatten)]
    checkpoint: CheckpointRecord,
    rank: usize,
    trigger: String,
    reason: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spared {
    #[serde(flatten)]
    checkpoint: CheckpointRecord,
    reason: String,
}

/// Prints the plan.
pub fn run(args: Args, common: &Common) -> anyhow::Result<ExitCode> {
    let (_, config) = common.load()?;
    let assumed = match &args.assume_available {
        Some(text) => Some(
            Quantity::parse(text, Signal::Available)
                .map_err(|error| Misconfigured::new(format!("--assume-available: {error}")))?,
        ),
        None => None,
    };
    let filesystems: Vec<_> =
        node::take(&config)?.into_iter().map(|it| decide(&config, it, assumed)).collect();
    let unreachable = filesystems.iter().any(|it| it.shortfall_bytes > 0);
    let mut out = std::io::stdout().lock();
    match args.output {
        Output::Json => {
            let document = Document { api_version: API_VERSION, kind: "Plan", filesystems };
            serde_json::to_writer_pretty(&mut out, &document)?;
            writeln!(out)?;
        }
        Output::Table => {
            for filesystem in &filesystems {
                print(&mut out, filesystem)?;
            }
        }
    }
    Ok(if unreachable { ExitCode::from(crate::cli::UNREACHED) } else { ExitCode::SUCCESS })
}

/// What the daemon would do with this filesystem: pressure first, then retention on what is left.
fn decide(config: &Config, it: node::Filesystem, assumed: Option<Quantity>) -> Filesystem {
    let now = clock::wall();
    let seen = match assumed {
        Some(quantity) => Observation {
            available: Bytes(quantity.resolve(it.seen.capacity.0).min(it.seen.capacity.0)),
            ..it.seen
        },
        None => it.seen,
    };
    let level = threshold::level_of(&it.thresholds, &seen);
    let need = threshold::missing(&it.thresholds, level, &seen);
    let plan = if need.is_met() {
        decide::retention(&it.inventory, &config.policy, now)
    } else {
        let request = Request { need, trigger: Trigger::Pressure(level) };
        decide::plan(&it.inventory, &request, &config.policy, now)
    };
    let records = node::records(&it.inventory, &config.policy, now);
    Filesystem {
        directories: it.directories(),
        filesystem: it.name().display().to_string(),
        level,
        available_bytes: seen.available.0,
        size_bytes: seen.capacity.0,
        target_bytes: (seen.available + need.bytes).0,
        shortfall_bytes: plan.shortfall.bytes.0,
        delete: doomed(&plan, &records),
        spare: spared(&plan, &records),
    }
}

fn doomed(plan: &Plan, records: &[CheckpointRecord]) -> Vec<Doomed> {
    let victims = plan.victims.iter().enumerate();
    victims
        .map(|(place, victim)| Doomed {
            checkpoint: records[victim.index as usize].clone(),
            rank: place + 1,
            trigger: victim.trigger.to_string(),
            reason: victim.reason.to_string(),
        })
        .collect()
}

fn spared(plan: &Plan, records: &[CheckpointRecord]) -> Vec<Spared> {
    let spared = plan.spared.iter();
    spared
        .map(|spared| Spared {
            checkpoint: records[spared.index as usize].clone(),
            reason: spared.reason.to_string(),
        })
        .collect()
}

fn print(out: &mut impl std::io::Write, it: &Filesystem) -> std::io::Result<()> {
    let share = crate::model::Percent::from_ratio(it.available_bytes, it.size_bytes);
    let (available, size) = (Bytes(it.available_bytes), Bytes(it.size_bytes));
    writeln!(
        out,
        "{}: {available} ({share}) of {size} available, level {}",
        it.directories.join(", "),
        it.level
    )?;
    if it.target_bytes > it.available_bytes {
        let need = Bytes(it.target_bytes - it.available_bytes);
        writeln!(out, "needs {need}, to have {} available", Bytes(it.target_bytes))?;
    }
    if it.shortfall_bytes > 0 {
        writeln!(out, "cannot be reached: {} would still be missing", Bytes(it.shortfall_bytes))?;
    }
    let owner = |it: &CheckpointRecord| {
        let part = |part: &Option<String>| part.clone().unwrap_or_else(|| "?".to_owned());
        format!("{}/{}/{}", part(&it.namespace), part(&it.pod), it.container.as_deref().unwrap_or("-"))
    };
    let row = |first: String, it: &CheckpointRecord, reason: &str| {
        let size = Bytes(it.size_bytes).to_string();
        vec![first, owner(it), table::age(it.age_seconds), size, reason.to_owned()]
    };
    if !it.delete.is_empty() {
        let mut rows = table::new(vec!["DELETE", "CHECKPOINT OF", "AGE", "SIZE", "BECAUSE"]);
        for doomed in &it.delete {
            rows.add_row(row(doomed.rank.to_string(), &doomed.checkpoint, &doomed.reason));
        }
        writeln!(out, "\n{rows}")?;
    }
    if !it.spare.is_empty() {
        let mut rows = table::new(vec!["SPARE", "CHECKPOINT OF", "AGE", "SIZE", "BECAUSE"]);
        for spared in &it.spare {
            rows.add_row(row(String::new(), &spared.checkpoint, &spared.reason));
        }
        writeln!(out, "\n{rows}")?;
    }
    writeln!(out)
}
