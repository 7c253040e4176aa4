//! [`Plan`]: what to delete, in order, and why; what to spare, and why.

use std::fmt;
use std::sync::Arc;

use crate::model::{Bytes, DeleteReason, Level, SpareReason};

/// Why anything is deleted at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The filesystem is at this level; never `Normal`.
    Pressure(Level),
    /// A retention rule, by its source.
    Retention(Arc<str>),
    /// Its pod is gone and the rule says not to retain orphans.
    Orphan,
    /// Somebody asked for it: `checkpoint-guard reclaim`.
    Manual,
}

impl Trigger {
    /// The label value for metrics: few values, no rule names.
    pub const fn label(&self) -> &'static str {
        match self {
            Trigger::Pressure(level) => level.as_str(),
            Trigger::Retention(_) => "retention",
            Trigger::Orphan => "orphan",
            Trigger::Manual => "manual",
        }
    }
}

/// `soft`, `hard`, `critical`, `retention:<rule>`, `orphan`, `manual` (DESIGN, section 11).
impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trigger::Retention(rule) => write!(f, "retention:{rule}"),
            other => f.write_str(other.label()),
        }
    }
}

/// An amount to reclaim, or that a deletion frees, in both signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Bytes.
    pub bytes: Bytes,
    /// Inodes.
    pub inodes: u64,
}

impl Need {
    /// Whether there is nothing (more) to reclaim.
    pub const fn is_met(&self) -> bool {
        self.bytes.is_zero() && self.inodes == 0
    }

    /// Both amounts together.
    pub fn plus(&self, other: Need) -> Need {
        Need { bytes: self.bytes + other.bytes, inodes: self.inodes.saturating_add(other.inodes) }
    }

    /// The larger of each amount.
    pub fn max(&self, other: Need) -> Need {
        Need { bytes: self.bytes.max(other.bytes), inodes: self.inodes.max(other.inodes) }
    }

    /// What is left of this need once `freed` has been freed.
    pub const fn less(&self, freed: Need) -> Need {
        Need {
            bytes: self.bytes.saturating_sub(freed.bytes),
            inodes: self.inodes.saturating_sub(freed.inodes),
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.bytes, self.inodes) {
            (Bytes::ZERO, 0) => f.write_str("nothing"),
            (Bytes::ZERO, inodes) => write!(f, "{inodes} inodes"),
            (bytes, 0) => write!(f, "{bytes}"),
            (bytes, inodes) => write!(f, "{bytes} and {inodes} inodes"),
        }
    }
}

/// One checkpoint to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Index into [`crate::model::Inventory::checkpoints`].
    pub index: u32,
    /// What set it off.
    pub trigger: Trigger,
    /// Why this one.
    pub reason: DeleteReason,
}

/// One checkpoint to leave alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spared {
    /// Index into [`crate::model::Inventory::checkpoints`].
    pub index: u32,
    /// Why.
    pub reason: SpareReason,
}

/// The result of a decision. Carrying it out is another room's business; printing it costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What was asked for.
    pub need: Need,
    /// In the order of deletion: the rank of a victim is its place here, from 1.
    pub victims: Vec<Victim>,
    /// The next candidates, [`Plan::RESERVES`] at most, not needed if all goes well: for when the space of a victim is slow to
    /// come back and writers use up what is left meanwhile.
    pub reserve: Vec<Victim>,
    /// Everything else in the inventory, candidates that were not needed first, by rank.
    pub spared: Vec<Spared>,
    /// What deleting the victims frees.
    pub frees: Need,
    /// What is missing even then.
    pub shortfall: Need,
}

impl Plan {
    /// How many candidates are held in reserve.
    pub const RESERVES: usize = 6;

    /// Gives each that may go another reason, made of the one it has.
    pub fn reword(&mut self, with: impl Fn(Box<DeleteReason>) -> DeleteReason) {
        for victim in self.victims.iter_mut().chain(&mut self.reserve) {
            victim.reason = with(Box::new(victim.reason.clone()));
        }
    }
}
