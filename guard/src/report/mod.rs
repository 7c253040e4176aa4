//! Everything that goes out: audit log, metrics, Events, HTTP.

pub mod audit;
pub mod record;
