//! What annotations ask for, as protection rules: no decision knows of Kubernetes.

use std::sync::Arc;

use crate::decide::protection;
use crate::model::{
    Cluster, Owner, OwnerPattern, Pattern, Protection, ProtectionPolicy, ProtectionRule, Wish,
};

/// The rules that follow from what namespaces and pods wish, granted up to `most`; none when that is zero.
///
/// A wish never lowers what the administrator has written about its owner, and raises it to `most` at the most: whoever may
/// annotate a pod must not out-protect others beyond that, nor lift the administrator's protection from anything. Where no
/// rule is about the owner, the wish replaces the default, also by less.
pub fn rules(policy: &ProtectionPolicy, cluster: &Cluster, most: Protection) -> Vec<ProtectionRule> {
    if most == Protection::default() {
        return Vec::new();
    }
    let of_namespaces = cluster.namespaces.iter().map(|(namespace, wish)| (namespace, None, *wish));
    let of_pods =
        cluster.pods.iter().filter_map(|(namespace, pod, record)| Some((namespace, Some(pod), record.wish?)));
    of_namespaces
        .chain(of_pods)
        .filter_map(|(namespace, pod, wish)| rule(policy, namespace, pod, wish, most))
        .collect()
}

/// The rule about one namespace or pod. `None` for a name that is no pattern, which no API server would take.
fn rule(
    policy: &ProtectionPolicy,
    namespace: &Arc<str>,
    pod: Option<&Arc<str>>,
    wish: Wish,
    most: Protection,
) -> Option<ProtectionRule> {
    let owner = Owner { namespace: Some(namespace.clone()), pod: pod.cloned(), container: None };
    let written = protection::of_owner(policy, &owner);
    let granted = wish.protection.min(most);
    let protection = if written.rule.is_some() { granted.max(written.protection) } else { granted };
    let exactly = |name: &Arc<str>| Pattern::new(name).ok();
    let pattern = OwnerPattern {
        namespace: Some(exactly(namespace)?),
        pod: match pod {
            Some(pod) => Some(exactly(pod)?),
            None => None,
        },
        container: None,
    };
    let whose = match pod {
        Some(pod) => format!("Pod {namespace}/{pod}"),
        None => format!("Namespace {namespace}"),
    };
    let capped =
        if wish.protection > most { format!(", {} asked for", wish.protection) } else { String::new() };
    let source = format!("annotation {} of {whose}{capped}", wish.annotation.key());
    Some(ProtectionRule { owner: pattern, protection, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::fixture::{owner, protect};
    use crate::model::Annotation;

    fn value(value: u8) -> Protection {
        Protection::new(value).unwrap()
    }

    fn wish(protection: u8) -> Wish {
        Wish { protection: value(protection), annotation: Annotation::Protection }
    }

    /// The protection of `of` when namespaces and pods wish what is said (`a` or `a/p`), granted up to `most`.
    #[track_caller]
    fn check(wishes: &[(&str, u8)], most: u8, of: &str, expect: u8) {
        let mut policy = ProtectionPolicy {
            default: value(50),
            rules: vec![
                protect("forensics/-/-", 100),
                protect("ci-*/-/-", 5),
                protect("pay/ledger-*/-", 60),
                protect("pay/-/db", 95),
            ],
        };
        let mut cluster = Cluster::default();
        for (who, protection) in wishes {
            match who.split_once('/') {
                Some((namespace, pod)) => cluster.pods.entry(namespace, pod).wish = Some(wish(*protection)),
                None => {
                    cluster.namespaces.insert((*who).into(), wish(*protection));
                }
            }
        }
        let rules = rules(&policy, &cluster, value(most));
        policy.rules.extend(rules);
        assert_eq!(protection::of_owner(&policy, &owner(of)).protection, value(expect), "{wishes:?} {of}");
    }

    #[test]
    fn where_nothing_is_written_the_wish_counts_up_to_the_maximum() {
        check(&[("a", 70)], 80, "a/p/c", 70);
        check(&[("a", 90)], 80, "a/p/c", 80);
        check(&[("a", 10)], 80, "a/p/c", 10);
        check(&[("a", 70)], 80, "b/p/c", 50);
        check(&[("a/p", 70)], 80, "a/p/c", 70);
        check(&[("a/p", 70)], 80, "a/q/c", 50);
        check(&[("a", 70), ("a/p", 20)], 80, "a/p/c", 20);
    }

    #[test]
    fn a_tenant_never_takes_away_what_the_administrator_gave() {
        check(&[("forensics", 0)], 80, "forensics/p/c", 100);
        check(&[("forensics/p", 0)], 80, "forensics/p/c", 100);
        check(&[("pay/ledger-1", 0)], 80, "pay/ledger-1/c", 60);
        check(&[("pay/ledger-1", 70)], 80, "pay/ledger-1/db", 95);
        check(&[("pay", 70)], 80, "pay/ledger-1/c", 60);
    }

    #[test]
    fn a_tenant_out_protects_nobody_beyond_the_maximum() {
        check(&[("ci-1", 100)], 30, "ci-1/p/c", 30);
        check(&[("ci-1/p", 100)], 30, "ci-1/p/c", 30);
        check(&[("a/p", 100)], 99, "a/p/c", 99);
        check(&[("a/p", 100)], 100, "a/p/c", 100);
    }

    #[test]
    fn a_maximum_of_zero_switches_annotations_off() {
        check(&[("a", 70), ("a/p", 10)], 0, "a/p/c", 50);
    }

    #[test]
    fn the_rule_says_which_annotation_of_whom_and_what_it_wanted() {
        let mut cluster = Cluster::default();
        cluster.pods.entry("a", "p").wish =
            Some(Wish { protection: Protection::NEVER, annotation: Annotation::Keep });
        let policy = ProtectionPolicy { default: value(50), rules: vec![] };
        let rules = rules(&policy, &cluster, value(80));
        assert_eq!(rules[0].source, "annotation checkpoint-guard.io/keep of Pod a/p, 100 asked for");
    }
}
