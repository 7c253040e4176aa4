//! What lies in the checkpoint directories, and whose it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{Gauge, GaugeVec};

use super::families::Families;
use super::labels::{CERTAINTIES, IDENTITY, NAMESPACE, STATE, STATES};
use crate::model::{Bytes, Inventory, States};

/// So many namespaces have series of their own; the rest is summed up as [`OTHER`].
///
/// A node rarely runs pods of more than a few dozen namespaces. With 15,000 nodes every series more is
/// 15,000 series more.
pub const NAMESPACES_MAX: usize = 50;

/// The namespace label of those beyond [`NAMESPACES_MAX`].
pub const OTHER: &str = "other";

/// The namespace label of checkpoints that nobody could identify; a namespace of that name shares the series.
pub const UNKNOWN: &str = "unknown";

#[derive(Debug)]
pub(super) struct CheckpointFamilies {
    count: GaugeVec,
    bytes: GaugeVec,
    states: GaugeVec,
    state_bytes: GaugeVec,
    identities: GaugeVec,
    foreign: Gauge,
    exposed: Gauge,
    /// The namespaces that have series now: those that vanish from the disk vanish here (case 41, 43).
    shown: Mutex<BTreeSet<Arc<str>>>,
}

impl CheckpointFamilies {
    pub(super) fn declare(families: &mut Families) -> CheckpointFamilies {
        CheckpointFamilies {
            count: families.gauge_by(
                "checkpoint_guard_checkpoints",
                &[NAMESPACE],
                "Checkpoints on this node, by the namespace they were taken in.",
            ),
            bytes: families.gauge_by(
                "checkpoint_guard_checkpoints_bytes",
                &[NAMESPACE],
                "What deleting them would free, by the namespace they were taken in.",
            ),
            states: families.gauge_by(
                "checkpoint_guard_checkpoints_by_state",
                &[STATE],
                "Checkpoints by what was observed of them; pinned and in-use ones are never deleted.",
            ),
            state_bytes: families.gauge_by(
                "checkpoint_guard_checkpoints_by_state_bytes",
                &[STATE],
                "What deleting them would free, by what was observed of them.",
            ),
            identities: families.gauge_by(
                "checkpoint_guard_checkpoints_by_identity",
                &[IDENTITY],
                "Checkpoints by how well their owner is known. Ambiguous: name and content contradict each other, \
                 perhaps on purpose; such a one gets the highest protection of its readings.",
            ),
            foreign: families.gauge(
                "checkpoint_guard_foreign_entries",
                "Entries of the checkpoint directories that are not checkpoints; the guard never touches them.",
            ),
            exposed: families.gauge(
                "checkpoint_guard_exposed_checkpoints",
                "Checkpoints that others than their owner may read, by their mode and those of the directories above; they hold \
                 the memory of containers, secrets included. checkpoint-guard doctor --fix-permissions puts that right.",
            ),
            shown: Mutex::default(),
        }
    }

    /// Takes over what the scans found on all filesystems.
    pub(super) fn set<'a>(&self, filesystems: impl IntoIterator<Item = &'a Holdings>) {
        let mut all = Holdings::default();
        for holdings in filesystems {
            all.add(holdings);
        }
        let Holdings { by_namespace, by_state, by_certainty, foreign, exposed } = all;
        self.show_namespaces(bounded(by_namespace));
        for (held, (_, state)) in by_state.iter().zip(STATES) {
            self.states.with_label_values(&[state]).set(held.count as f64);
            self.state_bytes.with_label_values(&[state]).set(held.bytes.0 as f64);
        }
        for (count, certainty) in by_certainty.into_iter().zip(CERTAINTIES) {
            self.identities.with_label_values(&[certainty.as_str()]).set(count as f64);
        }
        self.foreign.set(foreign as f64);
        self.exposed.set(exposed as f64);
    }

    fn show_namespaces(&self, namespaces: BTreeMap<Arc<str>, Held>) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for vanished in shown.iter().filter(|name| !namespaces.contains_key(*name)) {
            // Err: there was no such series, which is what is wanted.
            let _ = self.count.remove_label_values(&[vanished]);
            let _ = self.bytes.remove_label_values(&[vanished]);
        }
        for (namespace, held) in &namespaces {
            self.count.with_label_values(&[namespace]).set(held.count as f64);
            self.bytes.with_label_values(&[namespace]).set(held.bytes.0 as f64);
        }
        *shown = namespaces.into_keys().collect();
    }
}

