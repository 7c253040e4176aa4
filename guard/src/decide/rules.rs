//! Who may go at all, and the words for why somebody goes or stays.

use std::sync::Arc;

use crate::decide::census::{Census, Follows};
use crate::decide::chain::Chains;
use crate::model::{
    DeleteReason, OrderKey, Policy, Ranked, SpareReason, SparedBelow, Standing, States, Weighed,
};

/// Who may go at all.
pub(crate) struct Rules<'a> {
    census: &'a Census<'a>,
    chains: &'a Chains,
    /// By [`crate::model::ProtectionPolicy::rules`]: where each is written.
    sources: Vec<Arc<str>>,
    spares_young_and_last: bool,
    chain_stays: Vec<bool>,
}

impl<'a> Rules<'a> {
    /// The rules of `policy`, at critical and for retention without min-age and keep-last.
    pub(crate) fn new(
        policy: &'a Policy,
        census: &'a Census<'a>,
        chains: &'a Chains,
        spares_young_and_last: bool,
    ) -> Rules<'a> {
        let mut rules = Rules {
            census,
            chains,
            sources: policy.protection.rules.iter().map(|rule| rule.source.as_str().into()).collect(),
            spares_young_and_last,
            chain_stays: Vec::new(),
        };
        let stays =
            |chain| chains.members(chain).iter().any(|index| rules.own_spare_reason(*index).is_some());
        rules.chain_stays = chains.all().map(stays).collect();
        rules
    }

    /// Whether a member of `chain` stays, and so all of it does.
    pub(crate) fn chain_stays(&self, chain: u32) -> bool {
        self.chain_stays[chain as usize]
    }

    /// Whether the checkpoint at `index` is a candidate: [`Rules::spare_reason`] without the words, for a million of them.
    #[inline]
    pub(crate) fn may_go(&self, index: u32) -> bool {
        const STAY: States = States::PINNED
            .union(States::BEING_WRITTEN)
            .union(States::IN_USE)
            .union(States::LINKED)
            .union(States::REFUSED);
        let is_spared = self.spares_young_and_last
            && self.census.follows(index).intersects(Follows::YOUNG.union(Follows::LAST));
        let stays = self.census.states(index).intersects(STAY)
            || self.census.protection(index).is_never()
            || is_spared
            || self.chains.of(index).is_some_and(|chain| self.chain_stays(chain));
        debug_assert_eq!(stays, self.spare_reason(index).is_some());
        !stays
    }

    /// Why the checkpoint at `index` is no candidate; `None` when it is one.
    #[inline]
    pub(crate) fn spare_reason(&self, index: u32) -> Option<SpareReason> {
        self.own_spare_reason(index).or_else(|| {
            let chain = self.chains.of(index)?;
            self.chain_stays(chain).then_some(SpareReason::Together)
        })
    }

    #[inline]
    fn own_spare_reason(&self, index: u32) -> Option<SpareReason> {
        let states = self.census.states(index);
        let follows = self.census.follows(index);
        if states.contains(States::PINNED) {
            Some(SpareReason::Pinned)
        } else if self.census.protection(index).is_never() {
            Some(SpareReason::Protected { rule: self.source(self.census.party(index).protected.rule) })
        } else if states.contains(States::BEING_WRITTEN) {
            Some(SpareReason::BeingWritten)
        } else if states.contains(States::IN_USE) {
            Some(SpareReason::InUse)
        } else if states.contains(States::LINKED) {
            Some(SpareReason::Linked)
        } else if states.contains(States::REFUSED) {
            Some(SpareReason::Refused)
        } else if !self.spares_young_and_last {
            None
        } else if follows.contains(Follows::YOUNG) {
            Some(SpareReason::Young { age: self.census.age(index) })
        } else if follows.contains(Follows::LAST) {
            Some(SpareReason::Last)
        } else {
            None
        }
    }

    fn source(&self, rule: Option<usize>) -> Option<Arc<str>> {
        rule.map(|rule| self.sources[rule].clone())
    }

    /// Why the checkpoint at `index` goes, and by which key before the next that stays.
    pub(crate) fn delete_reason(
        &self,
        index: u32,
        decided_by: Option<OrderKey>,
        weighed: Option<Weighed>,
    ) -> DeleteReason {
        let party = self.census.party(index);
        DeleteReason::Ranked(Ranked {
            decided_by,
            weighed,
            spared_below: self.spared_below(index),
            standing: self.standing(index),
            namespace: party.owner.namespace.clone(),
            protection: party.protected.protection,
            rule: self.source(party.protected.rule),
            age: self.census.age(index),
            frees: self.census.gain(index).bytes,
        })
    }

    /// What no longer spares it.
    fn spared_below(&self, index: u32) -> Option<SparedBelow> {
        let follows = self.census.follows(index);
        if self.spares_young_and_last {
            None
        } else if follows.contains(Follows::YOUNG) {
            Some(SparedBelow::Young)
        } else {
            follows.contains(Follows::LAST).then_some(SparedBelow::Last)
        }
    }

    fn standing(&self, index: u32) -> Standing {
        let states = self.census.states(index);
        let follows = self.census.follows(index);
        if states.contains(States::INCOMPLETE) {
            Standing::Incomplete
        } else if states.contains(States::ORPHAN) {
            Standing::Orphan
        } else if follows.contains(Follows::SUPERSEDED) {
            Standing::Superseded
        } else if follows.contains(Follows::NEWEST) && self.census.party(index).is_certain {
            Standing::Newest
        } else {
            Standing::Unranked
        }
    }
}
