//! Whether what was typed has the shape of a configuration: keys that exist, tables where tables belong.

use std::sync::Arc;

use super::keys;
use super::problem::{Problem, did_you_mean};
use super::raw::{RULES, Raw, Value, owner, quote_key};

/// Every unknown key and misplaced table in the document and in its pools.
pub(super) fn check(document: &Raw) -> Vec<Problem> {
    let mut problems = Vec::new();
    let Value::Table(entries) = &document.value else { return problems };
    for (name, value) in entries {
        match name.as_str() {
            "pool" => pools(value, &mut problems),
            _ => entry(value, name, (name, name), &mut problems),
        }
    }
    problems
}

/// The path of a table in the key table, and as people name it: `retention[]`, `retention[0]`.
type Paths<'p> = (&'p str, &'p str);

fn table(raw: &Raw, (path, shown): Paths<'_>, problems: &mut Vec<Problem>) {
    let Value::Table(entries) = &raw.value else { return };
    for (name, value) in entries {
        let paths = (format!("{path}.{name}"), format!("{shown}.{}", quote_key(name)));
        entry(value, name, (&paths.0, &paths.1), problems);
    }
}

fn entry(raw: &Raw, name: &str, (path, shown): Paths<'_>, problems: &mut Vec<Problem>) {
    let mut report = |message: String| {
        problems.push(Problem::at(raw.place.clone(), raw.full_key(shown), message));
    };
    if name.contains(['.', '[', '*']) {
        // A quoted key with the marks of our paths in it would pass for one of them.
        report(format!(
            "unknown key; a dot between keys stands outside the quotes, as in {}",
            path.replace('"', "")
        ));
    } else if path == "protection.namespaces" {
        if !matches!(raw.value, Value::Table(_)) {
            report(format!("{} is not accepted; write {{ kube-system = 90, \"ci-*\" = 5 }}", raw.value));
        }
    } else if keys::is_list_of_tables(path) {
        match &raw.value {
            Value::List(members) if members.iter().all(|raw| matches!(raw.value, Value::Table(_))) => {
                for (index, member) in members.iter().enumerate() {
                    table(member, (&format!("{path}[]"), &format!("{shown}[{index}]")), problems);
                }
                duplicates(members, path, problems);
            }
            _ => report(format!("is a list of tables; write [[{path}]] with its keys on the lines below")),
        }
    } else if keys::is_table(path) {
        match &raw.value {
            Value::Table(_) => table(raw, (path, shown), problems),
            // `soft = false`: the reader of that key has the word.
            _ if keys::find(path).is_some() => {}
            _ => {
                let children: Vec<_> = keys::children(path).collect();
                report(format!("{} is not accepted; it is a table of {}", raw.value, children.join(", ")));
            }
        }
    } else if keys::find(path).is_none() {
        report(unknown(name, path));
    }
}

/// What to say of a key that does not exist.
fn unknown(name: &str, path: &str) -> String {
    if name == "grace-period" && path.starts_with("pressure.") {
        return "only soft has a grace period; hard and critical begin at once".to_owned();
    }
    if name == "pool" {
        return "a pool has no pools; write [pool.NAME] at the top and extends = \"NAME\" to build on it"
            .to_owned();
    }
    let parent = path.strip_suffix(name).unwrap_or("").trim_end_matches('.');
    let siblings: Vec<_> = keys::children(parent).collect();
    let hint = did_you_mean(name, siblings.iter().copied());
    if !hint.is_empty() {
        return format!("unknown key{hint}");
    }
    let elsewhere = keys::KEYS.iter().find(|key| key.path.rsplit('.').next() == Some(name));
    match elsewhere {
        Some(key) => format!("unknown key; there is {}", key.path.replace("[]", "")),
        None => format!("unknown key; known here: {}", siblings.join(", ")),
    }
}

fn pools(raw: &Raw, problems: &mut Vec<Problem>) {
    let Value::Table(pools) = &raw.value else {
        problems.push(Problem::at(raw.place.clone(), "pool", "is a table of pools; write [pool.NAME]"));
        return;
    };
    for (name, pool) in pools {
        let key = format!("pool.{}", quote_key(name));
        if name.trim().is_empty() {
            problems.push(Problem::at(pool.place.clone(), &key, "a pool needs a name"));
        }
        let Value::Table(entries) = &pool.value else {
            problems.push(Problem::at(pool.place.clone(), &key, format!("is a table; write [{key}]")));
            continue;
        };
        let pool_name: Arc<str> = name.as_str().into();
        for (name, value) in entries.iter().filter(|(name, _)| *name != "extends") {
            let value = value.clone().in_pool(&pool_name);
            if name == "pool" {
                let message =
                    "a pool has no pools; write [pool.NAME] at the top, and extends to build on one";
                problems.push(Problem::at(value.place.clone(), value.full_key(name), message));
                continue;
            }
            entry(&value, name, (name, &quote_key(name)), problems);
        }
    }
}

/// Two rules about the same owners in one list: nobody can tell which of them was meant.
fn duplicates(members: &[Raw], path: &str, problems: &mut Vec<Problem>) {
    if !RULES.contains(&path) {
        return;
    }
    for (index, member) in members.iter().enumerate() {
        if let Some(earlier) = members[..index].iter().find(|earlier| owner(earlier) == owner(member)) {
            let line = earlier.place.as_ref().map_or(0, |place| place.line);
            problems.push(Problem::at(
                member.place.clone(),
                member.full_key(&format!("{path}[{index}]")),
                format!(
                    "the rule on line {line} is about the same owners; write one rule with the keys of both"
                ),
            ));
        }
    }
}
