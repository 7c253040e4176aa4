//! `storm`: writes checkpoint archives at full speed, and says in JSON lines what became of each.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use guard::model::Bytes;
use serde_json::json;
use tests::archives::Archive;
use tests::sampler::{Sampler, Samples};
use tests::storm::{Method, Options, Storm, Until, Written};

/// Writes checkpoint archives of several namespaces at full speed.
///
/// One JSON line per archive as it is done, then (with --sample) the course of available space, then the totals.
#[derive(Debug, Parser)]
struct Arguments {
    /// The directory to write into.
    #[arg(long)]
    dir: PathBuf,
    /// So many threads at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    writers: u32,
    /// The size of each archive: "32MiB", or a range that sizes are spread over.
    #[arg(long, default_value = "16MiB..64MiB", value_parser = parse_sizes)]
    size: (Bytes, Bytes),
    /// Namespaces, one archive each in turn.
    #[arg(long, default_value = "team,team-prod,ci", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// Pods in each namespace, one archive each in turn.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pods: u32,
    /// How the bytes get into the file.
    #[arg(long, value_enum, default_value = "write")]
    method: MethodName,
    /// What the first archive says of its age, in seconds; each one is a second younger.
    #[arg(long, default_value_t = 3600)]
    first_age_seconds: u64,
    /// Stop after so many archives.
    #[arg(long)]
    count: Option<u64>,
    /// Stop after so much.
    #[arg(long)]
    total: Option<Bytes>,
    /// Stop after so many seconds.
    #[arg(long)]
    seconds: Option<f64>,
    /// Stop a writer at its first ENOSPC, instead of going on after a pause.
    #[arg(long)]
    until_full: bool,
    /// Also look at available space every so many microseconds.
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(100..))]
    sample: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MethodName {
    /// write(2) of 1 MiB at a time.
    Write,
    /// sendfile(2) from memory.
    Sendfile,
    /// fallocate(2) of the whole size, then write(2).
    Fallocate,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(
        arguments.dir.is_dir(),
        "{} is not a directory; --dir takes one that exists",
        arguments.dir.display()
    );
    let interval = arguments.sample.map(Duration::from_micros);
    let sampler = interval.map(|interval| Sampler::start(&arguments.dir, interval)).transpose()?;
    let storm = Storm::start(options(arguments)?);
    while let Some(written) = storm.next() {
        println!("{}", archive_line(&written));
    }
    let totals = storm.join();
    let samples = sampler.map(Sampler::stop);
    for sample in samples.iter().flat_map(|samples| &samples.samples) {
        let seconds = sample.at.as_secs_f64();
        println!("{}", json!({"kind": "Sample", "seconds": seconds, "availableBytes": sample.available.0}));
    }
    let mut line = json!({
        "kind": "Totals",
        "archives": totals.archives,
        "writtenBytes": totals.bytes.0,
        "outOfSpace": totals.out_of_space,
        "failures": totals.failures,
        "seconds": totals.took.as_secs_f64(),
    });
    if let Some(samples) = samples {
        line["sampling"] = sampling(&samples);
    }
    println!("{line}");
    Ok(())
}

fn options(arguments: Arguments) -> Result<Options> {
    let time = arguments.seconds.map(Duration::try_from_secs_f64).transpose().context("--seconds")?;
    Ok(Options {
        directory: arguments.dir,
        writers: arguments.writers,
        size: arguments.size,
        namespaces: arguments.namespaces,
        pods: arguments.pods,
        method: match arguments.method {
            MethodName::Write => Method::Write,
            MethodName::Sendfile => Method::Sendfile,
            MethodName::Fallocate => Method::Fallocate,
        },
        first_age: Duration::from_secs(arguments.first_age_seconds),
        until: Until { archives: arguments.count, bytes: arguments.total, time, full: arguments.until_full },
    })
}

fn archive_line(written: &Written) -> serde_json::Value {
    json!({
        "kind": "Archive",
        "name": written.name,
        "namespace": written.namespace,
        "writtenBytes": written.bytes.0,
        "seconds": written.took.as_secs_f64(),
        "error": written.error.map(|error| error.to_string()),
    })
}

fn sampling(samples: &Samples) -> serde_json::Value {
    json!({
        "lowestAvailableBytes": samples.lowest.map(|lowest| lowest.available.0),
        "lowestAtSeconds": samples.lowest.map(|lowest| lowest.at.as_secs_f64()),
        "looks": samples.looks,
        "longestGapSeconds": samples.longest_gap.as_secs_f64(),
        "realtime": samples.realtime,
    })
}

/// `"32MiB"` or `"16MiB..64MiB"`.
fn parse_sizes(text: &str) -> Result<(Bytes, Bytes), String> {
    let (smallest, largest) = text.split_once("..").unwrap_or((text, text));
    let parse = |text: &str| text.parse::<Bytes>().map_err(|error| error.to_string());
    let (smallest, largest) = (parse(smallest)?, parse(largest)?);
    if smallest > largest {
        return Err(format!("{text:?} is empty; write the smaller size first, such as \"16MiB..64MiB\""));
    }
    if smallest < Bytes(Archive::SMALLEST) {
        return Err(format!("an archive has at least {}", Bytes(Archive::SMALLEST)));
    }
    Ok((smallest, largest))
}
