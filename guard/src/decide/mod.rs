//! Decisions: pure functions of values and `now`. No I/O, no clock, no async, no eBPF, no Kubernetes.
//!
//! [`Pressure`] turns observations into a level and a need; [`plan`](fn@plan) turns a need into victims, and
//! [`retention`](fn@retention) the rules of a policy; [`Forecast`] says how long there is. Each reads top down as the policy it is.

pub mod brake;
pub mod census;
#[cfg(test)]
pub(crate) mod fixture;
pub mod forecast;
pub mod growth;
#[cfg(test)]
mod laws;
pub mod lead;
pub mod loss;
pub mod outlook;
pub mod pressure;
pub mod protection;
pub mod slow;
pub mod staging;
pub mod threshold;
pub mod wall_clock;
pub mod wishes;

mod chain;
mod limits;
mod plan;
mod queue;
mod rank;
mod retention;
mod rules;
mod share;

pub use brake::Brake;
pub use census::Census;
pub use forecast::Forecast;
pub use lead::Lead;
pub use limits::{Ruled, resolve as limit_of};
pub use plan::{Request, plan, victims};
pub use pressure::{Pressure, Transition};
pub use retention::retention;
pub use wall_clock::WallClock;
