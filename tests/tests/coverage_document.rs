//! The table of docs/KERNEL.md is what the kernels showed (`tests/fixtures/coverage`). `UPDATE_DOCS=1` writes it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use tests::coverage::{Row, Seen, TRIALS, directory};

const BEGIN: &str = "<!-- coverage: made from tests/fixtures/coverage -->\n";
const END: &str = "<!-- end of coverage -->";

/// Kernel series to its rows, the oldest kernel first.
fn kernels() -> Vec<(String, Vec<Row>)> {
    let mut kernels: Vec<(String, Vec<Row>)> = std::fs::read_dir(directory())
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let rows =
                text.lines().map(|line| Row::parse(line).unwrap_or_else(|| panic!("{path:?}: {line}")));
            (path.file_stem().unwrap().to_str().unwrap().to_owned(), rows.collect())
        })
        .collect();
    let number = |series: &str| -> Vec<u32> { series.split('.').map(|part| part.parse().unwrap()).collect() };
    kernels.sort_by_key(|(series, _)| number(series));
    kernels
}

/// What most kernels show, then those that differ.
fn cell(seen: &[(&str, Seen)]) -> String {
    let mut groups: BTreeMap<Seen, Vec<&str>> = BTreeMap::new();
    for (series, seen) in seen {
        groups.entry(*seen).or_default().push(series);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(seen, kernels)| (std::cmp::Reverse(kernels.len()), *seen));
    let mut text = String::new();
    for (at, (seen, kernels)) in groups.iter().enumerate() {
        if at == 0 {
            text.push_str(seen.as_str());
        } else {
            let _ = write!(text, "; {}: {}", kernels.join(", "), seen.as_str());
        }
    }
    text
}

fn table(kernels: &[(String, Vec<Row>)]) -> String {
    let mut by_place: BTreeMap<(&str, &str), Vec<(&str, &Row)>> = BTreeMap::new();
    for (series, rows) in kernels {
        for row in rows {
            by_place.entry((&row.backend, &row.filesystem)).or_default().push((series, row));
        }
    }
    let mut text = String::new();
    let places: Vec<_> = by_place.keys().collect();
    for filesystem in ["ext4", "xfs", "btrfs", "tmpfs", "overlay"] {
        let backends: Vec<&str> =
            places.iter().filter(|(_, it)| *it == filesystem).map(|(it, _)| *it).collect();
        if backends.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n### {filesystem}\n\n| | {} |", backends.join(" | "));
        let _ = writeln!(text, "| --- |{}", " --- |".repeat(backends.len()));
        for (at, (name, _)) in TRIALS.iter().enumerate() {
            let cells = backends.iter().map(|backend| {
                let rows = &by_place[&(*backend, filesystem)];
                cell(&rows.iter().map(|(series, row)| (*series, row.seen[at])).collect::<Vec<_>>())
            });
            let _ = writeln!(text, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
        }
        let tried = backends.iter().map(|backend| {
            let series: Vec<&str> =
                by_place[&(*backend, filesystem)].iter().map(|(series, _)| *series).collect();
            series.join(", ")
        });
        let _ = writeln!(text, "| *kernels tried* | {} |", tried.collect::<Vec<_>>().join(" | "));
    }
    text
}

#[test]
fn the_document_says_what_the_kernels_showed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/KERNEL.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (before, rest) =
        document.split_once(BEGIN).expect("docs/KERNEL.md has a mark where the table begins");
    let (_, after) = rest.split_once(END).expect("docs/KERNEL.md has a mark where the table ends");
    let expect = format!("{before}{BEGIN}{}\n{END}{after}", table(&kernels()));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expect).unwrap();
    }
    let document = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        document, expect,
        "docs/KERNEL.md is not what tests/fixtures/coverage says: UPDATE_DOCS=1 writes it"
    );
}

#[test]
fn a_cell_says_what_most_kernels_show_and_which_differ() {
    assert_eq!(cell(&[("5.10", Seen::Exactly), ("6.1", Seen::Exactly)]), "exact");
    let seen = [
        ("5.10", Seen::NotAtAll),
        ("6.1", Seen::NotAtAll),
        ("6.12", Seen::Exactly),
        ("7.3", Seen::Exactly),
        ("7.4", Seen::Exactly),
    ];
    assert_eq!(cell(&seen), "exact; 5.10, 6.1: statfs");
}
