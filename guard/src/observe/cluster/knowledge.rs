//! [`Knowledge`]: a [`Cluster`] and how sightings change it. No I/O.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::annotations::{self, Misread};
use super::declared::Told;
use super::{Resource, Seen, Sighting};
use crate::model::{Cluster, Declared, LookUp, PodName, PodRecord, Uids};

/// What the kubelet calls a static pod by, and with it the runtime and the archives; its mirror has another uid.
const STATIC_POD_UID: &str = "kubernetes.io/config.hash";
/// Pods that are no longer here and of which something is remembered: what they wished, that they are gone. A node has
/// 110 at a time (kubelet `maxPods`); beyond this the least is lost that was touched longest ago.
const REMEMBERED_MAX: usize = 4096;
/// Uids of deleted pods of one name: a crash-looping StatefulSet pod must not grow without end.
const GONE_MAX: usize = 16;

/// What is known, and since when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Knowledge {
    /// The value that everybody else sees.
    pub cluster: Cluster,
    /// When each resource was last known to be as it is known here; by [`Resource::ALL`].
    pub current: [Option<Timestamp>; 3],
}

/// What a sighting did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The cluster is not as it was known.
    pub changed: bool,
    /// Annotations that say nothing we understand, and whose they are.
    pub misread: Vec<(String, Misread)>,
}

impl Knowledge {
    /// Takes in what a watch told.
    pub fn see(&mut self, sighting: &Sighting) -> Change {
        let Sighting { resource, at, seen } = sighting;
        let mut change = Change::default();
        if matches!(seen, Seen::Calling(_) | Seen::Failed(_)) {
            return change;
        }
        self.current[*resource as usize] = Some(*at);
        if matches!(seen, Seen::Current) {
            return change;
        }
        let before = self.cluster.clone();
        match (resource, seen) {
            (Resource::Nodes, Seen::All(objects)) => {
                objects.iter().for_each(|node| self.see_node(node));
            }
            (Resource::Nodes, Seen::Changed(node)) => self.see_node(node),
            // A Node that is deleted is about to be registered again, or the machine about to go.
            (Resource::Nodes, _) => {}
            (Resource::Namespaces, Seen::All(objects)) => {
                self.cluster.namespaces.clear();
                objects.iter().for_each(|namespace| self.see_namespace(namespace, &mut change));
            }
            (Resource::Namespaces, Seen::Changed(namespace)) => self.see_namespace(namespace, &mut change),
            (Resource::Namespaces, Seen::Deleted(namespace)) => {
                self.cluster.namespaces.remove(name_of(namespace));
            }
            (Resource::Pods, Seen::All(objects)) => {
                // Those missing from the list are not known to be gone: only not known to be here.
                self.cluster.pods.values_mut().for_each(|record| record.here = None);
                objects.iter().for_each(|pod| self.see_pod(pod, &mut change));
                self.forget();
            }
            (Resource::Pods, Seen::Changed(pod)) => self.see_pod(pod, &mut change),
            (Resource::Pods, Seen::Deleted(pod)) => {
                let record = self.record(pod);
                record.here = None;
                // What was found before says nothing of now.
                record.looked_up = None;
                // Its own uid only: the mirror of a static pod is deleted and comes back while the pod runs.
                record.gone.extend(pod.uid.as_deref().map(Arc::from));
                let excess = record.gone.len().saturating_sub(GONE_MAX);
                record.gone.drain(..excess);
                self.forget();
            }
            (_, Seen::Calling(_) | Seen::Current | Seen::Failed(_)) => {}
        }
        change.changed = self.cluster != before;
        change
    }

    /// Takes in what is told of PodCheckpoint objects. The result is whether anything is new.
    pub fn declared(&mut self, told: &Told) -> bool {
        let before = self.cluster.declared.clone();
        let declared = &mut self.cluster.declared;
        match told {
            Told::All(all) => {
                declared.values_mut().for_each(|known| (known.gone, known.restoring) = (true, false));
                declared.extend(all.iter().map(|it| (it.path.clone(), it.clone())));
            }
            Told::Changed(it) => {
                declared.insert(it.path.clone(), it.clone());
            }
            Told::Deleted(it) => {
                declared.insert(it.path.clone(), Declared { gone: true, restoring: false, ..it.clone() });
            }
            Told::Calling(_) | Told::Current | Told::Absent | Told::Failed(_) => {}
        }
        let mut excess = declared.len().saturating_sub(REMEMBERED_MAX);
        declared.retain(|_, it| {
            let goes = excess > 0 && it.gone;
            excess -= usize::from(goes);
            !goes
        });
        self.cluster.declared != before
    }

