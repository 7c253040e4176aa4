//! Being heard on a busy node.

use nix::libc;

/// Lets the calling thread, and those that it starts, run before ordinary ones.
///
/// Writers at full speed and CPU hogs together can keep an ordinary thread from a core for tens of milliseconds, and
/// in that time a disk fills by 100 MiB. The lowest real-time priority is enough to be before all of them, and the
/// kernel's own throttling (`sched_rt_runtime_us`, 95 %) bounds what a bug here could cost. Where it is not allowed
/// (no CAP_SYS_NICE), the nice value is lowered as far as possible; where that is not allowed either, nothing is lost
/// but speed.
pub(crate) fn raise() {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads the structure it is given and keeps no reference; 0 means the calling thread.
    let status = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) };
    if status == 0 {
        return;
    }
    if !prefer() {
        tracing::warn!(
            "running at ordinary priority: CAP_SYS_NICE is missing, and a busy node may delay reclaiming"
        );
    }
}

/// Lets the calling thread have most of a core among ordinary ones, and none before real-time ones. False when that is not
/// allowed.
pub(super) fn prefer() -> bool {
    // SAFETY: takes numbers only; 0 with PRIO_PROCESS means the calling thread on Linux (setpriority(2), notes).
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) == 0 }
}
