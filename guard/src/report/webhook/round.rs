//! [`Round`]: what is posted.

use jiff::Timestamp;
use serde::Serialize;

use crate::report::audit::Deletion;
use crate::report::record::API_VERSION;

/// So many deletions of a round are told one by one; the totals count all.
pub const TOLD_MAX: usize = 100;

/// One plan carried out, as posted.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Round<'a> {
    api_version: &'static str,
    kind: &'static str,
    /// Never the same twice: who gets it twice, because an answer was lost, knows.
    pub id: String,
    /// When it ended.
    pub time: Timestamp,
    /// The node.
    pub node: &'a str,
    /// The filesystem, as metrics call it.
    pub filesystem: &'a str,
    /// The watched directories on it.
    pub directories: &'a [String],
    /// What is available now; `null` when the filesystem did not answer.
    pub available_bytes: Option<u64>,
    /// How many were deleted.
    pub deleted: usize,
    /// How many were tried and not deleted.
    pub not_deleted: usize,
    /// What that freed, as measured.
    pub freed_bytes: u64,
    /// Each, in order, up to [`TOLD_MAX`]: the fields of an outcome in the audit log.
    pub deletions: Vec<Told<'a>>,
}

/// One deletion, with the id it has in the audit log.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Told<'a> {
    /// The id.
    pub audit_id: u64,
    /// The rest.
    #[serde(flatten)]
    pub deletion: Deletion<'a>,
}

impl<'a> Round<'a> {
    /// A round without deletions yet.
    pub fn new(
        node: &'a str,
        filesystem: &'a str,
        directories: &'a [String],
        time: Timestamp,
        available_bytes: Option<u64>,
    ) -> Round<'a> {
        Round {
            api_version: API_VERSION,
            kind: "Round",
            id: format!("{node}-{:x}", time.as_nanosecond()),
            time,
            node,
            filesystem,
            directories,
            available_bytes,
            deleted: 0,
            not_deleted: 0,
            freed_bytes: 0,
            deletions: Vec::new(),
        }
    }

    /// Adds a deletion that was tried; it is not told when there are too many already.
    pub fn add(&mut self, is_deleted: bool, freed_bytes: u64, told: impl FnOnce() -> Told<'a>) {
        match is_deleted {
            true => self.deleted += 1,
            false => self.not_deleted += 1,
        }
        self.freed_bytes = self.freed_bytes.saturating_add(freed_bytes);
        if self.deletions.len() < TOLD_MAX {
            self.deletions.push(told());
        }
    }

    pub(super) fn posted(&self) -> Posted {
        let body = serde_json::to_string(self).expect("texts and numbers are JSON");
        Posted { id: self.id.clone(), body }
    }
}

/// A round as it goes over the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Its `id`.
    pub id: String,
    /// JSON.
    pub body: String,
}
