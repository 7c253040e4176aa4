//! [`Cluster`]: what the API server has said about this node, its pods, and what their owners wish.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::{Certainty, Checkpoint, Kind, Owner, Protection};

/// What an annotation asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// How much protection; what is granted is for the configuration to say (`max-from-annotations`).
    pub protection: Protection,
    /// Which annotation says so.
    pub annotation: Annotation,
}

/// The annotations that a Namespace or a Pod may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Annotation {
    /// A number from 0 to 100.
    Protection,
    /// `"true"`: the wish for 100.
    Keep,
}

impl Annotation {
    /// Its key.
    pub const fn key(self) -> &'static str {
        match self {
            Annotation::Protection => "checkpoint-guard.io/protection",
            Annotation::Keep => "checkpoint-guard.io/keep",
        }
    }
}

/// Uids that one pod goes by: its own and, for a static pod, the kubelet's for it (`kubernetes.io/config.hash`), which is what
/// runtimes write into archives.
pub type Uids = Box<[Arc<str>]>;

/// A look-up of one pod by name, answered by the API server itself and not from a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookUp {
    /// When it was asked.
    pub at: Timestamp,
    /// The pod of that name; `None`: there was none.
    pub found: Option<Uids>,
}

/// Everything known about the pods of one name, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRecord {
    /// The one on this node, as far as the last watch told.
    pub here: Option<Uids>,
    /// Those whose deletion was watched, newest last.
    pub gone: Vec<Arc<str>>,
    /// The last look-up.
    pub looked_up: Option<LookUp>,
    /// What the last of them wished. Outlives the pod: its checkpoints do, too.
    pub wish: Option<Wish>,
}

/// A pod that was found on another node is believed to be there for so long.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_hours(1);

/// Whether a checkpoint's pod exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It does.
    Exists,
    /// It is known to be gone.
    Gone,
    /// Nobody has said.
    Unknown,
}

/// Values by namespace and pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByPod<T>(BTreeMap<Arc<str>, BTreeMap<Arc<str>, T>>);

impl<T> Default for ByPod<T> {
    fn default() -> ByPod<T> {
        ByPod(BTreeMap::new())
    }
}

impl<T> ByPod<T> {
    /// The value of a pod.
    pub fn get(&self, namespace: &str, pod: &str) -> Option<&T> {
        self.0.get(namespace)?.get(pod)
    }

    /// The value of a pod, made when there is none.
    pub fn entry(&mut self, namespace: &str, pod: &str) -> &mut T
    where
        T: Default,
    {
        self.0.entry(namespace.into()).or_default().entry(pod.into()).or_default()
    }

    /// Everything, by namespace and pod.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>, &T)> {
        self.0
            .iter()
            .flat_map(|(namespace, pods)| pods.iter().map(move |(pod, value)| (namespace, pod, value)))
    }

    /// The same, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut().flat_map(BTreeMap::values_mut)
    }

    /// Keeps what `keep` says.
    pub fn retain(&mut self, mut keep: impl FnMut(&Arc<str>, &Arc<str>, &T) -> bool) {
        self.0.retain(|namespace, pods| {
            pods.retain(|pod, value| keep(namespace, pod, value));
            !pods.is_empty()
        });
    }

    /// How many pods.
    pub fn len(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A pod, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodName {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name there.
    pub pod: Arc<str>,
}

/// A PodCheckpoint object whose data lies on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Declared {
    /// The name of the directory with the data.
    pub path: Arc<str>,
    /// Group and version that the object was read from.
    pub api_version: Arc<str>,
    /// The object's namespace, and its pod's.
    pub namespace: Arc<str>,
    /// The object's name.
    pub name: Arc<str>,
    /// The object's uid.
    pub uid: Arc<str>,
    /// The pod that was checkpointed.
    pub pod: Option<Arc<str>>,
    /// The uid of that pod.
    pub pod_uid: Option<Arc<str>>,
    /// A pod is being restored from it.
    pub restoring: bool,
    /// The object was deleted. Its data may still be there, and is still its pod's.
    pub gone: bool,
}

/// What is known of the cluster. Empty where nobody was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The Node's labels; `None`: never seen.
    pub node_labels: Option<BTreeMap<String, String>>,
    /// What namespaces wish; those without a wish are not listed.
    pub namespaces: BTreeMap<Arc<str>, Wish>,
    /// The pods of this node, and others that were asked for.
    pub pods: ByPod<PodRecord>,
    /// PodCheckpoint objects of this node, by [`Declared::path`].
    pub declared: BTreeMap<Arc<str>, Declared>,
}

