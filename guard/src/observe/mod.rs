//! Everything that comes in: directories, archives, filesystem statistics, writes, the cluster.

pub mod archive;
pub mod filesystem;
pub mod holders;
pub mod lease;
