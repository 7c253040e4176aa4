//! [`retention`](fn@retention): what to let go outside pressure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::decide::census::Census;
use crate::decide::chain::Chains;
use crate::decide::limits::{self, Ruled, ScopeLimits};
use crate::decide::rules::Rules;
use crate::model::{
    Bytes, DeleteReason, Inventory, Kind, Limit, Need, Owner, Plan, Policy, Scope, SpareReason, Spared,
    States, Trigger, Victim,
};

/// Decides which checkpoints the retention rules let go.
///
/// First those that break a limit by themselves (orphaned, too old, too large); of the rest, scope by scope from
/// container to namespace, the oldest until the limits hold. Pinned, protected (100), open and linked ones count and
/// stay. While one of a container's is being written, that container is left out: neither counted nor trimmed, since
/// the count is not settled. Carried out, a plan leaves nothing for the next.
///
/// A doubtful identity gains and costs nobody anything: it counts against the owner of its first reading, but it goes
/// before any certain one has to, and never makes one go.
pub fn retention(inventory: &Inventory, policy: &Policy, now: Timestamp) -> Plan {
    let census = Census::new(inventory, policy, now);
    let chains = Chains::new(inventory, policy, &census);
    let rules = Rules::new(policy, &census, &chains, false);
    let mut retention = Retention::new(inventory, policy, &census, &chains, &rules);
    retention.let_go_by_themselves();
    for scope in [Scope::Container, Scope::Pod, Scope::Namespace] {
        retention.let_go_together(scope);
    }
    retention.write_down()
}

struct Retention<'a> {
    inventory: &'a Inventory,
    policy: &'a Policy,
    census: &'a Census<'a>,
    chains: &'a Chains,
    sources: Vec<Arc<str>>,
    /// By checkpoint: why it stays whatever the limits say.
    stays: Vec<Option<SpareReason>>,
    /// All that count and have not been let go, oldest first; of a chain the newest member stands for all of it.
    kept: Vec<u32>,
    gone: Vec<(u32, Limit, usize)>,
}

