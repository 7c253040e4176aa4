//! [`Commits`]: making btrfs show what was freed.
//!
//! btrfs counts the space of a deleted file as used until its delayed references have run: at the next commit, up
//! to 30 s later. A commit runs them first and writes afterwards, so it is begun at once, in a thread, and statfs(2)
//! is looked at meanwhile. Measured on 6.18, loop device, 20 MiB files deleted one after the other:
//!
//! | | statfs shows it after | the call returns after |
//! | --- | --- | --- |
//! | fsync(2) of the directory, idle | 0.4 to 5 ms | 1 to 15 ms |
//! | the same beside two writers at full speed | 0.5 to 12 ms | 7 to 550 ms |
//! | `BTRFS_IOC_START_SYNC`, alone | 0.15 ms | 0.15 ms |
//! | the same while a commit is in progress | up to 30 s: its wake-up of the commit thread is lost | as long |
//!
//! fsync(2) of a directory commits, in the caller's own context, when a file was renamed out of it in the running
//! transaction (`btrfs_record_unlink_dir`, fs/btrfs/tree-log.c), as every checkpoint is that has a private place.
//! Should a commit of somebody else's have come between that rename and the unlink, fsync(2) finds nothing to do;
//! then the ioctl helps, and where its wake-up is lost, the next one wakes the commit thread for both.
//! syncfs(2) and `BTRFS_IOC_SYNC` write all dirty data of everybody first (110 to 300 ms beside the same writers).

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::libc;

/// How a commit is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    /// By fsync(2) of the directory. First.
    Fsync,
    /// By `BTRFS_IOC_START_SYNC`. Again and again, while nothing is to be seen.
    StartSync,
}

/// Commits in progress on behalf of one directory.
#[derive(Clone, Debug, Default)]
pub(super) struct Commits {
    by_fsync: Arc<AtomicUsize>,
    by_start_sync: Arc<AtomicUsize>,
}

impl Commits {
    /// Begins a commit of the filesystem of `directory` and does not wait for it. Does nothing when as many are in
    /// progress as can help: the first half of a commit, which is the one that counts, runs beside the writing of
    /// the one before.
    pub(super) fn begin(&self, directory: &Arc<OwnedFd>, ask: Ask) {
        const RUNNING_MAX: usize = 8;
        let running = match ask {
            Ask::Fsync => self.by_fsync.clone(),
            Ask::StartSync => self.by_start_sync.clone(),
        };
        if running.fetch_add(1, Ordering::Relaxed) >= RUNNING_MAX {
            running.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let directory = directory.clone();
        let at_end = running.clone();
        let commit = move || {
            let result = match ask {
                Ask::Fsync => nix::unistd::fsync(&*directory),
                Ask::StartSync => start_sync(&directory),
            };
            at_end.fetch_sub(1, Ordering::Relaxed);
            if let Err(errno) = result {
                // The space comes back all the same, only later.
                tracing::debug!(%errno, ?ask, "cannot commit btrfs");
            }
        };
        if std::thread::Builder::new().name("btrfs-commit".into()).spawn(commit).is_err() {
            running.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn start_sync(directory: &OwnedFd) -> Result<(), Errno> {
    const BTRFS_IOC_START_SYNC: libc::c_ulong = 0x8008_9418;
    let mut transaction: u64 = 0;
    // SAFETY: this ioctl writes one u64, the transaction's number, through the pointer it is given, which points to
    // one that outlives the call. The descriptor is borrowed for it.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), BTRFS_IOC_START_SYNC, &mut transaction) };
    Errno::result(result).map(drop)
}
