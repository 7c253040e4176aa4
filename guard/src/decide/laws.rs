//! Laws: what holds for every inventory, policy and need, tried on random ones.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::decide::census::{Census, Follows};
use crate::decide::fixture::{archive, inventory, now, owner, owner_pattern, pressure_policy, protect};
use crate::decide::{Pressure, Request, plan, retention, threshold, victims};
use crate::model::*;

const OWNERS: [&str; 8] =
    ["a/p/c", "a/p/d", "a/q/c", "b/p/c", "team/x/prod-app", "team-prod/x/app", "team-prod/y/app", "?/?/?"];

fn checkpoint() -> impl Strategy<Value = Checkpoint> {
    let identity = (select(&OWNERS[..]), select(&OWNERS[..]), 0..10u8);
    let size = prop_oneof![4 => 1..50u64, 1 => Just(0), 1 => 200..900u64];
    // Few ages and sizes, so that ties are common; a few times lie in the future.
    let times = (-90..600i64, -3..3i64);
    (identity, size, times, any::<u16>(), any::<u16>(), 1..4u32, 0..3u16).prop_map(
        |((of, other, doubt), size, (minutes, drift), common, rare, inodes, serial)| {
            let mut checkpoint = archive(of, minutes / 10 * 10, size);
            checkpoint.modified += SignedDuration::from_mins(drift);
            checkpoint.name =
                std::ffi::OsString::from(format!("{of}-{serial}-{minutes}-{size}-{rare}")).into();
            // Two draws: each state alone is common, most checkpoints have one or none.
            checkpoint.states = States::from_bits_truncate(common & rare & rare.rotate_left(3));
            checkpoint.inodes = inodes;
            if doubt == 0 {
                checkpoint = checkpoint.or(&[other]);
            } else if of == "?/?/?" {
                checkpoint = checkpoint.known(Certainty::Unknown);
            } else if doubt == 1 {
                checkpoint = checkpoint.known(Certainty::NameOnly);
            }
            checkpoint
        },
    )
}

fn checkpoints() -> impl Strategy<Value = Vec<Checkpoint>> {
    vec(checkpoint(), 0..40)
}

fn protection_rules() -> impl Strategy<Value = Vec<ProtectionRule>> {
    let owners = ["*/-/-", "a/-/-", "a/p/-", "a/p/c", "-/-/c", "team/-/-", "team-*/-/-", "team-prod/y/*"];
    let value = prop_oneof![3 => 0..100u8, 1 => Just(100)];
    vec((select(owners.to_vec()), value).prop_map(|(owner, protection)| protect(owner, protection)), 0..5)
}

fn max<T: std::fmt::Debug + Clone>(
    value: impl Strategy<Value = T> + Clone,
) -> impl Strategy<Value = Max<T>> + Clone {
    prop_oneof![4 => value.prop_map(Max::At), 1 => Just(Max::Unlimited)]
}

fn retention_rules() -> impl Strategy<Value = Vec<RetentionRule>> {
    fn limits<T: std::fmt::Debug + Clone>(
        value: impl Strategy<Value = T> + Clone,
    ) -> impl Strategy<Value = Limits<Max<T>>> {
        let one = proptest::option::weighted(0.3, max(value));
        (one.clone(), one.clone(), one).prop_map(|(container, pod, namespace)| Limits {
            container,
            pod,
            namespace,
        })
    }
    let owners = ["*/-/-", "a/-/-", "a/p/-", "a/p/c", "team/-/-", "team-*/-/-"];
    let rule = (
        select(owners.to_vec()),
        limits(0..6u32),
        limits((0..300u64).prop_map(Bytes::mib)),
        proptest::option::weighted(0.2, max((100..900u64).prop_map(Bytes::mib))),
        proptest::option::weighted(0.2, max((3600..36000u64).prop_map(Duration::from_secs))),
        proptest::option::weighted(0.3, any::<bool>()),
    );
    let rule = rule.prop_map(|(owner, max_count, max_total_size, max_size, max_age, retain_orphans)| {
        let source = format!("retention {owner}");
        let owner = owner_pattern(owner);
        RetentionRule { owner, max_count, max_total_size, max_size, max_age, retain_orphans, source }
    });
    vec(rule, 0..4)
}

