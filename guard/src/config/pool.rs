//! Which pool this node belongs to.

use std::collections::BTreeMap;

/// Who named the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolChoice {
    /// `--pool`, or `CHECKPOINT_GUARD_POOL`: the pool must exist.
    Named(String),
    /// A label of the Node: a pool of that name need not exist.
    Label {
        /// The label's key.
        label: String,
        /// Its value, the name of a node pool.
        pool: String,
    },
    /// Nobody did.
    None,
}

/// The environment variable that names the pool when `--pool` does not.
pub const POOL_VARIABLE: &str = "CHECKPOINT_GUARD_POOL";

/// Chooses in the order of the documentation: `--pool`, the environment, the Node's labels. What is empty was
/// not said: a Helm chart sets the variable whether or not there is a value.
pub fn choose_pool(
    argument: Option<&str>,
    environment: Option<&str>,
    labels: &BTreeMap<String, String>,
    pool_labels: &[String],
) -> PoolChoice {
    if let Some(name) = argument.into_iter().chain(environment).find(|name| !name.is_empty()) {
        return PoolChoice::Named(name.to_owned());
    }
    match pool_from_labels(labels, pool_labels) {
        Some((label, pool)) => PoolChoice::Label { label: label.to_owned(), pool: pool.to_owned() },
        None => PoolChoice::None,
    }
}

/// The first of `pool_labels` that the Node has, and its value.
pub fn pool_from_labels<'l>(
    labels: &'l BTreeMap<String, String>,
    pool_labels: &'l [String],
) -> Option<(&'l str, &'l str)> {
    pool_labels.iter().find_map(|label| {
        let value = labels.get(label).filter(|value| !value.is_empty())?;
        Some((label.as_str(), value.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_who_says_something_names_the_pool() {
        let labels = BTreeMap::from([
            ("karpenter.sh/nodepool".to_owned(), "spot".to_owned()),
            ("agentpool".to_owned(), "system".to_owned()),
        ]);
        let order = ["agentpool".to_owned(), "karpenter.sh/nodepool".to_owned()];
        let named = |name: &str| PoolChoice::Named(name.to_owned());
        let label = PoolChoice::Label { label: "agentpool".to_owned(), pool: "system".to_owned() };
        for (argument, environment, labels, expect) in [
            (Some("gpu"), Some("edge"), &labels, named("gpu")),
            (None, Some("edge"), &labels, named("edge")),
            (Some(""), Some("edge"), &labels, named("edge")),
            (None, Some(""), &labels, label.clone()),
            (None, None, &labels, label),
            (None, None, &BTreeMap::new(), PoolChoice::None),
        ] {
            assert_eq!(choose_pool(argument, environment, labels, &order), expect);
        }
    }
}
