//! [`plan`](fn@plan): what to delete, in order, and why; what to spare, and why.

mod choice;

use jiff::Timestamp;

use self::choice::{Weighing, give_back, take};
use crate::decide::census::Census;
use crate::decide::chain::Chains;
use crate::decide::queue::{Extent, Queue};
use crate::decide::rank::{Candidate, Key, Ranking};
use crate::decide::rules::Rules;
use crate::model::{Inventory, Level, Need, Plan, Policy, SpareReason, Spared, Trigger, Victim};

/// What a plan is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// How much to free.
    pub need: Need,
    /// Why: [`Trigger::Pressure`] or [`Trigger::Manual`]. At critical the young and the last ones may go too; a
    /// person's wish is treated like hard.
    pub trigger: Trigger,
}

/// Decides which checkpoints go so that `request.need` is met, and no more of them than that takes.
///
/// Candidates are taken in the configured order until bytes and inodes are met; then the taken ones are walked
/// backwards, and each that turned out not to be needed is given back. Equal inputs give equal plans, in whatever
/// order the inventory lists its checkpoints. Time is O(n log n), memory some 150 bytes for each checkpoint.
pub fn plan(inventory: &Inventory, request: &Request, policy: &Policy, now: Timestamp) -> Plan {
    decide(inventory, request, policy, now, Extent::All)
}

/// The same [`plan`](fn@plan), but [`Plan::spared`] is left empty: for whoever is in a hurry to delete. Candidates are
/// sorted only as far as they go, so time is O(n), and memory some 100 bytes for each checkpoint.
pub fn victims(inventory: &Inventory, request: &Request, policy: &Policy, now: Timestamp) -> Plan {
    decide(inventory, request, policy, now, Extent::Needed(Plan::RESERVES + 1))
}

fn decide(
    inventory: &Inventory,
    request: &Request,
    policy: &Policy,
    now: Timestamp,
    mut extent: Extent,
) -> Plan {
    let census = Census::new(inventory, policy, now);
    let chains = Chains::new(policy, &census);
    let need = request.need;
    let is_critical = request.trigger == Trigger::Pressure(Level::Critical);
    let rules = Rules::new(policy, &census, &chains, !is_critical);
    let ranking = Ranking::new(&census, &chains, &policy.eviction, need, is_critical);
    let wants_spared = extent == Extent::All;
    loop {
        let queue = Queue::new(&ranking, &rules, need, extent);
        let candidates = queue.sorted();
        let (mut taken, weighed) = take(&ranking, candidates, need);
        give_back(candidates, need, &mut taken);
        let reserve = reserve(&ranking, &rules, candidates, &taken, request);
        // A full reserve also means that somebody is left alone, with whom the last victim can be compared.
        if queue.is_all_sorted() || need.is_met() || reserve.len() == Plan::RESERVES {
            let weighed = weighed.map(|weighed| Weighing::new(&ranking, candidates, &taken, need, weighed));
            let victims = write_victims(&ranking, &rules, candidates, &taken, weighed, request);
            let frees = taken.iter().map(|position| candidates[*position].gain());
            let frees = frees.fold(Need::default(), |all, one| all.plus(one));
            let shortfall = need.less(frees);
            let spared = match wants_spared {
                true => spared(&ranking, &rules, candidates, &taken, shortfall),
                false => Vec::new(),
            };
            return Plan { need, victims, reserve, spared, frees, shortfall };
        }
        extent = Extent::Needed(candidates.len().saturating_mul(2));
    }
}

/// Whoever stays: candidates that were not needed first, by rank, then those that are none.
fn spared(
    ranking: &Ranking<'_>,
    rules: &Rules<'_>,
    candidates: &[Candidate],
    taken: &[usize],
    shortfall: Need,
) -> Vec<Spared> {
    let count = ranking.census.len();
    let mut spared = Vec::with_capacity((count as usize).saturating_sub(taken.len()));
    let mut next_taken = taken.iter().peekable();
    for (position, candidate) in candidates.iter().enumerate() {
        if next_taken.next_if_eq(&&position).is_some() {
            continue;
        }
        let rank = position as u32 + 1;
        // Had it freed any of what is short still, it would have been taken.
        let gains_nothing = !shortfall.is_met();
        for index in ranking.members(candidate) {
            let reason = match gains_nothing {
                true => SpareReason::NoGain { rank },
                false => SpareReason::NotNeeded { rank },
            };
            spared.push(Spared { index: *index, reason });
        }
    }
    let not_needed = spared.len();
    let exempt = (0..count).filter_map(|index| Some(Spared { index, reason: rules.spare_reason(index)? }));
    spared.extend(exempt);
    spared[not_needed..].sort_unstable_by(|a, b| ranking.census.by_time(a.index, b.index));
    spared
}

