//! What the tests on real kernels and filesystems share.

pub mod archives;
pub mod brake;
pub mod checkpoints;
pub mod counting;
pub mod crowd;
pub mod daemon;
pub mod exposition;
pub mod forged;
pub mod hostile;
pub mod http;
pub mod loopfs;
pub mod sampler;
pub mod scene;
pub mod setting;
pub mod storm;
pub mod watching;
pub mod ways;
