//! Adding to a counter that other processors add to at the same time.

/// Adds `n` to `*counter` in one step.
///
/// This is the one atomic operation that kernels before 5.12 know; it does not tell the old value. Rust offers it
/// on this target only through a compiler intrinsic whose form changes between releases, hence assembly.
///
/// # Safety
///
/// `counter` points into a map value.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub(crate) unsafe fn add(counter: *mut u64, n: u64) {
    // SAFETY: the caller's promise; the verifier checks the address once more.
    unsafe {
        core::arch::asm!("lock *(u64 *)({counter} + 0) += {n}", counter = in(reg) counter, n = in(reg) n);
    }
}

/// The same, where the program is only type-checked.
///
/// # Safety
///
/// `counter` is valid.
#[cfg(not(target_arch = "bpf"))]
pub(crate) unsafe fn add(counter: *mut u64, n: u64) {
    // SAFETY: the caller's promise.
    unsafe { core::sync::atomic::AtomicU64::from_ptr(counter) }
        .fetch_add(n, core::sync::atomic::Ordering::SeqCst);
}

/// Subtracts `n` in one step.
///
/// # Safety
///
/// As [`add`].
#[inline(always)]
pub(crate) unsafe fn subtract(counter: *mut u64, n: u64) {
    // SAFETY: the caller's promise.
    unsafe { add(counter, n.wrapping_neg()) }
}
