//! Which capabilities are held, and what each is for.

use super::report::{Check, Section};
use crate::observe::host::process::Process;

/// One capability that the guard uses.
struct Used {
    name: &'static str,
    /// Its number in linux/capability.h.
    number: u32,
    /// What it is for.
    purpose: &'static str,
    /// What happens without.
    without: &'static str,
    /// Another one that contains it.
    or: Option<u32>,
    /// Nodes that do well without are the rule.
    is_special: bool,
}

const SYS_ADMIN: u32 = 21;

const fn used(name: &'static str, number: u32, purpose: &'static str, without: &'static str) -> Used {
    Used { name, number, purpose, without, or: None, is_special: false }
}

/// In the order of what they are worth.
const USED: [Used; 9] = [
    used(
        "CAP_DAC_OVERRIDE",
        1,
        "archives and directories of other owners",
        "those cannot be read nor deleted",
    ),
    used("CAP_FOWNER", 3, "the same in sticky directories", "those cannot be deleted there"),
    Used {
        or: Some(SYS_ADMIN),
        ..used("CAP_BPF", 39, "loading the eBPF program (Linux 5.8)", "no eBPF: inotify and statfs instead")
    },
    Used {
        or: Some(SYS_ADMIN),
        ..used(
            "CAP_PERFMON",
            38,
            "attaching it and reading kernel memory (Linux 5.8)",
            "no eBPF: inotify and statfs instead",
        )
    },
    used("CAP_LEASE", 28, "proving that nobody has somebody else's archive open", "such archives are spared"),
    used(
        "CAP_SYS_PTRACE",
        19,
        "seeing who has an archive open",
        "archives in use are spared, but nobody is named",
    ),
    Used {
        or: Some(SYS_ADMIN),
        ..used(
            "CAP_CHECKPOINT_RESTORE",
            40,
            "the same for mappings (Linux 5.9)",
            "who has only mapped one is not named",
        )
    },
    used("CAP_SYS_NICE", 23, "running ahead of a busy node's other work", "a busy node may delay a reclaim"),
    Used {
        is_special: true,
        ..used("CAP_SYS_ADMIN", SYS_ADMIN, "fanotify, and eBPF before Linux 5.8", "neither of them")
    },
];

/// Of the running daemon, else of this command: root's on the host may be more than the daemon has.
pub(super) fn section(daemon: Option<(i32, Process)>) -> Section {
    let (whose, process) = match daemon {
        Some((pid, process)) => (format!("of the running daemon, pid {pid}"), Ok(process)),
        None => {
            ("of this command; the daemon is not running, or not to be seen".to_owned(), Process::of(None))
        }
    };
    let checks = match process {
        Ok(process) => {
            let whose = Check::note("whose", format!("{whose}, user {}", process.uid));
            std::iter::once(whose).chain(USED.iter().map(|used| check(used, &process))).collect()
        }
        Err(error) => vec![Check::degraded("whose", error.to_string(), "is /proc mounted?")],
    };
    Section { name: "capabilities", checks }
}

fn check(used: &Used, process: &Process) -> Check {
    let Used { name, purpose, without, .. } = *used;
    if process.may(used.number) || used.or.is_some_and(|other| process.may(other)) {
        return Check::ok(name, format!("held; for {purpose}"));
    }
    let value = format!("not held; for {purpose}. Without: {without}");
    if used.is_special {
        return Check::note(name, value);
    }
    let advice =
        format!("add {name} to the container's capabilities.add, or to CapabilityBoundingSet of the unit");
    Check::degraded(name, value, advice)
}

#[cfg(test)]
mod tests {
    use super::super::report::State;
    use super::*;

    #[test]
    fn what_is_missing_is_named_and_sys_admin_stands_for_what_it_contains() {
        let states = |capabilities| {
            let section = section(Some((1, Process { capabilities, ..Process::default() })));
            let better = section.checks.into_iter().filter(|check| check.state == State::Degraded);
            better.map(|check| check.name).collect::<Vec<_>>()
        };
        let all: u64 = USED.iter().filter(|used| !used.is_special).map(|used| 1 << used.number).sum();
        assert!(states(all).is_empty());
        assert_eq!(states(all & !(1 << 39)), ["CAP_BPF"]);
        assert!(states(all & !(1 << 39 | 1 << 38 | 1 << 40) | 1 << SYS_ADMIN).is_empty());
        assert_eq!(states(0).len(), 8);
    }
}
