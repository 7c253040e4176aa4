//! What the operator wants, validated: the values that `config` produces and `decide` consumes.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::model::{Amount, Bytes, Level, Owner, Pattern, Signal};

/// Everything that a decision needs to know of the configuration. One per pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// When to act.
    pub pressure: PressurePolicy,
    /// Whom to take first, and whom to spare.
    pub eviction: EvictionPolicy,
    /// How much each owner's checkpoints are worth.
    pub protection: ProtectionPolicy,
    /// What to keep outside pressure. As written; the most specific rule wins, field by field.
    pub retention: Vec<RetentionRule>,
}

impl Policy {
    /// The same with nothing to let go for its age.
    pub fn without_age_limits(&self) -> Policy {
        let mut policy = self.clone();
        policy.retention.iter_mut().for_each(|rule| rule.max_age = None);
        policy
    }
}

/// A level begins when one of its signals is below its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// `None`: this signal does not count for this level.
    pub available: Option<Amount>,
    /// `None`: this signal does not count for this level.
    pub inodes_free: Option<Amount>,
    /// How long a signal must be below its value before the level begins; zero for hard and critical.
    pub grace_period: Duration,
}

impl Threshold {
    /// The value for `signal`.
    pub fn amount(&self, signal: Signal) -> Option<&Amount> {
        match signal {
            Signal::Available => self.available.as_ref(),
            Signal::InodesFree => self.inodes_free.as_ref(),
        }
    }
}

/// How far past a crossed threshold a reclaim goes (the kubelet's `evictionMinimumReclaim`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MinimumReclaim {
    /// `None`: up to the threshold and no further.
    pub available: Option<Amount>,
    /// `None`: up to the threshold and no further.
    pub inodes_free: Option<Amount>,
}

impl MinimumReclaim {
    /// The value for `signal`.
    pub fn amount(&self, signal: Signal) -> Option<&Amount> {
        match signal {
            Signal::Available => self.available.as_ref(),
            Signal::InodesFree => self.inodes_free.as_ref(),
        }
    }
}

/// When to act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PressurePolicy {
    /// Reclaim gently after a grace period; `None` switches the level off.
    pub soft: Option<Threshold>,
    /// Reclaim at once.
    pub hard: Option<Threshold>,
    /// Reclaim at once, the young and the last ones too.
    pub critical: Option<Threshold>,
    /// How far past the threshold.
    pub minimum_reclaim: MinimumReclaim,
    /// A level is left only after this long above its threshold.
    pub transition_period: Duration,
}

impl PressurePolicy {
    /// The threshold of `level`; `None` for `normal` and for levels switched off.
    pub fn threshold(&self, level: Level) -> Option<&Threshold> {
        match level {
            Level::Normal => None,
            Level::Soft => self.soft.as_ref(),
            Level::Hard => self.hard.as_ref(),
            Level::Critical => self.critical.as_ref(),
        }
    }
}

/// One criterion of the order in which checkpoints go. Ties fall through to the next one, and in the end to
/// creation time, mtime in ns, and name: the order is total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderKey {
    /// Left-overs of failed checkpoints first.
    Incomplete,
    /// Lowest protection first.
    LeastProtected,
    /// Those whose pod is gone first.
    Orphan,
    /// Those that a newer complete one of the same container replaces first.
    Superseded,
    /// Oldest first, by age bucket.
    Oldest,
    /// Those that free most first.
    Largest,
    /// Those whose loss costs least (protection, recency, being the last) per byte first.
    SmallestLoss,
    /// Those of the namespace that holds most beyond its share first.
    FairShare,
}

impl OrderKey {
    /// Every key, in the order the documentation lists them.
    pub const ALL: [OrderKey; 8] = [
        OrderKey::Incomplete,
        OrderKey::LeastProtected,
        OrderKey::Orphan,
        OrderKey::Superseded,
        OrderKey::Oldest,
        OrderKey::Largest,
        OrderKey::SmallestLoss,
        OrderKey::FairShare,
    ];

    /// The order when none is configured. `docs/DECISIONS.md` has the measurements behind `fair-share` in it.
    pub const DEFAULT: [OrderKey; 7] = [
        OrderKey::Incomplete,
        OrderKey::LeastProtected,
        OrderKey::Orphan,
        OrderKey::Superseded,
        OrderKey::FairShare,
        OrderKey::Oldest,
        OrderKey::Largest,
    ];

    /// The word for it in configuration and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            OrderKey::Incomplete => "incomplete",
            OrderKey::LeastProtected => "least-protected",
            OrderKey::Orphan => "orphan",
            OrderKey::Superseded => "superseded",
            OrderKey::Oldest => "oldest",
            OrderKey::Largest => "largest",
            OrderKey::SmallestLoss => "smallest-loss",
            OrderKey::FairShare => "fair-share",
        }
    }
}

