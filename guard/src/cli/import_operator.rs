//! `import-operator`: a CheckpointRestoreOperator resource as our TOML.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::config::import_operator;

/// Print the configuration that does what a CheckpointRestoreOperator resource asks for.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The resource as YAML or JSON, as `kubectl get checkpointrestoreoperator -o yaml` prints it; `-` reads it
    /// from standard input.
    pub file: PathBuf,
}

/// Prints the TOML; what differs from the operator is in its comments.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let shown = args.file.display();
    let yaml = if args.file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(&args.file)
    }
    .with_context(|| format!("cannot read {shown}"))?;
    let toml = import_operator(&yaml).with_context(|| format!("cannot import {shown}"))?;
    std::io::stdout().write_all(toml.as_bytes()).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
