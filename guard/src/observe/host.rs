//! What this node is: its kernel, our rights, what a directory lies on. For `doctor`; nothing here decides anything.

pub mod attributes;
pub mod encryption;
pub mod kernel;
pub mod mounts;
pub mod process;
pub mod sandbox;
