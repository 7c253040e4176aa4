//! The metric families: how they are declared, so that the registry and the document say the same.

use prometheus::core::Collector;
use prometheus::{Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

/// What sort of metric a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    /// Only grows; ask for its `rate` or `increase`.
    Counter,
    /// The value as of now.
    Gauge,
    /// Counts by upper bound; ask for a `histogram_quantile` of its rate.
    Histogram,
}

impl FamilyKind {
    /// Prometheus' word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Histogram => "histogram",
        }
    }
}

/// A label and what it may hold. Never a pod, never a checkpoint: those are without number
/// (openvpn_exporter#19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelKey {
    /// Its name.
    pub name: &'static str,
    /// What it may hold: the values themselves in back quotes where they are known beforehand, else a sentence.
    pub values: &'static str,
}

/// One metric family, as documented.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `checkpoint_guard_<noun>_<unit>[_total]`.
    pub name: &'static str,
    /// Counter, gauge, histogram.
    pub kind: FamilyKind,
    /// Its labels.
    pub labels: &'static [LabelKey],
    /// For the person on call.
    pub help: &'static str,
}

/// Declares families: each is registered and listed in one step, so neither can be forgotten.
#[derive(Debug, Default)]
pub(super) struct Families {
    pub(super) registry: Registry,
    pub(super) list: Vec<Family>,
}

impl Families {
    pub(super) fn gauge(&mut self, name: &'static str, help: &'static str) -> Gauge {
        let gauge = Gauge::new(name, help).expect("the name is a literal that the tests have seen");
        self.declare(FamilyKind::Gauge, name, &[], help, gauge)
    }

    pub(super) fn gauge_by(
        &mut self,
        name: &'static str,
        labels: &'static [LabelKey],
        help: &'static str,
    ) -> GaugeVec {
        let gauge = GaugeVec::new(Opts::new(name, help), &names(labels))
            .expect("name and labels are literals that the tests have seen");
        self.declare(FamilyKind::Gauge, name, labels, help, gauge)
    }

    pub(super) fn counter(&mut self, name: &'static str, help: &'static str) -> IntCounter {
        let counter = IntCounter::new(name, help).expect("the name is a literal that the tests have seen");
        self.declare(FamilyKind::Counter, name, &[], help, counter)
    }

    pub(super) fn counter_by(
        &mut self,
        name: &'static str,
        labels: &'static [LabelKey],
        help: &'static str,
    ) -> IntCounterVec {
        let counter = IntCounterVec::new(Opts::new(name, help), &names(labels))
            .expect("name and labels are literals that the tests have seen");
        self.declare(FamilyKind::Counter, name, labels, help, counter)
    }

    pub(super) fn histogram(&mut self, name: &'static str, buckets: &[f64], help: &'static str) -> Histogram {
        let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))
            .expect("name and buckets are literals that the tests have seen");
        self.declare(FamilyKind::Histogram, name, &[], help, histogram)
    }

    /// For a collector that does not come from one of the constructors above.
    pub(super) fn declare<C: Collector + Clone + 'static>(
        &mut self,
        kind: FamilyKind,
        name: &'static str,
        labels: &'static [LabelKey],
        help: &'static str,
        collector: C,
    ) -> C {
        self.registry
            .register(Box::new(collector.clone()))
            .expect("no two families share a name; the tests declare them all");
        self.list.push(Family { name, kind, labels, help });
        collector
    }
}

fn names(labels: &[LabelKey]) -> Vec<&'static str> {
    labels.iter().map(|label| label.name).collect()
}
