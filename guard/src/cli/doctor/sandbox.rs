//! What the daemon can be locked in with, and whether it is.

use super::report::{Check, Section};
use crate::observe::host::process::Process;
use crate::observe::host::sandbox::{has_seccomp, landlock_abi};

/// Landlock, seccomp, no_new_privs.
pub(super) fn section(daemon: Option<(i32, Process)>) -> Section {
    let landlock = match landlock_abi() {
        Ok(version) => Check::ok("Landlock", format!("the kernel offers version {version} of it")),
        Err(errno) => Check::note("Landlock", format!("not offered: {}", errno.desc()))
            .advising("Linux 5.13 with CONFIG_SECURITY_LANDLOCK, and landlock in the lsm= list"),
    };
    let seccomp = if has_seccomp() {
        Check::ok("seccomp", "the kernel offers filters")
    } else {
        Check::note("seccomp", "not offered").advising("a kernel with CONFIG_SECCOMP_FILTER")
    };
    let mut checks = vec![landlock, seccomp];
    if let Some((pid, process)) = daemon {
        let is = |is: bool| if is { "in force" } else { "not in force" };
        let value = format!(
            "pid {pid}: seccomp filter {}, no_new_privs {}",
            is(process.has_seccomp_filter),
            is(process.no_new_privileges)
        );
        checks.push(if process.no_new_privileges {
            Check::ok("daemon", value)
        } else {
            Check::note("daemon", value)
                .advising("allowPrivilegeEscalation: false, or NoNewPrivileges=yes in the unit")
        });
    }
    Section { name: "sandbox", checks }
}