/// What lies on one filesystem, summed up.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    by_namespace: BTreeMap<Arc<str>, Held>,
    by_state: [Held; STATES.len()],
    by_certainty: [u64; CERTAINTIES.len()],
    foreign: u64,
    exposed: u64,
}

impl Holdings {
    /// Sums up an inventory.
    pub fn of(inventory: &Inventory) -> Holdings {
        let mut holdings = Holdings { foreign: inventory.foreign as u64, ..Holdings::default() };
        let unknown: Arc<str> = UNKNOWN.into();
        for checkpoint in &inventory.checkpoints {
            holdings.exposed += u64::from(checkpoint.states.contains(States::EXPOSED));
            let held = Held { count: 1, bytes: checkpoint.allocated };
            let namespace = checkpoint.identity.owner.namespace.as_ref().unwrap_or(&unknown);
            match holdings.by_namespace.get_mut(namespace) {
                Some(sum) => sum.add(held),
                None => {
                    holdings.by_namespace.insert(namespace.clone(), held);
                }
            }
            for (sum, (state, _)) in holdings.by_state.iter_mut().zip(STATES) {
                if checkpoint.states.contains(state) {
                    sum.add(held);
                }
            }
            for (count, certainty) in holdings.by_certainty.iter_mut().zip(CERTAINTIES) {
                *count += u64::from(checkpoint.identity.certainty == certainty);
            }
        }
        holdings
    }

    fn add(&mut self, other: &Holdings) {
        for (namespace, held) in &other.by_namespace {
            self.by_namespace.entry(namespace.clone()).or_default().add(*held);
        }
        for (sum, held) in self.by_state.iter_mut().zip(other.by_state) {
            sum.add(held);
        }
        for (sum, count) in self.by_certainty.iter_mut().zip(other.by_certainty) {
            *sum += count;
        }
        self.foreign += other.foreign;
        self.exposed += other.exposed;
    }
}

/// How many, and what deleting them frees.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    count: u64,
    bytes: Bytes,
}

impl Held {
    fn add(&mut self, other: Held) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

/// The [`NAMESPACES_MAX`] that hold most (ties by name), and the others as one.
fn bounded(all: BTreeMap<Arc<str>, Held>) -> BTreeMap<Arc<str>, Held> {
    let mut ranked: Vec<_> = all.into_iter().collect();
    ranked.sort_by(|(a_name, a), (b_name, b)| b.bytes.cmp(&a.bytes).then(a_name.cmp(b_name)));
    let mut kept = BTreeMap::new();
    for (place, (name, held)) in ranked.into_iter().enumerate() {
        let name = if place < NAMESPACES_MAX { name } else { OTHER.into() };
        kept.entry(name).or_insert_with(Held::default).add(held);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(bytes: u64) -> Held {
        Held { count: 1, bytes: Bytes(bytes) }
    }

    #[test]
    fn the_largest_namespaces_are_named_and_the_rest_is_summed_up() {
        let all = (0..60).map(|n| (format!("ns-{n:02}").into(), held(n))).collect();
        let kept = bounded(all);
        assert_eq!(kept.len(), NAMESPACES_MAX + 1);
        assert_eq!(kept[OTHER].count, 10);
        assert_eq!(kept[OTHER].bytes, Bytes((0..10).sum()));
        assert!(kept.contains_key("ns-59") && !kept.contains_key("ns-09"));
    }

    #[test]
    fn a_namespace_that_is_called_other_is_not_lost() {
        let kept = bounded(BTreeMap::from([("other".into(), held(1)), ("team".into(), held(2))]));
        assert_eq!(kept["other"].bytes, Bytes(1));
    }
}