    /// Takes in the answer to a look-up. The result is whether anything is new.
    pub fn found(&mut self, pod: &PodName, looked_up: LookUp) -> bool {
        let record = self.cluster.pods.entry(&pod.namespace, &pod.pod);
        let before = record.looked_up.replace(looked_up);
        let changed = before != record.looked_up;
        self.forget();
        changed
    }

    fn see_node(&mut self, node: &ObjectMeta) {
        self.cluster.node_labels = Some(node.labels.clone().unwrap_or_default());
    }

    fn see_namespace(&mut self, namespace: &ObjectMeta, change: &mut Change) {
        let (wish, misread) = annotations::read(namespace.annotations.as_ref());
        let name = name_of(namespace);
        change.misread.extend(misread.into_iter().map(|it| (format!("Namespace {name}"), it)));
        match wish {
            Some(wish) => self.cluster.namespaces.insert(name.into(), wish),
            None => self.cluster.namespaces.remove(name),
        };
    }

    fn see_pod(&mut self, pod: &ObjectMeta, change: &mut Change) {
        let (wish, misread) = annotations::read(pod.annotations.as_ref());
        let whose = || format!("Pod {}/{}", pod.namespace.as_deref().unwrap_or_default(), name_of(pod));
        change.misread.extend(misread.into_iter().map(|it| (whose(), it)));
        let record = self.record(pod);
        record.here = Some(uids_of(pod));
        record.wish = wish;
    }

    fn record(&mut self, pod: &ObjectMeta) -> &mut PodRecord {
        self.cluster.pods.entry(pod.namespace.as_deref().unwrap_or_default(), name_of(pod))
    }

    /// Drops what is remembered of nobody, and of the least when it is too much: first those that wish nothing.
    fn forget(&mut self) {
        let is_known = |record: &PodRecord| *record != PodRecord::default();
        self.cluster.pods.retain(|_, _, record| is_known(record));
        let away = |record: &PodRecord| record.here.is_none();
        let mut excess = self.cluster.pods.iter().filter(|(_, _, record)| away(record)).count();
        excess = excess.saturating_sub(REMEMBERED_MAX);
        for only_without_wish in [true, false] {
            self.cluster.pods.retain(|_, _, record| {
                let goes = excess > 0 && away(record) && !(only_without_wish && record.wish.is_some());
                excess -= usize::from(goes);
                !goes
            });
        }
    }
}

fn name_of(object: &ObjectMeta) -> &str {
    object.name.as_deref().unwrap_or_default()
}

