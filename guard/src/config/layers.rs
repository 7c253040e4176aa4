//! Which layers make up a pool: the document, the pools it extends, and itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::problem::{Problem, did_you_mean};
use super::raw::{Raw, Value, overlay, quote_key};

/// The merged values of no pool (`None`) and of every pool.
pub(super) fn pools(document: &Raw, problems: &mut Vec<Problem>) -> BTreeMap<Option<Arc<str>>, Raw> {
    let mut base = document.clone();
    let mut pools = BTreeMap::new();
    if let Value::Table(entries) = &mut base.value
        && let Some(Raw { value: Value::Table(written), .. }) = entries.remove("pool")
    {
        pools = written;
    }
    let mut merged = BTreeMap::new();
    for name in pools.keys() {
        let chain = chain(name, &pools).unwrap_or_else(|(place, message)| {
            let key = format!("pool.{}.extends", quote_key(name));
            problems.push(Problem::at(place, key, message));
            // What the pool itself says can still be checked.
            vec![(name.as_str(), &pools[name])]
        });
        let mut values = base.clone();
        for (layer_name, layer) in chain.into_iter().rev() {
            let mut layer = layer.clone().in_pool(&layer_name.into());
            if let Value::Table(entries) = &mut layer.value {
                entries.remove("extends");
            }
            values = overlay(&values, &layer, "");
        }
        merged.insert(Some(Arc::from(name.as_str())), values);
    }
    merged.insert(None, base);
    merged
}

type Chain<'a> = Vec<(&'a str, &'a Raw)>;
type Wrong = (Option<super::problem::Place>, String);

/// The pool and those it extends, itself first.
fn chain<'a>(name: &'a str, pools: &'a BTreeMap<String, Raw>) -> Result<Chain<'a>, Wrong> {
    let mut chain: Chain<'a> = Vec::new();
    let mut next = name;
    loop {
        let pool = &pools[next];
        chain.push((next, pool));
        let Some(extends) = pool.get("extends") else { return Ok(chain) };
        let wrong = |message: String| (extends.place.clone(), message);
        let Value::Text(parent) = &extends.value else {
            return Err(wrong(format!("{} is not accepted; write a pool's name in quotes", extends.value)));
        };
        if chain.iter().any(|(seen, _)| seen == parent) {
            let round: Vec<_> = chain.iter().map(|(seen, _)| *seen).chain([parent.as_str()]).collect();
            return Err(wrong(format!("goes round in a circle: {}", round.join(" extends "))));
        }
        let Some((known, _)) = pools.get_key_value(parent) else {
            return Err(wrong(unknown_pool(parent, pools.keys().map(String::as_str))));
        };
        next = known;
    }
}

/// `no pool is called "gpuu"; did you mean "gpu"? Known: edge, gpu`
pub(super) fn unknown_pool<'p>(name: &str, known: impl Iterator<Item = &'p str> + Clone) -> String {
    let names: Vec<_> = known.clone().collect();
    if names.is_empty() {
        return format!("no pool is called {name:?}; the configuration has no pools");
    }
    format!("no pool is called {name:?}{}; known: {}", did_you_mean(name, known), names.join(", "))
}
