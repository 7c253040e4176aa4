//! How much a checkpoint is worth keeping, and which rule says so.

use crate::model::{Owner, Protection, ProtectionPolicy};

/// A protection and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protected {
    /// 0 to 100.
    pub protection: Protection,
    /// Index into [`ProtectionPolicy::rules`]; `None` when the default applies.
    pub rule: Option<usize>,
}

/// The protection of one owner: the most specific rule that matches, of equally specific ones the highest
/// protection, of those the first written; the default when none matches.
pub fn of_owner(policy: &ProtectionPolicy, owner: &Owner) -> Protected {
    let matching = policy.rules.iter().enumerate().filter(|(_, rule)| rule.owner.matches(owner));
    // `max_by_key` takes the last of equals; reversed, that is the first written.
    let best = matching.rev().max_by_key(|(_, rule)| (rule.owner.specificity(), rule.protection));
    match best {
        Some((index, rule)) => Protected { protection: rule.protection, rule: Some(index) },
        None => Protected { protection: policy.default, rule: None },
    }
}

/// The protection of a checkpoint whose owner may be any of `readings`: the highest of theirs, so that a doubt never
/// costs anybody a checkpoint (FORMAT.md, section "Who it is"). Of equals the first reading.
pub fn of_readings<'a>(
    policy: &ProtectionPolicy,
    readings: impl IntoIterator<Item = &'a Owner>,
) -> Protected {
    let each = readings.into_iter().map(|owner| of_owner(policy, owner));
    each.reduce(|best, next| if next.protection > best.protection { next } else { best })
        .unwrap_or(Protected { protection: policy.default, rule: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::fixture::{owner, protect};

    fn policy() -> ProtectionPolicy {
        ProtectionPolicy {
            default: Protection::new(50).unwrap(),
            rules: vec![
                protect("kube-*/-/-", 90),
                protect("team/-/-", 5),
                protect("team-prod/-/-", 95),
                protect("*/-/-", 40),
                protect("team/web-*/-", 60),
                protect("team/web-*/debug", 0),
                protect("-/-/db", 80),
                protect("a-*/-/-", 10),
                protect("*-b/-/-", 20),
                protect("forensics/-/-", 100),
            ],
        }
    }

    #[track_caller]
    fn check(readings: &[&str], protection: u8, rule: Option<usize>) {
        let owners: Vec<_> = readings.iter().map(|text| owner(text)).collect();
        let expect = Protected { protection: Protection::new(protection).unwrap(), rule };
        assert_eq!(of_readings(&policy(), &owners), expect, "{readings:?}");
    }

    #[test]
    fn the_most_specific_rule_wins_container_before_pod_before_namespace() {
        check(&["other/x/y"], 40, Some(3));
        check(&["team/x/y"], 5, Some(1));
        check(&["team/web-1/y"], 60, Some(4));
        check(&["team/web-1/debug"], 0, Some(5));
        check(&["team/web-1/db"], 80, Some(6));
        check(&["kube-system/x/y"], 90, Some(0));
    }

    #[test]
    fn case_10_a_rule_for_team_never_touches_team_prod() {
        check(&["team-prod/web-1/debug"], 95, Some(2));
        check(&["team/x/prod-app"], 5, Some(1));
    }

    #[test]
    fn case_10_a_name_that_may_be_team_or_team_prod_has_the_higher_protection_of_both() {
        check(&["team/x/prod-app", "team-prod/x/app"], 95, Some(2));
        check(&["team-prod/x/app", "team/x/prod-app"], 95, Some(2));
    }

    #[test]
    fn of_equally_specific_rules_the_higher_protection_wins() {
        check(&["a-b/x/y"], 20, Some(8));
    }

    #[test]
    fn an_unknown_owner_gets_what_is_meant_for_all() {
        check(&["?/?/?"], 40, Some(3));
        let none = ProtectionPolicy { default: Protection::new(50).unwrap(), rules: vec![] };
        assert_eq!(of_owner(&none, &owner("?/?/?")).rule, None);
    }

    #[test]
    fn case_35_never_and_rather_not_are_different() {
        assert!(of_owner(&policy(), &owner("forensics/x/y")).protection.is_never());
        assert!(!of_owner(&policy(), &owner("team-prod/x/y")).protection.is_never());
    }
}
