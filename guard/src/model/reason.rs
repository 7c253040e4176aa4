//! Why a checkpoint goes or stays. Numbers, not prose: the sentence is made when somebody reads it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{Bytes, OrderKey, Protection};

/// Why this checkpoint is deleted rather than another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeleteReason {
    /// It came first in the configured order.
    Ranked(Ranked),
    /// A retention rule leaves no room for it.
    Retention {
        /// Which limit it breaks.
        limit: Limit,
        /// Where the rule is written, for people.
        rule: Arc<str>,
        /// Its age.
        age: Duration,
        /// What it frees.
        frees: Bytes,
    },
    /// Room is made before it is needed.
    Announced {
        /// For what: a sentence.
        why: Arc<str>,
        /// Why this one.
        reason: Box<DeleteReason>,
    },
    /// The filesystem fills, and something worse is near.
    Foreseen {
        /// How fast, and what: a sentence.
        outlook: Arc<str>,
        /// Why this one.
        reason: Box<DeleteReason>,
    },
}

/// What put a checkpoint among the first in the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// The key that put it before the first candidate left alone; `None` when all candidates go, or when nothing
    /// but the ties' breakers (time, name) tells the two apart.
    pub decided_by: Option<OrderKey>,
    /// What is lost, where `smallest-loss` weighed it against others.
    pub weighed: Option<Weighed>,
    /// What would have spared it below critical.
    pub spared_below: Option<SparedBelow>,
    /// What it is.
    pub standing: Standing,
    /// Its namespace, whose protection the sentence names.
    pub namespace: Option<Arc<str>>,
    /// Its protection.
    pub protection: Protection,
    /// Where that protection is written; `None` for the default.
    pub rule: Option<Arc<str>>,
    /// Its age.
    pub age: Duration,
    /// What it frees.
    pub frees: Bytes,
}

/// Losses that `smallest-loss` compared; only their ratios mean something (docs/DECISIONS.md has the formula).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weighed {
    /// What is lost with this one (or with all that is kept together with it).
    pub own: u64,
    /// What is lost with all that were chosen among those equal by the keys before.
    pub chosen: u64,
    /// What would be lost had each of these been taken in its turn, the cheapest per byte first.
    pub in_turn: u64,
}

/// What spares a checkpoint, but not at critical.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SparedBelow {
    /// Younger than `min-age`.
    Young,
    /// One of the newest `keep-last` of its container.
    Last,
}

/// What a checkpoint is to its container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A left-over: its tar ends early.
    Incomplete,
    /// Its pod is gone.
    Orphan,
    /// A newer complete one of the same container exists.
    Superseded,
    /// The newest complete one of its container: losing it loses the container's state.
    Newest,
    /// Nothing of these is known: an ambiguous or unknown identity, or a pre-dump.
    Unranked,
}

/// Whose checkpoints a limit counts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// One container's.
    Container,
    /// One pod's, pod checkpoints included.
    Pod,
    /// One namespace's.
    Namespace,
}

/// A limit, and what was found before anything was deleted for its sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `max-count`.
    Count {
        /// Over what it counts.
        scope: Scope,
        /// So many there are.
        found: u32,
        /// So many may be.
        max: u32,
    },
    /// `max-total-size`.
    TotalSize {
        /// Over what it counts.
        scope: Scope,
        /// So much they hold.
        found: Bytes,
        /// So much may be.
        max: Bytes,
    },
    /// `max-size`.
    Size {
        /// So large may one be.
        max: Bytes,
    },
    /// `max-age`.
    Age {
        /// So old may one be.
        max: Duration,
    },
    /// `retain-orphans = false`.
    Orphan,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Standing::Incomplete => "incomplete left-over of a failed checkpoint",
            Standing::Orphan => "its pod is gone",
            Standing::Superseded => "superseded by a newer one of the same container",
            Standing::Newest => "the newest of its container, but nothing that matters less is left",
            Standing::Unranked => "no newer one of the same container is known",
        })
    }
}

