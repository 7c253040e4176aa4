//! Reading the audit log again.

use std::fs::File;
use std::io::{self, BufReader};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::file::{hash_of, read_line, sibling};

/// A rotation takes less than a millisecond.
const ROTATED_WITHIN: Duration = Duration::from_millis(50);
/// So many missing files are told of: somebody may have made one with an absurd number.
const MISSING_MAX: usize = 100;

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
#[error("{path:?}{}: {what}", line_of(.line))]
pub struct Broken {
    /// The file.
    pub path: PathBuf,
    /// From 1; zero: the file itself is meant.
    pub line: usize,
    /// What is wrong there.
    pub what: &'static str,
}

fn line_of(line: &usize) -> String {
    if *line == 0 { String::new() } else { format!(", line {line}") }
}

/// Every line of the log at `path` and of its older files, oldest first. Lines that are no JSON are left out;
/// [`verify`] tells of them.
pub fn read(path: &Path) -> Result<Vec<Entry>, HistoryError> {
    let mut entries = Vec::new();
    each_line(&files(path)?, |_, _, line| {
        if let Ok(value) = serde_json::from_slice(line) {
            entries.push(Entry { value });
        }
        ControlFlow::Continue(())
    })?;
    Ok(entries)
}

/// The name of the checkpoint whose deletion was announced under `id`; `None` when no line says so.
pub(super) fn announced(path: &Path, id: u64) -> Result<Option<String>, HistoryError> {
    #[derive(Deserialize)]
    struct Announced {
        id: u64,
        phase: Option<String>,
        name: Option<String>,
    }
    let mut name = None;
    each_line(&files(path)?, |_, _, line| match serde_json::from_slice::<Announced>(line) {
        Ok(line) if line.id == id && line.phase.as_deref() == Some("intent") => {
            name = line.name;
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    })?;
    Ok(name)
}

/// Follows the chain of hashes from the oldest line on, and tells how many lines there are and where it breaks: at a line
/// that does not fit, where ids are missing, and where an older file is.
///
/// The oldest line is taken as it is: what came before it has been rotated away.
pub fn verify(path: &Path) -> Result<(usize, Vec<Broken>), HistoryError> {
    let files = files(path)?;
    let mut count = 0;
    let mut broken = missing(&files, path);
    let mut expected: Option<String> = None;
    let mut last_id = None;
    each_line(&files, |path, number, line| {
        count += 1;
        let value: Option<Value> = serde_json::from_slice(line).ok();
        let prev = value.as_ref().and_then(|value| value["prev"].as_str());
        let id = value.as_ref().and_then(|value| value["id"].as_u64());
        let gap = id.zip(last_id).is_some_and(|(id, last)| id > last + 1);
        let what = match (value.is_some(), prev, &expected) {
            (false, _, _) => Some("not JSON"),
            (true, None, _) => Some("no hash of the line before"),
            (true, Some(prev), Some(expected)) if prev != expected => {
                Some("the line before was changed, or lines are missing before this one")
            }
            _ if gap => Some(
                "ids are missing before this one: lines could not be written, which the guard's own log tells, or they were \
                 taken out and the rest made to fit",
            ),
            _ => None,
        };
        if let Some(what) = what {
            broken.push(Broken { path: path.to_owned(), line: number, what });
        }
        expected = Some(hash_of(line));
        last_id = last_id.max(id);
        ControlFlow::Continue(())
    })?;
    Ok((count, broken))
}

/// The log's files by their numbers, the oldest first; the current one has none.
fn files(path: &Path) -> Result<Vec<(Option<u32>, PathBuf)>, HistoryError> {
    let mut found = list(path)?;
    // In the middle of a rotation a number is missing for an instant.
    if !missing(&found, path).is_empty() {
        std::thread::sleep(ROTATED_WITHIN);
        found = list(path)?;
    }
    Ok(found)
}

fn list(path: &Path) -> Result<Vec<(Option<u32>, PathBuf)>, HistoryError> {
    let failed = |source| HistoryError { path: path.to_owned(), source };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let current = path.file_name().unwrap_or_default();
    let mut found = Vec::new();
    for entry in folder.read_dir().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_type().is_ok_and(|sort| sort.is_file()) {
            continue;
        }
        let name = entry.file_name();
        let number =
            name.as_bytes().strip_prefix(current.as_bytes()).and_then(|rest| rest.strip_prefix(b"."));
        let number = number.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok());
        if let Some(number) = number.filter(|number| sibling(path, *number).file_name() == Some(&name)) {
            found.push((Some(number), sibling(path, number)));
        }
    }
    found.sort_by(|(one, _), (other, _)| other.cmp(one));
    // Right after a rotation there is no current file for an instant.
    if path.exists() || found.is_empty() {
        found.push((None, path.to_owned()));
    }
    Ok(found)
}

/// The older files that are not there although an older one is.
fn missing(files: &[(Option<u32>, PathBuf)], path: &Path) -> Vec<Broken> {
    let numbers: Vec<u32> = files.iter().filter_map(|(number, _)| *number).collect();
    let oldest = numbers.first().copied().unwrap_or(0);
    let gone = (1..oldest).filter(|number| !numbers.contains(number));
    // A rotation that was interrupted leaves one gap, and what is to fill it.
    let gone = gone.skip(usize::from(numbers.contains(&0))).take(MISSING_MAX).map(|number| Broken {
        path: sibling(path, number),
        line: 0,
        what: "it is missing, though an older one is there",
    });
    gone.collect()
}

/// Calls `each` with the file, the number and the bytes of every line, until it has enough.
fn each_line(
    files: &[(Option<u32>, PathBuf)],
    mut each: impl FnMut(&Path, usize, &[u8]) -> ControlFlow<()>,
) -> Result<(), HistoryError> {
    for (_, path) in files {
        let failed = |source| HistoryError { path: path.clone(), source };
        let mut reader = BufReader::new(File::open(path).map_err(failed)?);
        let mut line = Vec::new();
        let mut number = 0;
        while read_line(&mut reader, &mut line).map_err(failed)? {
            number += 1;
            if each(path, number, &line).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}
