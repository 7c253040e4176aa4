//! `checkpoint-guard list`: the catalog.

use std::io::Write as _;
use std::process::ExitCode;

use serde::Serialize;

use crate::agent::clock;
use crate::cli::{Common, Output, node, table};
use crate::model::Bytes;
use crate::report::record::{API_VERSION, CheckpointRecord};

/// Arguments of `list`.
///
/// Looks at the configured directories itself: needs no daemon, and no more rights than to read them. Without root
/// it cannot tell who has an archive open.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How to print.
    #[arg(long, short, default_value = "table", value_name = "FORMAT")]
    output: Output,
    /// Only checkpoints of this namespace (a glob such as "ci-*").
    #[arg(long, short, value_name = "PATTERN")]
    namespace: Option<String>,
    /// Sort by this column.
    #[arg(long, value_enum, default_value = "age", value_name = "COLUMN")]
    sort: Sort,
    /// Show file names and directories as well.
    #[arg(long, short)]
    wide: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Sort {
    /// Oldest first.
    Age,
    /// Largest first.
    Size,
    /// By namespace, pod and container.
    Owner,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    api_version: &'static str,
    kind: &'static str,
    items: Vec<CheckpointRecord>,
}

/// Prints the catalog.
pub fn run(args: Args, common: &Common) -> anyhow::Result<ExitCode> {
    let (_, config) = common.load()?;
    let wanted = match &args.namespace {
        Some(text) => Some(crate::model::Pattern::new(text).map_err(crate::cli::Misconfigured::new)?),
        None => None,
    };
    let now = clock::wall();
    let filesystems = node::take(&config)?;
    let mut items: Vec<_> = filesystems
        .iter()
        .flat_map(|filesystem| node::records(&filesystem.inventory, &config.policy, now))
        .filter(|record| {
            let namespace = record.namespace.as_deref().unwrap_or_default();
            wanted.as_ref().is_none_or(|pattern| pattern.matches(namespace))
        })
        .collect();
    items.sort_by(|a, b| {
        let owner = |it: &CheckpointRecord| (it.namespace.clone(), it.pod.clone(), it.container.clone());
        let first = match args.sort {
            Sort::Age => a.created_at.cmp(&b.created_at),
            Sort::Size => b.size_bytes.cmp(&a.size_bytes),
            Sort::Owner => owner(a).cmp(&owner(b)),
        };
        first.then_with(|| (a.created_at, &a.directory, &a.name).cmp(&(b.created_at, &b.directory, &b.name)))
    });
    let foreign: usize = filesystems.iter().map(|filesystem| filesystem.inventory.foreign).sum();
    let mut out = std::io::stdout().lock();
    match args.output {
        Output::Json => {
            let list = List { api_version: API_VERSION, kind: "CheckpointList", items };
            serde_json::to_writer_pretty(&mut out, &list)?;
            writeln!(out)?;
        }
        Output::Table => print(&mut out, &items, foreign, args.wide)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(
    out: &mut impl std::io::Write,
    items: &[CheckpointRecord],
    foreign: usize,
    wide: bool,
) -> std::io::Result<()> {
    let mut header = vec!["NAMESPACE", "POD", "CONTAINER", "AGE", "SIZE", "PROT", "STATE", "ENGINE"];
    if wide {
        header.extend(["IDENTITY", "DIRECTORY", "NAME"]);
    }
    let mut rows = table::new(header);
    for it in items {
        let text = |part: &Option<String>| part.clone().unwrap_or_else(|| "?".to_owned());
        let mut row = vec![
            text(&it.namespace),
            text(&it.pod),
            it.container.clone().unwrap_or_else(|| "-".to_owned()),
            table::age(it.age_seconds),
            Bytes(it.size_bytes).to_string(),
            it.protection.to_string(),
            it.states.join(","),
            it.engine.as_str().to_owned(),
        ];
        if wide {
            row.extend([it.identity.as_str().to_owned(), it.directory.clone(), it.name.clone()]);
        }
        rows.add_row(row);
    }
    if items.is_empty() {
        writeln!(out, "no checkpoints")?;
    } else {
        writeln!(out, "{rows}")?;
    }
    let size: Bytes = items.iter().map(|it| Bytes(it.size_bytes)).sum();
    write!(out, "{} checkpoints, {size}", items.len())?;
    if foreign > 0 {
        write!(out, "; {foreign} other entries, which are never touched")?;
    }
    writeln!(out)
}
