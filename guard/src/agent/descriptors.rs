//! Room for descriptors, made while nobody has to wait for it.

use std::io;
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit};

/// What the guard has open is a few for each directory and each checkpoint that it is about to delete or sees being written.
const DESCRIPTORS: u64 = 1024;

/// Makes the process's table of descriptors as large as it will have to be.
///
/// The table starts with room for 64 and doubles when it is full. In a process with several threads the kernel then waits until no
/// processor can still read the old table (`expand_fdtable` of fs/file.c: `synchronize_rcu`, 10 ms here, more on larger nodes), and that
/// thread would be the one about to delete. Called before there are threads, and the table never shrinks.
pub(crate) fn make_room() {
    if let Err(error) = reserve(DESCRIPTORS) {
        tracing::debug!(%error, "the table of descriptors grows when it is needed");
    }
}

fn reserve(count: u64) -> io::Result<()> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let highest = i32::try_from(count.min(limit).saturating_sub(1)).unwrap_or(i32::MAX);
    let stderr = io::stderr();
    let copy = fcntl(stderr.as_fd(), FcntlArg::F_DUPFD_CLOEXEC(highest))?;
    // SAFETY: the descriptor was made by the call above, and nothing else knows of it.
    drop(unsafe { OwnedFd::from_raw_fd(copy) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of proc_pid_status(5): how many descriptors have their place.
    fn table() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap().trim().parse().unwrap()
    }

    #[test]
    fn the_table_has_room_for_all_from_the_start() {
        reserve(DESCRIPTORS).unwrap();
        assert!(table() >= DESCRIPTORS, "{}", table());
    }

    #[test]
    fn what_the_limit_allows_is_all_that_is_asked_for() {
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // A limit of a million would take the kernel 8 MiB.
        if limit <= 1 << 16 {
            reserve(u64::MAX).unwrap();
        }
    }
}
