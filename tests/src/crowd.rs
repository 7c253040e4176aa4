//! Inventories of any size, for measuring decisions over them.

use std::sync::Arc;
use std::time::Duration;

use guard::model::*;
use jiff::{SignedDuration, Timestamp};

/// `count` checkpoints of 40 namespaces and 5,000 containers, ages over a month, sizes from 16 MiB to 4 GiB; the same in every run.
pub fn inventory(count: u64, now: Timestamp) -> Inventory {
    let owners = (0..5_000)
        .map(|n| Owner::new(&format!("ns-{}", n % 40), &format!("pod-{}", n / 4), &format!("c-{}", n % 4)));
    let exact = |owner| Arc::new(Identity { owner, certainty: Certainty::Exact, ..Identity::default() });
    let identities: Vec<_> = owners.map(exact).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let checkpoints = (0..count).map(|n| {
        let created = now - SignedDuration::from_secs(random(30 * 86_400) as i64);
        let identity = identities[random(5_000) as usize].clone();
        Checkpoint {
            directory: 0,
            kind: Kind::Archive,
            states: if random(100) == 0 { States::PINNED } else { States::empty() },
            name: std::ffi::OsString::from(
                format!("checkpoint-{}-{n}.tar", identity.owner).replace('/', "_"),
            )
            .into(),
            file: FileId { dev: 1, ino: n },
            created,
            modified: created,
            len: Bytes::gib(4),
            allocated: Bytes::mib(16 + random(4080)),
            inodes: 1,
            identity,
        }
    });
    Inventory { directories: vec!["/checkpoints".into()], checkpoints: checkpoints.collect(), foreign: 0 }
}

/// Protection for some of the namespaces, and `order`.
pub fn policy(order: Vec<OrderKey>) -> Policy {
    let namespace = |pattern: &str, protection| ProtectionRule {
        owner: OwnerPattern { namespace: Pattern::new(pattern).ok(), ..OwnerPattern::default() },
        protection: Protection::new(protection).expect("at most 100"),
        source: format!("protection.namespaces.{pattern}"),
    };
    Policy {
        pressure: PressurePolicy {
            soft: None,
            hard: None,
            critical: None,
            minimum_reclaim: MinimumReclaim::default(),
            transition_period: Duration::from_secs(60),
        },
        eviction: EvictionPolicy {
            order,
            age_bucket: Duration::from_secs(3600),
            min_age: Duration::from_secs(120),
            keep_last: 1,
            keep_together: KeepTogether::Chains,
        },
        protection: ProtectionPolicy {
            default: Protection::new(50).expect("at most 100"),
            rules: vec![namespace("ns-1*", 5), namespace("ns-2", 100), namespace("ns-3?", 80)],
        },
        retention: Vec::new(),
    }
}
