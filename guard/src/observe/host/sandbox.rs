//! What the kernel has to lock ourselves in with.

use nix::errno::Errno;

/// The version of Landlock's interface (landlock_create_ruleset(2), Linux 5.13).
///
/// # Errors
/// `ENOSYS`: the kernel was built without; `EOPNOTSUPP`: it is switched off.
pub fn landlock_abi() -> Result<u32, Errno> {
    const LANDLOCK_CREATE_RULESET_VERSION: libc::c_uint = 1;
    let (no_attributes, no_size) = (std::ptr::null::<libc::c_void>(), 0usize);
    // SAFETY: with this flag the call takes no attributes: pointer and size must be null and zero, and nothing is read,
    // written or created.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            no_attributes,
            no_size,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    Errno::result(result).map(|version| u32::try_from(version).unwrap_or(0))
}

/// Whether seccomp filters can be set (seccomp(2)).
pub fn has_seccomp() -> bool {
    std::path::Path::new("/proc/sys/kernel/seccomp/actions_avail").exists()
}
