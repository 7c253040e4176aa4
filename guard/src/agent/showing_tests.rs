//! Which threshold comes next, and what a dry run tells.

use super::*;
use crate::decide::fixture::{observed, pressure_policy};

#[test]
fn the_next_threshold_is_the_highest_below_what_is_available() {
    let next = |available| {
        let crossing = next_crossing(&pressure_policy(), &observed(available));
        crossing.map(|(level, seen)| (level, threshold::level_of(&pressure_policy(), &seen)))
    };
    assert_eq!(next("50GiB"), Some((Level::Soft, Level::Soft)));
    assert_eq!(next("20GiB"), Some((Level::Soft, Level::Soft)));
    assert_eq!(next("19GiB"), Some((Level::Hard, Level::Hard)));
    assert_eq!(next("12GiB"), Some((Level::Critical, Level::Critical)));
    assert_eq!(next("10GiB"), None);
}

#[test]
fn a_dry_run_tells_of_each_checkpoint_once() {
    let mut showing = Showing::default();
    let subject = |name: &str| Subject { name: name.to_owned(), ..Subject::default() };
    let victim = Victim {
        index: 0,
        trigger: Trigger::Pressure(Level::Hard),
        reason: crate::model::DeleteReason::Retention {
            limit: crate::model::Limit::Orphan,
            rule: "it".into(),
            age: Duration::ZERO,
            frees: Bytes::ZERO,
        },
    };
    let outcome = Outcome {
        index: 0,
        id: 0,
        verdict: Verdict::WouldBeDeleted,
        promised: crate::model::Need { bytes: Bytes(7), inodes: 1 },
        freed: crate::model::Need::default(),
        before: observed("10GiB"),
        after: None,
        began: Monotonic::default(),
        removed_at: Monotonic::default(),
        ended: Monotonic::default(),
    };
    for _ in 0..3 {
        showing.deleted(subject("a"), &outcome, &victim);
    }
    assert_eq!(showing.deletions.len(), 1);
    for n in 0..100 {
        showing.deleted(subject(&n.to_string()), &outcome, &victim);
    }
    assert_eq!(showing.deletions.len(), SHOWN_MAX);
    assert_eq!((&*showing.deletions[0].of.name, showing.deletions[0].freed_bytes), ("99", 7));
}