impl fmt::Display for Ranked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; ", self.standing)?;
        match &self.namespace {
            Some(namespace) => write!(f, "namespace {namespace} has protection {}", self.protection)?,
            None => write!(f, "its namespace is not known, protection {}", self.protection)?,
        }
        match &self.rule {
            Some(rule) => write!(f, " ({rule})")?,
            None => f.write_str(" (the default)")?,
        }
        write!(f, ", {} old, frees {}", Coarse(self.age), self.frees)?;
        match self.spared_below {
            Some(SparedBelow::Young) => {
                f.write_str("; younger than min-age, which spares only below critical")?
            }
            Some(SparedBelow::Last) => {
                f.write_str("; among the last of its container, which spares only below critical")?;
            }
            None => {}
        }
        if let Some(weighed) = self.weighed {
            return write!(f, "; chosen by smallest-loss: {weighed}");
        }
        match self.decided_by {
            Some(OrderKey::FairShare) => f.write_str("; chosen by fair-share: its namespace holds the most"),
            Some(key) => write!(f, "; chosen by {}", key.as_str()),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Weighed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Weighed { own, chosen, in_turn } = self;
        write!(f, "a loss of {own}, of {chosen} with all that were chosen so")?;
        if chosen < in_turn {
            write!(f, "; the cheapest per byte one after the other would cost {in_turn}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Scope::Container => "container",
            Scope::Pod => "pod",
            Scope::Namespace => "namespace",
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Count { scope, found, max } => {
                write!(f, "its {scope} has {found} checkpoints and may have {max}")
            }
            Limit::TotalSize { scope, found, max } => {
                write!(f, "the checkpoints of its {scope} hold {found} and may hold {max}")
            }
            Limit::Size { max } => write!(f, "larger than the {max} that one may have"),
            Limit::Age { max } => write!(f, "older than {}", Coarse(*max)),
            Limit::Orphan => f.write_str("its pod is gone, and orphans are not retained"),
        }
    }
}

impl fmt::Display for DeleteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeleteReason::Ranked(ranked) => ranked.fmt(f),
            DeleteReason::Retention { limit, rule, age, frees } => {
                write!(f, "{limit} ({rule}); {} old, frees {frees}", Coarse(*age))
            }
            DeleteReason::Announced { why, reason } => write!(f, "{why}; {reason}"),
            DeleteReason::Foreseen { outlook, reason } => write!(f, "{reason}; {outlook}"),
        }
    }
}

/// Why this checkpoint stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpareReason {
    /// A `.keep` lies beside it.
    Pinned,
    /// Protection 100.
    Protected {
        /// Where that is written; `None` for the default.
        rule: Option<Arc<str>>,
    },
    /// Somebody has it open.
    InUse,
    /// It is not finished.
    BeingWritten,
    /// Younger than `min-age`.
    Young {
        /// How old it is.
        age: Duration,
    },
    /// One of the newest `keep-last` of its container.
    Last,
    /// Another hard link holds its data; deleting it frees nothing.
    Linked,
    /// Deleting it failed lately; the next scan clears that.
    Refused,
    /// Others need it, or it needs others, and one of them stays (`keep-together`).
    Together,
    /// Deleting it frees nothing of what is short.
    NoGain {
        /// Place in the order.
        rank: u32,
    },
    /// The target is met without it. Its rank among the candidates, from 1.
    NotNeeded {
        /// Place in the order.
        rank: u32,
    },
    /// No retention rule asks for it.
    Retained,
    /// One of its container's is being written: retention waits until the count stands still.
    Unsettled,
}

impl SpareReason {
    /// The same for many at once: without what differs from one checkpoint to the next.
    pub fn of_many(&self) -> String {
        match self {
            SpareReason::Young { .. } => "younger than min-age".to_owned(),
            SpareReason::NoGain { .. } => "deleting it frees nothing of what is short".to_owned(),
            SpareReason::NotNeeded { .. } => "not needed".to_owned(),
            same => same.to_string(),
        }
    }
}

