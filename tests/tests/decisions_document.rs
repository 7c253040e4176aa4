//! The table of docs/DECISIONS.md is what `simulate` prints, and the default order is as good there as it has to be.
//!
//! `UPDATE_DOCS=1 cargo test -p tests --test decisions_document` makes the table anew.

use std::path::PathBuf;

use tests::setting::run;

const BEGIN: &str = "<!-- simulate: made by the tool, tests/tests/decisions_document.rs tells how -->\n";
const END: &str = "<!-- end of simulate -->";

fn path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/DECISIONS.md"))
}

/// The document before the table, the table, and what follows.
fn document() -> (String, String, String) {
    let text = std::fs::read_to_string(path()).expect("it is there");
    let (before, rest) = text.split_once(BEGIN).expect("the table begins");
    let (table, after) = rest.split_once(END).expect("the table ends");
    (before.to_owned(), table.trim().to_owned(), after.to_owned())
}

fn simulate() -> String {
    let output = run(&["simulate", "--nodes", "10", "--days", "7", "--seed", "1", "--markdown"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a table is text").trim().to_owned()
}

/// The cells of each line about a fleet.
fn rows(table: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    table.lines().skip(2).map(cells).collect()
}

#[test]
fn the_default_order_meets_its_goals_in_the_published_table() {
    let (_, table, _) = document();
    let defaults: Vec<_> = rows(&table).into_iter().filter(|row| row[1] == "default").collect();
    assert_eq!(defaults.len(), 6, "one for each fleet");
    for row in defaults {
        let number = |cell: &str| cell.trim_end_matches(" %").parse::<f64>().expect("a number");
        assert!(number(&row[2]) >= 95.0, "value kept: {row:?}");
        assert!(number(&row[4]) <= 1.05, "deleted for each byte needed: {row:?}");
        assert_eq!(row[5], "0", "starved: {row:?}");
    }
}

#[test]
fn the_published_table_is_what_the_tool_prints() {
    let (before, table, after) = document();
    let made = simulate();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path(), format!("{before}{BEGIN}\n{made}\n\n{END}{after}"))
            .expect("docs/ is writable");
    } else {
        assert_eq!(table, made, "UPDATE_DOCS=1 makes the table anew");
    }
}
