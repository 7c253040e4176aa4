//! What came of a simulation, in numbers that can be added up over nodes.

use serde::Serialize;

/// What came of replaying one node, or several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// Checkpoints that arrived.
    pub arrivals: u64,
    /// Those of them that did not fit any more (ENOSPC).
    pub refused: u64,
    /// Those that are there in the end.
    pub survived: u64,
    /// What the restores would be worth if every one found its checkpoint.
    pub value_asked: u64,
    /// What those were worth that did.
    pub value_served: u64,
    /// Checkpoints deleted under pressure.
    pub deleted: u64,
    /// Bytes deleted under pressure.
    pub deleted_bytes: u64,
    /// The fewest bytes that anybody had to delete to stay above the first threshold all the time.
    pub needed_bytes: u64,
    /// Namespaces that lost the last checkpoint they had, at some time.
    pub starved: u64,
    /// Plans carried out.
    pub reclaims: u64,
    /// Plans that could not reach their target.
    pub unreachable: u64,
}

impl Outcome {
    /// Both together.
    pub fn plus(self, other: Outcome) -> Outcome {
        Outcome {
            arrivals: self.arrivals + other.arrivals,
            refused: self.refused + other.refused,
            survived: self.survived + other.survived,
            value_asked: self.value_asked + other.value_asked,
            value_served: self.value_served + other.value_served,
            deleted: self.deleted + other.deleted,
            deleted_bytes: self.deleted_bytes + other.deleted_bytes,
            needed_bytes: self.needed_bytes + other.needed_bytes,
            starved: self.starved + other.starved,
            reclaims: self.reclaims + other.reclaims,
            unreachable: self.unreachable + other.unreachable,
        }
    }

    /// Value served against that of `best`; one when nobody asked for anything.
    pub fn value_against(&self, best: &Outcome) -> f64 {
        ratio(self.value_served, best.value_served)
    }

    /// Bytes deleted against bytes needed; one when neither was.
    pub fn deleted_against_needed(&self) -> f64 {
        ratio(self.deleted_bytes, self.needed_bytes)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if part == whole { 1.0 } else { part as f64 / whole as f64 }
}
