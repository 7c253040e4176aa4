//! Decisions: pure functions of values and `now`. No I/O, no clock, no async, no eBPF, no Kubernetes.
//!
//! [`Pressure`] turns observations into a level and a need; [`plan`](fn@plan) turns a need into victims. Each reads top down as the policy it is.

pub mod census;
#[cfg(test)]
mod fixture;
pub mod loss;
pub mod pressure;
pub mod protection;
pub mod threshold;

mod chain;
mod plan;
mod rank;
mod rules;
mod share;

pub use census::Census;
pub use plan::{Request, plan};
pub use pressure::{Pressure, Transition};
