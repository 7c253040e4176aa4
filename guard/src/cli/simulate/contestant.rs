//! Who competes in a simulation: orders, or whole configurations.

use std::path::Path;

use super::{Args, Order};
use crate::cli::{Common, Misconfigured};
use crate::config::{ASSUMED_WRITE_SPEED, Config, DEFAULT_PATH};
use crate::model::{Bytes, Observation, OrderKey, Policy};
use crate::simulate::sample_policy;

/// A policy and its name in the table.
#[derive(Clone, Debug)]
pub(super) struct Contestant {
    name: String,
    base: Base,
    /// Instead of the order of `base`.
    order: Option<Vec<OrderKey>>,
}

/// Where a policy comes from.
#[derive(Clone, Debug)]
enum Base {
    /// The documented defaults.
    Sample,
    Config(Box<Config>),
}

impl Base {
    fn load(path: &Path, pool: Option<&str>) -> anyhow::Result<Base> {
        let file = crate::config::load(path).map_err(Misconfigured::new)?;
        Ok(Base::Config(Box::new(file.effective(pool).map_err(Misconfigured::new)?)))
    }

    fn order(&self) -> &[OrderKey] {
        match self {
            Base::Sample => &OrderKey::DEFAULT,
            Base::Config(config) => &config.policy.eviction.order,
        }
    }
}

impl Contestant {
    /// Its name in the table.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The policy on a filesystem of `capacity`.
    pub(super) fn policy_on(&self, capacity: Bytes) -> Policy {
        let mut policy = match &self.base {
            Base::Sample => sample_policy(),
            Base::Config(config) => {
                let empty = Observation { capacity, available: capacity, inodes: None };
                let pressure = config.pressure_on(&empty, ASSUMED_WRITE_SPEED);
                Policy { pressure, ..config.policy.clone() }
            }
        };
        if let Some(order) = &self.order {
            policy.eviction.order.clone_from(order);
        }
        policy
    }
}

/// Who competes, by the command line.
pub(super) fn choose(args: &Args, common: &Common) -> anyhow::Result<Vec<Contestant>> {
    // Nobody needs a configuration to simulate; whoever names one means it.
    let is_wanted =
        common.config != Path::new(DEFAULT_PATH) || common.config.exists() || common.pool().is_some();
    let base = match is_wanted {
        true => Base::load(&common.config, common.pool())?,
        false => Base::Sample,
    };
    let contestant = |name: &str, order: Option<&[OrderKey]>| Contestant {
        name: name.to_owned(),
        base: base.clone(),
        order: order.map(<[OrderKey]>::to_vec),
    };
    if !args.order.is_empty() {
        return Ok(args.order.iter().map(|order| contestant(&order.name, Some(&order.keys))).collect());
    }
    let own = match &base {
        Base::Config(_) => Some(contestant(&common.config.display().to_string(), None)),
        Base::Sample if args.with.is_empty() => None,
        Base::Sample => Some(contestant("default", None)),
    };
    let mut all: Vec<_> = own.into_iter().collect();
    for path in &args.with {
        let other = Base::load(path, common.pool())?;
        all.push(Contestant { name: path.display().to_string(), base: other, order: None });
    }
    if args.with.is_empty() {
        let is_new = |order: &&Order| all.is_empty() || order.keys != base.order();
        let others: Vec<_> =
            usual_orders().iter().filter(is_new).map(|it| contestant(&it.name, Some(&it.keys))).collect();
        all.extend(others);
    }
    Ok(all)
}

/// These orders, otherwise the defaults.
#[cfg(test)]
pub(super) fn orders(orders: &[Order]) -> Vec<Contestant> {
    let contestant = |order: &Order| Contestant {
        name: order.name.clone(),
        base: Base::Sample,
        order: Some(order.keys.clone()),
    };
    orders.iter().map(contestant).collect()
}

/// The orders that are compared when nobody names any.
fn usual_orders() -> Vec<Order> {
    let without_fair_share = OrderKey::DEFAULT.into_iter().filter(|key| *key != OrderKey::FairShare);
    vec![
        Order { name: "default".into(), keys: OrderKey::DEFAULT.to_vec() },
        Order { name: "default less fair-share".into(), keys: without_fair_share.collect() },
        Order { name: "oldest".into(), keys: vec![OrderKey::Oldest] },
        Order { name: "largest".into(), keys: vec![OrderKey::Largest] },
        Order { name: "smallest-loss".into(), keys: vec![OrderKey::SmallestLoss] },
    ]
}
