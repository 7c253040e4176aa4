//! Everything that goes out: audit log, metrics, Events, HTTP.

pub mod audit;
pub mod events;
pub mod health;
pub mod http;
pub mod logging;
pub mod metrics;
pub mod record;
pub mod snapshot;
pub mod socket;
pub mod webhook;
