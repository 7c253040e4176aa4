//! What could refuse writes when nothing more may be deleted.

use nix::errno::Errno;
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags};

use super::report::{Check, Section};
use crate::observe::host::kernel::Kernel;

/// BPF LSM, fanotify.
pub(super) fn section(kernel: &Kernel) -> Section {
    Section { name: "brake", checks: vec![lsm(kernel), fanotify(kernel)] }
}

fn lsm(kernel: &Kernel) -> Check {
    match kernel.has_security_module("bpf") {
        Some(true) => Check::ok("BPF LSM", "bpf is among the security modules"),
        Some(false) => {
            Check::note("BPF LSM", "bpf is not among the security modules: programs would load and never run")
                .advising("add bpf to the lsm= list of the kernel's command line")
        }
        None => Check::note("BPF LSM", "not to be seen (no securityfs here)"),
    }
}

fn fanotify(kernel: &Kernel) -> Check {
    // Nothing is marked, so nobody is held up.
    let group = Fanotify::init(
        InitFlags::FAN_CLASS_PRE_CONTENT | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK,
        EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC,
    );
    match group {
        Ok(_) if kernel.version() >= (6, 14) => {
            Check::ok("fanotify", "opens and writes can be refused, with ENOSPC")
        }
        Ok(_) if kernel.version() >= (6, 13) => Check::ok("fanotify", "opens can be refused, with ENOSPC"),
        Ok(_) => {
            Check::note("fanotify", "opens can be refused, but only with EPERM (ENOSPC came with Linux 6.13)")
        }
        Err(Errno::EPERM) => Check::note("fanotify", "not permitted to this command")
            .advising("it needs CAP_SYS_ADMIN; deploy/kubernetes/components/fanotify-brake adds it"),
        Err(errno) => Check::note("fanotify", format!("no permission events here: {}", errno.desc()))
            .advising("the kernel needs CONFIG_FANOTIFY_ACCESS_PERMISSIONS"),
    }
}
