//! The values that every other room speaks in. Nothing here does I/O or asks a clock.
//!
//! DESIGN, section 2, is the glossary; each type here is one of its words.

mod allowance;
mod bytes;
mod checkpoint;
mod cluster;
mod growth;
mod identity;
mod inventory;
mod level;
mod observation;
mod pattern;
mod plan;
mod policy;
mod quantity;
mod reason;

pub use allowance::Allowance;
pub use bytes::{Bytes, ParseBytesError};
pub use checkpoint::{Checkpoint, FileId, Holder, Kind, States};
pub use cluster::{Annotation, ByPod, Cluster, Declared, Fate, LookUp, PodName, PodRecord, Uids, Wish};
pub use growth::{Growth, KnownBy, NamespaceGrowth, WriterGrowth};
pub use identity::{Certainty, Engine, Identity, Owner};
pub use inventory::Inventory;
pub use level::Level;
pub use observation::{Inodes, Observation, Signal};
pub use pattern::{Pattern, PatternError};
pub use plan::{Need, Plan, Spared, Trigger, Victim};
pub use policy::{
    EvictionPolicy, KeepTogether, Limits, Max, MinimumReclaim, OrderKey, OwnerPattern, Policy,
    PressurePolicy, Protection, ProtectionPolicy, ProtectionRule, RetentionRule, Threshold,
};
pub use quantity::{Amount, ParseQuantityError, Percent, Quantity};
pub use reason::{DeleteReason, Limit, Ranked, Scope, SpareReason, SparedBelow, Standing, Weighed};

/// A moment by both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// For how long something takes.
    pub monotonic: Monotonic,
    /// For what files say of themselves.
    pub wall: jiff::Timestamp,
}

/// Time since an arbitrary fixed point (`CLOCK_MONOTONIC`, as the kernel's `bpf_ktime_get_ns` counts it).
///
/// Grace periods and reaction times are differences of these; the age of a checkpoint never is, it is a
/// difference of [`jiff::Timestamp`]s. The two never mix: one of them jumps when an operator sets the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Monotonic(pub std::time::Duration);

impl Monotonic {
    /// How long it has been since `earlier`; zero when `earlier` lies ahead.
    pub fn since(self, earlier: Monotonic) -> std::time::Duration {
        self.0.saturating_sub(earlier.0)
    }
}
