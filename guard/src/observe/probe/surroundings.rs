//! What the node grants: read to explain a refusal, never to predict one.

use std::fmt;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

use crate::observe::host::kernel::Kernel;

/// The first kernel whose maps and programs count for the control group's memory, not for `RLIMIT_MEMLOCK`.
const COUNTS_FOR_CGROUP: (u32, u32) = (5, 11);

/// Lifts `RLIMIT_MEMLOCK`, which a kernel before Linux 5.11 holds against maps and programs: 64 KiB by default. To be
/// called while `CAP_SYS_RESOURCE` is held, if it ever was; without it the limit goes as high as it may.
pub fn lift_locked_memory_limit() {
    if Kernel::here().version() >= COUNTS_FOR_CGROUP {
        return;
    }
    let resource = Resource::RLIMIT_MEMLOCK;
    if setrlimit(resource, RLIM_INFINITY, RLIM_INFINITY).is_err()
        && let Ok((_, hard)) = getrlimit(resource)
        && let Err(error) = setrlimit(resource, hard, hard)
    {
        tracing::debug!(%error, "RLIMIT_MEMLOCK stays as it is");
    }
}

/// What the kernel holds against maps and programs, where it does so and where that is little.
fn locked_memory_limit() -> Option<String> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    let counts = Kernel::here().version() < COUNTS_FOR_CGROUP && soft < LOCKED_MEMORY_WANTED;
    counts.then(|| format!("RLIMIT_MEMLOCK is {} KiB, which counts for eBPF before Linux 5.11", soft >> 10))
}

/// Maps and programs take about 3 MiB; what other processes of the same user have loaded counts too.
const LOCKED_MEMORY_WANTED: u64 = 64 << 20;

/// What to do about it.
const LIFT_LOCKED_MEMORY: &str = "lift it (systemd: LimitMEMLOCK=infinity) or grant CAP_SYS_RESOURCE";

/// Why a kernel that lets others in refused with EPERM, when it is the limit of locked memory.
#[cfg_attr(not(feature = "ebpf"), expect(dead_code, reason = "only who loads is refused"))]
pub(super) fn locked_memory_advice() -> Option<String> {
    locked_memory_limit().map(|limit| format!("{limit}: {LIFT_LOCKED_MEMORY}"))
}

/// Why a kprobe was refused with EACCES: Debian and Ubuntu know a level of `kernel.perf_event_paranoid` above 2, which only
/// CAP_SYS_ADMIN passes, and the guard has given that up.
#[cfg_attr(not(feature = "ebpf"), expect(dead_code, reason = "only who loads is refused"))]
pub(super) fn perf_advice() -> Option<String> {
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?;
    let level: i32 = level.trim().parse().ok()?;
    (level > 2).then(|| {
        format!("kernel.perf_event_paranoid is {level}, which only CAP_SYS_ADMIN passes: set it to 2")
    })
}

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
        libc::EPERM | libc::ENOMEM if locked_memory_limit().is_some() => {
            format!("RLIMIT_MEMLOCK: {LIFT_LOCKED_MEMORY}")
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
        libc::ENOMEM => "raise the memory limit".to_owned(),
        libc::ENOENT => "nothing: this kernel was built without it".to_owned(),
        libc::ENOSYS => "boot a kernel with CONFIG_BPF_SYSCALL; for kprobes, [probe] mode = \"kprobe\"".to_owned(),
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
