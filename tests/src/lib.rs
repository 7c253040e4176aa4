//! What the tests on real kernels and filesystems share.

pub mod loopfs;
pub mod watching;
pub mod ways;
