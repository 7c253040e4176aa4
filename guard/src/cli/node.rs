//! What this node holds right now, looked at without the daemon.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use crate::act::checkpoint_dir::{CheckpointDir, OpenError};
use crate::agent::clock::moment;
use crate::agent::cluster;
use crate::cli::Misconfigured;
use crate::config::{ASSUMED_WRITE_SPEED, Config, DirectoryConfig, Layout};
use crate::decide::{Census, census::Follows};
use crate::model::{Inventory, Observation, Policy, PressurePolicy};
use crate::observe::archive;
use crate::observe::catalog::{Catalog, Holds, Reading};
use crate::observe::filesystem::observe;
use crate::observe::scan;
use crate::report::record::CheckpointRecord;

/// One filesystem with watched directories on it.
pub(super) struct Filesystem {
    /// In the order of [`Inventory::directories`].
    pub(super) dirs: Vec<CheckpointDir>,
    pub(super) inventory: Inventory,
    pub(super) seen: Observation,
    /// The thresholds on this filesystem.
    pub(super) thresholds: PressurePolicy,
}

impl Filesystem {
    pub(super) fn directories(&self) -> Vec<String> {
        self.inventory.directories.iter().map(|path| path.display().to_string()).collect()
    }

    /// What it is called for people: its first directory.
    pub(super) fn name(&self) -> &Path {
        self.inventory.directories.first().map_or(Path::new(""), PathBuf::as_path)
    }
}

/// Opens, scans and reads every configured directory that is there, grouped by filesystem.
///
/// # Errors
/// A directory that is required cannot be opened or read.
pub(super) fn take(config: &Config) -> anyhow::Result<Vec<Filesystem>> {
    let mut groups: Vec<(u64, Catalog, Vec<CheckpointDir>)> = Vec::new();
    // What is wrong with it was told when the configuration was read.
    let known = Arc::new(cluster::remembered(&config.kubernetes).unwrap_or_default().cluster);
    for directory in &config.directories {
        let Some(holds) = holds(directory) else { continue };
        let dir = match CheckpointDir::open(&directory.path) {
            Ok(dir) => dir,
            Err(OpenError::Missing(_)) if directory.optional => continue,
            Err(error) => return Err(Misconfigured::new(error).into()),
        };
        let dev = dir.id().dev;
        let place = groups.iter().position(|(other, ..)| *other == dev).unwrap_or_else(|| {
            groups.push((dev, Catalog::default(), Vec::new()));
            groups.len() - 1
        });
        let (_, catalog, dirs) = &mut groups[place];
        catalog.set_cluster(known.clone());
        let index = catalog.add_directory(directory.path.clone());
        catalog.set_now(moment());
        catalog.scan(index, dir.as_fd(), holds).map_err(|errno| {
            anyhow::anyhow!("cannot read directory {:?}: {}", directory.path, errno.desc())
        })?;
        dirs.push(dir);
    }
    groups.into_iter().map(|(_, catalog, dirs)| finish(config, catalog, dirs)).collect()
}

fn holds(directory: &DirectoryConfig) -> Option<Holds> {
    match directory.layout {
        Layout::Archives => Some(Holds::Archives),
        Layout::PodCheckpoints => Some(Holds::PodCheckpoints),
        Layout::Staging => None,
    }
}

/// Reads what the archives say, and measures the filesystem.
fn finish(config: &Config, mut catalog: Catalog, dirs: Vec<CheckpointDir>) -> anyhow::Result<Filesystem> {
    loop {
        let requests = catalog.wanted(64);
        if requests.is_empty() {
            break;
        }
        for request in requests {
            let dir = &dirs[usize::from(request.directory)];
            let reading = match scan::open_file(dir.as_fd(), &request.name) {
                Ok(file) => match archive::read(&file, &archive::Limits::default()) {
                    Ok(contents) => Reading::Contents(Box::new(contents)),
                    Err(_) => Reading::Unreadable,
                },
                Err(nix::errno::Errno::ENOENT) => Reading::Stale,
                Err(_) => Reading::Unreadable,
            };
            catalog.answer((request, reading));
        }
    }
    let first = dirs.first().expect("a group has at least the directory that began it");
    let seen = observe(first).map_err(|errno| {
        anyhow::anyhow!("cannot measure the filesystem of {:?}: {}", first.path(), errno.desc())
    })?;
    let thresholds = config.pressure_on(&seen, ASSUMED_WRITE_SPEED);
    Ok(Filesystem { dirs, inventory: catalog.inventory().clone(), seen, thresholds })
}

/// The records of an inventory's checkpoints, by their index.
pub(super) fn records(inventory: &Inventory, policy: &Policy, now: Timestamp) -> Vec<CheckpointRecord> {
    let census = Census::new(inventory, policy, now);
    inventory
        .checkpoints
        .iter()
        .zip(0u32..)
        .map(|(checkpoint, index)| {
            let follows = census.follows(index);
            let derived: Vec<_> =
                [(Follows::SUPERSEDED, "superseded"), (Follows::LAST, "last"), (Follows::YOUNG, "young")]
                    .into_iter()
                    .filter(|(state, _)| follows.contains(*state))
                    .map(|(_, word)| word)
                    .collect();
            let protection = census.party(index).protected.protection;
            CheckpointRecord::new(checkpoint, inventory.directory_of(checkpoint), now, protection, &derived)
        })
        .collect()
}
