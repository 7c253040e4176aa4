//! `doctor --fix-permissions`: takes checkpoints out of the reach of others.

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use crate::act::permissions::{Sealed, Unsealed, seal, seal_directory};
use crate::cli::top::printable;
use crate::cli::{FAILED, Output, node};
use crate::config::Config;
use crate::report::record::API_VERSION;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    api_version: &'static str,
    kind: &'static str,
    items: Vec<Item>,
}

/// What was changed, or had to stay.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    path: String,
    /// As chmod(1) takes it; `null` where nothing was changed.
    from: Option<String>,
    to: Option<String>,
    /// Why it stays as it is.
    error: Option<String>,
}

impl Item {
    /// `None` when there was nothing to do.
    fn new(path: PathBuf, sealed: Result<Sealed, Unsealed>) -> Option<Item> {
        let path = path.display().to_string();
        match sealed {
            Ok(Sealed::Already) => None,
            Ok(Sealed::Changed { from, to }) => {
                let (from, to) = (Some(format!("{from:04o}")), Some(format!("{to:04o}")));
                Some(Item { path, from, to, error: None })
            }
            Err(why) => Some(Item { path, from: None, to: None, error: Some(why.to_string()) }),
        }
    }
}

/// Seals the configured directories, then the checkpoints in them.
pub(super) fn run(config: &Config, output: Output) -> anyhow::Result<ExitCode> {
    let items = seal_all(config)?;
    let refused = items.iter().filter(|item| item.error.is_some()).count();
    let mut out = std::io::stdout().lock();
    match output {
        Output::Json => {
            let document = Document { api_version: API_VERSION, kind: "PermissionChangeList", items };
            serde_json::to_writer_pretty(&mut out, &document)?;
            writeln!(out)?;
        }
        Output::Table => {
            for item in &items {
                let path = printable(&item.path);
                match (&item.from, &item.to, &item.error) {
                    (Some(from), Some(to), _) => writeln!(out, "{path}: {from} -> {to}")?,
                    (.., error) => {
                        writeln!(out, "{path}: left as it is: {}", error.as_deref().unwrap_or_default())?;
                    }
                }
            }
            writeln!(out, "{} changed, {refused} left as they are", items.len() - refused)?;
        }
    }
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn seal_all(config: &Config) -> anyhow::Result<Vec<Item>> {
    let mut items = Vec::new();
    for filesystem in node::take(config)? {
        for dir in &filesystem.dirs {
            items.extend(Item::new(dir.path().to_owned(), seal_directory(dir.as_fd())));
        }
        let inventory = &filesystem.inventory;
        for checkpoint in &inventory.checkpoints {
            let dir = &filesystem.dirs[usize::from(checkpoint.directory)];
            let sealed = seal(dir.as_fd(), &checkpoint.name, checkpoint.kind, checkpoint.file);
            // One that has gone meanwhile is nobody's to read.
            if sealed == Err(Unsealed::Gone) {
                continue;
            }
            items.extend(Item::new(inventory.directory_of(checkpoint).join(&*checkpoint.name), sealed));
        }
    }
    Ok(items)
}