fn together() -> impl Strategy<Value = KeepTogether> {
    select(vec![KeepTogether::Off, KeepTogether::Chains, KeepTogether::Containers])
}

fn policies() -> impl Strategy<Value = Policy> {
    let order = Just(OrderKey::ALL.to_vec()).prop_shuffle();
    let eviction = (order, 0..=8usize, 0..3u32, together(), select(vec![0u64, 1, 3600]));
    (eviction, protection_rules(), retention_rules()).prop_map(
        |((mut order, keys, keep_last, keep_together, bucket), rules, retention)| {
            order.truncate(keys);
            Policy {
                eviction: EvictionPolicy {
                    order,
                    age_bucket: Duration::from_secs(bucket),
                    min_age: Duration::from_secs(1200),
                    keep_last,
                    keep_together,
                },
                protection: ProtectionPolicy { default: Protection::new(50).unwrap(), rules },
                retention,
                pressure: pressure_policy(),
            }
        },
    )
}

fn requests() -> impl Strategy<Value = Request> {
    let trigger = select(vec![
        Trigger::Pressure(Level::Soft),
        Trigger::Pressure(Level::Hard),
        Trigger::Pressure(Level::Critical),
        Trigger::Manual,
    ]);
    let need = (prop_oneof![3 => 0..2000u64, 1 => Just(0)], prop_oneof![3 => Just(0), 1 => 0..60u64]);
    let need = need.prop_map(|(mib, inodes)| Need { bytes: Bytes::mib(mib), inodes });
    (need, trigger).prop_map(|(need, trigger)| Request { need, trigger })
}

fn total<'a>(inventory: &Inventory, indices: impl IntoIterator<Item = &'a u32>) -> Need {
    let gains = indices.into_iter().map(|index| inventory.checkpoints[*index as usize].gain());
    gains.fold(Need::default(), |all, one| all.plus(one))
}

fn indices(plan: &Plan) -> Vec<u32> {
    plan.victims.iter().map(|victim| victim.index).collect()
}

/// Names, which tell the checkpoints of one inventory apart wherever they stand in it.
fn names(inventory: &Inventory, plan: &Plan) -> Vec<(String, DeleteReason)> {
    let name = |victim: &Victim| inventory.checkpoints[victim.index as usize].display_name().into_owned();
    plan.victims.iter().map(|victim| (name(victim), victim.reason.clone())).collect()
}

fn without(inventory: &Inventory, gone: &[u32]) -> Inventory {
    let kept = inventory.checkpoints.iter().zip(0u32..).filter(|(_, index)| !gone.contains(index));
    let checkpoints = kept.map(|(checkpoint, _)| checkpoint.clone()).collect();
    Inventory { checkpoints, ..inventory.clone() }
}

/// The newest restorable ones of the container of `checkpoint`, itself among them or not.
fn is_last(inventory: &Inventory, index: u32, keep_last: u32) -> bool {
    let this = &inventory.checkpoints[index as usize];
    let is_sure = |checkpoint: &Checkpoint| {
        checkpoint.identity.alternatives.is_empty()
            && matches!(checkpoint.identity.certainty, Certainty::Exact | Certainty::NameOnly)
    };
    let unfinished = States::BEING_WRITTEN | States::INCOMPLETE | States::PRE_CHECKPOINT;
    let newer = inventory.checkpoints.iter().filter(|other| {
        // What may be no checkpoint at all counts only after those that are.
        let worth = |checkpoint: &Checkpoint| {
            let is_proven = !checkpoint.states.contains(States::UNPROVEN);
            (is_proven, checkpoint.instant(now()), checkpoint.modified)
        };
        is_sure(other)
            && other.identity.owner == this.identity.owner
            && !other.states.intersects(unfinished)
            && worth(other) > worth(this)
    });
    is_sure(this)
        && !this.states.contains(States::ORPHAN)
        && this.identity.owner.container.is_some()
        && !this.states.intersects(unfinished)
        && newer.count() < keep_last as usize
        // Of two that differ in nothing but the name, either may be the one.
        && !inventory.checkpoints.iter().zip(0u32..).any(|(other, at)| {
            at != index && (other.instant(now()), other.modified) == (this.instant(now()), this.modified)
        })
}