impl<'a> Retention<'a> {
    fn new(
        inventory: &'a Inventory,
        policy: &'a Policy,
        census: &'a Census<'a>,
        chains: &'a Chains,
        rules: &'a Rules<'a>,
    ) -> Retention<'a> {
        let unsettled = unsettled(inventory, census);
        let indices = 0..inventory.checkpoints.len() as u32;
        let stays: Vec<_> = indices
            .clone()
            .map(|index| {
                let waits = unsettled[census.party_index(index)].then_some(SpareReason::Unsettled);
                rules.spare_reason(index).or(waits)
            })
            .collect();
        let counts = |index: &u32| !unsettled[census.party_index(*index)] && chains.of(*index).is_none();
        let mut kept: Vec<_> = indices.filter(counts).collect();
        // The newest of a chain stands for it: a chain is as old as its newest member.
        let chain_units = chains.all().map(|chain| chains.members(chain)[0]);
        kept.extend(chain_units.filter(|unit| !unsettled[census.party_index(*unit)]));
        kept.sort_unstable_by(|a, b| census.by_time(*a, *b));
        let sources = policy.retention.iter().map(|rule| rule.source.as_str().into()).collect();
        Retention { inventory, policy, census, chains, sources, stays, kept, gone: Vec::new() }
    }

    fn may_go(&self, unit: &u32) -> bool {
        self.stays[*unit as usize].is_none()
    }

    fn size(&self, unit: &u32) -> Bytes {
        let members = self.chains.with(unit).iter();
        members.map(|index| self.inventory.checkpoints[*index as usize].allocated).sum()
    }

    fn has(&self, unit: &u32, states: States) -> bool {
        self.inventory.checkpoints[*unit as usize].states.contains(states)
    }

    /// Lets go what breaks a limit whatever else there is.
    fn let_go_by_themselves(&mut self) {
        let rules = &self.policy.retention;
        let per_party: Vec<Own> = self.census.parties().iter().map(|party| Own::of(rules, party)).collect();
        let kept = std::mem::take(&mut self.kept);
        for unit in kept {
            let own = &per_party[self.census.party_index(unit)];
            match self.broken(&unit, own).filter(|_| self.may_go(&unit)) {
                Some((limit, rule)) => self.gone.push((unit, limit, rule)),
                None => self.kept.push(unit),
            }
        }
    }

    fn broken(&self, unit: &u32, own: &Own) -> Ruled<Limit> {
        let orphan = own.retain_orphans.filter(|(retain, _)| !retain && self.has(unit, States::ORPHAN));
        let age = own.max_age.filter(|(max, _)| self.census.age(*unit) > *max);
        let size = own.max_size.filter(|(max, _)| self.size(unit) > *max);
        orphan
            .map(|(_, rule)| (Limit::Orphan, rule))
            .or(age.map(|(max, rule)| (Limit::Age { max }, rule)))
            .or(size.map(|(max, rule)| (Limit::Size { max }, rule)))
    }

    /// Trims what each container, pod or namespace holds to its limits.
    fn let_go_together(&mut self, scope: Scope) {
        let (limits, by_party) = self.scopes(scope);
        let mut members: Vec<Vec<u32>> = vec![Vec::new(); limits.len()];
        for unit in &self.kept {
            if let Some(id) = by_party[self.census.party_index(*unit)] {
                members[id].push(*unit);
            }
        }
        let mut gone = HashSet::new();
        for (mut members, limits) in members.into_iter().zip(limits) {
            if let Some((max, rule)) = limits.max_count {
                let count = |unit: &u32| self.chains.with(unit).len() as u64;
                let found = members.iter().map(count).sum::<u64>() as u32;
                for unit in self.trim(&mut members, max.into(), count) {
                    gone.insert(unit);
                    self.gone.push((unit, Limit::Count { scope, found, max }, rule));
                }
            }
            if let Some((max, rule)) = limits.max_total_size {
                let size = |unit: &u32| self.size(unit).0;
                let found = members.iter().map(|unit| self.size(unit)).sum();
                for unit in self.trim(&mut members, max.0, size) {
                    gone.insert(unit);
                    self.gone.push((unit, Limit::TotalSize { scope, found, max }, rule));
                }
            }
        }
        self.kept.retain(|unit| !gone.contains(unit));
    }

    /// The limits of every scope that has any, and to which of them each party belongs.
    fn scopes(&self, scope: Scope) -> (Vec<ScopeLimits>, Vec<Option<usize>>) {
        let mut limits = Vec::new();
        let mut ids: HashMap<Owner, Option<usize>> = HashMap::new();
        let by_party = self.census.parties().iter().map(|party| {
            let owner = limits::truncated(party.owner, scope)?;
            *ids.entry(owner).or_insert_with_key(|owner| {
                let of_owner = ScopeLimits::of(&self.policy.retention, scope, owner);
                (!of_owner.is_unlimited()).then(|| {
                    limits.push(of_owner);
                    limits.len() - 1
                })
            })
        });
        let by_party = by_party.collect();
        (limits, by_party)
    }

    /// Takes units out of `members` (oldest first) until what `measure` says of them is at most `max`, as far as they
    /// may go: incomplete ones first, then the oldest; of those taken, the ones that need not have been stay after all.
    fn trim(&self, members: &mut Vec<u32>, max: u64, measure: impl Fn(&u32) -> u64) -> Vec<u32> {
        let is_certain = |unit: &u32| self.census.party(*unit).is_certain;
        let mut gone = Vec::new();
        let mut total = 0u64;
        // The certain ones among themselves first, so that doubtful ones cannot push any of them out.
        for certain in [true, false] {
            let mut group: Vec<_> =
                members.iter().filter(|unit| is_certain(unit) == certain).copied().collect();
            group.sort_by_key(|unit| !self.has(unit, States::INCOMPLETE));
            total = group.iter().map(&measure).fold(total, u64::saturating_add);
            let mut taken = Vec::new();
            for unit in group.iter().filter(|unit| self.may_go(unit)) {
                if total <= max {
                    break;
                }
                total -= measure(unit).min(total);
                taken.push(*unit);
            }
            for unit in taken.into_iter().rev() {
                let with = total.saturating_add(measure(&unit));
                if with <= max.max(total) {
                    total = with;
                } else {
                    gone.push(unit);
                }
            }
        }
        let indices: HashSet<u32> = gone.iter().copied().collect();
        members.retain(|unit| !indices.contains(unit));
        gone
    }

    fn write_down(mut self) -> Plan {
        let census = self.census;
        self.gone.sort_unstable_by(|(a, ..), (b, ..)| census.by_time(*a, *b));
        let mut is_gone = vec![false; self.inventory.checkpoints.len()];
        let mut victims = Vec::new();
        let mut frees = Need::default();
        for (unit, limit, rule) in &self.gone {
            let rule = self.sources[*rule].clone();
            let trigger = match limit {
                Limit::Orphan => Trigger::Orphan,
                _ => Trigger::Retention(rule.clone()),
            };
            for index in self.chains.with(unit) {
                let checkpoint = &self.inventory.checkpoints[*index as usize];
                let reason = DeleteReason::Retention {
                    limit: *limit,
                    rule: rule.clone(),
                    age: census.age(*index),
                    frees: checkpoint.allocated,
                };
                victims.push(Victim { index: *index, trigger: trigger.clone(), reason });
                frees = frees.plus(checkpoint.gain());
                is_gone[*index as usize] = true;
            }
        }
        let mut spared: Vec<_> = (0u32..)
            .zip(self.stays)
            .filter(|(index, _)| !is_gone[*index as usize])
            .map(|(index, reason)| Spared { index, reason: reason.unwrap_or(SpareReason::Retained) })
            .collect();
        spared.sort_unstable_by(|a, b| census.by_time(a.index, b.index));
        Plan { victims, spared, frees, ..Plan::default() }
    }
}

