//! `checkpoint-guard simulate`: what a policy would have kept, deleted and lost.

mod contestant;
mod show;

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use serde::Serialize;

use crate::cli::{Common, Output};
use crate::model::OrderKey;
use crate::simulate::fleet::{FLEETS, Fleet};
use crate::simulate::{Chooser, Outcome, replay, trace, trace::Trace};
use contestant::Contestant;

/// Replays what happens to nodes through the real decisions, with simulated time, and compares orders or configurations.
///
/// The policy is that of --config (or of the default file, where there is one) and --pool, else the defaults with the
/// protections ci-* 5 and incident-* 90.
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
    /// An order to try, as in eviction.order ("superseded,oldest"); repeat to compare. Without: the configured one, the
    /// default, the same less fair-share, oldest alone, largest alone, smallest-loss alone
    #[arg(long, value_name = "KEYS", value_parser = order)]
    order: Vec<Order>,
    /// Another configuration to compare with, instead of other orders; repeat for more
    #[arg(long, value_name = "FILE", conflicts_with = "order")]
    with: Vec<PathBuf>,
    /// Print the table as Markdown, as docs/DECISIONS.md has it
    #[arg(long)]
    markdown: bool,
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

/// Runs it.
pub fn run(args: &Args, common: &Common, output: Output) -> anyhow::Result<ExitCode> {
    let sources = sources(args)?;
    if let Some(path) = &args.write {
        write(args, &sources, path)?;
        return Ok(ExitCode::SUCCESS);
    }
    let contestants = contestant::choose(args, common)?;
    let results: Vec<Comparison> =
        sources.iter().flat_map(|source| compare(args, source, &contestants)).collect();
    let mut out = std::io::stdout().lock();
    match output {
        Output::Json => show::json(&mut out, &results)?,
        Output::Table if args.markdown => show::markdown(&mut out, &results)?,
        Output::Table => show::table(&mut out, &results)?,
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

fn compare(args: &Args, source: &Source, contestants: &[Contestant]) -> Vec<Comparison> {
    let outcomes = replay_all(args, source, contestants);
    let best = outcomes.iter().max_by_key(|outcome| outcome.value_served).copied().unwrap_or_default();
    let names = contestants.iter().map(Contestant::name).chain(["(knowing the future)"]);
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
fn replay_all(args: &Args, source: &Source, contestants: &[Contestant]) -> Vec<Outcome> {
    let next = AtomicU64::new(0);
    let work = || {
        let mut sums = vec![Outcome::default(); contestants.len() + 1];
        loop {
            let node = next.fetch_add(1, Ordering::Relaxed);
            if node >= source.count(args) {
                return sums;
            }
            let trace = source.node(args, node);
            let policies: Vec<_> = contestants.iter().map(|it| it.policy_on(trace.capacity)).collect();
            let guards = policies.iter().map(|policy| replay(&trace, policy, Chooser::Guard));
            // With the thresholds of the first: whoever knows the future needs no other rule.
            let foreseen = policies.first().map(|policy| replay(&trace, policy, Chooser::Clairvoyant));
            let outcomes = guards.chain(foreseen);
            for (sum, outcome) in sums.iter_mut().zip(outcomes) {
                *sum = sum.plus(outcome);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut sums = vec![Outcome::default(); contestants.len() + 1];
        for worker in workers {
            let part = worker.join().expect("replaying does not panic");
            for (sum, part) in sums.iter_mut().zip(part) {
                *sum = sum.plus(part);
            }
        }
        sums
    })
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
            let contestants = contestant::orders(&fleet.order);
            let compared = compare(args, &sources(args).unwrap()[0], &contestants);
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
        let error = sources(&args).err().expect("it holds no node").to_string();
        assert!(error.contains("empty.jsonl holds no node"), "{error}");
    }

    #[test]
    fn an_order_is_read_as_in_the_configuration() {
        assert_eq!(order("superseded, oldest").unwrap().keys, [OrderKey::Superseded, OrderKey::Oldest]);
        assert!(order("newest").unwrap_err().contains("known are incomplete, least-protected"));
        assert!(fleet_name("nodes").is_err());
    }
}
