//! One look at a filesystem.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::statvfs::{Statvfs, fstatvfs};

use crate::model::{Bytes, Inodes, Observation};
use crate::observe::btrfs;

/// Looks at the filesystem that `directory` lies on, with fstatvfs(3): about 1 µs on a local filesystem, and as
/// long as its server likes on FUSE or NFS.
///
/// By the open directory and not by its path: what is mounted over the path meanwhile is another filesystem,
/// and deleting beneath this descriptor could not help it.
///
/// What btrfs owes to writers counts as gone ([`btrfs::owed`]): the kubelet does not see it yet, and will.
pub fn observe(directory: impl AsFd) -> Result<Observation, Errno> {
    let directory = directory.as_fd();
    let mut seen = observation(&fstatvfs(directory)?);
    seen.available = seen.available.saturating_sub(btrfs::owed(directory));
    Ok(seen)
}

/// The kubelet's reading of statvfs: block counts are in units of `f_frsize` (node_exporter#269), root's reserve
/// is not available, and `f_files = 0` means that nobody counts inodes (btrfs).
#[expect(clippy::useless_conversion, reason = "these fields are narrower on 32-bit targets")]
fn observation(statistics: &Statvfs) -> Observation {
    let unit = u64::from(statistics.fragment_size());
    let bytes = |blocks: u64| Bytes(blocks.saturating_mul(unit));
    let total = u64::from(statistics.files());
    Observation {
        capacity: bytes(statistics.blocks().into()),
        available: bytes(statistics.blocks_available().into()),
        inodes: (total > 0).then(|| Inodes { total, free: statistics.files_available().into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_agrees_with_statvfs_by_path() {
        let directory = tempfile::tempdir().unwrap();
        let seen = observe(std::fs::File::open(directory.path()).unwrap()).unwrap();
        let statistics = nix::sys::statvfs::statvfs(directory.path()).unwrap();
        assert_eq!(seen.capacity.0, statistics.blocks() * statistics.fragment_size());
        assert!(seen.available <= seen.capacity && !seen.capacity.is_zero());
        assert_eq!(seen.inodes.map(|inodes| inodes.total), Some(statistics.files()).filter(|&n| n > 0));
    }
}