/// Whom to take first under pressure, and whom to spare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionPolicy {
    /// First key first.
    pub order: Vec<OrderKey>,
    /// Ages within one bucket are equal, so that the keys after `oldest` can decide; zero: to the nanosecond.
    pub age_bucket: Duration,
    /// Younger ones are spared, but not at critical.
    pub min_age: Duration,
    /// The newest so many complete ones of each container are spared, but not at critical.
    pub keep_last: u32,
    /// Which checkpoints are kept or dropped as a whole.
    pub keep_together: KeepTogether,
}

/// Which checkpoints belong so much together that they are kept or dropped as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeepTogether {
    /// None: each goes by itself.
    Off,
    /// Those that cannot be restored without each other: a pre-checkpoint and those that build on it.
    #[default]
    Chains,
    /// All of one container (of one pod, for pod checkpoints): a forensic series tells the story, its members do not.
    Containers,
}

/// How much a checkpoint is worth keeping: 0 to 100, and 100 is never evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Protection(u8);

impl Protection {
    /// Never evicted.
    pub const NEVER: Protection = Protection(100);

    /// `None` above 100.
    pub const fn new(value: u8) -> Option<Protection> {
        if value <= 100 { Some(Protection(value)) } else { None }
    }

    /// 0 to 100.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Whether this means *never* rather than *rather not*.
    pub const fn is_never(self) -> bool {
        self.0 == 100
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.to_string())
    }
}

/// Which owners a rule is about. `None` is no condition; a condition on what is not known does not hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerPattern {
    /// A condition on the namespace.
    pub namespace: Option<Pattern>,
    /// A condition on the pod.
    pub pod: Option<Pattern>,
    /// A condition on the container.
    pub container: Option<Pattern>,
}

impl OwnerPattern {
    /// Whether every condition holds for `owner`.
    pub fn matches(&self, owner: &Owner) -> bool {
        let holds = |condition: &Option<Pattern>, name: &Option<std::sync::Arc<str>>| match (condition, name)
        {
            (None, _) => true,
            (Some(pattern), Some(name)) => pattern.matches(name),
            (Some(pattern), None) => pattern.as_str() == "*",
        };
        holds(&self.namespace, &owner.namespace)
            && holds(&self.pod, &owner.pod)
            && holds(&self.container, &owner.container)
    }

    /// Larger is more specific: a condition on the container beats one on the pod, which beats one on the
    /// namespace; equal kinds compare by [`Pattern::specificity`], container first.
    pub fn specificity(&self) -> impl Ord + use<> {
        let of = |pattern: &Option<Pattern>| pattern.as_ref().map(Pattern::specificity);
        (of(&self.container), of(&self.pod), of(&self.namespace))
    }
}

/// One line of the protection rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtectionRule {
    /// Whom it is about.
    pub owner: OwnerPattern,
    /// What they get.
    pub protection: Protection,
    /// Where it is written, for people: `protection.namespaces."ci-*" (guard.toml:21)`.
    pub source: String,
}

/// How much each owner's checkpoints are worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtectionPolicy {
    /// For whom no rule is written.
    pub default: Protection,
    /// The most specific one that matches wins; of equals the higher protection.
    pub rules: Vec<ProtectionRule>,
}

/// One limit at each scope it can be counted over; `None` says nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits<T> {
    /// Per container.
    pub container: Option<T>,
    /// Per pod.
    pub pod: Option<T>,
    /// Per namespace.
    pub namespace: Option<T>,
}

impl<T> Default for Limits<T> {
    fn default() -> Limits<T> {
        Limits { container: None, pod: None, namespace: None }
    }
}

impl<T> Limits<T> {
    /// Every limit, changed by `change`.
    pub fn map<U>(self, change: impl Fn(T) -> U) -> Limits<U> {
        let Limits { container, pod, namespace } = self;
        Limits { container: container.map(&change), pod: pod.map(&change), namespace: namespace.map(&change) }
    }
}

/// The most that a rule allows. Ordered by leniency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Max<T> {
    /// So much; zero allows nothing.
    At(T),
    /// Any amount, whatever a less specific rule says.
    Unlimited,
}

impl<T> Max<T> {
    /// So much; `None` when there is no limit.
    pub fn limit(self) -> Option<T> {
        match self {
            Max::At(limit) => Some(limit),
            Max::Unlimited => None,
        }
    }
}

impl<T> From<T> for Max<T> {
    fn from(limit: T) -> Max<T> {
        Max::At(limit)
    }
}

/// What to keep of some owners outside pressure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionRule {
    /// Whom it is about.
    pub owner: OwnerPattern,
    /// At most so many.
    pub max_count: Limits<Max<u32>>,
    /// At most so much together.
    pub max_total_size: Limits<Max<Bytes>>,
    /// At most so large, each.
    pub max_size: Option<Max<Bytes>>,
    /// At most so old.
    pub max_age: Option<Max<Duration>>,
    /// `Some(false)`: checkpoints whose pod is known to be gone are deleted.
    pub retain_orphans: Option<bool>,
    /// Where it is written, for people: `retention[0] namespace="*" (guard.toml:31)`.
    pub source: String,
}
