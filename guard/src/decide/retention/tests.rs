//! Case tables for [`super::retention`].

use std::time::Duration;

use super::*;
use crate::decide::fixture::{archive, inventory, now, owner_pattern, policy, protect};
use crate::model::{Certainty, Checkpoint, KeepTogether, Limits, Max, RetentionRule};

const UNLIMITED: Limits<u32> = Limits { container: None, pod: None, namespace: None };

fn rule(owner: &str) -> RetentionRule {
    RetentionRule { owner: owner_pattern(owner), source: format!("retention {owner}"), ..Default::default() }
}

fn count(owner: &str, max_count: Limits<u32>) -> RetentionRule {
    RetentionRule { max_count: max_count.map(Max::At), ..rule(owner) }
}

fn per_container(owner: &str, max: u32) -> RetentionRule {
    count(owner, Limits { container: Some(max), ..UNLIMITED })
}

#[track_caller]
fn check(checkpoints: &[Checkpoint], rules: &[RetentionRule], expect: &[u32]) -> Plan {
    check_with(checkpoints, &Policy { retention: rules.to_vec(), ..policy() }, expect)
}

#[track_caller]
fn check_with(checkpoints: &[Checkpoint], policy: &Policy, expect: &[u32]) -> Plan {
    let plan = retention(&inventory(checkpoints.to_vec()), policy, now());
    let victims: Vec<_> = plan.victims.iter().map(|victim| victim.index).collect();
    assert_eq!(victims, expect, "{plan:#?}");
    assert_eq!(plan.victims.len() + plan.spared.len(), checkpoints.len());
    plan
}

/// Of `a/p/c`, one for each age in minutes, 10 MiB each.
fn of_one_container(ages: &[i64]) -> Vec<Checkpoint> {
    ages.iter().map(|minutes| archive("a/p/c", *minutes, 10)).collect()
}

#[test]
fn a_containers_limit_counts_that_container_only_and_the_oldest_go() {
    let mut checkpoints = of_one_container(&[10, 40, 20, 30]);
    checkpoints.extend([archive("a/p/d", 99, 10), archive("a/q/c", 99, 10), archive("b/p/c", 99, 10)]);
    let plan = check(&checkpoints, &[per_container("*/-/-", 2)], &[1, 3]);
    assert_eq!(
        plan.victims[0].reason.to_string(),
        "its container has 4 checkpoints and may have 2 (retention */-/-); 40 min old, frees 10.0 MiB",
    );
    assert_eq!(plan.victims[0].trigger.to_string(), "retention:retention */-/-");
}

#[test]
fn pods_and_namespaces_are_counted_over_all_that_is_theirs() {
    let checkpoints = [
        archive("a/p/c", 50, 10),
        archive("a/p/d", 40, 10),
        archive("a/q/c", 60, 10),
        archive("a/q/c", 30, 10),
        archive("b/q/c", 90, 10),
    ];
    check(&checkpoints, &[count("*/-/-", Limits { pod: Some(1), ..UNLIMITED })], &[2, 0]);
    check(&checkpoints, &[count("*/-/-", Limits { namespace: Some(3), ..UNLIMITED })], &[2]);
    let both = Limits { pod: Some(1), namespace: Some(1), container: None };
    check(&checkpoints, &[count("*/-/-", both)], &[2, 0, 1]);
}

#[test]
fn zero_is_zero_and_absent_is_no_limit() {
    let checkpoints = of_one_container(&[10, 20]);
    check(&checkpoints, &[per_container("*/-/-", 0)], &[1, 0]);
    check(&checkpoints, &[rule("*/-/-")], &[]);
    check(&checkpoints, &[], &[]);
}

#[test]
fn the_most_specific_rule_wins_field_by_field() {
    let checkpoints: Vec<_> = (1..=4).map(|n| archive("team-prod/db-1/main", n * 60, 10)).collect();
    let aged = |owner, hours: u64| RetentionRule {
        max_age: Some(Max::At(Duration::from_secs(hours * 3600 + 1800))),
        ..rule(owner)
    };
    let rules = [per_container("*/-/-", 1), per_container("team-prod/db-*/-", 3), aged("*/-/-", 2)];
    // Three by the narrower rule, and its silence on ages leaves the wider rule's in force.
    check(&checkpoints, &rules, &[3, 2]);
    check(&checkpoints, &rules[..2], &[3]);
    check(&checkpoints, &[per_container("team/-/-", 0), per_container("team-*/-/-", 9)], &[]);
}

#[test]
fn of_equally_specific_rules_the_more_lenient_wins() {
    let checkpoints = of_one_container(&[10, 20, 30]);
    check(&checkpoints, &[per_container("a/-/-", 1), per_container("a/-/-", 2)], &[2]);
}

