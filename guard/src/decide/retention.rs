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
/// the count is not settled. What is kept together counts as one, is as old as its newest, and goes whole. Carried out, a
/// plan leaves nothing for the next.
///
/// A doubtful identity gains and costs nobody anything: it counts against the owner of its first reading, but it goes
/// before any certain one has to, and never makes one go.
pub fn retention(inventory: &Inventory, policy: &Policy, now: Timestamp) -> Plan {
    let census = Census::new(inventory, policy, now);
    let chains = Chains::new(policy, &census);
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

    fn largest(&self, unit: &u32) -> Bytes {
        let members = self.chains.with(unit).iter();
        members.map(|index| self.inventory.checkpoints[*index as usize].allocated).max().unwrap_or_default()
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
        let size = own.max_size.filter(|(max, _)| self.largest(unit) > *max);
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
                // A chain is one: what can be restored is its end.
                let found = members.len() as u32;
                for unit in self.trim(&mut members, max.into(), |_| 1) {
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
            max_age: limits::limit(limits::resolve_readings(rules, party.readings(), |rule| rule.max_age)),
            max_size: limits::limit(limits::resolve_readings(rules, party.readings(), |rule| rule.max_size)),
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
mod tests;
