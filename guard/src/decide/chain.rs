//! Checkpoints that need each other: a pre-dump and those that build on it (`keep-together`).

use std::collections::HashMap;

use crate::decide::census::Census;
use crate::model::{Inventory, Policy, States};

/// What is taken or left as one: a checkpoint, or a chain of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// The checkpoint; of a chain the member that stands for it.
    pub(crate) index: u32,
    /// `u32::MAX` for a checkpoint by itself: a million `Option`s would cost four megabytes more.
    chain: u32,
}

impl Unit {
    /// A checkpoint by itself.
    pub(crate) fn single(index: u32) -> Unit {
        Unit { index, chain: u32::MAX }
    }

    /// A chain, for which its member `index` stands.
    pub(crate) fn chain(chain: u32, index: u32) -> Unit {
        Unit { index, chain }
    }
}

/// The chains of an inventory.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    /// Newest first: what needs others goes before what it needs.
    members: Vec<Vec<u32>>,
    by_checkpoint: HashMap<u32, u32>,
}

impl Chains {
    /// The chains of `inventory`; none when `policy` does not keep them together.
    pub(crate) fn new(inventory: &Inventory, policy: &Policy, census: &Census<'_>) -> Chains {
        match policy.eviction.keep_together {
            true => Chains::find(inventory, census),
            false => Chains::default(),
        }
    }

    /// Finds them: within one container, a pre-checkpoint without a parent begins a chain, and those with a parent
    /// that follow it belong to it. Identities in doubt form none: they must neither protect nor condemn others.
    fn find(inventory: &Inventory, census: &Census<'_>) -> Chains {
        let linked = States::HAS_PARENT | States::PRE_CHECKPOINT;
        let all = inventory.checkpoints.iter().zip(0u32..);
        let mut links: Vec<u32> = all
            .filter(|(checkpoint, index)| {
                checkpoint.states.intersects(linked) && census.party(*index).is_certain
            })
            .map(|(_, index)| index)
            .collect();
        links.sort_unstable_by(|a, b| {
            census.party_index(*a).cmp(&census.party_index(*b)).then_with(|| census.by_time(*a, *b))
        });
        let mut chains = Chains::default();
        let begins = |previous: &u32, next: &u32| {
            census.party_index(*previous) == census.party_index(*next)
                && inventory.checkpoints[*next as usize].states.contains(States::HAS_PARENT)
        };
        for members in links.chunk_by(begins).filter(|members| members.len() > 1) {
            let chain = chains.members.len() as u32;
            chains.by_checkpoint.extend(members.iter().map(|index| (*index, chain)));
            chains.members.push(members.iter().rev().copied().collect());
        }
        chains
    }

    /// The chain of the checkpoint at `index`.
    pub(crate) fn of(&self, index: u32) -> Option<u32> {
        // Most nodes have none at all; then a million look-ups cost nothing.
        if self.members.is_empty() { None } else { self.by_checkpoint.get(&index).copied() }
    }

    /// Its members, in the order of deletion.
    pub(crate) fn members(&self, chain: u32) -> &[u32] {
        &self.members[chain as usize]
    }

    /// The checkpoints that `unit` is made of, in the order of deletion.
    pub(crate) fn members_of<'c>(&'c self, unit: &'c Unit) -> &'c [u32] {
        match unit.chain {
            u32::MAX => std::slice::from_ref(&unit.index),
            chain => self.members(chain),
        }
    }

    /// Every chain.
    pub(crate) fn all(&self) -> std::ops::Range<u32> {
        0..self.members.len() as u32
    }
}
