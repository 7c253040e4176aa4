//! The command `checkpoint-guard`.
fn main() {}
