//! What the tests on real kernels and filesystems share.

pub mod checkpoints;
pub mod loopfs;
