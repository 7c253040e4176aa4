//! The commands, one file each: arguments, wiring, exit codes.

pub mod history;
pub mod pin;
pub mod unpin;
