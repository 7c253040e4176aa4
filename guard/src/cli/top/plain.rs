//! `top --once`: the same in lines, for pipes and for people without a terminal.

use std::io::{self, Write};

use super::words;
use crate::cli::table;
use crate::model::Bytes;
use crate::report::snapshot::{FilesystemSnapshot, Snapshot};

/// Prints a snapshot.
pub(super) fn print(out: &mut impl Write, snapshot: &Snapshot) -> io::Result<()> {
    let dry_run = if snapshot.dry_run { ", dry run" } else { "" };
    let pool = snapshot.pool.as_deref().map_or(String::new(), |pool| format!(", pool {pool}"));
    writeln!(
        out,
        "checkpoint-guard {}, backend {}{pool}{dry_run}, {:.0}",
        snapshot.version, snapshot.backend, snapshot.time
    )?;
    if snapshot.filesystems.is_empty() {
        writeln!(out, "no filesystem is watched: its directories are not there (yet)")?;
    }
    snapshot.filesystems.iter().try_for_each(|it| filesystem(out, it, snapshot))
}

fn filesystem(out: &mut impl Write, it: &FilesystemSnapshot, snapshot: &Snapshot) -> io::Result<()> {
    let line = |out: &mut dyn Write, name: &str, value: &str| writeln!(out, "  {name:<14} {value}");
    writeln!(out, "\n{}", words::printable(&it.directories.join(", ")))?;
    line(out, "level", it.level.as_str())?;
    let (available, size) = (Bytes(it.available_bytes), Bytes(it.size_bytes));
    let share = words::share(it.available_bytes, it.size_bytes);
    line(out, "available", &format!("{available} ({share}) of {size}"))?;
    if let Some(inodes) = it.inodes {
        let share = words::share(inodes.free, inodes.total);
        line(out, "inodes free", &format!("{} ({share}) of {}", inodes.free, inodes.total))?;
    }
    line(out, "headroom", &words::headroom(it))?;
    for threshold in &it.thresholds {
        line(out, "threshold", &words::threshold(threshold))?;
    }
    line(out, "filling", &words::rate(it.fill_bytes_per_second))?;
    line(out, "checkpoints", &format!("{} holding {}", it.checkpoints, Bytes(it.checkpoint_bytes)))?;
    if it.unreclaimable_bytes > 0 {
        line(
            out,
            "unreclaimable",
            &format!("{} are needed and nothing may go for it", Bytes(it.unreclaimable_bytes)),
        )?;
    }
    if let Some(brake) = &it.brake {
        let state = if brake.is_engaged { "ENGAGED: writers get ENOSPC" } else { "released" };
        line(out, "brake", &format!("{} ({state})", brake.mechanism))?;
    }
    let silent = snapshot.time.duration_since(it.observed_at).as_secs();
    if silent >= super::screen::STALE_SECONDS {
        line(out, "looked at", &format!("{silent} s ago: busy deleting, or statfs hangs"))?;
    }
    growth(out, it)?;
    if let Some(next) = &it.next {
        writeln!(out, "\n{}", words::next_title(Some(next)))?;
        if !next.victims.is_empty() {
            let mut rows = table::new(vec!["NEXT", "CHECKPOINT OF", "AGE", "SIZE", "BECAUSE"]);
            for victim in &next.victims {
                let owner = words::printable(&victim.of.owner());
                let size = Bytes(victim.size_bytes).to_string();
                rows.add_row(vec![
                    words::rank(victim),
                    owner,
                    table::age(victim.age_seconds),
                    size,
                    victim.reason.clone(),
                ]);
            }
            writeln!(out, "{rows}")?;
        }
    }
    if !it.deletions.is_empty() {
        let mut rows = table::new(vec!["DELETED", "CHECKPOINT OF", "FREED", "BY", "BECAUSE"]);
        for deletion in &it.deletions {
            let time = format!("{:.0}{}", deletion.time, if deletion.dry_run { " (dry run)" } else { "" });
            let owner = words::printable(&deletion.of.owner());
            let freed = Bytes(deletion.freed_bytes).to_string();
            rows.add_row(vec![time, owner, freed, deletion.trigger.clone(), deletion.reason.clone()]);
        }
        writeln!(out, "\n{rows}")?;
    }
    Ok(())
}

fn growth(out: &mut impl Write, it: &FilesystemSnapshot) -> io::Result<()> {
    let Some(growth) = &it.growth else { return Ok(()) };
    if growth.namespaces.is_empty() {
        return writeln!(out, "  {:<14} nobody writes", "writers");
    }
    let mut rows = table::new(vec!["NAMESPACE", "GROWS BY"]);
    for namespace in &growth.namespaces {
        let name = words::printable(namespace.namespace.as_deref().unwrap_or("?"));
        rows.add_row(vec![name, words::rate(namespace.bytes_per_second)]);
    }
    writeln!(out, "\n{rows}")?;
    let mut rows = table::new(vec!["WRITER", "WRITES FOR", "BY"]);
    for writer in &growth.writers {
        let rate = words::rate(writer.bytes_per_second);
        rows.add_row(vec![words::writer(writer), words::written_for(writer), rate]);
    }
    writeln!(out, "\n{rows}")
}
