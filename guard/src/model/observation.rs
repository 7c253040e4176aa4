//! What one look at a filesystem gives.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::Bytes;

/// What is measured, in the kubelet's sense (`nodefs.available`, `nodefs.inodesFree`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Signal {
    /// Bytes an unprivileged writer can still use: `f_bavail × f_frsize`.
    Available,
    /// Inodes an unprivileged writer can still use: `f_favail`.
    InodesFree,
}

impl Signal {
    /// Both.
    pub const ALL: [Signal; 2] = [Signal::Available, Signal::InodesFree];

    /// The word for it in configuration, metrics and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Signal::Available => "available",
            Signal::InodesFree => "inodes-free",
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The inodes of a filesystem that counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inodes {
    /// `f_files`; never zero.
    pub total: u64,
    /// `f_favail`.
    pub free: u64,
}

/// One look at a filesystem with statvfs(3).
///
/// Capacity and available are the kubelet's: `f_blocks × f_frsize` and `f_bavail × f_frsize`; blocks
/// reserved for root are no part of available (node_exporter#269).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The size of the filesystem.
    pub capacity: Bytes,
    /// What an unprivileged writer can still use.
    pub available: Bytes,
    /// `None` where the filesystem reports no inode total (btrfs, tmpfs without limit): no inode signal.
    pub inodes: Option<Inodes>,
}

impl Observation {
    /// The total that a percentage of `signal` refers to; `None` when the filesystem has no such signal.
    pub fn total(&self, signal: Signal) -> Option<u64> {
        match signal {
            Signal::Available => Some(self.capacity.0),
            Signal::InodesFree => self.inodes.map(|inodes| inodes.total),
        }
    }

    /// What is left of `signal`; `None` when the filesystem has no such signal.
    pub fn left(&self, signal: Signal) -> Option<u64> {
        match signal {
            Signal::Available => Some(self.available.0),
            Signal::InodesFree => self.inodes.map(|inodes| inodes.free),
        }
    }
}
