//! Values for the tests of this room: a policy like the sample configuration's, and checkpoints made from few words.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::model::*;

/// Soft 20 % after 30 s, hard 15 %, critical 11 %, minimum reclaim 2 % (bytes only); inodes 10, 7 and 6 %.
pub(crate) fn pressure_policy() -> PressurePolicy {
    let percent = |value: u16| Amount::one(Quantity::Share(Percent::from_hundredths(value * 100).unwrap()));
    let threshold = |available, inodes, grace| {
        Some(Threshold {
            available: Some(percent(available)),
            inodes_free: Some(percent(inodes)),
            grace_period: Duration::from_secs(grace),
        })
    };
    PressurePolicy {
        soft: threshold(20, 10, 30),
        hard: threshold(15, 7, 0),
        critical: threshold(11, 6, 0),
        minimum_reclaim: MinimumReclaim { available: Some(percent(2)), inodes_free: None },
        transition_period: Duration::from_secs(60),
    }
}

/// A filesystem of 100 GiB without inode signal.
pub(crate) fn observed(available: &str) -> Observation {
    Observation { capacity: Bytes::gib(100), available: available.parse().unwrap(), inodes: None }
}

/// The moment at which the tests of this room take place.
pub(crate) fn now() -> Timestamp {
    "2026-06-01T12:00:00Z".parse().unwrap()
}

/// DESIGN's order without `fair-share` (with which [`OrderKey::ALL`] begins), min-age 2 min, keep-last 1, protection 50, no retention.
pub(crate) fn policy() -> Policy {
    Policy {
        pressure: pressure_policy(),
        eviction: EvictionPolicy {
            order: OrderKey::ALL[..6].to_vec(),
            age_bucket: Duration::from_secs(3600),
            min_age: Duration::from_secs(120),
            keep_last: 1,
            keep_together: KeepTogether::Off,
        },
        protection: ProtectionPolicy { default: Protection::new(50).unwrap(), rules: Vec::new() },
        retention: Vec::new(),
    }
}

/// A pattern from `namespace/pod/container`, where `-` is no condition.
pub(crate) fn owner_pattern(text: &str) -> OwnerPattern {
    let mut parts = text.split('/').map(|part| (part != "-").then(|| Pattern::new(part).unwrap()));
    let mut next = || parts.next().flatten();
    OwnerPattern { namespace: next(), pod: next(), container: next() }
}

/// A protection rule for `namespace/pod/container`.
pub(crate) fn protect(owner: &str, protection: u8) -> ProtectionRule {
    ProtectionRule {
        owner: owner_pattern(owner),
        protection: Protection::new(protection).unwrap(),
        source: format!("protection {owner}"),
    }
}

/// An owner from `namespace/pod/container`, where `?` is not known.
pub(crate) fn owner(text: &str) -> Owner {
    let mut parts = text.split('/').map(|part| (part != "?").then(|| part.into()));
    let mut next = || parts.next().flatten();
    Owner { namespace: next(), pod: next(), container: next() }
}

/// An exactly identified archive of `owner`, `minutes` old, of `mib` MiB.
pub(crate) fn archive(owner_text: &str, minutes: i64, mib: u64) -> Checkpoint {
    let created = now() - SignedDuration::from_mins(minutes);
    Checkpoint {
        directory: 0,
        kind: Kind::Archive,
        states: States::empty(),
        name: std::ffi::OsString::from(format!("checkpoint-{}-{created}.tar", owner_text.replace('/', "_")))
            .into(),
        file: FileId { dev: 1, ino: minutes.unsigned_abs() * 1000 + mib },
        created,
        modified: created,
        len: Bytes::mib(mib),
        allocated: Bytes::mib(mib),
        inodes: 1,
        identity: Identity { owner: owner(owner_text), certainty: Certainty::Exact, ..Identity::default() }
            .into(),
    }
}

impl Checkpoint {
    /// This one, observed to be `states`.
    pub(crate) fn with(mut self, states: States) -> Checkpoint {
        self.states |= states;
        self
    }

    /// This one, with further readings of whose it is.
    pub(crate) fn or(mut self, alternatives: &[&str]) -> Checkpoint {
        let identity = Arc::make_mut(&mut self.identity);
        identity.alternatives = alternatives.iter().map(|text| owner(text)).collect();
        self.known(Certainty::Ambiguous)
    }

    /// This one, whose owner can be relied on so far.
    pub(crate) fn known(mut self, certainty: Certainty) -> Checkpoint {
        Arc::make_mut(&mut self.identity).certainty = certainty;
        self
    }
}

/// All of them on one filesystem.
pub(crate) fn inventory(checkpoints: impl IntoIterator<Item = Checkpoint>) -> Inventory {
    Inventory {
        directories: vec!["/checkpoints".into()],
        checkpoints: checkpoints.into_iter().collect(),
        foreign: 0,
    }
}

/// A need of so many MiB.
pub(crate) fn mib(need: u64) -> Need {
    Need { bytes: Bytes::mib(need), inodes: 0 }
}
