//! `cargo xtask fuzz`: builds the targets in `fuzz/` and runs them one after the other.
//!
//! What counts the branches that an input takes, and the sanitizer, are unstable options of rustc: a nightly toolchain has
//! them, and where there is none, the one that runs this program is told to take them all the same.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};

use crate::build_ebpf::cache;
use crate::command::{output, run as run_command};

/// What `cargo install` gets where no other is installed.
const CARGO_FUZZ_VERSION: &str = "0.13.1";

/// Files that stand elsewhere in the repository and make good beginnings, by target.
const BORROWED_SEEDS: [(&str, &str); 6] = [
    ("archive", "tests/fixtures/archives"),
    ("configuration", "config"),
    ("configuration", "tests/fixtures/config"),
    ("operator", "tests/fixtures/config"),
    ("stream", "tests/fixtures/archives"),
    ("tar", "tests/fixtures/archives"),
];

/// Throws bytes at what reads input from outside. What is found is written to fuzz/artifacts; once mended, it belongs into
/// fuzz/regressions/TARGET, where every `cargo test` feeds it again.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Seconds for each target.
    #[arg(long, default_value_t = 600)]
    time: u32,
    /// Which targets; all without any.
    targets: Vec<String>,
}

/// Runs them; the first that finds something ends it.
pub(crate) fn run(options: Options, root: &Path) -> Result<()> {
    let mut known = targets(root)?;
    if !options.targets.is_empty() {
        let unknown = options.targets.iter().find(|target| !known.contains(target));
        ensure!(unknown.is_none(), "no target {unknown:?}; there are: {}", known.join(", "));
        known = options.targets;
    }
    let cargo_fuzz = cargo_fuzz()?;
    let compiler = Compiler::find()?;
    println!("{}", compiler.describe());
    for target in known {
        println!("== {target}: {} s", options.time);
        let corpus = PathBuf::from("fuzz/corpus").join(&target);
        let own = ["fuzz/seeds", "fuzz/regressions"].map(|folder| PathBuf::from(folder).join(&target));
        let borrowed =
            BORROWED_SEEDS.iter().filter(|(of, _)| *of == target).map(|(_, seeds)| PathBuf::from(seeds));
        let seeds = own.into_iter().chain(borrowed).filter(|seeds| root.join(seeds).is_dir());
        fs::create_dir_all(root.join(&corpus))?;
        // One archive may cost 16 MiB, DESIGN says; the sanitizer itself takes some hundreds around that.
        let limits = ["-max_len=300000", "-rss_limit_mb=1024", "-malloc_limit_mb=16", "-timeout=10"];
        run_command(
            compiler
                .set(&mut Command::new(&cargo_fuzz))
                .args(["fuzz", "run", "--sanitizer", compiler.sanitizer(), &target])
                .arg(corpus)
                .args(seeds)
                .arg("--")
                .arg(format!("-max_total_time={}", options.time))
                .args(limits)
                .current_dir(root),
        )?;
    }
    Ok(())
}

/// What compiles the targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compiler {
    /// rustup's nightly.
    Nightly,
    /// The one that runs this program, with or without the runtime of the sanitizer.
    Ours { has_sanitizer: bool },
}

impl Compiler {
    fn find() -> Result<Compiler> {
        let mut nightly = Command::new("rustup");
        nightly.args(["run", "nightly", "rustc", "--version"]).env_remove("RUSTUP_TOOLCHAIN");
        if output(&mut nightly).is_ok() {
            return Ok(Compiler::Nightly);
        }
        let libraries = PathBuf::from(output(Command::new("rustc").args(["--print", "target-libdir"]))?);
        let entries =
            fs::read_dir(&libraries).with_context(|| format!("cannot read {}", libraries.display()))?;
        let is_runtime = |name: OsString| name.to_string_lossy().ends_with("_rt.asan.a");
        let has_sanitizer = entries.flatten().any(|entry| is_runtime(entry.file_name()));
        Ok(Compiler::Ours { has_sanitizer })
    }

    /// For the person who started it.
    fn describe(self) -> &'static str {
        match self {
            Compiler::Nightly => "built by rustup's nightly, with the address sanitizer",
            Compiler::Ours { has_sanitizer: true } => {
                "no nightly toolchain here: built by the stable one with RUSTC_BOOTSTRAP=1, with the address sanitizer"
            }
            Compiler::Ours { has_sanitizer: false } => {
                "no nightly toolchain here: built by the stable one with RUSTC_BOOTSTRAP=1, and without a sanitizer, whose \
                 runtime it has not got; broken promises and panics are found, memory errors are not"
            }
        }
    }

    fn sanitizer(self) -> &'static str {
        match self {
            Compiler::Nightly | Compiler::Ours { has_sanitizer: true } => "address",
            Compiler::Ours { has_sanitizer: false } => "none",
        }
    }

    fn set(self, command: &mut Command) -> &mut Command {
        match self {
            Compiler::Nightly => command.env("RUSTUP_TOOLCHAIN", "nightly"),
            Compiler::Ours { .. } => command.env("RUSTC_BOOTSTRAP", "1"),
        }
    }
}

/// The programs in `fuzz/fuzz_targets`.
fn targets(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut targets: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_string_lossy().into_owned()))
        .collect();
    targets.sort();
    Ok(targets)
}

/// cargo-fuzz, installed where there is none.
fn cargo_fuzz() -> Result<OsString> {
    let tools = cache()?.join("tools");
    let installed = tools.join("bin/cargo-fuzz");
    for candidate in [OsString::from("cargo-fuzz"), installed.clone().into()] {
        if output(Command::new(&candidate).arg("--version")).is_ok() {
            return Ok(candidate);
        }
    }
    println!("installing cargo-fuzz into {} (some minutes)", tools.display());
    run_command(
        Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["install", "cargo-fuzz", "--locked", "--version", CARGO_FUZZ_VERSION, "--root"])
            .arg(&tools),
    )?;
    Ok(installed.into())
}
