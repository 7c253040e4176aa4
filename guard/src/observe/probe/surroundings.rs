//! What the node grants: read to explain a refusal, never to predict one.

use std::fmt;

/// `/sys/kernel/security/lockdown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lockdown {
    /// Not restricted, or it cannot be known (securityfs is not mounted).
    None,
    /// The kernel cannot be changed from user space.
    Integrity,
    /// Nor read: programs may not use `bpf_probe_read_kernel`.
    Confidentiality,
}

impl Lockdown {
    pub(super) fn read() -> Lockdown {
        Lockdown::of(&std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default())
    }

    /// `none [integrity] confidentiality`: the one in force stands in brackets.
    fn of(text: &str) -> Lockdown {
        match text.split(['[', ']']).nth(1) {
            Some("integrity") => Lockdown::Integrity,
            Some("confidentiality") => Lockdown::Confidentiality,
            _ => Lockdown::None,
        }
    }

    /// Whether reading arbitrary kernel memory is refused.
    pub(super) fn hides_kernel_memory(self) -> bool {
        self == Lockdown::Confidentiality
    }
}

/// The capabilities that eBPF takes; see capabilities(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capabilities(u64);

/// `CAP_SYS_ADMIN`, which stands for the two others.
const SYS_ADMIN: u32 = 21;
/// `CAP_PERFMON`, since Linux 5.8.
const PERFMON: u32 = 38;
/// `CAP_BPF`, since Linux 5.8.
const BPF: u32 = 39;

impl Capabilities {
    /// Those in effect for this thread.
    pub(super) fn read() -> Capabilities {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        Capabilities(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0))
    }

    fn has(self, capability: u32) -> bool {
        self.0 >> capability & 1 != 0
    }

    /// The names of those that eBPF needs and that are not held.
    pub(super) fn missing(self) -> Vec<&'static str> {
        if self.has(SYS_ADMIN) {
            return Vec::new();
        }
        [(BPF, "CAP_BPF"), (PERFMON, "CAP_PERFMON")]
            .into_iter()
            .filter(|(capability, _)| !self.has(*capability))
            .map(|(_, name)| name)
            .collect()
    }
}

/// Whether the probe's other programs were let in, which tells a refusal of one kind from a refusal of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// Some are loaded.
    Work,
    /// None was, or nobody knows yet.
    Unknown,
}

/// What an operator can change, in words.
pub(super) fn remedy(errno: Option<i32>, others: Others) -> Option<String> {
    let missing = Capabilities::read().missing();
    let remedy = match errno? {
        libc::EPERM | libc::EACCES if !missing.is_empty() => {
            format!("grant {} (in Kubernetes: securityContext.capabilities.add)", missing.join(" and "))
        }
        libc::EPERM | libc::EACCES | libc::EINVAL if Lockdown::read().hides_kernel_memory() => {
            "boot with lockdown=integrity: lockdown=confidentiality forbids reading kernel memory".to_owned()
        }
        libc::EPERM if others == Others::Work => {
            "nothing: the capabilities are held and other programs load, so this kernel refuses this kind of program"
                .to_owned()
        }
        libc::EPERM | libc::EACCES => {
            "let the bpf system call pass the seccomp profile (in Kubernetes: seccompProfile of the container)".to_owned()
        }
        libc::ENOMEM => "raise the memory limit, or RLIMIT_MEMLOCK before Linux 5.11".to_owned(),
        libc::ENOENT => "nothing: this kernel was built without it".to_owned(),
        libc::ENOSYS => "boot a kernel with CONFIG_BPF_SYSCALL; for kprobes, [sandbox] mode = \"off\"".to_owned(),
        _ => return None,
    };
    Some(remedy)
}

impl fmt::Display for Lockdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lockdown::None => "none",
            Lockdown::Integrity => "integrity",
            Lockdown::Confidentiality => "confidentiality",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lockdown_is_what_stands_in_brackets() {
        assert_eq!(Lockdown::of("[none] integrity confidentiality\n"), Lockdown::None);
        assert_eq!(Lockdown::of("none [integrity] confidentiality\n"), Lockdown::Integrity);
        assert_eq!(Lockdown::of("none integrity [confidentiality]\n"), Lockdown::Confidentiality);
        assert_eq!(Lockdown::of(""), Lockdown::None);
    }

    #[test]
    fn sys_admin_stands_for_what_was_split_from_it() {
        assert_eq!(Capabilities(0).missing(), ["CAP_BPF", "CAP_PERFMON"]);
        assert_eq!(Capabilities(1 << BPF).missing(), ["CAP_PERFMON"]);
        assert!(Capabilities(1 << BPF | 1 << PERFMON).missing().is_empty());
        assert!(Capabilities(1 << SYS_ADMIN).missing().is_empty());
    }
}
