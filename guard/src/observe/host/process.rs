//! [`Process`]: what a process may do, from `/proc/<pid>/status` (proc_pid_status(5)).

use std::io;

/// The rights of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its effective user.
    pub uid: u32,
    /// Its effective capabilities, a bit each (capabilities(7)).
    pub capabilities: u64,
    /// It and its children gain no rights by executing anything.
    pub no_new_privileges: bool,
    /// A seccomp filter is in force.
    pub has_seccomp_filter: bool,
}

impl Process {
    /// Of `pid`, of this process without one.
    ///
    /// # Errors
    /// There is no such process, or its status cannot be read.
    pub fn of(pid: Option<i32>) -> io::Result<Process> {
        let pid = pid.map_or("self".to_owned(), |pid| pid.to_string());
        Ok(Process::parse(&std::fs::read_to_string(format!("/proc/{pid}/status"))?))
    }

    fn parse(status: &str) -> Process {
        let value = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            line.map_or("", str::trim)
        };
        let uids = value("Uid").split_ascii_whitespace();
        Process {
            uid: uids.skip(1).find_map(|uid| uid.parse().ok()).unwrap_or(u32::MAX),
            capabilities: u64::from_str_radix(value("CapEff"), 16).unwrap_or(0),
            no_new_privileges: value("NoNewPrivs") == "1",
            has_seccomp_filter: value("Seccomp") == "2",
        }
    }

    /// Whether it holds the capability of this number (linux/capability.h).
    pub fn may(&self, capability: u32) -> bool {
        self.capabilities.checked_shr(capability).unwrap_or(0) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read() {
        let status =
            "Name:\tguard\nUid:\t0\t7\t0\t0\nCapEff:\t000000c000000002\nNoNewPrivs:\t1\nSeccomp:\t2\n";
        let process = Process::parse(status);
        assert_eq!((process.uid, process.no_new_privileges, process.has_seccomp_filter), (7, true, true));
        let held: Vec<_> = (0..64).filter(|number| process.may(*number)).collect();
        assert_eq!(held, [1, 38, 39]);
        assert!(!process.may(200));
    }

    #[test]
    fn this_process_has_a_status() {
        assert_eq!(Process::of(None).unwrap().uid, nix::unistd::geteuid().as_raw());
    }
}