#[test]
fn pinned_and_protected_ones_count_and_stay() {
    let mut checkpoints = of_one_container(&[10, 20, 30, 40]);
    checkpoints[3].states |= States::PINNED;
    let plan = check(&checkpoints, &[per_container("*/-/-", 2)], &[2, 1]);
    assert_eq!(plan.spared[0].reason, SpareReason::Pinned);
    assert_eq!(plan.spared[1].reason, SpareReason::Retained);
    let mut policy = policy();
    policy.retention = vec![per_container("*/-/-", 1)];
    policy.protection.rules = vec![protect("a/-/-", 100)];
    check_with(&checkpoints, &policy, &[]);
}

#[test]
fn open_ones_count_and_stay() {
    let mut checkpoints = of_one_container(&[10, 20, 30]);
    checkpoints[2].states |= States::IN_USE;
    check(&checkpoints, &[per_container("*/-/-", 1)], &[1, 0]);
}

#[test]
fn a_container_waits_while_one_of_its_is_being_written_and_others_do_not_wait_for_it() {
    let mut checkpoints = of_one_container(&[0, 20, 30]);
    checkpoints[0].states |= States::BEING_WRITTEN;
    checkpoints.extend([archive("a/p/d", 10, 10), archive("a/p/d", 15, 10)]);
    let plan = check(&checkpoints, &[per_container("*/-/-", 1)], &[4]);
    assert_eq!(plan.spared[0].reason, SpareReason::Unsettled);
    // It is not counted for the namespace either: nobody pays for a count that is not settled.
    check(&checkpoints, &[count("*/-/-", Limits { namespace: Some(2), ..UNLIMITED })], &[]);
}

#[test]
fn one_being_written_under_a_doubtful_name_keeps_every_container_it_may_be_of_waiting() {
    let writing = archive("a/p/b-c", 0, 10).or(&["a-b/p/c"]).with(States::BEING_WRITTEN);
    let mut checkpoints = vec![writing];
    for owner in ["a/p/b-c", "a-b/p/c", "x/p/c"] {
        checkpoints.extend([archive(owner, 10, 10), archive(owner, 20, 10)]);
    }
    check(&checkpoints, &[per_container("*/-/-", 1)], &[6]);
}

#[test]
fn a_total_is_trimmed_oldest_first_and_no_further_than_needed() {
    let total = |max| RetentionRule {
        max_total_size: Limits { namespace: Some(Max::At(Bytes::mib(max))), container: None, pod: None },
        ..rule("*/-/-")
    };
    let checkpoints = [archive("a/p/c", 40, 10), archive("a/p/d", 30, 100), archive("a/q/c", 20, 50)];
    check(&checkpoints, &[total(160)], &[]);
    check(&checkpoints, &[total(150)], &[0]);
    // The oldest is given back: once the large one is gone there is room for it.
    let plan = check(&checkpoints, &[total(60)], &[1]);
    assert_eq!(
        plan.victims[0].reason.to_string(),
        "the checkpoints of its namespace hold 160 MiB and may hold 60.0 MiB (retention */-/-); \
         30 min old, frees 100 MiB",
    );
}

#[test]
fn too_large_too_old_and_orphaned_ones_go_by_themselves_and_are_not_counted_again() {
    let mut checkpoints = of_one_container(&[10, 20, 300]);
    checkpoints.push(archive("a/p/c", 15, 999));
    checkpoints.push(archive("a/gone/c", 15, 1).with(States::ORPHAN));
    let rules = [RetentionRule {
        max_count: Limits { container: Some(Max::At(2)), ..Limits::default() },
        max_size: Some(Max::At(Bytes::mib(500))),
        max_age: Some(Max::At(Duration::from_secs(3600))),
        retain_orphans: Some(false),
        ..rule("*/-/-")
    }];
    let plan = check(&checkpoints, &rules, &[2, 4, 3]);
    let triggers: Vec<_> = plan.victims.iter().map(|victim| victim.trigger.label()).collect();
    let orphan = triggers.iter().filter(|label| **label == "orphan").count();
    assert_eq!((triggers.len(), orphan), (3, 1));
}

#[test]
fn case_11_orphans_are_retained_unless_the_rule_says_otherwise() {
    let orphan = [archive("a/p/c", 10, 1).with(States::ORPHAN)];
    check(&orphan, &[rule("*/-/-")], &[]);
    check(&orphan, &[RetentionRule { retain_orphans: Some(true), ..rule("*/-/-") }], &[]);
}

#[test]
fn an_incomplete_one_never_pushes_a_complete_one_out() {
    let mut checkpoints = of_one_container(&[10, 20]);
    checkpoints[0].states |= States::INCOMPLETE;
    check(&checkpoints, &[per_container("*/-/-", 1)], &[0]);
}

