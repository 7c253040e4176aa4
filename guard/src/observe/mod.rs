//! Everything that comes in: directories, archives, filesystem statistics, writes, the cluster.

pub mod probe;
