//! The memory of this process: what it has read of archives leaves it neither by a crash nor by somebody who looks into it.

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};

/// Nobody gets a core dump of this process, and who looks into it or traces it needs CAP_SYS_PTRACE: being the same user
/// is not enough (`PR_SET_DUMPABLE`, prctl(2)). Threads and forked processes inherit it; execve(2) takes it back.
///
/// Dropping capabilities leaves it as it is (`commit_creds` of kernel/cred.c resets it to `fs.suid_dumpable`, which may be
/// 1, only where some are gained), and /proc/self stays readable to the process itself (`__ptrace_may_access` of
/// kernel/ptrace.c).
pub fn hide() {
    if let Err(errno) = prctl::set_dumpable(false) {
        tracing::warn!(%errno, "a crash may leave what was read of archives on the disk");
    }
}

/// [`hide`], and a limit of zero for core dumps that cannot be raised again: for whoever stays. A program started later
/// would inherit the limit.
pub(super) fn forbid_dumps() {
    hide();
    // Err: it is lower already, which cannot be.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
}
