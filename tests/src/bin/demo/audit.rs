//! The audit log, read while it grows.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use guard::model::Bytes;
use serde_json::Value;

/// A deletion that was carried out.
#[derive(Clone, Debug)]
pub(crate) struct Deleted {
    pub name: String,
    pub namespace: String,
    pub trigger: String,
    pub reason: String,
    /// What it held: beside writers, less than that shows as more available.
    pub held: Bytes,
    pub available_before: Bytes,
}

/// Follows one audit log. The demo writes less than a file of it, so it is never rotated.
#[derive(Debug)]
pub(crate) struct AuditLog {
    path: PathBuf,
    read: u64,
}

impl AuditLog {
    pub(crate) fn follow(path: &Path) -> AuditLog {
        AuditLog { path: path.to_owned(), read: 0 }
    }

    /// The deletions carried out since the last call.
    pub(crate) fn deletions(&mut self) -> io::Result<Vec<Deleted>> {
        Ok(self.new_records()?.iter().filter_map(deleted).collect())
    }

    fn new_records(&mut self) -> io::Result<Vec<Value>> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let length = file.metadata()?.len();
        let mut bytes = vec![0; length.saturating_sub(self.read) as usize];
        file.read_exact_at(&mut bytes, self.read)?;
        // Space that is set aside reads as zeros; a line is whole once its newline is there.
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let whole = bytes[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        self.read += whole as u64;
        let lines = bytes[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).map_err(io::Error::other)).collect()
    }
}

fn deleted(record: &Value) -> Option<Deleted> {
    if record["kind"] != "Deletion" || record["phase"] != "outcome" || record["outcome"] != "deleted" {
        return None;
    }
    let text = |key: &str| record[key].as_str().unwrap_or("?").to_owned();
    let bytes = |key: &str| Bytes(record[key].as_u64().unwrap_or(0));
    Some(Deleted {
        name: text("name"),
        namespace: text("namespace"),
        trigger: text("trigger"),
        reason: text("reason"),
        held: bytes("sizeBytes"),
        available_before: bytes("availableBeforeBytes"),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn whole_lines_are_read_once_and_the_space_set_aside_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let mut log = AuditLog::follow(&path);
        assert!(log.deletions().unwrap().is_empty(), "not there yet");

        let record = |name: &str, outcome: &str| {
            format!(
                r#"{{"kind":"Deletion","phase":"outcome","outcome":"{outcome}","name":"{name}","sizeBytes":7}}"#
            )
        };
        let (first, second) = (record("a", "deleted"), record("b", "spared"));
        std::fs::write(&path, format!("{first}\n{}", &second[..10])).unwrap();
        let names = |log: &mut AuditLog| -> Vec<_> {
            log.deletions().unwrap().into_iter().map(|deleted| (deleted.name, deleted.held.0)).collect()
        };
        assert_eq!(names(&mut log), [("a".to_owned(), 7)]);

        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        writeln!(file, "{}\n{}", &second[10..], record("c", "deleted")).unwrap();
        file.write_all(&[0; 4096]).unwrap();
        assert_eq!(names(&mut log), [("c".to_owned(), 7)]);
        assert!(names(&mut log).is_empty());
    }
}
