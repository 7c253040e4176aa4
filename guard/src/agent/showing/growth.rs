//! Who makes the filesystem grow, from two readings of the kernel's ledger.

use std::collections::HashMap;
use std::time::Duration;

use super::{SHOWN_MAX, due, subject};
use crate::agent::clock::monotonic;
use crate::agent::filesystem::Filesystem;
use crate::model::{Bytes, Checkpoint, FileId, Inventory, Monotonic};
use crate::observe::probe::LedgerEntry;
use crate::report::snapshot::{Growth, NamespaceGrowth, Subject, WriterGrowth};

/// What is kept from one reading to the next.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The last reading, and when it was taken.
    before: Option<(Monotonic, HashMap<FileId, Bytes>)>,
    due: Monotonic,
    /// What came of it.
    pub(super) told: Option<Growth>,
}

/// Reads the ledger anew, unless that was just done.
pub(super) fn renew(fs: &mut Filesystem) {
    let began = monotonic();
    let Some(watched) = fs.watched.as_ref().filter(|_| began >= fs.showing.growth.due) else { return };
    let Ok(entries) = watched.ledger() else { return };
    let bytes = entries.iter().map(|entry| (entry.file, entry.bytes)).collect();
    if let Some((at, before)) = fs.showing.growth.before.replace((began, bytes)) {
        let told = growth(&entries, &before, began.since(at), fs.catalog.inventory());
        fs.showing.growth.told = Some(told);
    }
    fs.showing.growth.due = due(began);
}

/// Who made what grow since the last reading, `elapsed` ago.
fn growth(
    entries: &[LedgerEntry],
    before: &HashMap<FileId, Bytes>,
    elapsed: Duration,
    inventory: &Inventory,
) -> Growth {
    let grown = entries.iter().filter_map(|entry| {
        let before = before.get(&entry.file).copied().unwrap_or_default();
        let bytes = entry.bytes.saturating_sub(before);
        let rate = (bytes.0 as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE)) as u64;
        (rate > 0).then_some((entry, rate))
    });
    let mut grown: Vec<_> = grown.collect();
    grown.sort_by(|(a, a_rate), (b, b_rate)| b_rate.cmp(a_rate).then(a.file.cmp(&b.file)));
    let mut whose: HashMap<FileId, Option<&Checkpoint>> =
        grown.iter().map(|(it, _)| (it.file, None)).collect();
    for checkpoint in inventory.checkpoints.iter().filter(|_| !grown.is_empty()) {
        if let Some(found) = whose.get_mut(&checkpoint.file) {
            *found = Some(checkpoint);
        }
    }
    let mut namespaces: Vec<NamespaceGrowth> = Vec::new();
    let mut writers = Vec::new();
    for (entry, rate) in grown {
        let of = whose[&entry.file].map(|checkpoint| subject(inventory, checkpoint));
        let namespace = of.as_ref().and_then(|of| of.namespace.clone());
        match namespaces.iter_mut().find(|known| known.namespace == namespace) {
            Some(known) => {
                known.bytes_per_second += rate;
                known.bytes += entry.bytes.0;
            }
            None => {
                let bytes = entry.bytes.0;
                namespaces.push(NamespaceGrowth { namespace, bytes_per_second: rate, bytes });
            }
        }
        if writers.len() < SHOWN_MAX {
            writers.push(writer(entry, of, rate));
        }
    }
    namespaces.sort_by_key(|it| std::cmp::Reverse(it.bytes_per_second));
    Growth { namespaces, writers }
}

fn writer(entry: &LedgerEntry, of: Option<Subject>, bytes_per_second: u64) -> WriterGrowth {
    let (pid, comm, bytes) = (entry.writer.pid, entry.writer.comm.clone(), entry.bytes.0);
    let known_by = if of.is_some() { "checkpoint" } else { "nothing" }.to_owned();
    let Subject { namespace, pod, container, .. } = of.unwrap_or_default();
    WriterGrowth { pid, comm, namespace, pod, container, known_by, bytes_per_second, bytes }
}

#[cfg(test)]
#[path = "growth_tests.rs"]
mod tests;
