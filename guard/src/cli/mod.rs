//! One file per command.

pub mod simulate;

/// How a command prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs: stable, documented, `"apiVersion": "checkpoint-guard/v1"`.
    Json,
}
