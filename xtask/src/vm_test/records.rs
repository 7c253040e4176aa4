//! What the tests of each kernel saw and say in rows: `tests/fixtures/<subject>/<kernel>.tsv`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::machine::Outcome;

/// What a test prints before each row, and the subject: see `tests/src/coverage.rs` and `reaction.rs`.
const SUBJECTS: [(&str, &str); 2] = [("COVERAGE\t", "coverage"), ("REACTION\t", "reaction")];

/// Writes the rows that a VM printed to where the tests and reports look for them.
pub(crate) fn bless(outcome: &Outcome, root: &Path) -> Result<()> {
    let series: Vec<&str> = outcome.kernel.split('.').take(2).collect();
    for (mark, subject) in SUBJECTS {
        let rows: Vec<&str> = outcome.output.lines().filter_map(|line| line.strip_prefix(mark)).collect();
        if rows.is_empty() {
            continue;
        }
        let directory = root.join("tests/fixtures").join(subject);
        fs::create_dir_all(&directory)?;
        let file = directory.join(format!("{}.tsv", series.join(".")));
        fs::write(&file, rows.join("\n") + "\n")
            .with_context(|| format!("cannot write {}", file.display()))?;
        println!("wrote {}", file.display());
    }
    Ok(())
}
