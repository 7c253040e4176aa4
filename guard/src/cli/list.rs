//! `checkpoint-guard list`: the catalog.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use crate::agent::clock;
use crate::cli::{Common, Output, node, table};
use crate::model::Bytes;
use crate::report::record::{API_VERSION, CheckpointRecord};
use crate::report::snapshot::NamespaceGrowth;
use crate::report::socket::{Client, ClientError, Reply, Request};

/// Arguments of `list`.
///
/// Looks at the configured directories itself: needs no daemon, and no more rights than to read them. Without root
/// it cannot tell who has an archive open. Where a daemon runs and may be asked (root), its last line tells whose
/// checkpoints are growing, and how fast.
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
    /// Absent where no daemon can be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<Vec<NamespaceGrowth>>,
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
    let mut growth = config.socket.path.as_deref().and_then(|path| growth(path).ok()?);
    if let (Some(growth), Some(pattern)) = (&mut growth, &wanted) {
        growth.retain(|it| pattern.matches(it.namespace.as_deref().unwrap_or_default()));
    }
    let mut out = std::io::stdout().lock();
    match args.output {
        Output::Json => {
            let list = List { api_version: API_VERSION, kind: "CheckpointList", items, growth };
            serde_json::to_writer_pretty(&mut out, &list)?;
            writeln!(out)?;
        }
        Output::Table => {
            print(&mut out, &items, foreign, args.wide)?;
            print_growth(&mut out, &growth.unwrap_or_default())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the daemon knows of growth; `None` when it counts nothing.
fn growth(socket: &Path) -> Result<Option<Vec<NamespaceGrowth>>, ClientError> {
    let request = Request::Watch { interval_milliseconds: 1000 };
    match Client::ask(socket, &request)? {
        Reply::Snapshot(snapshot) => {
            let told = snapshot.filesystems.into_iter().find_map(|filesystem| filesystem.growth);
            Ok(told.map(|growth| growth.namespaces))
        }
        _ => Ok(None),
    }
}

fn print_growth(out: &mut impl std::io::Write, growth: &[NamespaceGrowth]) -> std::io::Result<()> {
    let growing = growth.iter().filter(|it| it.bytes_per_second > 0);
    let rates = growing.map(|it| {
        format!("{} {}/s", it.namespace.as_deref().unwrap_or("unknown"), Bytes(it.bytes_per_second))
    });
    let rates: Vec<_> = rates.collect();
    if rates.is_empty() { Ok(()) } else { writeln!(out, "growing: {}", rates.join(", ")) }
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
