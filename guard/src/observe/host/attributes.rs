//! [`Attributes`]: what chattr(1) may have set.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;

/// Flags that forbid to delete what lies in a directory, even to root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// `chattr +i`.
    pub is_immutable: bool,
    /// `chattr +a`.
    pub is_append_only: bool,
}

/// Of an open directory; none of them where the filesystem knows none (ioctl_iflags(2)).
pub fn attributes(directory: BorrowedFd<'_>) -> Attributes {
    /// `_IOR('f', 1, long)`. In spite of its type it writes an int.
    const FS_IOC_GETFLAGS: libc::c_ulong =
        2 << 30 | (size_of::<libc::c_long>() as libc::c_ulong) << 16 | 0x66 << 8 | 1;
    const FS_IMMUTABLE_FL: libc::c_long = 0x10;
    const FS_APPEND_FL: libc::c_long = 0x20;
    let mut flags: libc::c_long = 0;
    // SAFETY: the ioctl writes an int, or a long where a filesystem takes its number at its word, through the pointer, which
    // points to a long that outlives the call. The descriptor is borrowed for it.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), FS_IOC_GETFLAGS, &raw mut flags) };
    if Errno::result(result).is_err() {
        return Attributes::default();
    }
    Attributes { is_immutable: flags & FS_IMMUTABLE_FL != 0, is_append_only: flags & FS_APPEND_FL != 0 }
}
