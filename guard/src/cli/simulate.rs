//! `checkpoint-guard simulate`: what a policy would have kept, deleted and lost.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::cli::Output;
use crate::model::{Bytes, OrderKey, Policy};
use crate::simulate::fleet::{FLEETS, Fleet};
use crate::simulate::{Chooser, Outcome, replay, sample_policy, trace, trace::Trace};

/// Replays what happens to nodes through the real decisions, with simulated time, and compares orders.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A fleet to generate: steady, ci-bursts, gpu, forensic, noisy-neighbour, slow-foreign-growth, or all
    #[arg(long, default_value = "all", conflicts_with = "trace", value_parser = fleet_name)]
    fleet: String,
    /// A trace to replay instead (JSON lines, docs/DECISIONS.md)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// So many nodes of each fleet
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    nodes: u64,
    /// So many days
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..=3650))]
    days: u64,
    /// Equal seeds give equal fleets
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// An order to try, as in eviction.order ("superseded,oldest"); repeat to compare. Without: the default, the same
    /// less fair-share, oldest alone, largest alone, smallest-loss alone
    #[arg(long, value_name = "KEYS", value_parser = order)]
    order: Vec<Order>,
    /// Write the generated traces to this file and replay nothing
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    write: Option<PathBuf>,
}

/// An order and its name in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Order {
    name: String,
    keys: Vec<OrderKey>,
}

fn fleet_name(text: &str) -> Result<String, String> {
    if text == "all" || Fleet::named(text).is_some() {
        return Ok(text.to_owned());
    }
    let names: Vec<_> = FLEETS.iter().map(|fleet| fleet.name).collect();
    Err(format!("no fleet has that name; known are {} and all", names.join(", ")))
}

fn order(text: &str) -> Result<Order, String> {
    let key = |word: &str| {
        let known = OrderKey::ALL.into_iter().find(|key| key.as_str() == word.trim());
        known.ok_or_else(|| {
            let words: Vec<_> = OrderKey::ALL.iter().map(|key| key.as_str()).collect();
            format!("{word:?} is no key of an order; known are {}", words.join(", "))
        })
    };
    let keys: Vec<_> = text.split(',').map(key).collect::<Result<_, _>>()?;
    Ok(Order { name: text.to_owned(), keys })
}

/// The orders that are compared when nobody names any.
fn usual_orders() -> Vec<Order> {
    let without_fair_share = OrderKey::DEFAULT.into_iter().filter(|key| *key != OrderKey::FairShare);
    vec![
        Order { name: "default".into(), keys: OrderKey::DEFAULT.to_vec() },
        Order { name: "default less fair-share".into(), keys: without_fair_share.collect() },
        Order { name: "oldest".into(), keys: vec![OrderKey::Oldest] },
        Order { name: "largest".into(), keys: vec![OrderKey::Largest] },
        Order { name: "smallest-loss".into(), keys: vec![OrderKey::SmallestLoss] },
    ]
}

