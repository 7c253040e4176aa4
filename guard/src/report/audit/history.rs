//! Reading the audit log again.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::Value;

use super::file::{hash_of, read_line, sibling};

/// How many older files are looked for.
const FILES_MAX: u32 = 1000;

/// One line of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// All of it.
    pub value: Value,
}

impl Entry {
    /// Its id, zero when it has none.
    pub fn id(&self) -> u64 {
        self.value["id"].as_u64().unwrap_or(0)
    }

    /// When it was written.
    pub fn time(&self) -> Option<Timestamp> {
        self.text("time")?.parse().ok()
    }

    /// A field that is text.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.value[field].as_str()
    }

    /// A field that is a number.
    pub fn number(&self, field: &str) -> Option<u64> {
        self.value[field].as_u64()
    }
}

/// The log could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the audit log {path:?}: {source}")]
pub struct HistoryError {
    path: PathBuf,
    source: io::Error,
}

/// A place where the chain of hashes does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path:?}, line {line}: {what}")]
pub struct Broken {
    /// The file.
    pub path: PathBuf,
    /// From 1.
    pub line: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// Every line of the log at `path` and of its older files, oldest first. Lines that are no JSON are left out;
/// [`verify`] tells of them.
pub fn read(path: &Path) -> Result<Vec<Entry>, HistoryError> {
    let mut entries = Vec::new();
    each_line(path, |_, _, line| {
        if let Ok(value) = serde_json::from_slice(line) {
            entries.push(Entry { value });
        }
    })?;
    Ok(entries)
}

/// Follows the chain of hashes from the oldest line on, and tells how many lines there are and where it breaks.
///
/// The oldest line is taken as it is: what came before it has been rotated away.
pub fn verify(path: &Path) -> Result<(usize, Vec<Broken>), HistoryError> {
    let mut count = 0;
    let mut broken = Vec::new();
    let mut expected: Option<String> = None;
    each_line(path, |path, number, line| {
        count += 1;
        let value: Option<Value> = serde_json::from_slice(line).ok();
        let prev = value.as_ref().and_then(|value| value["prev"].as_str());
        let what = match (value.is_some(), prev, &expected) {
            (false, _, _) => Some("not JSON"),
            (true, None, _) => Some("no hash of the line before"),
            (true, Some(prev), Some(expected)) if prev != expected => {
                Some("the line before was changed, or lines are missing before this one")
            }
            _ => None,
        };
        if let Some(what) = what {
            broken.push(Broken { path: path.to_owned(), line: number, what });
        }
        expected = Some(hash_of(line));
    })?;
    Ok((count, broken))
}

/// Calls `each` with the file, the number and the bytes of every line, oldest first.
fn each_line(path: &Path, mut each: impl FnMut(&Path, usize, &[u8])) -> Result<(), HistoryError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| HistoryError { path, source }
    };
    let older = (1..FILES_MAX).map(|number| sibling(path, number)).take_while(|path| path.exists());
    let mut files: Vec<PathBuf> = older.collect();
    files.reverse();
    // Right after a rotation there is no current file for an instant.
    if path.exists() || files.is_empty() {
        files.push(path.to_owned());
    }
    for path in files {
        let mut reader = BufReader::new(File::open(&path).map_err(failed(&path))?);
        let mut line = Vec::new();
        let mut number = 0;
        while read_line(&mut reader, &mut line).map_err(failed(&path))? {
            number += 1;
            each(&path, number, &line);
        }
    }
    Ok(())
}
