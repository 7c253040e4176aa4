//! `checkpoint-guard plan`: what would go and why, what would stay and why.

mod compare;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use crate::agent::clock;
use crate::cli::{Common, Misconfigured, Output, node, table};
use crate::config::Config;
use crate::decide::{self, Request, threshold};
use crate::model::{
    Bytes, Inventory, Level, Need, Pattern, Plan, PressurePolicy, Quantity, Signal, States, Trigger,
};
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
    /// Decide as if every pod of this namespace (a name or a glob) were gone; repeat for more.
    #[arg(long, value_name = "NAMESPACE", value_parser = Pattern::new)]
    assume_namespace_gone: Vec<Pattern>,
    /// Compare with this other configuration, on what lies here now: what one would delete and the other would not.
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
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
    #[serde(flatten)]
    inodes: Inodes,
    delete: Vec<Doomed>,
    spare: Vec<Spared>,
}

/// The same of inodes; `null` where the filesystem has no total of them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Inodes {
    inodes_free: Option<u64>,
    inodes_total: Option<u64>,
    target_inodes_free: Option<u64>,
    shortfall_inodes: u64,
}

impl Inodes {
    fn new(it: &node::Filesystem, decision: &Decision) -> Inodes {
        let free = it.seen.inodes.map(|inodes| inodes.free);
        Inodes {
            inodes_free: free,
            inodes_total: it.seen.inodes.map(|inodes| inodes.total),
            target_inodes_free: free.map(|free| free + decision.need.inodes),
            shortfall_inodes: decision.plan.shortfall.inodes,
        }
    }
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
    let mut here = node::take(&config)?;
    warn_of_nobody(&here, &args.assume_namespace_gone);
    for filesystem in &mut here {
        let seen = &mut filesystem.seen;
        if let Some(quantity) = assumed {
            seen.available = Bytes(quantity.resolve(seen.capacity.0).min(seen.capacity.0));
        }
        orphan(&mut filesystem.inventory, &args.assume_namespace_gone);
    }
    if let Some(other) = &args.with {
        return compare::run(&here, (&common.config, &config), other, common.pool(), args.output);
    }
    let filesystems: Vec<_> = here.iter().map(|it| Filesystem::new(&config, it)).collect();
    let unreachable = filesystems.iter().any(|it| !it.shortfall().is_met());
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

/// Says which patterns cover no namespace here: a name that is mistyped would look like an answer.
fn warn_of_nobody(here: &[node::Filesystem], gone: &[Pattern]) {
    let checkpoints = here.iter().flat_map(|it| &it.inventory.checkpoints);
    let owners = checkpoints.flat_map(|checkpoint| checkpoint.identity.readings());
    let namespaces: BTreeSet<&str> = owners.filter_map(|owner| owner.namespace.as_deref()).collect();
    for pattern in gone {
        if !namespaces.iter().any(|namespace| pattern.matches(namespace)) {
            eprintln!(
                "checkpoint-guard: --assume-namespace-gone: no checkpoint here is of a namespace {pattern}"
            );
        }
    }
}

/// Marks the checkpoints of the namespaces that `gone` covers as orphans. Of a doubtful identity every reading must be
/// covered: nobody's pod is gone because somebody else's is.
fn orphan(inventory: &mut Inventory, gone: &[Pattern]) {
    let is_gone = |namespace: &str| gone.iter().any(|pattern| pattern.matches(namespace));
    for checkpoint in &mut inventory.checkpoints {
        if checkpoint.identity.readings().all(|owner| owner.namespace.as_deref().is_some_and(is_gone)) {
            checkpoint.states |= States::ORPHAN;
        }
    }
}

/// What a configuration makes of a filesystem.
struct Decision {
    level: Level,
    need: Need,
    plan: Plan,
}

/// What the daemon would do: make room when a threshold is crossed, as if every grace period had run out; else keep the
/// retention rules.
fn decide(config: &Config, thresholds: &PressurePolicy, it: &node::Filesystem) -> Decision {
    let now = clock::wall();
    let level = threshold::level_of(thresholds, &it.seen);
    let need = threshold::missing(thresholds, level, &it.seen);
    let plan = if need.is_met() {
        decide::retention(&it.inventory, &config.policy, now)
    } else {
        let request = Request { need, trigger: Trigger::Pressure(level) };
        decide::plan(&it.inventory, &request, &config.policy, now)
    };
    Decision { level, need, plan }
}

impl Filesystem {
    fn new(config: &Config, it: &node::Filesystem) -> Filesystem {
        let decision = decide(config, &it.thresholds, it);
        let inodes = Inodes::new(it, &decision);
        let Decision { level, need, plan } = decision;
        let records = node::records(&it.inventory, &config.policy, clock::wall());
        Filesystem {
            directories: it.directories(),
            filesystem: it.name().display().to_string(),
            level,
            available_bytes: it.seen.available.0,
            size_bytes: it.seen.capacity.0,
            target_bytes: (it.seen.available + need.bytes).0,
            shortfall_bytes: plan.shortfall.bytes.0,
            inodes,
            delete: doomed(&plan, &records),
            spare: spared(&plan, &records),
        }
    }

    fn need(&self) -> Need {
        let inodes = self.inodes.target_inodes_free.zip(self.inodes.inodes_free);
        Need {
            bytes: Bytes(self.target_bytes - self.available_bytes),
            inodes: inodes.map_or(0, |(target, free)| target - free),
        }
    }

    fn shortfall(&self) -> Need {
        Need { bytes: Bytes(self.shortfall_bytes), inodes: self.inodes.shortfall_inodes }
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
    let need = it.need();
    let inodes = match (it.inodes.inodes_free, it.inodes.inodes_total) {
        (Some(free), Some(total)) if need.inodes > 0 => format!(", {free} of {total} inodes free"),
        _ => String::new(),
    };
    writeln!(
        out,
        "{}: {available} ({share}) of {size} available{inodes}, level {}",
        it.directories.join(", "),
        it.level
    )?;
    if !need.is_met() {
        let target = Need {
            bytes: if need.bytes.is_zero() { Bytes::ZERO } else { Bytes(it.target_bytes) },
            inodes: it.inodes.target_inodes_free.filter(|_| need.inodes > 0).unwrap_or(0),
        };
        writeln!(out, "needs {need}, to have {target} available")?;
    }
    if !it.shortfall().is_met() {
        writeln!(out, "cannot be reached: {} would still be missing", it.shortfall())?;
    }
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

/// One checkpoint in a table: something, whose, how old, how large, why.
fn row(first: String, it: &CheckpointRecord, reason: &str) -> Vec<String> {
    let part = |part: &Option<String>| part.clone().unwrap_or_else(|| "?".to_owned());
    let owner =
        format!("{}/{}/{}", part(&it.namespace), part(&it.pod), it.container.as_deref().unwrap_or("-"));
    vec![first, owner, table::age(it.age_seconds), Bytes(it.size_bytes).to_string(), reason.to_owned()]
}