/// Runs it.
pub fn run(args: &Args, output: Output) -> anyhow::Result<ExitCode> {
    let sources = sources(args)?;
    if let Some(path) = &args.write {
        write(args, &sources, path)?;
        return Ok(ExitCode::SUCCESS);
    }
    let orders = if args.order.is_empty() { usual_orders() } else { args.order.clone() };
    let results: Vec<Comparison> = sources.iter().flat_map(|source| compare(args, source, &orders)).collect();
    match output {
        Output::Table => print_table(&results)?,
        Output::Json => print_json(&results)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Where traces come from.
enum Source {
    Fleet(&'static Fleet),
    File { name: String, traces: Vec<Trace> },
}

fn sources(args: &Args) -> anyhow::Result<Vec<Source>> {
    if let Some(path) = &args.trace {
        let file = File::open(path).with_context(|| format!("cannot open the trace {}", path.display()))?;
        let traces = trace::read(BufReader::new(file)).with_context(|| path.display().to_string())?;
        anyhow::ensure!(!traces.is_empty(), "{} holds no node; begin with a Node line", path.display());
        return Ok(vec![Source::File { name: path.display().to_string(), traces }]);
    }
    let wanted = |fleet: &&Fleet| args.fleet == "all" || args.fleet == fleet.name;
    Ok(FLEETS.iter().filter(wanted).map(Source::Fleet).collect())
}

impl Source {
    fn name(&self) -> &str {
        match self {
            Source::Fleet(fleet) => fleet.name,
            Source::File { name, .. } => name,
        }
    }

    fn count(&self, args: &Args) -> u64 {
        match self {
            Source::Fleet(_) => args.nodes,
            Source::File { traces, .. } => traces.len() as u64,
        }
    }

    /// The trace of one node; generated when its turn comes, since ten thousand of them fill the memory.
    fn node(&self, args: &Args, node: u64) -> std::borrow::Cow<'_, Trace> {
        match self {
            Source::Fleet(fleet) => std::borrow::Cow::Owned(fleet.trace(node, args.days, args.seed)),
            Source::File { traces, .. } => std::borrow::Cow::Borrowed(&traces[node as usize]),
        }
    }
}

fn write(args: &Args, sources: &[Source], path: &std::path::Path) -> anyhow::Result<()> {
    let context = || format!("cannot write the trace {}", path.display());
    let mut output = BufWriter::new(File::create(path).with_context(context)?);
    for source in sources {
        for node in 0..source.count(args) {
            trace::write(&source.node(args, node), &mut output).with_context(context)?;
        }
    }
    output.flush().with_context(context)
}

/// One line of the comparison.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Comparison {
    fleet: String,
    order: String,
    nodes: u64,
    /// Of what the best choice known kept.
    value_kept: f64,
    /// Of the bytes that had to be.
    bytes_deleted: f64,
    #[serde(flatten)]
    outcome: Outcome,
}

fn compare(args: &Args, source: &Source, orders: &[Order]) -> Vec<Comparison> {
    let policies: Vec<Policy> = orders
        .iter()
        .map(|order| {
            let mut policy = sample_policy();
            policy.eviction.order = order.keys.clone();
            policy
        })
        .collect();
    let outcomes = replay_all(args, source, &policies);
    let best = outcomes.iter().max_by_key(|outcome| outcome.value_served).copied().unwrap_or_default();
    let names = orders.iter().map(|order| order.name.as_str()).chain(["(knowing the future)"]);
    names
        .zip(outcomes)
        .map(|(order, outcome)| Comparison {
            fleet: source.name().to_owned(),
            order: order.to_owned(),
            nodes: source.count(args),
            value_kept: outcome.value_against(&best),
            bytes_deleted: outcome.deleted_against_needed(),
            outcome,
        })
        .collect()
}

/// Every node under every policy, and once more for somebody who knows the future; by as many threads as there are
/// processors. Sums do not depend on which thread did what.
fn replay_all(args: &Args, source: &Source, policies: &[Policy]) -> Vec<Outcome> {
    let next = AtomicU64::new(0);
    let work = || {
        let mut sums = vec![Outcome::default(); policies.len() + 1];
        loop {
            let node = next.fetch_add(1, Ordering::Relaxed);
            if node >= source.count(args) {
                return sums;
            }
            let trace = source.node(args, node);
            let foreseen = sample_policy();
            let guards = policies.iter().map(|policy| replay(&trace, policy, Chooser::Guard));
            let outcomes = guards.chain([replay(&trace, &foreseen, Chooser::Clairvoyant)]);
            for (sum, outcome) in sums.iter_mut().zip(outcomes) {
                *sum = sum.plus(outcome);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut sums = vec![Outcome::default(); policies.len() + 1];
        for worker in workers {
            let part = worker.join().expect("replaying does not panic");
            for (sum, part) in sums.iter_mut().zip(part) {
                *sum = sum.plus(part);
            }
        }
        sums
    })
}

fn print_table(results: &[Comparison]) -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "FLEET",
        "ORDER",
        "VALUE KEPT",
        "DELETED",
        "PER NEEDED",
        "STARVED",
        "SURVIVED",
        "REFUSED",
        "MISSED",
    ]);
    for result in results {
        let outcome = &result.outcome;
        table.add_row([
            result.fleet.clone(),
            result.order.clone(),
            format!("{:.1} %", result.value_kept * 100.0),
            Bytes(outcome.deleted_bytes).to_string(),
            format!("{:.3}", result.bytes_deleted),
            outcome.starved.to_string(),
            outcome.survived.to_string(),
            outcome.refused.to_string(),
            outcome.unreachable.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut output = std::io::stdout().lock();
    writeln!(output, "{}", table.trim_fmt())?;
    writeln!(
        output,
        "\nVALUE KEPT: restores that found their checkpoint, by worth, against the best column.\n\
         PER NEEDED: bytes deleted for each that had to be. STARVED: namespaces that lost their last checkpoint.\n\
         REFUSED: arrivals that hit ENOSPC. MISSED: plans that could not reach their target."
    )?;
    Ok(())
}

fn print_json(results: &[Comparison]) -> anyhow::Result<()> {
    let document = serde_json::json!({
        "apiVersion": "checkpoint-guard/v1",
        "kind": "Simulation",
        "items": results,
    });
    writeln!(std::io::stdout().lock(), "{}", serde_json::to_string_pretty(&document)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        <Command as clap::Parser>::try_parse_from(line.split(' ')).unwrap().args
    }

    #[test]
    fn a_fleet_that_was_written_is_replayed_to_the_same_outcome() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet.jsonl");
        let fleet = args("simulate --fleet ci-bursts --nodes 2 --days 1 --order superseded,oldest");
        write(&fleet, &sources(&fleet).unwrap(), &path).unwrap();
        let file = args(&format!("simulate --trace {}", path.display()));
        let outcomes = |args: &Args| {
            let compared = compare(args, &sources(args).unwrap()[0], &fleet.order);
            compared.into_iter().map(|one| (one.order, one.outcome)).collect::<Vec<_>>()
        };
        assert_eq!(outcomes(&fleet), outcomes(&file));
        assert!(outcomes(&fleet)[0].1.arrivals > 0);
    }

    #[test]
    fn a_trace_without_a_node_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("empty.jsonl");
        std::fs::write(&path, "\n").unwrap();
        let args = args(&format!("simulate --trace {}", path.display()));
        let error = run(&args, Output::Table).unwrap_err().to_string();
        assert!(error.contains("empty.jsonl holds no node"), "{error}");
    }

    #[test]
    fn an_order_is_read_as_in_the_configuration() {
        assert_eq!(order("superseded, oldest").unwrap().keys, [OrderKey::Superseded, OrderKey::Oldest]);
        assert!(order("newest").unwrap_err().contains("known are incomplete, least-protected"));
        assert!(fleet_name("nodes").is_err());
    }
}
