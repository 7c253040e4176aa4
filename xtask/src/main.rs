//! Builds, tests, shows and measures checkpoint-guard.
fn main() {}
