//! [`Party`]: whose checkpoints are told apart by nothing but time, and which checkpoint is whose.

use std::collections::HashMap;
use std::sync::Arc;

use crate::decide::protection::{self, Protected};
use crate::model::{Certainty, Checkpoint, Kind, Need, Owner, Policy};

/// Those whose checkpoints are told apart by nothing but time: one container's archives, one pod's checkpoints; or
/// the checkpoints whose identity has exactly the same doubtful readings.
#[derive(Debug)]
pub struct Party<'a> {
    /// Archives or pod checkpoints.
    pub kind: Kind,
    /// The reading that quotas count against.
    pub owner: &'a Owner,
    /// The other readings.
    pub alternatives: &'a [Owner],
    /// Whether there is no doubt about the owner.
    pub is_certain: bool,
    /// Its protection: the highest of all readings.
    pub protected: Protected,
    /// How many checkpoints it has, and what deleting all of them frees.
    pub(crate) count: u64,
    pub(crate) holds: Need,
    pub(super) newest: Option<Newest>,
    /// Whether it is known well enough whose it is to speak of "the last one of its container".
    pub(super) is_somebody: bool,
}

/// The newest restorable checkpoint of a party, with what tells whether another is newer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newest {
    pub(super) is_proven: bool,
    pub(super) instant: i64,
    pub(super) index: u32,
}

impl<'a> Party<'a> {
    /// The owner and the alternatives.
    pub fn readings(&self) -> impl Iterator<Item = &'a Owner> + use<'a> {
        std::iter::once(self.owner).chain(self.alternatives)
    }

    /// Whether its checkpoints are certainly of one container (or pod).
    pub(crate) fn is_one(&self) -> bool {
        self.is_certain && self.is_somebody
    }
}

/// Where the identity of a checkpoint lies, and what else tells parties apart; equal ones are of one party.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Address(usize);

impl Address {
    #[inline]
    pub(super) fn of(checkpoint: &Checkpoint) -> Address {
        let is_pod = checkpoint.kind == Kind::PodCheckpoint;
        // An identity is aligned: the lowest bit is free.
        Address(Arc::as_ptr(&checkpoint.identity) as usize | usize::from(is_pod))
    }
}

/// Finds the party of a checkpoint without reading its identity where scans have shared it.
#[derive(Default)]
pub(super) struct Registry<'a> {
    pub(super) parties: Vec<Party<'a>>,
    pub(super) certain: HashMap<(Kind, &'a Owner), u32>,
    doubtful: HashMap<(Kind, &'a Owner, &'a [Owner]), u32>,
    by_address: HashMap<Address, u32, foldhash::fast::FixedState>,
    previous: Option<(Address, u32)>,
}

impl<'a> Registry<'a> {
    /// The party of `checkpoint`, which has this address.
    #[inline]
    pub(super) fn party_of(&mut self, checkpoint: &'a Checkpoint, address: Address, policy: &Policy) -> u32 {
        // Scans list a directory by name, and names begin with the pod.
        if let Some((previous, party)) = self.previous
            && previous == address
        {
            return party;
        }
        let party = match self.by_address.get(&address) {
            Some(party) => *party,
            None => {
                let party = self.register(checkpoint, policy);
                self.by_address.insert(address, party);
                party
            }
        };
        self.previous = Some((address, party));
        party
    }

    #[cold]
    fn register(&mut self, checkpoint: &'a Checkpoint, policy: &Policy) -> u32 {
        let (kind, identity) = (checkpoint.kind, &checkpoint.identity);
        let (owner, alternatives) = (&identity.owner, &*identity.alternatives);
        // Ambiguous without another reading: the tenant's own words contradict the engine's. Doubtful, his checkpoints would
        // no longer be superseded by his newer ones, and somebody else's would have to go in their place.
        let is_certain = alternatives.is_empty() && identity.certainty != Certainty::Unknown;
        let next = self.parties.len() as u32;
        let party = if is_certain {
            *self.certain.entry((kind, owner)).or_insert(next)
        } else {
            *self.doubtful.entry((kind, owner, alternatives)).or_insert(next)
        };
        if party == next {
            let protected = protection::of_readings(&policy.protection, identity.readings());
            self.parties.push(Party {
                kind,
                owner,
                alternatives,
                is_certain,
                protected,
                count: 0,
                holds: Need::default(),
                newest: None,
                is_somebody: match kind {
                    Kind::Archive => owner.container.is_some(),
                    Kind::PodCheckpoint => owner.pod.is_some(),
                },
            });
        }
        party
    }
}
