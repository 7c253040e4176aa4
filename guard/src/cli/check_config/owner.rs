//! Which rules apply to an owner, before there is any checkpoint of theirs.

use serde::Serialize;

use crate::config::{Config, format_duration};
use crate::model::{Bytes, Owner, ProtectionRule, RetentionRule};

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
        let rule = by_specificity(config).into_iter().find(|rule| rule.owner.matches(&parsed));
        let protection = rule.map_or(config.policy.protection.default, |rule| rule.protection);
        OwnerReport {
            owner: parsed.to_string(),
            protection: protection.get(),
            never: protection.is_never(),
            protection_source: rule.map_or("protection.default".to_owned(), |rule| rule.source.clone()),
            retention: limits(&parsed, &config.policy.retention),
        }
    }
}

/// The limits in force for `owner`: of the rules that match, for each limit the most specific that sets it.
fn limits(owner: &Owner, rules: &[RetentionRule]) -> Vec<LimitReport> {
    let mut matching: Vec<_> = rules.iter().filter(|rule| rule.owner.matches(owner)).collect();
    // Stable: of equally specific rules the one written last counts, as in the file.
    matching.sort_by_key(|rule| rule.owner.specificity());
    let count = |count: u32| if count == u32::MAX { "unlimited".to_owned() } else { count.to_string() };
    let size = |size: Bytes| if size.0 == u64::MAX { "unlimited".to_owned() } else { size.to_string() };
    let age =
        |age| if age == std::time::Duration::MAX { "unlimited".to_owned() } else { format_duration(age) };
    type Shown<'a> = &'a dyn Fn(&RetentionRule) -> Option<String>;
    let fields: [(&'static str, Shown<'_>); 9] = [
        ("max-count.container", &|rule| rule.max_count.container.map(count)),
        ("max-count.pod", &|rule| rule.max_count.pod.map(count)),
        ("max-count.namespace", &|rule| rule.max_count.namespace.map(count)),
        ("max-total-size.container", &|rule| rule.max_total_size.container.map(size)),
        ("max-total-size.pod", &|rule| rule.max_total_size.pod.map(size)),
        ("max-total-size.namespace", &|rule| rule.max_total_size.namespace.map(size)),
        ("max-size", &|rule| rule.max_size.map(size)),
        ("max-age", &|rule| rule.max_age.map(age)),
        ("retain-orphans", &|rule| rule.retain_orphans.map(|retain| retain.to_string())),
    ];
    let in_force = fields.into_iter().filter_map(|(limit, shown)| {
        let (rule, value) = matching.iter().rev().find_map(|rule| shown(rule).map(|value| (rule, value)))?;
        Some(LimitReport { limit, value, source: rule.source.clone() })
    });
    in_force.collect()
}
