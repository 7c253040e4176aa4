//! The report for people: tables that fit the terminal, colour only on one.

use std::fmt::Write;

use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table, presets};

use super::{Amount, PoolReport, Report, Shown, ThresholdReport};
use crate::model::{Bytes, Signal};

/// Narrower than this wraps into illegibility, wider is no easier to read.
const WIDTH: std::ops::RangeInclusive<u16> = 80..=120;

pub(super) fn render(report: &Report) -> String {
    let valid = report.pools.iter().all(|pool| pool.problems.is_empty());
    let verdict = if valid { "is valid" } else { "is valid, but the daemon would not start with it here" };
    let mut text = format!("{} {verdict}\n", report.file);
    for pool in &report.pools {
        render_pool(&mut text, pool);
    }
    text
}

fn render_pool(text: &mut String, pool: &PoolReport) {
    let title = pool.pool.as_ref().map_or("Without a pool".to_owned(), |name| format!("Pool {name}"));
    let _ = writeln!(text, "\n{title}\n");
    let mut settings = table(&["key", "value", "from"]);
    for setting in &pool.settings {
        let from = match &setting.origin {
            Some(place) => Cell::new(format!("{}:{}", file_name(&place.file), place.line)).fg(Color::Green),
            None => Cell::new("default").fg(Color::DarkGrey),
        };
        settings.add_row([Cell::new(&setting.key), Cell::new(&setting.value), from]);
    }
    let _ = writeln!(text, "{settings}\n");

    let mut thresholds = table(&["signal", "on", "soft", "hard", "critical", "kubelet hard", "kubelet soft"]);
    for row in &pool.thresholds {
        thresholds.add_row(threshold(row));
    }
    let _ = writeln!(text, "{thresholds}\n");
    if let Some(kubelet) = pool.kubelet.as_ref().filter(|kubelet| !kubelet.thresholds.is_empty()) {
        let mut rows = table(&["kubelet", "less than", "for", "reclaims", "from"]);
        for row in &kubelet.thresholds {
            let or_dash = |part: &Option<String>| part.clone().unwrap_or("-".to_owned());
            rows.add_row([
                Cell::new(format!("{} {}", row.map, row.signal)),
                Cell::new(&row.value),
                Cell::new(or_dash(&row.grace_period)),
                Cell::new(or_dash(&row.minimum_reclaim)),
                match &row.file {
                    Some(file) => Cell::new(file).fg(Color::Green),
                    None => Cell::new("its default").fg(Color::DarkGrey),
                },
            ]);
        }
        let _ = writeln!(text, "{rows}");
    }
    match &pool.kubelet {
        Some(kubelet) if kubelet.files.is_empty() => {
            let _ = writeln!(text, "The kubelet's thresholds are its defaults; its file was not found.\n");
        }
        Some(kubelet) => {
            let _ = writeln!(
                text,
                "The kubelet's thresholds are from {}; it collects images from {}% used down to {}%.\n",
                kubelet.files.join(", "),
                kubelet.image_gc_high_percent,
                kubelet.image_gc_low_percent,
            );
        }
        None => text.push_str("The kubelet's thresholds are not known.\n\n"),
    }

    if !pool.protection.is_empty() {
        let mut rules = table(&["namespace", "pod", "container", "protection", "rule, most specific first"]);
        for rule in &pool.protection {
            let any = |part: &Option<String>| part.clone().unwrap_or("any".to_owned());
            rules.add_row([
                Cell::new(any(&rule.namespace)),
                Cell::new(any(&rule.pod)),
                Cell::new(any(&rule.container)),
                protection(rule.protection, rule.never),
                Cell::new(&rule.source),
            ]);
        }
        let _ = writeln!(text, "{rules}\n");
    }
    for owner in &pool.owners {
        let _ = writeln!(text, " {}", owner.owner);
        let mut rules = table(&["rule", "value", "by"]);
        let shown = protection(owner.protection, owner.never);
        rules.add_row([Cell::new("protection"), shown, Cell::new(&owner.protection_source)]);
        for limit in &owner.retention {
            rules.add_row([limit.limit, &limit.value, &limit.source]);
        }
        let _ = writeln!(text, "{rules}\n");
    }
    for (kind, list) in [("note", &pool.notes), ("PROBLEM", &pool.problems)] {
        for shown in list {
            let _ = writeln!(text, "{kind}: {}", sentence(shown));
        }
    }
}

fn threshold(row: &ThresholdReport) -> Vec<String> {
    let shown =
        |amount: &Option<Amount>| amount.as_ref().map_or("-".to_owned(), |amount| amount.text.clone());
    let on = match (&row.directory, row.total, row.signal) {
        (Some(directory), Some(bytes), Signal::Available) => format!("{directory} ({})", Bytes(bytes)),
        (Some(directory), Some(inodes), Signal::InodesFree) => format!("{directory} ({inodes} inodes)"),
        _ => "as written".to_owned(),
    };
    vec![
        row.signal.to_string(),
        on,
        shown(&row.soft),
        shown(&row.hard),
        shown(&row.critical),
        shown(&row.kubelet_hard),
        shown(&row.kubelet_soft),
    ]
}

/// 100 is a different thing from 99, and looks it.
fn protection(value: u8, never: bool) -> Cell {
    if never { Cell::new("100 never").fg(Color::Red) } else { Cell::new(value) }
}

fn sentence(shown: &Shown) -> String {
    let place = match (&shown.file, shown.line) {
        (Some(file), Some(line)) => format!("{file}:{line}: "),
        (Some(file), None) => format!("{file}: "),
        _ => String::new(),
    };
    format!("{place}{}: {}", shown.key, shown.message)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    let terminal = if table.is_tty() { table.width().unwrap_or(100) } else { 100 };
    table.set_width(terminal.clamp(*WIDTH.start(), *WIDTH.end()));
    table.set_header(
        header.iter().map(|title| Cell::new(title.to_uppercase()).add_attribute(Attribute::Bold)),
    );
    table
}
