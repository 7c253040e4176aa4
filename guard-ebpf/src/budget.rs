//! The budget of a filesystem: totals, and one wake when the limit is reached.

use aya_ebpf::bindings::{BPF_NOEXIST, BPF_RB_FORCE_WAKEUP};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns};
use guard_ebpf::{Crossing, Limit, Total, WakeRecord};

use crate::atomic;
use crate::maps::{CROSSED, LIMITS, LOST, TOTALS, WAKES};

/// Adds `bytes` to what was written to the filesystem of `slot`, and wakes the guard if that uses its budget up.
#[inline(always)]
pub(crate) fn spend(slot: u32, bytes: u64) {
    let (Some(total), Some(limit)) = (TOTALS.get_ptr_mut(slot), LIMITS.get_ptr(slot)) else { return };
    // SAFETY: both point into maps. First add, then look: of writers that cross the limit together at least the last
    // sees it crossed. Volatile, since other processors and the guard write there.
    let (used, limit) = unsafe {
        atomic::add(&raw mut (*total).added, bytes);
        let added = core::ptr::read_volatile(&raw const (*total).added);
        let freed = core::ptr::read_volatile(&raw const (*total).freed);
        (added.wrapping_sub(freed), core::ptr::read_volatile(limit))
    };
    // The usual case ends here.
    if limit.remaining(used) > 0 || limit.epoch() == 0 {
        return;
    }
    tell(slot, limit, total);
}

/// Gives `bytes` that were freed back to the budget of `slot`.
///
/// Without a bound: the space is there for writers again, however much was armed.
#[inline(always)]
pub(crate) fn give_back(slot: u32, bytes: u64) {
    if let Some(total) = TOTALS.get_ptr_mut(slot) {
        // SAFETY: `total` points into the map.
        unsafe { atomic::add(&raw mut (*total).freed, bytes) };
    }
}

/// Sends the wake, unless somebody has sent the one of this arming.
#[inline(never)]
fn tell(slot: u32, limit: Limit, total: *mut Total) {
    let epoch = limit.epoch();
    // SAFETY: `total` points into the map. This is only the fast way out, the insertion below decides.
    if unsafe { core::ptr::read_volatile(&raw const (*total).told) } == epoch {
        return;
    }
    let crossing = Crossing { slot, epoch: epoch as u32 };
    // Inserting a key that must not exist is the test-and-set that kernels before 5.12 have.
    if CROSSED.insert(crossing, 0, u64::from(BPF_NOEXIST)).is_err() {
        return;
    }
    // SAFETY: as above; only the one whose insertion succeeded writes.
    unsafe { core::ptr::write_volatile(&raw mut (*total).told, epoch) };
    let pid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: the helper has no preconditions.
    let at_ns = unsafe { bpf_ktime_get_ns() };
    let wake = WakeRecord { at_ns, slot, pid };
    if WAKES.output::<WakeRecord>(&wake, u64::from(BPF_RB_FORCE_WAKEUP)).is_err()
        && let Some(lost) = LOST.get_ptr_mut(0)
    {
        // SAFETY: `lost` points into the map.
        unsafe { atomic::add(&raw mut (*lost).wakes_dropped, 1) };
    }
}