/// The limits that one checkpoint breaks by itself.
struct Own {
    retain_orphans: Ruled<bool>,
    max_age: Ruled<std::time::Duration>,
    max_size: Ruled<Bytes>,
}

impl Own {
    fn of(rules: &[crate::model::RetentionRule], party: &crate::decide::census::Party<'_>) -> Own {
        Own {
            retain_orphans: limits::resolve_readings(rules, party.readings(), |rule| rule.retain_orphans),
            max_age: limits::resolve_readings(rules, party.readings(), |rule| rule.max_age),
            max_size: limits::resolve_readings(rules, party.readings(), |rule| rule.max_size),
        }
    }
}

/// By party: whether a checkpoint that may be of the same container (or pod, for pod checkpoints) is being written.
fn unsettled(inventory: &Inventory, census: &Census<'_>) -> Vec<bool> {
    let being_written = inventory.checkpoints.iter().zip(0u32..);
    let being_written =
        being_written.filter(|(checkpoint, _)| checkpoint.states.contains(States::BEING_WRITTEN));
    let owners: HashSet<(Kind, &Owner)> = being_written
        .flat_map(|(checkpoint, index)| {
            census.party(index).readings().map(move |owner| (checkpoint.kind, owner))
        })
        .collect();
    let parties = census.parties().iter();
    parties.map(|party| party.readings().any(|owner| owners.contains(&(party.kind, owner)))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::decide::fixture::{archive, inventory, now, owner_pattern, policy, protect};
    use crate::model::{Certainty, Checkpoint, Limits, RetentionRule};

    const UNLIMITED: Limits<u32> = Limits { container: None, pod: None, namespace: None };

    fn rule(owner: &str) -> RetentionRule {
        RetentionRule {
            owner: owner_pattern(owner),
            source: format!("retention {owner}"),
            ..Default::default()
        }
    }

    fn count(owner: &str, max_count: Limits<u32>) -> RetentionRule {
        RetentionRule { max_count, ..rule(owner) }
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
            max_age: Some(Duration::from_secs(hours * 3600 + 1800)),
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
            max_total_size: Limits { namespace: Some(Bytes::mib(max)), container: None, pod: None },
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
            max_count: Limits { container: Some(2), ..UNLIMITED },
            max_size: Some(Bytes::mib(500)),
            max_age: Some(Duration::from_secs(3600)),
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
            max_age: Some(Duration::from_secs(minutes * 60)),
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
        let mut unknown = archive("?/?/?", 50, 10);
        unknown.identity.certainty = Certainty::Unknown;
        let checkpoints = [unknown.clone(), unknown];
        check(&checkpoints, &[per_container("*/-/-", 0)], &[]);
        let aged = RetentionRule { max_age: Some(Duration::from_secs(60)), ..rule("*/-/-") };
        check(&checkpoints, &[aged], &[0, 1]);
    }

    #[test]
    fn chains_go_whole_and_are_as_old_as_their_newest() {
        let chain = [
            archive("a/p/c", 300, 10).with(States::PRE_CHECKPOINT),
            archive("a/p/c", 280, 10).with(States::HAS_PARENT),
            archive("a/p/c", 200, 10),
        ];
        let aged = |minutes: u64| RetentionRule {
            max_age: Some(Duration::from_secs(minutes * 60)),
            ..rule("*/-/-")
        };
        let mut policy = Policy { retention: vec![aged(290)], ..policy() };
        check_with(&chain, &policy, &[0]);
        policy.eviction.keep_together = true;
        check_with(&chain, &policy, &[]);
        policy.retention = vec![aged(270)];
        check_with(&chain, &policy, &[1, 0]);
        policy.retention = vec![per_container("*/-/-", 2)];
        check_with(&chain, &policy, &[1, 0]);
    }
}