/// The candidates, first to go first, by nothing but the words of the documentation: each key looked up at
/// each comparison, everything sorted, shares settled one by one. For orders without `smallest-loss`, nothing kept together.
fn reference_order(
    inventory: &Inventory,
    request: &Request,
    policy: &Policy,
    mut candidates: Vec<u32>,
) -> Vec<u32> {
    let census = Census::new(inventory, policy, now());
    let only_inodes = request.need.bytes.is_zero() && request.need.inodes > 0;
    let one = |index: u32| &inventory.checkpoints[index as usize];
    let gain = |index: u32| match only_inodes {
        true => u64::from(one(index).inodes),
        false => one(index).allocated.0,
    };
    let bucket = policy.eviction.age_bucket.as_nanos().max(1);
    let leading = |key: &&OrderKey| matches!(key, OrderKey::Incomplete | OrderKey::LeastProtected);
    let place = policy.eviction.order.iter().take_while(leading).count();
    let is_critical = request.trigger == Trigger::Pressure(Level::Critical);
    let key_of = |index: u32, held: &HashMap<u32, u64>| {
        let checkpoint = one(index);
        let follows = census.follows(index);
        let mut values: Vec<i128> = policy
            .eviction
            .order
            .iter()
            .map(|key| match key {
                OrderKey::Incomplete => i128::from(!checkpoint.states.contains(States::INCOMPLETE)),
                OrderKey::LeastProtected => census.party(index).protected.protection.get().into(),
                OrderKey::Orphan => i128::from(!checkpoint.states.contains(States::ORPHAN)),
                OrderKey::Superseded => i128::from(!follows.contains(Follows::SUPERSEDED)),
                OrderKey::Oldest => -((checkpoint.age(now()).as_nanos() / bucket) as i128),
                OrderKey::Largest => -i128::from(gain(index)),
                OrderKey::FairShare => -i128::from(held.get(&index).copied().unwrap_or(0)),
                OrderKey::SmallestLoss => unreachable!("it weighs sets"),
            })
            .collect();
        if is_critical {
            let would_be_spared = follows.intersects(Follows::YOUNG | Follows::LAST);
            values.insert(place, would_be_spared.into());
        }
        let time = (checkpoint.instant(now()), checkpoint.modified);
        (values, time, checkpoint.name.clone(), checkpoint.directory, checkpoint.file)
    };
    let mut held = HashMap::new();
    candidates.sort_by_cached_key(|index| key_of(*index, &held));
    if policy.eviction.order.contains(&OrderKey::FairShare) {
        let namespace = |index: u32| {
            let party = census.party(index);
            party.is_certain.then(|| party.owner.namespace.clone()).flatten()
        };
        let mut left: Vec<u32> = (0..inventory.checkpoints.len() as u32).collect();
        for index in &candidates {
            let of_same = |other: &&u32| namespace(**other) == namespace(*index);
            let (count, amount) = left
                .iter()
                .filter(of_same)
                .fold((0, 0), |(count, amount), other| (count + 1, amount + gain(*other)));
            held.insert(*index, if count <= 1 { 0 } else { amount });
            left.retain(|other| other != index);
        }
        candidates.sort_by_cached_key(|index| key_of(*index, &held));
    }
    candidates
}

/// Whether the checkpoint at `index` may go at all, as the plan says.
fn candidates_of(plan: &Plan) -> Vec<u32> {
    let may =
        |reason: &SpareReason| matches!(reason, SpareReason::NotNeeded { .. } | SpareReason::NoGain { .. });
    let left = plan.spared.iter().filter(|spared| may(&spared.reason)).map(|spared| spared.index);
    left.chain(indices(plan)).collect()
}

