//! checkpoint-guard: keeps container checkpoints from filling a node.
//!
//! The folders are the loop, observe → decide → act → report, joined in `agent`; `model` holds the values that
//! all of them speak in. docs/ARCHITECTURE.md tells what each room must not know.

pub mod act;
pub mod agent;
pub mod cli;
pub mod companion;
pub mod config;
pub mod decide;
pub mod fuzzing;
pub mod model;
pub mod observe;
pub mod report;
pub mod sandbox;
pub mod simulate;
pub mod trust;

mod memory;
