//! Everything that comes in: directories, archives, filesystem statistics, writes, the cluster.

pub mod archive;
pub mod attribution;
pub mod btrfs;
pub mod catalog;
pub mod filesystem;
pub mod finder;
pub mod holders;
pub mod host;
pub mod inotify;
pub mod lease;
pub mod probe;
pub mod reach;
pub mod scan;
pub mod staging;
