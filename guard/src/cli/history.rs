//! `checkpoint-guard history`: what was deleted, when and why.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use comfy_table::{Table, presets};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::cli::table::fit;
use crate::model::Bytes;
use crate::report::audit::{Entry, read, verify};
use crate::report::record::API_VERSION;

/// The audit log, readable: what was deleted, when and why.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only what happened since then: a time (2026-01-31T12:00:00Z) or how long ago (90s, 30m, 12h, 7d, 2w).
    #[arg(long, value_name = "WHEN", value_parser = parse_since)]
    pub since: Option<Since>,
    /// Only deletions in this namespace.
    #[arg(long)]
    pub namespace: Option<String>,
    /// Only the last so many.
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
    /// Check that no line was changed, taken out or slipped in.
    #[arg(long)]
    pub verify: bool,
    /// Another log than the configured one.
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// How to print it.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people: deletions by their outcome, and what else happened.
    #[default]
    Table,
    /// For programs: every line of the log as it is.
    Json,
}

/// A point in time, or a distance from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// That very time.
    At(Timestamp),
    /// So long ago.
    Ago(SignedDuration),
}

impl Since {
    fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Since::At(time) => time,
            Since::Ago(distance) => now.saturating_sub(distance).unwrap_or(Timestamp::MIN),
        }
    }
}

/// Prints the log at `path`, which is the configured one.
///
/// Exit code 1 when `--verify` finds a line that does not fit.
pub fn run(args: &Args, path: &Path, now: Timestamp) -> anyhow::Result<ExitCode> {
    let path = args.file.as_deref().unwrap_or(path);
    if args.verify {
        return run_verify(path);
    }
    let entries = select(read(path)?, args, now);
    let mut out = io::stdout().lock();
    // Nobody reads on (`| head`): nothing to complain about.
    let _ = match args.output {
        Output::Json => {
            let items: Vec<_> = entries.iter().map(|entry| &entry.value).collect();
            writeln!(out, "{:#}", json!({ "apiVersion": API_VERSION, "kind": "History", "items": items }))
        }
        Output::Table => writeln!(out, "{}", table(&entries)),
    };
    Ok(ExitCode::SUCCESS)
}

fn run_verify(path: &Path) -> anyhow::Result<ExitCode> {
    let (count, broken) = verify(path)?;
    for broken in &broken {
        eprintln!("checkpoint-guard: {broken}");
    }
    if broken.is_empty() {
        println!("{count} lines, each fits the one before");
        return Ok(ExitCode::SUCCESS);
    }
    println!("{count} lines, {} do not fit the one before", broken.len());
    Ok(ExitCode::FAILURE)
}

/// What the arguments ask for, in the order of the log. For people an intent is told by its outcome; one without
/// any (a crash) stands for itself.
fn select(entries: Vec<Entry>, args: &Args, now: Timestamp) -> Vec<Entry> {
    let since = args.since.map(|since| since.resolve(now));
    let ended: std::collections::HashSet<u64> =
        entries.iter().filter(|entry| entry.text("phase") == Some("outcome")).map(Entry::id).collect();
    let told = |entry: &Entry| {
        args.output == Output::Json || entry.text("phase") != Some("intent") || !ended.contains(&entry.id())
    };
    let recent = |entry: &Entry| since.is_none_or(|since| entry.time().is_some_and(|time| time >= since));
    let in_namespace = |entry: &Entry| {
        args.namespace.as_deref().is_none_or(|namespace| entry.text("namespace") == Some(namespace))
    };
    let mut entries: Vec<Entry> =
        entries.into_iter().filter(|entry| told(entry) && recent(entry) && in_namespace(entry)).collect();
    if let Some(last) = args.last {
        entries.drain(..entries.len().saturating_sub(last));
    }
    entries
}

fn table(entries: &[Entry]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "TIME",
        "ID",
        "WHAT",
        "CHECKPOINT OF",
        "FREED",
        "TRIGGER",
        "WHY",
    ]);
    fit(&mut table);
    for entry in entries {
        table.add_row([
            entry.time().map(|time| format!("{time:.0}")).unwrap_or_default(),
            entry.id().to_string(),
            what(entry),
            owner(entry),
            entry.number("freedBytes").map(|bytes| Bytes(bytes).to_string()).unwrap_or_default(),
            entry.text("trigger").unwrap_or_default().to_owned(),
            printable(entry.text("error").or(entry.text("reason")).unwrap_or_default()),
        ]);
    }
    table
}

