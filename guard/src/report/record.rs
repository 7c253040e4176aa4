//! The records that others read: stable, camelCase, `"apiVersion": "checkpoint-guard/v1"` (DESIGN, section 13).

use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::{Certainty, Checkpoint, Engine, Protection, States};

/// What every record and every audit line begins with.
pub const API_VERSION: &str = "checkpoint-guard/v1";

/// A checkpoint, wherever it appears in JSON. Names, sizes and times only: nothing from inside the archive but
/// whose it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointRecord {
    /// The directory it lies in.
    pub directory: String,
    /// Its name there; bytes that are no UTF-8 are replaced.
    pub name: String,
    /// `null` where not known; so with the next two.
    pub namespace: Option<String>,
    /// The pod.
    pub pod: Option<String>,
    /// The container; `null` for a pod checkpoint.
    pub container: Option<String>,
    /// The pod's UID.
    pub pod_uid: Option<String>,
    /// Who wrote it.
    pub engine: Engine,
    /// How far `namespace`, `pod` and `container` can be relied on.
    pub identity: Certainty,
    /// When it was made.
    pub created_at: Timestamp,
    /// How long ago that was; zero when it lies in the future.
    pub age_seconds: u64,
    /// What deleting it frees.
    pub size_bytes: u64,
    /// 0 to 100.
    pub protection: Protection,
    /// See [`state_words`]; and `protected`, `superseded`, `last`, `young`, which follow from the policy.
    pub states: Vec<&'static str>,
}

impl CheckpointRecord {
    /// The record of `checkpoint` in `directory` as of `now`. `derived` are the states that follow from the policy.
    pub fn new(
        checkpoint: &Checkpoint,
        directory: &Path,
        now: Timestamp,
        protection: Protection,
        derived: &[&'static str],
    ) -> CheckpointRecord {
        let text = |part: &Option<std::sync::Arc<str>>| part.as_deref().map(str::to_owned);
        let identity = &checkpoint.identity;
        let mut states = state_words(checkpoint.states);
        states.extend(derived);
        if protection.is_never() && !states.contains(&"protected") {
            states.push("protected");
        }
        CheckpointRecord {
            directory: directory.to_string_lossy().into_owned(),
            name: checkpoint.display_name().into_owned(),
            namespace: text(&identity.owner.namespace),
            pod: text(&identity.owner.pod),
            container: text(&identity.owner.container),
            pod_uid: text(&identity.pod_uid),
            engine: identity.engine,
            identity: identity.certainty,
            created_at: checkpoint.created,
            age_seconds: checkpoint.age(now).as_secs(),
            size_bytes: checkpoint.allocated.0,
            protection,
            states,
        }
    }
}

/// The words for observed states that records and tables show.
pub fn state_words(states: States) -> Vec<&'static str> {
    [
        (States::PINNED, "pinned"),
        (States::IN_USE, "in-use"),
        (States::BEING_WRITTEN, "being-written"),
        (States::INCOMPLETE, "incomplete"),
        (States::UNPROVEN, "unproven"),
        (States::ORPHAN, "orphan"),
        (States::LINKED, "linked"),
    ]
    .into_iter()
    .filter(|(state, _)| states.contains(*state))
    .map(|(_, word)| word)
    .collect()
}

/// The brake of one filesystem.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BrakeRecord {
    /// The filesystem, as metrics call it.
    pub filesystem: String,
    /// The watched directories on it.
    pub directories: Vec<String>,
    /// Whether writers are refused now, and not only to be.
    pub engaged: bool,
    /// Why they are, or are to be; `null` when they are not.
    pub reason: Option<String>,
    /// Since when.
    pub since: Option<Timestamp>,
    /// An operator's engagement ends by itself after this.
    pub expires_in_seconds: Option<u64>,
    /// For so long it does not engage by itself, because an operator released it.
    pub inhibited_for_seconds: Option<u64>,
    /// Calls that were refused since then.
    pub refused_calls: u64,
    /// What they would have written, as far as the kernel tells.
    pub refused_bytes: u64,
    /// Whether writers that have their file open already are stopped too; `null` while that is not known.
    pub stops_writes: Option<bool>,
    /// What went wrong.
    pub problem: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bytes, FileId, Identity, Kind, Owner};

    #[test]
    fn a_checkpoint_has_the_fields_of_the_design() {
        let checkpoint = Checkpoint {
            directory: 0,
            kind: Kind::Archive,
            states: States::PINNED | States::HAS_PARENT | States::INCOMPLETE,
            name: std::ffi::OsStr::new("checkpoint-web_team-app-2026-01-01T00:00:00Z.tar").into(),
            file: FileId { dev: 1, ino: 2 },
            created: "2026-01-01T00:00:00Z".parse().unwrap(),
            modified: "2026-01-01T00:00:01Z".parse().unwrap(),
            len: Bytes(100),
            allocated: Bytes(4096),
            inodes: 1,
            identity: Identity { owner: Owner::new("team", "web", "app"), ..Identity::default() }.into(),
        };
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let record =
            CheckpointRecord::new(&checkpoint, Path::new("/c"), now, Protection::NEVER, &["superseded"]);
        assert_eq!(
            serde_json::to_value(&record).unwrap(),
            serde_json::json!({
                "directory": "/c",
                "name": "checkpoint-web_team-app-2026-01-01T00:00:00Z.tar",
                "namespace": "team", "pod": "web", "container": "app", "podUid": null,
                "engine": "unknown", "identity": "unknown",
                "createdAt": "2026-01-01T00:00:00Z", "ageSeconds": 3600, "sizeBytes": 4096,
                "protection": 100, "states": ["pinned", "incomplete", "superseded", "protected"],
            })
        );
    }
}
