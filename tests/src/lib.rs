//! What the tests on real kernels and filesystems share.

pub mod api_server;
pub mod archives;
pub mod brake;
pub mod checkpoints;
pub mod clocks;
pub mod cluster;
pub mod counting;
pub mod coverage;
pub mod crowd;
pub mod daemon;
pub mod exposition;
pub mod faults;
pub mod footprint;
pub mod forged;
pub mod fuse;
pub mod hostile;
pub mod http;
pub mod loopfs;
pub mod sampler;
pub mod scene;
pub mod setting;
pub mod storm;
pub mod vm;
pub mod watching;
pub mod ways;
pub mod world;
