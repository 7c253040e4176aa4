//! The command line: one file per command.

mod brake_helper;
mod node;
mod table;

pub mod brake;
pub mod check_config;
pub mod doctor;
pub mod history;
pub mod import_operator;
pub mod list;
pub mod pin;
pub mod plan;
pub mod reclaim;
pub mod run;
pub mod simulate;
pub mod top;
pub mod unpin;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::agent::{self, Options, clock, cluster};
use crate::config::{Config, ConfigFile, DEFAULT_PATH, POOL_VARIABLE};
use crate::observe::cluster::Knowledge;
use crate::sandbox;

/// The work could not be done.
const FAILED: u8 = 1;
/// The command line or the configuration is wrong. clap uses the same.
const USAGE: u8 = 2;
/// What was asked for could not be reached.
pub(crate) const UNREACHED: u8 = 3;

/// Keeps container checkpoints from filling a node.
///
/// The kubelet's checkpoint API writes archives as large as a container's memory and never deletes one.
/// checkpoint-guard watches them being written and, before the node runs out of disk, deletes those that matter
/// least: never a pinned one, a protected one, or one in use, and no more than needed.
///
/// Start with `checkpoint-guard check-config`, then `checkpoint-guard plan --assume-available 5%` to see what
/// would go, then `checkpoint-guard run --dry-run`.
#[derive(Debug, Parser)]
#[command(name = "checkpoint-guard", version, max_term_width = 100, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// The configuration file.
    #[arg(long, short, global = true, value_name = "FILE", default_value = DEFAULT_PATH, env = "CHECKPOINT_GUARD_CONFIG")]
    pub config: PathBuf,
    /// The node pool whose settings apply. Without it: CHECKPOINT_GUARD_POOL, else the Node's labels, else none.
    #[arg(long, global = true, value_name = "NAME", env = POOL_VARIABLE)]
    pub pool: Option<String>,
}

impl Common {
    /// The effective configuration.
    ///
    /// # Errors
    /// [`Misconfigured`], with every problem and its line.
    pub fn load(&self) -> anyhow::Result<(ConfigFile, Config)> {
        let file = self.file()?;
        let kubernetes = file.effective(self.pool()).map_err(Misconfigured::new)?.kubernetes;
        // As the daemon has it: the pool from the Node's labels, and what annotations ask for.
        let known = cluster::remembered(&kubernetes).unwrap_or_else(|error| {
            eprintln!("checkpoint-guard: {error}; annotations, orphans and the Node's pool are not known");
            Knowledge::default()
        });
        let known = known.cluster;
        let options = Options { pool: self.pool().map(str::to_owned), ..Options::default() };
        options.labels.set(&known);
        let config = options.choose(&file).map_err(Misconfigured::new)?;
        Ok((file, agent::granting(&config, &known)))
    }

    /// The configuration file.
    ///
    /// # Errors
    /// [`Misconfigured`], with every problem and its line.
    fn file(&self) -> anyhow::Result<ConfigFile> {
        Ok(crate::config::load(&self.config).map_err(Misconfigured::new)?)
    }

    /// The configured directories.
    fn directories(&self) -> anyhow::Result<Vec<PathBuf>> {
        let (_, config) = self.load()?;
        Ok(config.directories.into_iter().map(|directory| directory.path).collect())
    }

    /// Where the audit log lies: `named`, else as configured.
    fn audit_path(&self, named: Option<&Path>) -> anyhow::Result<PathBuf> {
        if let Some(path) = named {
            return Ok(path.to_owned());
        }
        let (_, config) = self.load()?;
        let off = || Misconfigured::new("[audit] path = \"off\": there is no log; --file names another");
        Ok(config.audit.path.ok_or_else(off)?)
    }

    /// The pool that was named. What is empty was not said: a Helm chart sets the variable in any case.
    pub fn pool(&self) -> Option<&str> {
        self.pool.as_deref().filter(|pool| !pool.is_empty())
    }
}

