//! Why a checkpoint goes or stays. Numbers, not prose: the sentence is made when somebody reads it.

use std::fmt;
use std::time::Duration;

use crate::model::{Bytes, OrderKey, Protection};

/// Why this checkpoint is deleted rather than another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeleteReason {
    /// It came first in the configured order.
    Ranked {
        /// The key that put it before the first candidate left alone; `None` when all candidates go.
        decided_by: Option<OrderKey>,
        /// Its protection.
        protection: Protection,
        /// Its age.
        age: Duration,
        /// What it frees.
        frees: Bytes,
    },
}

impl fmt::Display for DeleteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeleteReason::Ranked { decided_by, protection, age, frees } => {
                match decided_by {
                    Some(key) => write!(f, "first by {}: ", key.as_str())?,
                    None => f.write_str("every candidate is needed: ")?,
                }
                write!(f, "protection {protection}, {} s old, frees {frees}", age.as_secs())
            }
        }
    }
}

/// Why this checkpoint stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpareReason {
    /// A `.keep` lies beside it.
    Pinned,
    /// Protection 100.
    Protected,
    /// Somebody has it open.
    InUse,
    /// It is not finished.
    BeingWritten,
    /// Younger than `min-age`.
    Young,
    /// One of the newest `keep-last` of its container.
    Last,
    /// Another hard link holds its data; deleting it frees nothing.
    Linked,
    /// The target is met without it. Its rank among the candidates, from 1.
    NotNeeded {
        /// Place in the order.
        rank: u32,
    },
}

impl fmt::Display for SpareReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpareReason::Pinned => f.write_str("pinned: a .keep lies beside it"),
            SpareReason::Protected => f.write_str("protection 100: never evicted"),
            SpareReason::InUse => f.write_str("in use: a process has it open"),
            SpareReason::BeingWritten => f.write_str("still being written"),
            SpareReason::Young => f.write_str("younger than min-age"),
            SpareReason::Last => f.write_str("among the last of its container (keep-last)"),
            SpareReason::Linked => f.write_str("another hard link holds its data: deleting it frees nothing"),
            SpareReason::NotNeeded { rank } => write!(f, "not needed: the target is met before rank {rank}"),
        }
    }
}
