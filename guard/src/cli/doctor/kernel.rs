//! The kernel, as far as it matters.

use super::report::{Check, Section};
use crate::model::Bytes;
use crate::observe::host::kernel::Kernel;

/// Version, type information, lockdown, security modules.
pub(super) fn section(kernel: &Kernel) -> Section {
    let checks = vec![release(kernel), btf(kernel), lockdown(kernel), modules(kernel)];
    Section { name: "kernel", checks }
}

fn release(kernel: &Kernel) -> Check {
    if kernel.version() >= (5, 8) {
        return Check::ok("release", &kernel.release);
    }
    let advice = "eBPF with capabilities of its own came with Linux 5.8; before, add CAP_SYS_ADMIN and raise RLIMIT_MEMLOCK";
    Check::degraded("release", &kernel.release, advice)
}

fn btf(kernel: &Kernel) -> Check {
    match kernel.btf_bytes {
        Some(bytes) => Check::ok("type information", format!("/sys/kernel/btf/vmlinux, {}", Bytes(bytes))),
        None => Check::degraded(
            "type information",
            "none: there is no /sys/kernel/btf/vmlinux",
            "eBPF needs a kernel with CONFIG_DEBUG_INFO_BTF (most distributions' have it), and /sys visible",
        ),
    }
}

fn lockdown(kernel: &Kernel) -> Check {
    match kernel.lockdown.as_deref() {
        Some("confidentiality") => Check::degraded(
            "lockdown",
            "confidentiality: eBPF may not read the kernel's memory",
            "boot with lockdown=integrity, which is enough for a signed kernel",
        ),
        Some(mode) => Check::ok("lockdown", mode),
        None => Check::note("lockdown", "not to be seen (no securityfs here)"),
    }
}

fn modules(kernel: &Kernel) -> Check {
    match &kernel.security_modules {
        Some(modules) => Check::ok("security modules", modules.join(", ")),
        None => Check::note("security modules", "not to be seen (no securityfs here)"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::State;
    use super::*;

    #[track_caller]
    fn check(kernel: Kernel, expect: [State; 4]) {
        let states: Vec<_> = section(&kernel).checks.iter().map(|check| check.state).collect();
        assert_eq!(states, expect, "{kernel:?}");
    }

    #[test]
    fn old_mute_and_locked_kernels_get_advice() {
        use State::{Degraded, Note, Ok};
        let good = Kernel {
            release: "6.12.1".to_owned(),
            btf_bytes: Some(1 << 20),
            lockdown: Some("integrity".to_owned()),
            security_modules: Some(vec!["bpf".to_owned()]),
        };
        check(good.clone(), [Ok, Ok, Ok, Ok]);
        check(Kernel { release: "5.4.0-42".to_owned(), ..good.clone() }, [Degraded, Ok, Ok, Ok]);
        check(Kernel { btf_bytes: None, ..good.clone() }, [Ok, Degraded, Ok, Ok]);
        let locked = Some("confidentiality".to_owned());
        check(Kernel { lockdown: locked, security_modules: None, ..good }, [Ok, Ok, Degraded, Note]);
    }
}
