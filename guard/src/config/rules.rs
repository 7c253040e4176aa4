//! `[eviction]`, `[protection]` and `[[retention]]`: whom to take, whom to spare, what to keep.

use super::raw::{Raw, Value, quote_key};
use super::read::{self, Reader};
use crate::model::{
    EvictionPolicy, KeepTogether, Limits, OrderKey, OwnerPattern, Pattern, Protection, ProtectionPolicy,
    ProtectionRule, RetentionRule,
};

pub(super) fn eviction(reader: &mut Reader<'_>) -> EvictionPolicy {
    let words = OrderKey::ALL.map(|key| (key.as_str(), key));
    EvictionPolicy {
        order: reader.value("eviction.order", read::list_of(read::one_of(&words))).unwrap_or_default(),
        age_bucket: reader.value("eviction.age-bucket", read::duration).unwrap_or_default(),
        min_age: reader.value("eviction.min-age", read::duration).unwrap_or_default(),
        keep_last: reader.value("eviction.keep-last", read::count).unwrap_or_default(),
        keep_together: reader.value("eviction.keep-together", keep_together).unwrap_or_default(),
    }
}

fn keep_together(raw: &Raw) -> Result<KeepTogether, String> {
    match &raw.value {
        Value::Truth(true) => Ok(KeepTogether::Chains),
        _ if read::is_off(raw) => Ok(KeepTogether::Off),
        Value::Text(text) if text == "chains" => Ok(KeepTogether::Chains),
        Value::Text(text) if text == "containers" => Ok(KeepTogether::Containers),
        other => Err(format!("{other} is not accepted; write \"chains\", \"containers\" or false")),
    }
}

pub(super) fn protection(reader: &mut Reader<'_>) -> ProtectionPolicy {
    let default = reader.value("protection.default", read::protection).unwrap_or_default();
    let mut rules = namespaces(reader);
    for (index, raw) in reader.tables("protection.rule").iter().enumerate() {
        let key = format!("protection.rule[{index}]");
        let (owner, described) = owner(reader, raw, &key, "protection.rule[]");
        if !["namespace", "pod", "container"].iter().any(|part| raw.get(part).is_some()) {
            reader.problem(raw, &key, "is about nobody; write namespace, pod or container");
        }
        if raw.get("protection").is_none() {
            reader.problem(raw, &key, "says nothing; write protection = 0 to 100");
        }
        let protection = reader.member(raw, (&key, "protection.rule[]", "protection"), read::protection);
        if let Some(protection) = protection {
            rules.push(ProtectionRule {
                owner,
                protection,
                source: source(raw, &format!("{key} {described}")),
            });
        }
    }
    ProtectionPolicy { default, rules }
}

/// `protection.namespaces`: one rule for each entry.
fn namespaces(reader: &mut Reader<'_>) -> Vec<ProtectionRule> {
    let Some(Raw { value: Value::Table(entries), .. }) = reader.written("protection.namespaces") else {
        return Vec::new();
    };
    let mut rules = Vec::new();
    for (name, raw) in entries {
        let key = format!("protection.namespaces.{}", quote_key(name));
        let protection: Option<Protection> = reader.read(raw, &key, read::protection);
        match Pattern::new(name) {
            Ok(pattern) => rules.extend(protection.map(|protection| ProtectionRule {
                owner: OwnerPattern { namespace: Some(pattern), ..OwnerPattern::default() },
                protection,
                source: source(raw, &key),
            })),
            Err(error) => reader.problem(raw, &key, error.to_string()),
        }
    }
    rules
}

pub(super) fn retention(reader: &mut Reader<'_>) -> Vec<RetentionRule> {
    let members = reader.tables("retention").iter().enumerate();
    members.map(|(index, raw)| retention_rule(reader, index, raw)).collect()
}

fn retention_rule(reader: &mut Reader<'_>, index: usize, raw: &Raw) -> RetentionRule {
    const SCHEMA: &str = "retention[]";
    let key = format!("retention[{index}]");
    let (owner, described) = owner(reader, raw, &key, SCHEMA);
    let limits = ["max-count", "max-total-size", "max-size", "max-age", "retain-orphans"];
    if !limits.iter().any(|limit| raw.get(limit).is_some()) {
        reader.problem(raw, &key, format!("limits nothing; write one of {}", limits.join(", ")));
    }
    narrowed(reader, raw, &key, &owner);
    let count = read::or_unlimited(read::count);
    let size = read::or_unlimited(read::bytes);
    let age = read::or_unlimited(read::duration);
    let max_count = scopes(reader, raw, (&key, "max-count"), &count);
    let max_total_size = scopes(reader, raw, (&key, "max-total-size"), &size);
    RetentionRule {
        owner,
        max_count,
        max_total_size,
        max_size: reader.member(raw, (&key, SCHEMA, "max-size"), size),
        max_age: reader.member(raw, (&key, SCHEMA, "max-age"), age),
        retain_orphans: reader.member(raw, (&key, SCHEMA, "retain-orphans"), read::truth),
        source: source(raw, format!("{key} {described}").trim_end()),
    }
}

/// Refuses a limit on the whole of something that the rule is about a part of only: what a namespace may hold cannot
/// depend on which of its pods is looked at.
fn narrowed(reader: &mut Reader<'_>, raw: &Raw, key: &str, owner: &OwnerPattern) {
    let narrows = |part: &Option<Pattern>| part.as_ref().is_some_and(|pattern| pattern.as_str() != "*");
    let (by_pod, by_container) = (narrows(&owner.pod), narrows(&owner.container));
    let scopes = [
        ("namespace", "pod", by_pod),
        ("namespace", "container", by_container),
        ("pod", "container", by_container),
    ];
    for (scope, part, is_narrowed) in scopes {
        for limit in ["max-count", "max-total-size"] {
            let name = format!("{limit}.{scope}");
            if let Some(limit) = raw.find(&name).filter(|_| is_narrowed) {
                let message = format!(
                    "limits what a {scope} holds together, but the rule is about one {part} of it; write it in a rule \
                     without {part}"
                );
                reader.problem(limit, &format!("{key}.{name}"), message);
            }
        }
    }
}

/// A limit at each scope: `{ container = 10, pod = 30, namespace = 50 }`.
fn scopes<T>(
    reader: &mut Reader<'_>,
    rule: &Raw,
    (key, name): (&str, &str),
    read: impl Fn(&Raw) -> Result<T, String>,
) -> Limits<T> {
    let mut at = |scope: &str| {
        let name = format!("{name}.{scope}");
        reader.member(rule, (key, "retention[]", &name), &read)
    };
    Limits { container: at("container"), pod: at("pod"), namespace: at("namespace") }
}

/// Whom a rule is about, and the same as typed.
fn owner(reader: &mut Reader<'_>, raw: &Raw, key: &str, schema: &str) -> (OwnerPattern, String) {
    let mut described = Vec::new();
    let mut part = |name: &str| {
        let pattern: Option<Pattern> = reader.member(raw, (key, schema, name), read::pattern);
        described.extend(pattern.as_ref().map(|pattern| format!("{name}={:?}", pattern.as_str())));
        pattern
    };
    let owner = OwnerPattern { namespace: part("namespace"), pod: part("pod"), container: part("container") };
    (owner, described.join(" "))
}

/// `retention[0] namespace="*" (guard.toml:31)`
fn source(raw: &Raw, what: &str) -> String {
    match &raw.place {
        Some(place) => {
            let file = place.file.file_name().unwrap_or(place.file.as_os_str());
            format!("{} ({}:{})", raw.full_key(what), file.display(), place.line)
        }
        None => raw.full_key(what),
    }
}