impl fmt::Display for SpareReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpareReason::Pinned => f.write_str("pinned: a .keep lies beside it"),
            SpareReason::Protected { rule: Some(rule) } => {
                write!(f, "protection 100 ({rule}): never evicted")
            }
            SpareReason::Protected { rule: None } => {
                f.write_str("protection 100 (the default): never evicted")
            }
            SpareReason::InUse => f.write_str("in use: a process has it open"),
            SpareReason::BeingWritten => f.write_str("still being written"),
            SpareReason::Young { age } => write!(f, "only {} old, younger than min-age", Coarse(*age)),
            SpareReason::Last => f.write_str("among the last of its container (keep-last)"),
            SpareReason::Linked => f.write_str("another hard link holds its data: deleting it frees nothing"),
            SpareReason::Refused => f.write_str("deleting it failed lately; tried again after the next scan"),
            SpareReason::Together => {
                f.write_str("belongs with other checkpoints of which one stays (keep-together)")
            }
            SpareReason::NoGain { rank } => {
                write!(f, "rank {rank}: deleting it frees nothing of what is short")
            }
            SpareReason::NotNeeded { rank } => {
                write!(f, "not needed: rank {rank}, the target is met without it")
            }
            SpareReason::Retained => f.write_str("within the limits of its retention rules"),
            SpareReason::Unsettled => {
                f.write_str("another of its container is being written: retention waits for it")
            }
        }
    }
}

/// A duration as a person says it: `40 s`, `12 min`, `3 h`, `14 d`; rounded down, like an age.
struct Coarse(Duration);

impl fmt::Display for Coarse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0..120 => write!(f, "{seconds} s"),
            120..7_200 => write!(f, "{} min", seconds / 60),
            7_200..172_800 => write!(f, "{} h", seconds / 3_600),
            _ => write!(f, "{} d", seconds / 86_400),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(reason: impl fmt::Display, sentence: &str) {
        assert_eq!(reason.to_string(), sentence);
    }

    #[test]
    fn a_reason_is_a_sentence_that_stands_alone() {
        let ranked = Ranked {
            decided_by: Some(OrderKey::LeastProtected),
            weighed: None,
            spared_below: None,
            standing: Standing::Superseded,
            namespace: Some("ci-nightly".into()),
            protection: Protection::new(5).unwrap(),
            rule: Some("protection.namespaces.\"ci-*\"".into()),
            age: Duration::from_secs(3 * 3600 + 7),
            frees: Bytes::mib(64),
        };
        let weighed = Some(Weighed { own: 7, chosen: 20, in_turn: 90 });
        check(
            DeleteReason::Ranked(Ranked { weighed, decided_by: None, ..ranked.clone() }),
            "superseded by a newer one of the same container; namespace ci-nightly has protection 5 \
             (protection.namespaces.\"ci-*\"), 3 h old, frees 64.0 MiB; chosen by smallest-loss: a loss of 7, of 20 \
             with all that were chosen so; the cheapest per byte one after the other would cost 90",
        );
        check(
            DeleteReason::Ranked(ranked),
            "superseded by a newer one of the same container; namespace ci-nightly has protection 5 \
             (protection.namespaces.\"ci-*\"), 3 h old, frees 64.0 MiB; chosen by least-protected",
        );
        check(
            DeleteReason::Retention {
                limit: Limit::Count { scope: Scope::Pod, found: 31, max: 30 },
                rule: "retention[0] namespace=\"*\"".into(),
                age: Duration::from_secs(15 * 86_400),
                frees: Bytes::gib(2),
            },
            "its pod has 31 checkpoints and may have 30 (retention[0] namespace=\"*\"); 15 d old, frees 2.00 GiB",
        );
        check(SpareReason::Young { age: Duration::from_secs(40) }, "only 40 s old, younger than min-age");
        check(SpareReason::NotNeeded { rank: 7 }, "not needed: rank 7, the target is met without it");
        let ranks = [3, 4].map(|rank| SpareReason::NoGain { rank }.of_many());
        assert_eq!(ranks[0], ranks[1], "one line in a message, however many there are");
    }
}