/// One word, or two.
fn what(entry: &Entry) -> String {
    let text = |field: &str| printable(entry.text(field).unwrap_or("?"));
    match entry.text("kind") {
        Some("Deletion") => entry.text("outcome").map_or_else(|| "begun, no end".to_owned(), printable),
        Some("Pressure") => format!("{} to {}", text("from"), text("to")),
        Some("Brake") if entry.value["engaged"] == true => "brake on".to_owned(),
        Some("Brake") => "brake off".to_owned(),
        Some(kind @ ("Command" | "Webhook")) => format!("{} {}", kind.to_lowercase(), text("outcome")),
        Some("Configuration") if entry.value["accepted"] == true => "configuration".to_owned(),
        Some("Configuration") => "configuration refused".to_owned(),
        other => printable(&other.unwrap_or("?").to_lowercase()),
    }
}

/// `namespace/pod/container`; the file's name where nobody knows.
fn owner(entry: &Entry) -> String {
    match (entry.text("namespace"), entry.text("pod"), entry.text("container")) {
        (Some(namespace), Some(pod), Some(container)) => printable(&format!("{namespace}/{pod}/{container}")),
        (Some(namespace), Some(pod), None) => printable(&format!("{namespace}/{pod}")),
        _ => printable(entry.text("name").unwrap_or_default()),
    }
}

/// Without what would move the cursor: names come from whoever may write into the directory.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn parse_since(text: &str) -> Result<Since, String> {
    if let Ok(time) = text.parse() {
        return Ok(Since::At(time));
    }
    let refuse = || format!("{text:?} is no time; write 2026-01-31T12:00:00Z, or how long ago: 30m, 12h, 7d");
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(refuse)?;
    let (number, unit) = text.split_at(digits);
    let number: i64 = number.parse().map_err(|_| refuse())?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => return Err(refuse()),
    };
    number
        .checked_mul(seconds)
        .map(|seconds| Since::Ago(SignedDuration::from_secs(seconds)))
        .ok_or_else(refuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Vec<Entry> {
        let line = |id: u64, hour: u32, more: serde_json::Value| {
            let mut value =
                json!({ "id": id, "time": format!("2026-01-01T{hour:02}:00:00Z"), "kind": "Deletion" });
            value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            Entry { value }
        };
        vec![
            line(1, 1, json!({ "phase": "intent", "namespace": "team", "name": "a.tar", "trigger": "hard" })),
            line(
                1,
                1,
                json!({ "phase": "outcome", "outcome": "deleted", "namespace": "team", "pod": "web",
                    "container": "app", "freedBytes": 2048, "trigger": "hard", "reason": "oldest" }),
            ),
            line(2, 2, json!({ "phase": "intent", "namespace": "team-prod", "name": "b\u{1b}[2J.tar" })),
            line(3, 3, json!({ "kind": "Pressure", "from": "hard", "to": "normal" })),
        ]
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Args), expect: &[u64]) {
        let output = Output::Table;
        let mut args = Args { since: None, namespace: None, last: None, verify: false, file: None, output };
        change(&mut args);
        let ids: Vec<u64> =
            select(log(), &args, "2026-01-01T04:00:00Z".parse().unwrap()).iter().map(Entry::id).collect();
        assert_eq!(ids, expect);
    }

    #[test]
    fn the_log_can_be_narrowed_down() {
        check(|_| {}, &[1, 2, 3]);
        check(|args| args.output = Output::Json, &[1, 1, 2, 3]);
        check(|args| args.since = Some(parse_since("2h").unwrap()), &[2, 3]);
        check(|args| args.since = Some(parse_since("2026-01-01T03:00:00Z").unwrap()), &[3]);
        check(|args| args.namespace = Some("team".into()), &[1]);
        check(|args| args.last = Some(1), &[3]);
        check(|args| args.last = Some(100), &[1, 2, 3]);
    }

    #[test]
    fn a_row_says_what_happened_to_whom_and_never_moves_the_cursor() {
        let text = table(&log()[1..]).to_string();
        assert!(
            text.contains("deleted") && text.contains("team/web/app") && text.contains("2.00 KiB"),
            "{text}"
        );
        assert!(text.contains("begun, no end") && text.contains("hard to normal"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn times_are_points_or_distances() {
        assert_eq!(parse_since("7d"), Ok(Since::Ago(SignedDuration::from_hours(7 * 24))));
        for bad in ["7", "d", "7 days", "-1h", "yesterday", "", "9223372036854775807w"] {
            assert!(parse_since(bad).is_err(), "{bad}");
        }
    }
}