/// The uids that a pod goes by.
pub fn uids_of(pod: &ObjectMeta) -> Uids {
    let hash = pod.annotations.as_ref().and_then(|annotations| annotations.get(STATIC_POD_UID));
    pod.uid.iter().chain(hash).map(|uid| Arc::from(uid.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::{Annotation, Fate};

    fn object(name: &str, uid: &str, annotations: &[(&str, &str)]) -> ObjectMeta {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let (namespace, name) =
            name.split_once('/').map_or((None, name), |(space, name)| (Some(space), name));
        ObjectMeta {
            namespace: namespace.map(str::to_owned),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            annotations: Some(annotations.iter().map(pair).collect()),
            labels: Some(BTreeMap::from([("pool".to_owned(), uid.to_owned())])),
            ..ObjectMeta::default()
        }
    }

    fn see(knowledge: &mut Knowledge, resource: Resource, seen: Seen) -> Change {
        knowledge.see(&Sighting { resource, at: "2026-06-01T12:00:00Z".parse().unwrap(), seen })
    }

    fn fate(knowledge: &Knowledge, uid: &str) -> Fate {
        let mut checkpoint = crate::decide::fixture::archive("a/p/c", 60, 1);
        std::sync::Arc::make_mut(&mut checkpoint.identity).pod_uid = Some(uid.into());
        knowledge.cluster.fate(&checkpoint)
    }

    #[test]
    fn a_pod_that_is_listed_exists_and_one_whose_deletion_is_watched_is_gone() {
        let mut knowledge = Knowledge::default();
        see(&mut knowledge, Resource::Pods, Seen::All(vec![object("a/p", "1", &[])]));
        assert_eq!(fate(&knowledge, "1"), Fate::Exists);
        see(&mut knowledge, Resource::Pods, Seen::Deleted(Box::new(object("a/p", "1", &[]))));
        assert_eq!(fate(&knowledge, "1"), Fate::Gone);
        see(&mut knowledge, Resource::Pods, Seen::Changed(Box::new(object("a/p", "2", &[]))));
        assert_eq!((fate(&knowledge, "1"), fate(&knowledge, "2")), (Fate::Gone, Fate::Exists));
    }

    #[test]
    fn case_11_a_pod_that_is_missing_from_a_list_is_unknown_until_it_was_looked_up() {
        let mut knowledge = Knowledge::default();
        see(&mut knowledge, Resource::Pods, Seen::All(vec![object("a/p", "1", &[])]));
        see(&mut knowledge, Resource::Pods, Seen::All(vec![]));
        assert_eq!(fate(&knowledge, "1"), Fate::Unknown);
        let pod = PodName { namespace: "a".into(), pod: "p".into() };
        let at = crate::decide::fixture::now();
        assert!(knowledge.found(&pod, LookUp { at, found: None }));
        assert_eq!(fate(&knowledge, "1"), Fate::Gone);
    }

    #[test]
    fn a_failing_watch_changes_nothing_and_ages() {
        let mut knowledge = Knowledge::default();
        see(&mut knowledge, Resource::Pods, Seen::All(vec![object("a/p", "1", &[])]));
        let before = knowledge.clone();
        let trouble = super::super::Trouble::timeout("watch pods", std::time::Duration::from_secs(1));
        let later = Sighting {
            resource: Resource::Pods,
            at: "2026-06-01T13:00:00Z".parse().unwrap(),
            seen: Seen::Failed(trouble),
        };
        assert!(!knowledge.see(&later).changed);
        assert_eq!(knowledge, before);
    }

    #[test]
    fn a_static_pod_goes_by_the_uid_that_the_kubelet_gave_it() {
        let mut knowledge = Knowledge::default();
        let mirror = object("a/p", "mirror", &[(STATIC_POD_UID, "hash")]);
        see(&mut knowledge, Resource::Pods, Seen::All(vec![mirror]));
        assert_eq!(fate(&knowledge, "hash"), Fate::Exists);
    }

    #[test]
    fn a_wish_outlives_its_pod_and_ends_with_its_annotation() {
        let mut knowledge = Knowledge::default();
        let kept = [(Annotation::Keep.key(), "true")];
        see(&mut knowledge, Resource::Pods, Seen::Changed(Box::new(object("a/p", "1", &kept))));
        see(&mut knowledge, Resource::Pods, Seen::Deleted(Box::new(object("a/p", "1", &kept))));
        assert!(knowledge.cluster.pods.get("a", "p").unwrap().wish.is_some());
        see(&mut knowledge, Resource::Pods, Seen::Changed(Box::new(object("a/p", "2", &[]))));
        assert!(knowledge.cluster.pods.get("a", "p").unwrap().wish.is_none());
    }

    #[test]
    fn namespaces_are_as_the_last_list_says_and_misread_annotations_are_told() {
        let mut knowledge = Knowledge::default();
        let wish = [(Annotation::Protection.key(), "70")];
        see(
            &mut knowledge,
            Resource::Namespaces,
            Seen::All(vec![object("a", "1", &wish), object("b", "2", &wish)]),
        );
        let wrong = [(Annotation::Protection.key(), "lots")];
        let change = see(&mut knowledge, Resource::Namespaces, Seen::All(vec![object("b", "2", &wrong)]));
        assert!(change.changed && knowledge.cluster.namespaces.is_empty());
        assert_eq!(change.misread[0].0, "Namespace b");
    }

    #[test]
    fn what_is_remembered_of_pods_that_left_is_bounded_and_wishes_go_last() {
        let mut knowledge = Knowledge::default();
        let kept = [(Annotation::Keep.key(), "true")];
        for number in 0..REMEMBERED_MAX + 50 {
            let annotations: &[_] = if number == 0 { &kept } else { &[] };
            let pod = object(&format!("a/p-{number}"), "1", annotations);
            knowledge.see_pod(&pod, &mut Change::default());
            let record = knowledge.record(&pod);
            (record.here, record.gone) = (None, vec!["1".into()]);
        }
        knowledge.forget();
        assert_eq!(knowledge.cluster.pods.len(), REMEMBERED_MAX);
        assert!(knowledge.cluster.pods.get("a", "p-0").is_some());
    }
}