/// The configuration cannot be used. Ends the program with exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misconfigured(String);

impl Misconfigured {
    /// From whatever says what is wrong.
    pub fn new(problems: impl std::fmt::Display) -> Misconfigured {
        Misconfigured(problems.to_string())
    }
}

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs: stable, `"apiVersion": "checkpoint-guard/v1"`.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Watch the checkpoint directories and make room when it is needed (the daemon).
    Run(run::Args),
    /// Show every checkpoint: whose it is, how old, how large, how protected, in which state.
    List(list::Args),
    /// Show what would be deleted and why, and what would be spared and why. Deletes nothing.
    Plan(plan::Args),
    /// Free so much space now, by the same rules as under pressure.
    Reclaim(reclaim::Args),
    /// Keep checkpoints whatever happens, by a marker beside each.
    Pin(pin::Args),
    /// Take the markers away again.
    Unpin(unpin::Args),
    /// Show the audit log: what was deleted, when and why.
    History(history::Args),
    /// Watch the running daemon: levels, headroom, writers, next victims, last deletions.
    Top(top::Args),
    /// Show what this node offers and lacks: kernel, rights, filesystems, encryption, permissions, and what to change.
    Doctor(doctor::Args),
    /// Validate the configuration, and show what is in force in each pool and where each value comes from.
    CheckConfig {
        /// What to check.
        #[command(flatten)]
        args: check_config::Args,
        /// How to print.
        #[arg(long, short, default_value = "table", value_name = "FORMAT")]
        output: Output,
    },
    /// Replay a trace, or a generated fleet, through the decisions, and compare orders side by side.
    Simulate {
        /// What to simulate.
        #[command(flatten)]
        args: simulate::Args,
        /// How to print.
        #[arg(long, short, default_value = "table", value_name = "FORMAT")]
        output: Output,
    },
    /// Show, engage or release the brake: refusing those who write checkpoints.
    Brake(brake::Args),
    /// Answers the kernel for the brake. The guard starts it.
    #[command(name = crate::act::brake::fanotify::HELPER_COMMAND, hide = true)]
    BrakeHelper(brake_helper::Args),
    /// Turn a CheckpointRestoreOperator resource into our configuration.
    ImportOperator(import_operator::Args),
}

/// Runs the command line of this process; the result is what it exits with.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // Most commands read archives.
    sandbox::hide_memory();
    let common = &cli.common;
    let result = match cli.command {
        Command::Run(args) => run::run(args, common),
        Command::List(args) => list::run(args, common),
        Command::Plan(args) => plan::run(args, common),
        Command::Reclaim(args) => reclaim::run(args, common),
        Command::Pin(args) => common.directories().and_then(|directories| pin::run(&args, &directories)),
        Command::Unpin(args) => common.directories().and_then(|directories| unpin::run(&args, &directories)),
        Command::History(args) => {
            common.audit_path(args.file.as_deref()).and_then(|path| history::run(&args, &path, clock::wall()))
        }
        Command::Top(args) => top::run(&args, common),
        Command::Doctor(args) => doctor::run(&args, common),
        Command::CheckConfig { args, output } => check_config::run(&args, &common.config, output),
        Command::Simulate { args, output } => simulate::run(&args, common, output),
        Command::Brake(args) => brake::run(args, common),
        Command::BrakeHelper(args) => brake_helper::run(&args),
        Command::ImportOperator(args) => import_operator::run(&args),
    };
    result.unwrap_or_else(|error| {
        // Like `head` closing the pipe: nobody is there to read the rest, and that is no failure.
        let broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
            cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
        };
        if error.chain().any(broken_pipe) {
            return ExitCode::SUCCESS;
        }
        eprintln!("checkpoint-guard: {error:#}");
        if error.is::<Misconfigured>() { ExitCode::from(USAGE) } else { ExitCode::from(FAILED) }
    })
}
