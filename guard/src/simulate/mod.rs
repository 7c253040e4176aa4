//! Simulation: what a policy would have done. Traces of what happens to a node, read or generated, are replayed through
//! the real decisions ([`crate::decide`]) with simulated time. docs/DECISIONS.md describes traces and results.
//!
//! What a green result does not prove: deletions here succeed and free what they promise, checkpoints arrive whole at
//! one instant, and the future is like the trace.

pub mod fleet;
mod outcome;
mod replay;
pub mod trace;

use std::time::Duration;

pub use outcome::Outcome;
pub use replay::{Chooser, replay};

use crate::model::{
    Amount, EvictionPolicy, KeepTogether, MinimumReclaim, OrderKey, OwnerPattern, Pattern, Percent, Policy,
    PressurePolicy, Protection, ProtectionPolicy, ProtectionRule, Quantity, Threshold,
};

/// The documented defaults, and the protection of the sample configuration (`ci-*` 5, `incident-*` 90).
pub fn sample_policy() -> Policy {
    let share =
        |percent: u16| Quantity::Share(Percent::from_hundredths(percent * 100).expect("at most 100 %"));
    let threshold = |percent, grace| {
        let available = Some(Amount::one(share(percent)));
        Some(Threshold { available, inodes_free: None, grace_period: Duration::from_secs(grace) })
    };
    let namespace = |pattern: &str, protection| ProtectionRule {
        owner: OwnerPattern { namespace: Pattern::new(pattern).ok(), ..OwnerPattern::default() },
        protection: Protection::new(protection).expect("at most 100"),
        source: format!("protection.namespaces.\"{pattern}\""),
    };
    Policy {
        pressure: PressurePolicy {
            soft: threshold(20, 30),
            hard: threshold(15, 0),
            critical: threshold(11, 0),
            minimum_reclaim: MinimumReclaim { available: Some(Amount::one(share(2))), inodes_free: None },
            transition_period: Duration::from_secs(60),
        },
        eviction: EvictionPolicy {
            order: OrderKey::DEFAULT.to_vec(),
            age_bucket: Duration::from_secs(3600),
            min_age: Duration::from_secs(120),
            keep_last: 1,
            keep_together: KeepTogether::Chains,
        },
        protection: ProtectionPolicy {
            default: Protection::new(50).expect("at most 100"),
            rules: vec![namespace("ci-*", 5), namespace("incident-*", 90)],
        },
        retention: Vec::new(),
    }
}
