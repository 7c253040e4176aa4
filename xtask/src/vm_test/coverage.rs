//! The coverage of each kernel, as its own tests saw it: `tests/fixtures/coverage/<kernel>.tsv`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::machine::Outcome;

/// What a test prints before each row that it found, see `tests/src/coverage.rs`.
const MARK: &str = "COVERAGE\t";

/// Writes the rows that a VM printed to where the tests compare them with.
pub(crate) fn bless(outcome: &Outcome, root: &Path) -> Result<()> {
    let rows: Vec<&str> = outcome.output.lines().filter_map(|line| line.strip_prefix(MARK)).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let series: Vec<&str> = outcome.kernel.split('.').take(2).collect();
    let directory = root.join("tests/fixtures/coverage");
    fs::create_dir_all(&directory)?;
    let file = directory.join(format!("{}.tsv", series.join(".")));
    fs::write(&file, rows.join("\n") + "\n").with_context(|| format!("cannot write {}", file.display()))?;
    println!("wrote {}", file.display());
    Ok(())
}
