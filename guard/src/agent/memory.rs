//! Keeping what is resident small: a guard shares its node with those it guards.

/// Tells the allocator to keep little of what was freed. To be called before there are threads.
///
/// glibc gives each thread an arena of its own (up to eight for each core), none of which ever shrinks below what was
/// freed in its middle; and once a large block was freed, it takes the next ones from the heap as well, where they leave
/// holes (`M_MMAP_THRESHOLD` grows by itself unless it is set). What is large here, a catalog of 100,000 checkpoints or a
/// kernel's BTF, grows by doubling and so leaves large holes.
pub(super) fn bound() {
    #[cfg(target_env = "gnu")]
    {
        const LARGE: nix::libc::c_int = 128 << 10;
        use nix::libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD};
        for (parameter, value) in [(M_ARENA_MAX, 2), (M_MMAP_THRESHOLD, LARGE), (M_TRIM_THRESHOLD, LARGE)] {
            // SAFETY: takes numbers only, and locks the allocator for itself. A parameter that this glibc does not know
            // makes it return 0 and change nothing.
            unsafe { nix::libc::mallopt(parameter, value) };
        }
    }
}

/// Gives freed memory back to the kernel: some milliseconds for 10 MiB, so not while anything waits.
pub(super) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and locks each arena while it works on it.
    unsafe {
        nix::libc::malloc_trim(0)
    };
}