impl Cluster {
    /// The PodCheckpoint object of `checkpoint`; `None` for an archive, and where there is or was none.
    pub fn declared(&self, checkpoint: &Checkpoint) -> Option<&Declared> {
        let name = checkpoint.name.to_str().filter(|_| checkpoint.kind == Kind::PodCheckpoint)?;
        self.declared.get(name)
    }

    /// Whether the pod of `checkpoint` exists: gone only when it is, whoever of its readings it was.
    pub fn fate(&self, checkpoint: &Checkpoint) -> Fate {
        let identity = &checkpoint.identity;
        // A uid says nothing about the pods that it was not read for.
        let uid = identity.pod_uid.as_deref().filter(|_| identity.certainty == Certainty::Exact);
        let made = checkpoint.created.max(checkpoint.modified);
        let mut fates = identity.readings().map(|owner| self.fate_of(owner, uid, made));
        let first = fates.next().unwrap_or(Fate::Unknown);
        fates.fold(first, |all, one| {
            if all == one {
                all
            } else if all == Fate::Exists || one == Fate::Exists {
                Fate::Exists
            } else {
                Fate::Unknown
            }
        })
    }

    /// Whether the pod of `owner` should be looked up at `now`, given that the fate of a checkpoint of it is `fate`: nobody has
    /// said, or only a look-up long ago, and no watch tells when it goes.
    pub fn should_look(&self, owner: &Owner, fate: Fate, now: Timestamp) -> bool {
        let record = match (&owner.namespace, &owner.pod) {
            (Some(namespace), Some(pod)) => self.pods.get(namespace, pod),
            _ => return false,
        };
        let is_old = |looked_up: &LookUp| now.duration_since(looked_up.at) > LOOK_AGAIN;
        match fate {
            Fate::Gone => false,
            Fate::Unknown => true,
            Fate::Exists => record
                .is_some_and(|record| record.here.is_none() && record.looked_up.as_ref().is_some_and(is_old)),
        }
    }

