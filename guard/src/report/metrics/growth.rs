//! What is being written, for whom, and what is still to come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{Gauge, GaugeVec};

use super::checkpoints::{NAMESPACES_MAX, OTHER, UNKNOWN};
use super::families::Families;
use super::labels::{FILESYSTEM, FilesystemLabel, NAMESPACE};
use crate::model::{Bytes, Growth};

#[derive(Debug)]
pub(super) struct GrowthFamilies {
    rate: GaugeVec,
    staged: Gauge,
    announced: GaugeVec,
    /// The namespaces that have series now.
    shown: Mutex<BTreeSet<Arc<str>>>,
}

impl GrowthFamilies {
    pub(super) fn declare(families: &mut Families) -> GrowthFamilies {
        GrowthFamilies {
            rate: families.gauge_by(
                "checkpoint_guard_growth_bytes_per_second",
                &[NAMESPACE],
                "How fast the checkpoints of a namespace grow, whoever writes them; absent without eBPF, and ten minutes \
                 after the last write.",
            ),
            staged: families.gauge(
                "checkpoint_guard_staging_bytes",
                "What is new in the staging directories: checkpoints whose archives are still to be written, or that \
                 are being cleared away.",
            ),
            announced: families.gauge_by(
                "checkpoint_guard_announced_bytes",
                &[FILESYSTEM],
                "What staging directories announce and has not arrived yet; room for it is made ahead, up to \
                 staging.ahead.",
            ),
            shown: Mutex::default(),
        }
    }

    pub(super) fn set(&self, growth: &Growth) {
        let mut rates: BTreeMap<Arc<str>, Bytes> = BTreeMap::new();
        for (place, one) in growth.namespaces.iter().enumerate() {
            let name = match &one.namespace {
                _ if place >= NAMESPACES_MAX => OTHER.into(),
                Some(name) => name.clone(),
                None => UNKNOWN.into(),
            };
            *rates.entry(name).or_default() += one.rate;
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for vanished in shown.iter().filter(|name| !rates.contains_key(*name)) {
            // Err: there was no such series, which is what is wanted.
            let _ = self.rate.remove_label_values(&[vanished]);
        }
        for (namespace, rate) in &rates {
            self.rate.with_label_values(&[namespace]).set(rate.0 as f64);
        }
        *shown = rates.into_keys().collect();
    }

    pub(super) fn staged(&self, bytes: Bytes) {
        self.staged.set(bytes.0 as f64);
    }

    pub(super) fn announced(&self, filesystem: &FilesystemLabel, bytes: Bytes) {
        self.announced.with_label_values(&[filesystem.as_str()]).set(bytes.0 as f64);
    }

    pub(super) fn forget(&self, filesystem: &FilesystemLabel) {
        // Err: there was no such series, which is what is wanted.
        let _ = self.announced.remove_label_values(&[filesystem.as_str()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NamespaceGrowth;

    #[test]
    fn the_fastest_namespaces_are_named_and_those_that_stop_vanish() {
        let mut families = Families::default();
        let growth = GrowthFamilies::declare(&mut families);
        let one = |n: u64| NamespaceGrowth {
            namespace: (n > 0).then(|| format!("ns-{n:02}").into()),
            rate: Bytes(n + 1),
            bytes: Bytes(n),
        };
        let of = |namespaces: Vec<_>| Growth { namespaces, writers: Vec::new() };
        growth.set(&of((0..60).rev().map(one).collect()));
        let rate = |name: &str| growth.rate.with_label_values(&[name]).get();
        assert_eq!(rate("ns-59"), 60.0);
        assert_eq!(rate(OTHER), (1..=10).sum::<u64>() as f64);
        growth.set(&of(vec![one(3), one(0)]));
        assert_eq!((rate("ns-03"), rate(UNKNOWN)), (4.0, 1.0));
        let series = families.registry.gather().into_iter().flat_map(|family| family.get_metric().to_vec());
        assert_eq!(series.filter(|metric| metric.get_label().len() == 1).count(), 2);
    }
}
