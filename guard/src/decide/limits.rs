//! Which limits apply to whom: of all retention rules the most specific one that says something, field by field.

use crate::model::{Bytes, Max, Owner, RetentionRule, Scope};

/// A limit and the rule it comes from, by its place in the list.
pub type Ruled<T> = Option<(T, usize)>;

/// What `field` is for `owner`: from the most specific rule that matches and sets it; of equally specific ones the
/// most lenient, as with protection. `None` when no rule limits it.
pub fn resolve<T: Ord + Copy>(
    rules: &[RetentionRule],
    owner: &Owner,
    field: impl Fn(&RetentionRule) -> Option<T>,
) -> Ruled<T> {
    let matching = rules.iter().enumerate().filter(|(_, rule)| rule.owner.matches(owner));
    let setting = matching.filter_map(|(index, rule)| Some((field(rule)?, index)));
    // `max_by_key` takes the last of equals; reversed, that is the first written.
    setting.rev().max_by_key(|(value, index)| (rules[*index].owner.specificity(), *value))
}

/// What `field` is for a checkpoint whose owner may be any of `readings`: the most lenient, so that a doubt never
/// costs anybody a checkpoint.
pub(crate) fn resolve_readings<'a, T: Ord + Copy>(
    rules: &[RetentionRule],
    readings: impl IntoIterator<Item = &'a Owner>,
    field: impl Fn(&RetentionRule) -> Option<T>,
) -> Ruled<T> {
    let each = readings.into_iter().map(|owner| resolve(rules, owner, &field));
    each.reduce(|lenient, next| match (lenient, next) {
        (Some(a), Some(b)) => Some(if b.0 > a.0 { b } else { a }),
        _ => None,
    })
    .flatten()
}

/// The same without those that say there is none.
pub(crate) fn limit<T>(ruled: Ruled<Max<T>>) -> Ruled<T> {
    ruled.and_then(|(max, rule)| Some((max.limit()?, rule)))
}

/// The limits on what one scope holds together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScopeLimits {
    pub(crate) max_count: Ruled<u32>,
    pub(crate) max_total_size: Ruled<Bytes>,
}

impl ScopeLimits {
    /// The limits of the container, pod or namespace that `owner` is. A rule that is narrowed to a pod says nothing
    /// about the whole namespace, since its condition does not hold for it.
    pub(crate) fn of(rules: &[RetentionRule], scope: Scope, owner: &Owner) -> ScopeLimits {
        fn at<T: Copy>(limits: &crate::model::Limits<T>, scope: Scope) -> Option<T> {
            match scope {
                Scope::Container => limits.container,
                Scope::Pod => limits.pod,
                Scope::Namespace => limits.namespace,
            }
        }
        ScopeLimits {
            max_count: limit(resolve(rules, owner, |rule| at(&rule.max_count, scope))),
            max_total_size: limit(resolve(rules, owner, |rule| at(&rule.max_total_size, scope))),
        }
    }

    pub(crate) fn is_unlimited(&self) -> bool {
        self.max_count.is_none() && self.max_total_size.is_none()
    }
}

/// `owner` as far as `scope` counts; `None` when that much of it is not known.
pub(crate) fn truncated(owner: &Owner, scope: Scope) -> Option<Owner> {
    let mut owner = owner.clone();
    let is_known = match scope {
        Scope::Container => owner.container.is_some(),
        Scope::Pod => {
            owner.container = None;
            owner.pod.is_some()
        }
        Scope::Namespace => {
            (owner.pod, owner.container) = (None, None);
            owner.namespace.is_some()
        }
    };
    is_known.then_some(owner)
}