proptest! {
    #[test]
    fn a_plan_never_holds_what_must_stay(of in checkpoints(), policy in policies(), request in requests()) {
        let inventory = inventory(of);
        let critical = request.trigger == Trigger::Pressure(Level::Critical);
        for index in indices(&plan(&inventory, &request, &policy, now())) {
            let checkpoint = &inventory.checkpoints[index as usize];
            let stays = States::PINNED | States::IN_USE | States::BEING_WRITTEN | States::LINKED;
            prop_assert!(!checkpoint.states.intersects(stays));
            for reading in checkpoint.identity.readings() {
                let protected = crate::decide::protection::of_owner(&policy.protection, reading);
                prop_assert!(!protected.protection.is_never());
            }
            let is_past = checkpoint.instant(now()) <= now();
            prop_assert!(critical || !is_past || checkpoint.age(now()) >= policy.eviction.min_age);
            prop_assert!(critical || !is_last(&inventory, index, policy.eviction.keep_last));
        }
    }

    #[test]
    fn plans_go_by_the_documented_order(of in checkpoints(), mut policy in policies(), request in requests()) {
        policy.eviction.keep_together = KeepTogether::Off;
        policy.eviction.order.retain(|key| *key != OrderKey::SmallestLoss);
        prop_assume!(!request.need.is_met());
        let inventory = inventory(of);
        let plan = plan(&inventory, &request, &policy, now());
        let order = reference_order(&inventory, &request, &policy, candidates_of(&plan));
        let mut left = request.need;
        let mut taken: Vec<u32> = Vec::new();
        for index in &order {
            if left.is_met() {
                break;
            }
            taken.push(*index);
            left = request.need.less(total(&inventory, &taken));
        }
        for index in taken.clone().into_iter().rev() {
            let rest: Vec<u32> = taken.iter().copied().filter(|other| *other != index).collect();
            if request.need.less(total(&inventory, &rest)) == left {
                taken = rest;
            }
        }
        prop_assert_eq!(indices(&plan), taken);
        for spared in &plan.spared {
            if let SpareReason::NotNeeded { rank } | SpareReason::NoGain { rank } = spared.reason {
                prop_assert_eq!(order[rank as usize - 1], spared.index);
            }
        }
    }

    #[test]
    fn victims_are_those_of_the_whole_plan(of in checkpoints(), policy in policies(), request in requests()) {
        let inventory = inventory(of);
        let whole = plan(&inventory, &request, &policy, now());
        let quick = victims(&inventory, &request, &policy, now());
        prop_assert_eq!(quick, Plan { spared: Vec::new(), ..whole });
    }

    #[test]
    fn at_critical_the_young_and_the_last_go_only_when_the_others_are_not_enough(
        of in checkpoints(), mut policy in policies(), request in requests()
    ) {
        policy.eviction.keep_together = KeepTogether::Off;
        let request = Request { trigger: Trigger::Pressure(Level::Critical), ..request };
        let inventory = inventory(of);
        let census = Census::new(&inventory, &policy, now());
        let plan = plan(&inventory, &request, &policy, now());
        let is_spared_below = |index: u32| census.follows(index).intersects(Follows::YOUNG | Follows::LAST);
        let leads = |key: &&OrderKey| matches!(key, OrderKey::Incomplete | OrderKey::LeastProtected);
        let before: Vec<_> = policy.eviction.order.iter().take_while(leads).collect();
        for victim in indices(&plan).into_iter().filter(|index| is_spared_below(*index)) {
            // Whoever is equal to it, or goes before it, by the keys that come first.
            let comes_first = |other: &u32| before.iter().all(|key| match key {
                OrderKey::Incomplete => {
                    let is = |index: u32| census.states(index).contains(States::INCOMPLETE);
                    is(*other) || !is(victim)
                }
                _ => census.protection(*other) <= census.protection(victim),
            });
            let others = candidates_of(&plan).into_iter().filter(|other| !is_spared_below(*other));
            let others: Vec<u32> = others.filter(comes_first).collect();
            prop_assert!(!request.need.less(total(&inventory, &others)).is_met(), "{plan:#?}");
        }
    }

    #[test]
    fn every_checkpoint_is_either_a_victim_or_spared_for_a_reason(
        of in checkpoints(), policy in policies(), request in requests()
    ) {
        let inventory = inventory(of);
        let plan = plan(&inventory, &request, &policy, now());
        let mut all = indices(&plan);
        all.extend(plan.spared.iter().map(|spared| spared.index));
        all.sort_unstable();
        prop_assert_eq!(all, (0..inventory.checkpoints.len() as u32).collect::<Vec<_>>());
        prop_assert_eq!(plan.frees, total(&inventory, &indices(&plan)));
        prop_assert_eq!(plan.shortfall, request.need.less(plan.frees));
    }

    #[test]
    fn a_plan_reaches_the_target_or_uses_every_candidate_that_helps(
        of in checkpoints(), policy in policies(), request in requests()
    ) {
        let inventory = inventory(of);
        let plan = plan(&inventory, &request, &policy, now());
        let is_left = |spared: &Spared| matches!(spared.reason, SpareReason::NotNeeded { .. });
        prop_assert!(plan.shortfall.is_met() || !plan.spared.iter().any(is_left), "{plan:#?}");
    }

    #[test]
    fn no_member_of_a_plan_is_superfluous(
        of in checkpoints(), mut policy in policies(), request in requests()
    ) {
        policy.eviction.keep_together = KeepTogether::Off;
        let inventory = inventory(of);
        let plan = plan(&inventory, &request, &policy, now());
        let victims = indices(&plan);
        for spared in &victims {
            let rest = total(&inventory, victims.iter().filter(|index| *index != spared));
            prop_assert!(request.need.less(rest) != plan.shortfall);
        }
    }

    #[test]
    fn raising_a_protection_never_makes_that_checkpoint_go_earlier(
        of in checkpoints(), policy in policies(), request in requests(),
        chosen in any::<prop::sample::Index>(), raise in 1..=100u8,
    ) {
        prop_assume!(!of.is_empty());
        // One that is alone with its protection: its own namespace, one reading.
        let mut of = of;
        let chosen = chosen.index(of.len());
        let identity = Arc::make_mut(&mut of[chosen].identity);
        identity.owner = owner("own/p/c");
        identity.alternatives = Box::default();
        let inventory = inventory(of);
        let place = |protection: u8| {
            let mut policy = policy.clone();
            policy.protection.rules.push(protect("own/p/c", protection));
            let victims = indices(&plan(&inventory, &request, &policy, now()));
            victims.iter().position(|index| *index as usize == chosen).unwrap_or(usize::MAX)
        };
        let before = place(0);
        let after = place(raise);
        // `smallest-loss` weighs sets, not places: of what is taken the place says nothing.
        if policy.eviction.order.contains(&OrderKey::SmallestLoss) {
            prop_assert!(before != usize::MAX || after == usize::MAX);
        } else {
            prop_assert!(after >= before, "went at {before}, with protection {raise} at {after}");
        }
    }

    #[test]
    fn the_order_in_which_a_directory_is_listed_changes_nothing(
        (of, shuffled) in checkpoints().prop_flat_map(|of| (Just(of.clone()), Just(of).prop_shuffle())),
        policy in policies(), request in requests(),
    ) {
        let mut names_seen = std::collections::HashSet::new();
        prop_assume!(of.iter().all(|checkpoint| names_seen.insert(checkpoint.name.clone())));
        let (one, other) = (inventory(of), inventory(shuffled));
        prop_assert_eq!(
            names(&one, &plan(&one, &request, &policy, now())),
            names(&other, &plan(&other, &request, &policy, now()))
        );
        prop_assert_eq!(
            names(&one, &retention(&one, &policy, now())),
            names(&other, &retention(&other, &policy, now()))
        );
    }

    #[test]
    fn retention_carried_out_leaves_nothing_for_the_next(of in checkpoints(), policy in policies()) {
        let before = inventory(of);
        let gone = indices(&retention(&before, &policy, now()));
        let after = without(&before, &gone);
        prop_assert_eq!(indices(&retention(&after, &policy, now())), Vec::<u32>::new());
    }

    #[test]
    fn retention_never_lets_go_what_must_stay(of in checkpoints(), policy in policies()) {
        let inventory = inventory(of);
        for index in indices(&retention(&inventory, &policy, now())) {
            let checkpoint = &inventory.checkpoints[index as usize];
            let stays = States::PINNED | States::IN_USE | States::BEING_WRITTEN | States::LINKED;
            prop_assert!(!checkpoint.states.intersects(stays));
        }
    }

    #[test]
    fn a_doubtful_identity_neither_protects_nor_condemns_another(
        of in checkpoints(), mut policy in policies()
    ) {
        policy.eviction.keep_together = KeepTogether::Off;
        let sure = |checkpoint: &&Checkpoint| checkpoint.identity.certainty != Certainty::Ambiguous;
        // A doubtful one that is being written does make others wait, by design.
        let settled = |checkpoint: &&Checkpoint| !checkpoint.states.contains(States::BEING_WRITTEN);
        let with = inventory(of.iter().filter(|one| sure(one) || settled(one)).cloned());
        let only = inventory(with.checkpoints.iter().filter(sure).cloned());
        let of_sure = |inventory: &Inventory, plan: &Plan| -> Vec<String> {
            let victims = plan.victims.iter().map(|victim| &inventory.checkpoints[victim.index as usize]);
            victims.filter(sure).map(|checkpoint| checkpoint.display_name().into_owned()).collect()
        };
        let (kept, alone) = (retention(&with, &policy, now()), retention(&only, &policy, now()));
        prop_assert_eq!(of_sure(&with, &kept), of_sure(&only, &alone));
        // Under pressure everybody competes for the same bytes; but who may go at all does not depend on it.
        let all = Request { need: Need { bytes: Bytes(u64::MAX), inodes: u64::MAX }, trigger: Trigger::Manual };
        policy.eviction.order.retain(|key| *key != OrderKey::FairShare);
        let (with_plan, only_plan) = (plan(&with, &all, &policy, now()), plan(&only, &all, &policy, now()));
        prop_assert_eq!(of_sure(&with, &with_plan), of_sure(&only, &only_plan));
    }

    #[test]
    fn rising_availability_never_enters_pressure(
        start in 0..100u64, steps in vec((0..5u64, 0..40u64), 1..30)
    ) {
        let policy = pressure_policy();
        let mut pressure = Pressure::new();
        let (mut available, mut second) = (start, 0);
        let see = |available| Observation { capacity: Bytes::gib(100), available: Bytes::gib(available), inodes: None };
        let at = |second| Monotonic(Duration::from_secs(second));
        pressure.observe(&see(start), &policy, at(0));
        for (rise, wait) in steps {
            // Soft's grace may still run out on what was seen before; a rise itself enters nothing.
            second += wait;
            pressure.elapse(&policy, at(second));
            let before = pressure.level();
            available = (available + rise).min(100);
            pressure.observe(&see(available), &policy, at(second));
            prop_assert!(pressure.level() <= before);
        }
    }

    #[test]
    fn a_need_that_is_reclaimed_is_met_and_a_met_need_stays_met(available in 0..100u64, more in 0..50u64) {
        let policy = pressure_policy();
        let mut pressure = Pressure::new();
        let mut seen = Observation {
            capacity: Bytes::gib(100), available: Bytes::gib(available), inodes: None
        };
        pressure.observe(&seen, &policy, Monotonic::default());
        seen.available += pressure.need(&seen, &policy).bytes + Bytes(more);
        pressure.observe(&seen, &policy, Monotonic::default());
        prop_assert!(pressure.need(&seen, &policy).is_met());
        let level = threshold::level_of(&policy, &seen);
        prop_assert!(level < Level::Hard);
    }
}