    /// Whether the pod of `owner` that a checkpoint was made of at `made` exists.
    ///
    /// Absence from the list of this node's pods says nothing: archives are copied between nodes, lists are old. Gone is
    /// only whose deletion was watched, and whom the API server did not find *after* the checkpoint was made.
    fn fate_of(&self, owner: &Owner, uid: Option<&str>, made: Timestamp) -> Fate {
        let (Some(namespace), Some(pod)) = (&owner.namespace, &owner.pod) else { return Fate::Unknown };
        let Some(record) = self.pods.get(namespace, pod) else { return Fate::Unknown };
        let is_it = |uids: &Uids| uid.is_none_or(|uid| uids.iter().any(|known| **known == *uid));
        if record.here.as_ref().is_some_and(is_it) {
            return Fate::Exists;
        }
        if uid.is_some_and(|uid| record.gone.iter().any(|gone| **gone == *uid)) {
            return Fate::Gone;
        }
        match &record.looked_up {
            Some(LookUp { at, found }) if made <= *at => {
                if found.as_ref().is_some_and(is_it) {
                    Fate::Exists
                } else {
                    Fate::Gone
                }
            }
            _ => Fate::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::fixture::archive;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn uids(uids: &[&str]) -> Uids {
        uids.iter().map(|uid| Arc::from(*uid)).collect()
    }

    /// A checkpoint of pod a/p made at ten, and what is known of the pod.
    #[track_caller]
    fn check(uid: Option<&str>, record: PodRecord, expect: Fate) {
        let mut checkpoint = archive("a/p/c", 1, 1);
        (checkpoint.created, checkpoint.modified) = (at("2026-01-01T10:00:00Z"), at("2026-01-01T10:00:01Z"));
        let identity = Arc::make_mut(&mut checkpoint.identity);
        identity.pod_uid = uid.map(Arc::from);
        identity.certainty = if uid.is_some() { Certainty::Exact } else { Certainty::NameOnly };
        let mut cluster = Cluster::default();
        *cluster.pods.entry("a", "p") = record;
        assert_eq!(cluster.fate(&checkpoint), expect);
    }

    fn here(known: &[&str]) -> PodRecord {
        PodRecord { here: Some(uids(known)), ..PodRecord::default() }
    }

    fn looked(when: &str, found: Option<&[&str]>) -> PodRecord {
        let looked_up = Some(LookUp { at: at(when), found: found.map(uids) });
        PodRecord { looked_up, ..PodRecord::default() }
    }

    #[test]
    fn a_pod_on_this_node_exists_by_its_uid_where_one_is_known() {
        check(None, here(&["1"]), Fate::Exists);
        check(Some("1"), here(&["1"]), Fate::Exists);
        check(Some("hash"), here(&["mirror", "hash"]), Fate::Exists);
        // It may have been replaced since the list was made: not known until somebody has asked.
        check(Some("2"), here(&["1"]), Fate::Unknown);
    }

    #[test]
    fn gone_is_whose_deletion_was_watched() {
        check(Some("1"), PodRecord { gone: vec!["1".into()], ..here(&["2"]) }, Fate::Gone);
        check(Some("2"), PodRecord { gone: vec!["1".into()], ..here(&["2"]) }, Fate::Exists);
        check(None, PodRecord { gone: vec!["1".into()], ..PodRecord::default() }, Fate::Unknown);
    }

    #[test]
    fn gone_is_who_was_not_found_after_the_checkpoint_was_made() {
        check(Some("1"), looked("2026-01-01T10:00:02Z", None), Fate::Gone);
        check(None, looked("2026-01-01T10:00:02Z", None), Fate::Gone);
        check(Some("1"), looked("2026-01-01T10:00:02Z", Some(&["2"])), Fate::Gone);
        check(Some("1"), looked("2026-01-01T10:00:02Z", Some(&["1"])), Fate::Exists);
        check(None, looked("2026-01-01T10:00:02Z", Some(&["2"])), Fate::Exists);
        // Asked before: the pod may have come since.
        check(Some("1"), looked("2026-01-01T10:00:00.5Z", None), Fate::Unknown);
    }

    #[test]
    fn a_pod_found_elsewhere_is_looked_up_again_after_a_while_and_one_that_is_watched_never() {
        let (cluster, owner) = (
            |record| {
                let mut cluster = Cluster::default();
                *cluster.pods.entry("a", "p") = record;
                cluster
            },
            Owner::new("a", "p", "c"),
        );
        let found = cluster(looked("2026-01-01T10:00:00Z", Some(&["1"])));
        assert!(!found.should_look(&owner, Fate::Exists, at("2026-01-01T10:59:00Z")));
        assert!(found.should_look(&owner, Fate::Exists, at("2026-01-01T11:01:00Z")));
        let watched = cluster(here(&["1"]));
        assert!(!watched.should_look(&owner, Fate::Exists, at("2027-01-01T11:01:00Z")));
        let nobody = Cluster::default();
        assert!(nobody.should_look(&owner, Fate::Unknown, at("2026-01-01T10:00:00Z")));
        assert!(!nobody.should_look(&owner, Fate::Gone, at("2026-01-01T10:00:00Z")));
        assert!(!nobody.should_look(&Owner::default(), Fate::Unknown, at("2026-01-01T10:00:00Z")));
    }

    #[test]
    fn case_11_unknown_is_not_absent() {
        check(Some("1"), PodRecord::default(), Fate::Unknown);
        let nobody = Cluster::default();
        assert_eq!(nobody.fate(&archive("a/p/c", 1, 1)), Fate::Unknown);
        assert_eq!(nobody.fate(&archive("?/?/?", 1, 1)), Fate::Unknown);
    }

    #[test]
    fn an_ambiguous_one_is_gone_only_when_every_reading_is() {
        let mut cluster = Cluster::default();
        *cluster.pods.entry("a", "p") = looked("2126-01-01T00:00:00Z", None);
        let doubtful = archive("a/p/c", 1, 1).or(&["b/q/c"]);
        assert_eq!(cluster.fate(&doubtful), Fate::Unknown);
        *cluster.pods.entry("b", "q") = looked("2126-01-01T00:00:00Z", None);
        assert_eq!(cluster.fate(&doubtful), Fate::Gone);
        *cluster.pods.entry("b", "q") = here(&["1"]);
        assert_eq!(cluster.fate(&doubtful), Fate::Exists);
    }
}
