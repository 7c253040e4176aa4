//! Which rules apply to an owner, before there is any checkpoint of theirs.

use serde::Serialize;

use crate::config::{Config, format_duration};
use crate::decide::{self, protection, protection::Protected};
use crate::model::{Bytes, Max, Owner, ProtectionRule, RetentionRule};

/// What one owner's checkpoints get, and who says so.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OwnerReport {
    pub(super) owner: String,
    pub(super) protection: u8,
    pub(super) never: bool,
    pub(super) protection_source: String,
    pub(super) retention: Vec<LimitReport>,
}

/// One limit that is in force.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LimitReport {
    pub(super) limit: &'static str,
    pub(super) value: String,
    pub(super) source: String,
}

/// The protection rules, most specific first; of equals the higher protection, which wins.
pub(super) fn by_specificity(config: &Config) -> Vec<&ProtectionRule> {
    let mut rules: Vec<_> = config.policy.protection.rules.iter().collect();
    rules.sort_by_key(|rule| std::cmp::Reverse((rule.owner.specificity(), rule.protection)));
    rules
}

impl OwnerReport {
    /// `owner` is `namespace`, `namespace/pod` or `namespace/pod/container`; what is left out is not known.
    pub(super) fn new(owner: &str, config: &Config) -> OwnerReport {
        let mut parts = owner.splitn(3, '/').map(|part| (!part.is_empty()).then(|| part.into()));
        let mut next = || parts.next().flatten();
        let parsed = Owner { namespace: next(), pod: next(), container: next() };
        let Protected { protection, rule } = protection::of_owner(&config.policy.protection, &parsed);
        let rule = rule.map(|rule| &config.policy.protection.rules[rule]);
        OwnerReport {
            owner: parsed.to_string(),
            protection: protection.get(),
            never: protection.is_never(),
            protection_source: rule.map_or("protection.default".to_owned(), |rule| rule.source.clone()),
            retention: limits(&parsed, &config.policy.retention),
        }
    }
}

/// The limits in force for `owner`, found as the daemon finds them.
fn limits(owner: &Owner, rules: &[RetentionRule]) -> Vec<LimitReport> {
    let count = |count: u32| count.to_string();
    let size = |size: Bytes| size.to_string();
    let limits = [
        ("max-count.container", limit(rules, owner, |rule| rule.max_count.container, count)),
        ("max-count.pod", limit(rules, owner, |rule| rule.max_count.pod, count)),
        ("max-count.namespace", limit(rules, owner, |rule| rule.max_count.namespace, count)),
        ("max-total-size.container", limit(rules, owner, |rule| rule.max_total_size.container, size)),
        ("max-total-size.pod", limit(rules, owner, |rule| rule.max_total_size.pod, size)),
        ("max-total-size.namespace", limit(rules, owner, |rule| rule.max_total_size.namespace, size)),
        ("max-size", limit(rules, owner, |rule| rule.max_size, size)),
        ("max-age", limit(rules, owner, |rule| rule.max_age, format_duration)),
        (
            "retain-orphans",
            limit(rules, owner, |rule| rule.retain_orphans.map(Max::At), |retain| retain.to_string()),
        ),
    ];
    let report = |(limit, found): (&'static str, Option<(String, usize)>)| {
        let (value, rule) = found?;
        Some(LimitReport { limit, value, source: rules[rule].source.clone() })
    };
    limits.into_iter().filter_map(report).collect()
}

/// One limit in words, and the rule it comes from.
fn limit<T: Ord + Copy>(
    rules: &[RetentionRule],
    owner: &Owner,
    field: impl Fn(&RetentionRule) -> Option<Max<T>>,
    shown: impl Fn(T) -> String,
) -> Option<(String, usize)> {
    let (max, rule) = decide::limit_of(rules, owner, field)?;
    Some((max.limit().map_or("unlimited".to_owned(), shown), rule))
}
