//! What is known of the cluster, kept on disk for the next start and for commands that ask no API server.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Knowledge;
use crate::model::{Annotation, ByPod, Cluster, Declared, LookUp, PodRecord, Protection, Uids, Wish};

/// The file's first words: another version's file is not guessed at.
const API_VERSION: &str = "checkpoint-guard/v1";
const KIND: &str = "Cluster";

/// Larger than 4,096 pods with long names; a file beyond that is not ours.
const SIZE_MAX: u64 = 16 << 20;

/// Why the file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Reading or writing failed.
    #[error("{path:?}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not what we write.
    #[error(
        "{path:?} is not a file of what is known of the cluster: {problem}; deleting it only makes the guard ask again"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    /// The Node this was learnt for: a disk may be moved, an image cloned.
    node: String,
    nodes_at: Option<Timestamp>,
    pods_at: Option<Timestamp>,
    namespaces_at: Option<Timestamp>,
    node_labels: Option<BTreeMap<String, String>>,
    namespaces: BTreeMap<Arc<str>, StoredWish>,
    pods: Vec<StoredPod>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pod_checkpoints: Vec<Declared>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StoredWish {
    protection: u8,
    keep: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StoredPod {
    namespace: Arc<str>,
    pod: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    here: Option<Uids>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gone: Vec<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    looked_up: Option<LookUp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wish: Option<StoredWish>,
}

impl From<Wish> for StoredWish {
    fn from(wish: Wish) -> StoredWish {
        StoredWish { protection: wish.protection.get(), keep: wish.annotation == Annotation::Keep }
    }
}

impl StoredWish {
    fn wish(&self) -> Option<Wish> {
        let annotation = if self.keep { Annotation::Keep } else { Annotation::Protection };
        Some(Wish { protection: Protection::new(self.protection)?, annotation })
    }
}

/// Reads what was known; `None` when nothing was kept, or it was kept for another Node than `node`.
///
/// # Errors
/// The file is there and cannot be used.
pub fn load(path: &Path, node: Option<&str>) -> Result<Option<Knowledge>, MemoryError> {
    let io = |source| MemoryError::Io { path: path.to_owned(), source };
    let malformed = |problem: String| MemoryError::Malformed { path: path.to_owned(), problem };
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > SIZE_MAX => {
            return Err(malformed(format!("{} bytes", metadata.len())));
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    }
    let text = std::fs::read(path).map_err(io)?;
    let document: Document = serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
    if (document.api_version.as_str(), document.kind.as_str()) != (API_VERSION, KIND) {
        return Err(malformed(format!("{} {}", document.api_version, document.kind)));
    }
    if node.is_some_and(|node| node != document.node) {
        return Ok(None);
    }
    let mut pods: ByPod<PodRecord> = ByPod::default();
    for StoredPod { namespace, pod, here, gone, looked_up, wish } in document.pods {
        let wish = wish.as_ref().and_then(StoredWish::wish);
        *pods.entry(&namespace, &pod) = PodRecord { here, gone, looked_up, wish };
    }
    let namespaces = document.namespaces.into_iter();
    let cluster = Cluster {
        node_labels: document.node_labels,
        namespaces: namespaces.filter_map(|(name, wish)| Some((name, wish.wish()?))).collect(),
        pods,
        declared: document.pod_checkpoints.into_iter().map(|it| (it.path.clone(), it)).collect(),
    };
    let current = [document.nodes_at, document.pods_at, document.namespaces_at];
    Ok(Some(Knowledge { cluster, current }))
}

/// Keeps what is known of `node`: beside the old file, then in its place, so that a crash or a full disk leaves the old one.
///
/// # Errors
/// There is no room, or no permission.
pub fn keep(path: &Path, node: &str, knowledge: &Knowledge) -> Result<(), MemoryError> {
    let io = |source| MemoryError::Io { path: path.to_owned(), source };
    let cluster = &knowledge.cluster;
    let [nodes_at, pods_at, namespaces_at] = knowledge.current;
    let stored = |(namespace, pod, record): (&Arc<str>, &Arc<str>, &PodRecord)| StoredPod {
        namespace: namespace.clone(),
        pod: pod.clone(),
        here: record.here.clone(),
        gone: record.gone.clone(),
        looked_up: record.looked_up.clone(),
        wish: record.wish.map(StoredWish::from),
    };
    let document = Document {
        api_version: API_VERSION.to_owned(),
        kind: KIND.to_owned(),
        node: node.to_owned(),
        nodes_at,
        pods_at,
        namespaces_at,
        node_labels: cluster.node_labels.clone(),
        namespaces: cluster.namespaces.iter().map(|(name, wish)| (name.clone(), (*wish).into())).collect(),
        pods: cluster.pods.iter().map(stored).collect(),
        pod_checkpoints: cluster.declared.values().cloned().collect(),
    };
    let text = serde_json::to_vec(&document).map_err(|error| io(error.into()))?;
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(io)?;
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    // Names of pods and of their owners are nobody else's business.
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&beside).map_err(io)?;
    file.write_all(&text).and_then(|()| file.sync_data()).map_err(io)?;
    std::fs::rename(&beside, path).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knowledge() -> Knowledge {
        let mut cluster =
            Cluster { node_labels: Some(BTreeMap::from([("a".into(), "b".into())])), ..Cluster::default() };
        let wish =
            |protection, annotation| Wish { protection: Protection::new(protection).unwrap(), annotation };
        cluster.namespaces.insert("team".into(), wish(70, Annotation::Protection));
        *cluster.pods.entry("team", "web-0") = PodRecord {
            here: Some(["1".into(), "2".into()].into()),
            gone: vec!["0".into()],
            looked_up: Some(LookUp { at: "2026-06-01T12:00:00Z".parse().unwrap(), found: None }),
            wish: Some(wish(100, Annotation::Keep)),
        };
        let declared = Declared {
            path: "checkpoint-1".into(),
            api_version: "checkpoint.k8s.io/v1alpha1".into(),
            namespace: "team".into(),
            name: "snap".into(),
            uid: "u".into(),
            pod: Some("web-0".into()),
            pod_uid: None,
            restoring: true,
            gone: false,
        };
        cluster.declared.insert(declared.path.clone(), declared);
        Knowledge { cluster, current: [None, Some("2026-06-01T12:00:00Z".parse().unwrap()), None] }
    }

    #[test]
    fn what_is_kept_is_what_is_read_and_only_for_the_same_node() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state/cluster.json");
        assert_eq!(load(&path, Some("node-1")).unwrap(), None);
        keep(&path, "node-1", &knowledge()).unwrap();
        assert_eq!(load(&path, Some("node-1")).unwrap(), Some(knowledge()));
        assert_eq!(load(&path, Some("node-2")).unwrap(), None);
        keep(&path, "node-1", &Knowledge::default()).unwrap();
        assert_eq!(load(&path, Some("node-1")).unwrap(), Some(Knowledge::default()));
    }

    #[test]
    fn a_damaged_file_is_told_and_not_guessed_at() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.json");
        for text in ["", "{", "[]", r#"{"apiVersion":"checkpoint-guard/v2"}"#] {
            std::fs::write(&path, text).unwrap();
            let error = load(&path, Some("node-1")).unwrap_err().to_string();
            assert!(error.contains("deleting it only makes the guard ask again"), "{error}");
        }
    }
}