/// The first candidates after all victims that go alone and free some of what is short.
fn reserve(
    ranking: &Ranking<'_>,
    rules: &Rules<'_>,
    candidates: &[Candidate],
    taken: &[usize],
    request: &Request,
) -> Vec<Victim> {
    let Some(last) = taken.last() else { return Vec::new() };
    let frees = |candidate: &&Candidate| request.need.less(candidate.gain()) != request.need;
    let alone = candidates[last + 1..].iter().filter(frees).filter_map(|it| match ranking.members(it) {
        [index] => Some(*index),
        _ => None,
    });
    let victim = |index| {
        let reason = rules.delete_reason(index, None, None);
        Victim { index, trigger: request.trigger.clone(), reason }
    };
    alone.take(Plan::RESERVES).map(victim).collect()
}

/// The victims in the order of deletion, each compared with the next candidate that is left alone.
fn write_victims(
    ranking: &Ranking<'_>,
    rules: &Rules<'_>,
    candidates: &[Candidate],
    taken: &[usize],
    weighing: Option<Weighing>,
    request: &Request,
) -> Vec<Victim> {
    let mut victims = Vec::with_capacity(taken.len());
    let mut next_taken = None;
    let mut left_alone = None;
    for position in taken.iter().rev().copied() {
        if next_taken != Some(position + 1) {
            left_alone = candidates.get(position + 1).or(left_alone);
        }
        next_taken = Some(position);
        let candidate = &candidates[position];
        let told_apart = left_alone.and_then(|other| ranking.by_keys(&ranking.order, candidate, other));
        let decided_by = match told_apart {
            Some((Key::Order(key), _)) => Some(key),
            Some((Key::SparedBelow, _)) | None => None,
        };
        let weighed = weighing.as_ref().and_then(|weighing| weighing.of(ranking, position, candidate));
        // Reversed, as the whole list will be.
        for index in ranking.members(candidate).iter().rev() {
            let reason = rules.delete_reason(*index, decided_by, weighed);
            victims.push(Victim { index: *index, trigger: request.trigger.clone(), reason });
        }
    }
    victims.reverse();
    victims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::fixture::{archive, inventory, mib, now, policy, protect};
    use crate::model::{
        Bytes, Checkpoint, DeleteReason, KeepTogether, OrderKey, Protection, Standing, States,
    };

    /// The policy of the fixture without min-age and keep-last, ordered by `order`.
    fn by(order: &[OrderKey]) -> Policy {
        let mut policy = policy();
        policy.eviction.order = order.to_vec();
        policy.eviction.keep_last = 0;
        policy
    }

    fn at(level: Level, need: Need) -> Request {
        Request { need, trigger: Trigger::Pressure(level) }
    }

    fn hard(need: u64) -> Request {
        at(Level::Hard, mib(need))
    }

    #[track_caller]
    fn check(checkpoints: &[Checkpoint], request: &Request, policy: &Policy, expect: &[u32]) -> Plan {
        let plan = plan(&inventory(checkpoints.to_vec()), request, policy, now());
        let victims: Vec<_> = plan.victims.iter().map(|victim| victim.index).collect();
        assert_eq!(victims, expect, "{plan:#?}");
        assert_eq!(plan.victims.len() + plan.spared.len(), checkpoints.len());
        plan
    }

    #[track_caller]
    fn spared(plan: &Plan, index: u32) -> SpareReason {
        plan.spared.iter().find(|spared| spared.index == index).expect("it is spared").reason.clone()
    }

    #[test]
    fn case_25_of_five_exactly_the_right_one_goes_when_one_is_enough() {
        let ages = [50, 70, 90, 130, 110];
        let five: Vec<_> = ages.iter().map(|age| archive("a/p/c", *age, 100)).collect();
        let plan = check(&five, &hard(80), &policy(), &[3]);
        assert_eq!(plan.frees.bytes, Bytes::mib(100));
        assert!(plan.shortfall.is_met());
        assert_eq!(spared(&plan, 4), SpareReason::NotNeeded { rank: 2 });
        assert_eq!(spared(&plan, 0), SpareReason::Last);
    }

    #[test]
    fn the_default_order_is_read_from_left_to_right() {
        let mut policy = policy();
        policy.protection.rules = vec![protect("ci/-/-", 5)];
        let checkpoints = [
            archive("a/p/old", 900, 10).with(States::ORPHAN),
            archive("a/p/c", 60 * 30, 10),
            archive("a/p/c", 5, 10),
            archive("ci/p/c", 10, 10),
            archive("ci/p/c", 5, 10),
            archive("a/p/broken", 30, 10).with(States::INCOMPLETE),
            archive("a/p/other", 9000, 10),
        ];
        policy.eviction.keep_last = 0;
        check(&checkpoints, &hard(65), &policy, &[5, 3, 4, 0, 1, 6, 2]);
    }

    #[test]
    fn ages_within_one_bucket_are_equal_so_that_largest_decides() {
        let checkpoints = [archive("a/p/c", 130, 10), archive("a/p/d", 125, 30), archive("a/p/e", 179, 20)];
        let policy = by(&[OrderKey::Oldest, OrderKey::Largest]);
        check(&checkpoints, &hard(60), &policy, &[1, 2, 0]);
        let mut exact = policy.clone();
        exact.eviction.age_bucket = std::time::Duration::ZERO;
        check(&checkpoints, &hard(60), &exact, &[2, 0, 1]);
    }

    #[test]
    fn what_turns_out_not_to_be_needed_is_given_back() {
        let checkpoints = [archive("a/p/c", 30, 10), archive("a/p/d", 20, 10), archive("a/p/e", 10, 100)];
        let mut policy = by(&[OrderKey::Oldest]);
        policy.eviction.age_bucket = std::time::Duration::ZERO;
        let plan = check(&checkpoints, &hard(100), &policy, &[2]);
        assert_eq!(spared(&plan, 0), SpareReason::NotNeeded { rank: 1 });
        check(&checkpoints, &hard(105), &policy, &[0, 2]);
    }

    #[test]
    fn pinned_archives_survive_even_when_the_target_is_missed() {
        let stay = [
            (States::PINNED, SpareReason::Pinned),
            (States::IN_USE, SpareReason::InUse),
            (States::BEING_WRITTEN | States::IN_USE, SpareReason::BeingWritten),
            (States::LINKED, SpareReason::Linked),
        ];
        for (states, reason) in stay {
            let checkpoints = [archive("a/p/c", 90, 10).with(states), archive("a/p/c", 80, 10)];
            let plan = check(&checkpoints, &at(Level::Critical, mib(100)), &policy(), &[1]);
            assert_eq!(spared(&plan, 0), reason);
            assert_eq!(plan.shortfall, mib(90));
        }
    }

    #[test]
    fn protection_100_is_never_and_99_is_rather_not() {
        let mut policy = policy();
        policy.protection.rules = vec![protect("a/-/-", 100), protect("b/-/-", 99)];
        let checkpoints = [archive("a/p/c", 90, 10), archive("b/p/c", 90, 10)];
        let plan = check(&checkpoints, &at(Level::Critical, mib(100)), &policy, &[1]);
        assert_eq!(spared(&plan, 0).to_string(), "protection 100 (protection a/-/-): never evicted");
    }

    #[test]
    fn the_young_and_the_last_ones_are_spared_but_not_at_critical() {
        let checkpoints = [archive("a/p/c", 90, 10), archive("a/p/d", 1, 10), archive("a/p/d", 0, 10)];
        for request in
            [hard(100), at(Level::Soft, mib(100)), Request { need: mib(100), trigger: Trigger::Manual }]
        {
            let plan = check(&checkpoints, &request, &policy(), &[]);
            assert_eq!(spared(&plan, 0), SpareReason::Last);
            assert_eq!(spared(&plan, 1), SpareReason::Young { age: std::time::Duration::from_secs(60) });
        }
        check(&checkpoints, &at(Level::Critical, mib(100)), &policy(), &[1, 0, 2]);
    }

    #[test]
    fn case_10_a_rule_for_team_never_costs_team_prod_anything() {
        let mut policy = by(&[OrderKey::LeastProtected]);
        policy.protection.rules = vec![protect("team/-/-", 1), protect("team-prod/-/-", 100)];
        let doubtful = archive("team/x/prod-app", 90, 10).or(&["team-prod/x/app"]);
        let checkpoints = [archive("team-prod/x/app", 90, 10), archive("team/x/prod-app", 90, 10), doubtful];
        check(&checkpoints, &at(Level::Critical, mib(30)), &policy, &[1]);
    }

    #[test]
    fn case_13_an_incomplete_one_is_first_in_line_with_its_own_reason_but_not_while_open_or_young() {
        let broken = |minutes| archive("a/p/c", minutes, 10).with(States::INCOMPLETE);
        let checkpoints = [archive("a/p/c", 900, 10), archive("a/p/c", 5, 10), broken(10), broken(1)];
        let plan = check(&checkpoints, &hard(10), &policy(), &[2]);
        let DeleteReason::Ranked(ranked) = &plan.victims[0].reason else { panic!("not ranked") };
        assert_eq!((ranked.standing, ranked.decided_by), (Standing::Incomplete, Some(OrderKey::Incomplete)));
        let open = [broken(10).with(States::BEING_WRITTEN), broken(10).with(States::IN_USE)];
        check(&open, &at(Level::Critical, mib(10)), &policy(), &[]);
    }

    #[test]
    fn case_24_a_directory_full_of_pinned_ones_gives_a_plan_with_no_victims_and_the_whole_shortfall() {
        let checkpoints = vec![archive("a/p/c", 90, 10).with(States::PINNED); 3];
        assert_eq!(check(&checkpoints, &hard(500), &policy(), &[]).shortfall, mib(500));
        assert_eq!(check(&[], &hard(500), &policy(), &[]).shortfall, mib(500));
    }

    #[test]
    fn case_29_a_pure_shortage_of_inodes_is_met_by_those_that_hold_most_of_them() {
        let mut pod = archive("a/p/c", 90, 1);
        pod.inodes = 40;
        let checkpoints = [archive("a/p/c", 90, 1000), pod, archive("a/p/c", 90, 500)];
        let inodes = |inodes| at(Level::Hard, Need { bytes: Bytes::ZERO, inodes });
        check(&checkpoints, &inodes(30), &by(&[OrderKey::Largest]), &[1]);
        check(&checkpoints, &hard(30), &by(&[OrderKey::Largest]), &[0]);
        let tiny: Vec<_> = (0..19).map(|n| archive("a/p/c", 200 + n, 0)).collect();
        check(&tiny, &inodes(3), &policy(), &[18, 17, 16]);
    }

    #[test]
    fn bytes_and_inodes_must_both_be_met() {
        let mut pod = archive("a/p/c", 50, 1);
        pod.inodes = 40;
        let checkpoints = [archive("a/p/c", 90, 1000), archive("a/p/c", 80, 1000), pod];
        let request = at(Level::Hard, Need { bytes: Bytes::mib(500), inodes: 30 });
        let mut policy = by(&[OrderKey::Oldest]);
        policy.eviction.age_bucket = std::time::Duration::ZERO;
        let plan = check(&checkpoints, &request, &policy, &[0, 2]);
        assert!(plan.shortfall.is_met());
    }

    #[test]
    fn what_frees_nothing_of_what_is_short_stays_though_the_target_is_missed() {
        let checkpoints = [archive("a/p/c", 90, 0), archive("a/p/d", 90, 10)];
        let plan = check(&checkpoints, &at(Level::Critical, mib(100)), &policy(), &[1]);
        assert_eq!(spared(&plan, 0), SpareReason::NoGain { rank: 2 });
    }

    #[test]
    fn case_34_five_superseded_ones_go_and_the_sole_one_of_its_container_survives() {
        let mut checkpoints = vec![archive("a/p/sole", 600, 500)];
        checkpoints.extend((1..=5).map(|n| archive("a/p/c", 60 * n, 20)));
        checkpoints.push(archive("a/p/c", 5, 20));
        let plan = check(&checkpoints, &at(Level::Critical, mib(50)), &policy(), &[5, 4, 3]);
        assert_eq!(
            plan.victims[2].reason.to_string(),
            "superseded by a newer one of the same container; namespace a has protection 50 (the default), \
             3 h old, frees 20.0 MiB; chosen by oldest",
        );
        let ranks: Vec<_> =
            plan.spared.iter().map(|spared| (spared.index, spared.reason.to_string())).collect();
        assert_eq!(
            ranks,
            [2, 1, 0, 6]
                .into_iter()
                .zip(4..)
                .map(|(index, rank)| (
                    index,
                    format!("not needed: rank {rank}, the target is met without it")
                ))
                .collect::<Vec<_>>(),
        );
        // The loss counts, not the density alone: per byte the sole one is the cheapest.
        let by_loss = by(&[OrderKey::SmallestLoss]);
        let plan = check(&checkpoints, &at(Level::Critical, mib(50)), &by_loss, &[5, 4, 3]);
        // In its turn the sole one would have gone first, at eight times what a superseded one costs.
        let DeleteReason::Ranked(ranked) = &plan.victims[0].reason else { panic!("not ranked") };
        let weighed = ranked.weighed.expect("it was weighed");
        assert!(weighed.own < weighed.chosen && weighed.chosen < weighed.in_turn, "{weighed:?}");
        let sentence = ranked.to_string();
        assert!(sentence.contains(&format!("would cost {}", weighed.in_turn)), "{sentence}");
    }

    #[test]
    fn case_36_what_deleting_frees_is_what_counts() {
        let mut sparse = archive("a/p/c", 90, 1);
        sparse.len = Bytes::gib(1);
        let checkpoints = [sparse, archive("a/p/c", 90, 20)];
        check(&checkpoints, &hard(20), &by(&[OrderKey::Largest]), &[1]);
    }

    #[test]
    fn fair_share_lets_the_flooding_namespace_pay_and_a_quiet_neighbours_only_one_survive() {
        let mut checkpoints: Vec<_> = (0..10).map(|n| archive("noisy/p/c", 10 + n, 10)).collect();
        checkpoints.push(archive("quiet/p/c", 9000, 60));
        let policy = by(&[OrderKey::FairShare, OrderKey::Oldest]);
        check(&checkpoints, &at(Level::Critical, mib(70)), &policy, &[9, 8, 7, 6, 5, 4, 3]);
        // By age alone the neighbour would have paid.
        check(&checkpoints, &at(Level::Critical, mib(60)), &by(&[OrderKey::Oldest]), &[10]);
    }

    #[test]
    fn fair_share_takes_from_whoever_holds_most_at_that_point() {
        let mut checkpoints: Vec<_> = (0..4).map(|n| archive("a/p/c", 10 + n, 10)).collect();
        checkpoints.extend((0..3).map(|n| archive("b/p/c", 20 + n, 10)));
        let policy = by(&[OrderKey::FairShare, OrderKey::Oldest]);
        let plan = check(&checkpoints, &at(Level::Critical, mib(50)), &policy, &[3, 6, 2, 5, 1]);
        assert!(plan.victims[0].reason.to_string().ends_with("its namespace holds the most"));
    }

    #[test]
    fn chains_are_kept_or_dropped_as_a_whole() {
        let mut policy = policy();
        policy.eviction.keep_together = KeepTogether::Chains;
        let chain = |newest: States| {
            [
                archive("a/p/c", 300, 10).with(States::PRE_CHECKPOINT),
                archive("a/p/c", 290, 10).with(States::PRE_CHECKPOINT | States::HAS_PARENT),
                archive("a/p/c", 280, 10).with(States::HAS_PARENT | newest),
                archive("a/p/d", 200, 10),
                archive("a/p/d", 190, 10),
            ]
        };
        // The newest of its container is spared, and with it all that it needs.
        let plan = check(&chain(States::empty()), &hard(10), &policy, &[3]);
        assert_eq!(spared(&plan, 0), SpareReason::Together);
        check(&chain(States::PINNED), &at(Level::Critical, mib(100)), &policy, &[3, 4]);
        policy.eviction.keep_last = 0;
        check(&chain(States::empty()), &hard(35), &policy, &[3, 2, 1, 0]);
        policy.eviction.keep_together = KeepTogether::Off;
        check(&chain(States::empty()), &hard(10), &policy, &[0]);
    }

    #[test]
    fn nothing_goes_when_nothing_is_needed() {
        check(&[archive("a/p/c", 90, 10)], &hard(0), &by(&[]), &[]);
    }

    #[test]
    fn case_02_an_empty_order_still_is_a_total_order() {
        let mut second = archive("a/p/c", 90, 10);
        second.name = std::ffi::OsString::from("a.tar").into();
        check(&[archive("a/p/c", 90, 10), second], &hard(10), &by(&[]), &[1]);
    }

    #[test]
    fn a_default_protection_of_100_spares_everybody() {
        let mut policy = policy();
        policy.protection.default = Protection::NEVER;
        check(&[archive("a/p/c", 90, 10)], &at(Level::Critical, mib(5)), &policy, &[]);
    }
}
