//! Checkpoints that are kept or dropped as a whole (`keep-together`): those that need each other, a pre-dump and what
//! builds on it; or all of one container.

use std::collections::HashMap;

use crate::decide::census::Census;
use crate::model::{KeepTogether, Policy, States};

/// The chains of an inventory.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    /// Newest first: what needs others goes before what it needs.
    members: Vec<Vec<u32>>,
    by_checkpoint: HashMap<u32, u32>,
}

impl Chains {
    /// The chains of an inventory, as `policy` wants them. Identities in doubt form none: they must neither protect
    /// nor condemn others.
    pub(crate) fn new(policy: &Policy, census: &Census<'_>) -> Chains {
        match policy.eviction.keep_together {
            KeepTogether::Off => Chains::default(),
            // Within one container, a pre-checkpoint without a parent begins a chain, and those with a parent that
            // follow it belong to it.
            KeepTogether::Chains => {
                let linked = States::HAS_PARENT | States::PRE_CHECKPOINT;
                if !census.extremes().states.intersects(linked) {
                    return Chains::default();
                }
                let is_link = |index| census.states(index).intersects(linked);
                Chains::find(census, is_link, |next| census.states(next).contains(States::HAS_PARENT))
            }
            // A left-over of a failed checkpoint is no part of anybody's series.
            KeepTogether::Containers => {
                Chains::find(census, |index| !census.states(index).contains(States::INCOMPLETE), |_| true)
            }
        }
    }

    /// Chains of those of one party that are links at all; each link begins one or, when it `continues`, belongs to
    /// that of the one before it.
    fn find(census: &Census<'_>, is_link: impl Fn(u32) -> bool, continues: impl Fn(u32) -> bool) -> Chains {
        let is_link = |index: &u32| is_link(*index) && census.party(*index).is_one();
        let mut links: Vec<u32> = (0..census.len()).filter(is_link).collect();
        links.sort_unstable_by(|a, b| {
            census.party_index(*a).cmp(&census.party_index(*b)).then_with(|| census.by_time(*a, *b))
        });
        let mut chains = Chains::default();
        let follows = |previous: &u32, next: &u32| {
            census.party_index(*previous) == census.party_index(*next) && continues(*next)
        };
        for members in links.chunk_by(follows).filter(|members| members.len() > 1) {
            let chain = chains.members.len() as u32;
            chains.by_checkpoint.extend(members.iter().map(|index| (*index, chain)));
            chains.members.push(members.iter().rev().copied().collect());
        }
        chains
    }

    /// The chain of the checkpoint at `index`.
    #[inline]
    pub(crate) fn of(&self, index: u32) -> Option<u32> {
        // Most nodes have none at all; then a million look-ups cost nothing.
        if self.members.is_empty() { None } else { self.by_checkpoint.get(&index).copied() }
    }

    /// Its members, in the order of deletion.
    pub(crate) fn members(&self, chain: u32) -> &[u32] {
        &self.members[chain as usize]
    }

    /// The checkpoints that go or stay with the one at `index`, itself among them, in the order of deletion.
    #[inline]
    pub(crate) fn with<'c>(&'c self, index: &'c u32) -> &'c [u32] {
        match self.of(*index) {
            None => std::slice::from_ref(index),
            Some(chain) => self.members(chain),
        }
    }

    /// Whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Every chain.
    pub(crate) fn all(&self) -> std::ops::Range<u32> {
        0..self.members.len() as u32
    }
}
