//! `bench`: what checkpoint-guard costs and gives, beside what one would have otherwise.
//!
//! `cargo xtask bench` builds everything and runs this. Every number that it prints was measured in this run; what is
//! compared is measured in turns, so that whatever else the machine does hits all alike.

mod decide;
mod document;
mod footprint;
mod identify;
mod machine;
mod overhead;
mod plot;
mod quality;
mod reaction;
mod rivals;
mod scan;
mod scene;
mod storm;
mod supervise;
mod table;
mod unlink;

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use tests::counting::Counting;

use crate::document::Section;

/// For `decide`, which tells memory per checkpoint; the others hardly allocate.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Measures the guard beside its alternatives.
///
/// Disks are images below TMPDIR. CHECKPOINT_GUARD names another guard than the one beside this program.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// Only these; without a name, all.
    #[arg(value_enum)]
    names: Vec<Name>,
    /// Fewer repetitions, smaller sizes.
    #[arg(long)]
    pub quick: bool,
    /// Also writes each section into docs/BENCHMARKS.md, below the current directory.
    #[arg(long)]
    pub write: bool,
}

impl Options {
    /// How often to repeat something.
    pub(crate) fn times(&self, usually: usize, quick: usize) -> usize {
        if self.quick { quick } else { usually }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    Storm,
    Reaction,
    Overhead,
    Footprint,
    Unlink,
    Scan,
    Identify,
    Decide,
    Quality,
}

impl Name {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Name::Reaction => "reaction",
            Name::Identify => "identify",
            Name::Decide => "decide",
            Name::Storm => "storm",
            Name::Overhead => "overhead",
            Name::Footprint => "footprint",
            Name::Scan => "scan",
            Name::Unlink => "unlink",
            Name::Quality => "quality",
        }
    }

    fn run(self, options: &Options) -> Result<Section> {
        match self {
            Name::Reaction => reaction::run(options),
            Name::Identify => identify::run(options),
            Name::Decide => decide::run(options),
            Name::Storm => storm::run(options),
            Name::Overhead => overhead::run(options),
            Name::Footprint => footprint::run(options),
            Name::Scan => scan::run(options),
            Name::Unlink => unlink::run(options),
            Name::Quality => quality::run(options),
        }
    }
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the benchmarks mount filesystems and load eBPF programs, so they need root: sudo cargo xtask bench"
    );
    supervise::supervised(|| measure(&options))
}

fn measure(options: &Options) -> Result<()> {
    println!("{}", machine::describe());
    let names = if options.names.is_empty() { Name::value_variants() } else { &options.names };
    for name in names {
        eprintln!("== {}", name.as_str());
        let before = machine::Before::note();
        let section = name.run(options).with_context(|| format!("benchmark {} failed", name.as_str()))?;
        let section = section.finish(*name, options, &before);
        println!("\n{section}");
        if options.write {
            document::write(*name, &section).context("cannot write docs/BENCHMARKS.md")?;
        }
    }
    Ok(())
}