#[test]
fn a_doubtful_one_counts_but_goes_before_any_certain_one_and_never_makes_one_go() {
    let doubtful = archive("a/p/c", 5, 10).or(&["b/p/c"]);
    let checkpoints = [archive("a/p/c", 30, 10), archive("a/p/c", 20, 10), doubtful.clone()];
    check(&checkpoints, &[per_container("*/-/-", 2)], &[2]);
    check(&checkpoints, &[per_container("*/-/-", 1)], &[0, 2]);
    let pinned = [archive("a/p/c", 30, 10), doubtful.with(States::PINNED)];
    check(&pinned, &[per_container("*/-/-", 1)], &[]);
}

#[test]
fn a_doubtful_one_is_held_to_the_most_lenient_limit_of_its_readings() {
    let aged = |owner, minutes: u64| RetentionRule {
        max_age: Some(Max::At(Duration::from_secs(minutes * 60))),
        ..rule(owner)
    };
    let doubtful = [archive("a/p/c", 50, 10).or(&["b/p/c"])];
    check(&doubtful, &[aged("a/-/-", 10)], &[]);
    check(&doubtful, &[aged("a/-/-", 10), aged("b/-/-", 90)], &[]);
    check(&doubtful, &[aged("a/-/-", 10), aged("b/-/-", 40)], &[0]);
}

#[test]
fn a_rule_narrowed_to_a_pod_says_nothing_about_the_namespace() {
    let checkpoints = of_one_container(&[10, 20]);
    check(&checkpoints, &[count("a/p/-", Limits { namespace: Some(1), ..UNLIMITED })], &[]);
    check(&checkpoints, &[count("a/p/-", Limits { pod: Some(1), ..UNLIMITED })], &[1]);
}

#[test]
fn the_unknown_belong_to_no_container_but_age_like_all() {
    let unknown = archive("?/?/?", 50, 10).known(Certainty::Unknown);
    let checkpoints = [unknown.clone(), unknown];
    check(&checkpoints, &[per_container("*/-/-", 0)], &[]);
    let aged = RetentionRule { max_age: Some(Max::At(Duration::from_secs(60))), ..rule("*/-/-") };
    check(&checkpoints, &[aged], &[0, 1]);
}

#[test]
fn an_unlimited_rule_lifts_what_a_wider_one_limits_and_is_itself_no_limit() {
    let checkpoints = of_one_container(&[10, 20, 30]);
    let unlimited = RetentionRule {
        max_count: Limits { container: Some(Max::Unlimited), ..Limits::default() },
        max_age: Some(Max::Unlimited),
        max_size: Some(Max::Unlimited),
        ..rule("a/-/-")
    };
    check(&checkpoints, &[per_container("*/-/-", 1), unlimited.clone()], &[]);
    // As lenient as can be among equals.
    check(&checkpoints, &[per_container("a/-/-", 1), unlimited], &[]);
}

#[test]
fn chains_go_whole_count_as_one_and_are_as_old_as_their_newest() {
    let chain = [
        archive("a/p/c", 300, 10).with(States::PRE_CHECKPOINT),
        archive("a/p/c", 280, 10).with(States::HAS_PARENT),
        archive("a/p/c", 200, 10),
    ];
    let aged = |minutes: u64| RetentionRule {
        max_age: Some(Max::At(Duration::from_secs(minutes * 60))),
        ..rule("*/-/-")
    };
    let mut policy = Policy { retention: vec![aged(290)], ..policy() };
    check_with(&chain, &policy, &[0]);
    policy.eviction.keep_together = KeepTogether::Chains;
    check_with(&chain, &policy, &[]);
    policy.retention = vec![aged(270)];
    check_with(&chain, &policy, &[1, 0]);
    policy.retention = vec![per_container("*/-/-", 2)];
    check_with(&chain, &policy, &[]);
    policy.retention = vec![per_container("*/-/-", 1)];
    check_with(&chain, &policy, &[1, 0]);
    // Each of a chain is small enough, though together they are not.
    policy.retention = vec![RetentionRule { max_size: Some(Max::At(Bytes::mib(15))), ..rule("*/-/-") }];
    check_with(&chain, &policy, &[]);
}

#[test]
fn a_series_is_never_split() {
    let mut checkpoints = of_one_container(&[10, 20, 400]);
    checkpoints.extend([archive("a/q/c", 500, 10), archive("a/q/c", 600, 10)]);
    let mut policy = Policy { retention: vec![per_container("*/-/-", 1)], ..policy() };
    policy.eviction.keep_together = KeepTogether::Containers;
    check_with(&checkpoints, &policy, &[]);
    policy.retention = vec![count("*/-/-", Limits { namespace: Some(1), ..UNLIMITED })];
    check_with(&checkpoints, &policy, &[3, 4]);
    let aged = RetentionRule { max_age: Some(Max::At(Duration::from_secs(300 * 60))), ..rule("*/-/-") };
    policy.retention = vec![aged];
    check_with(&checkpoints, &policy, &[3, 4]);
    // A pin on one of a series keeps all of it.
    checkpoints[4].states |= States::PINNED;
    check_with(&checkpoints, &policy, &[]);
}
