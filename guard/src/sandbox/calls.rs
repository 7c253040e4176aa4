//! The system calls that the guard uses: the whole list, each with its reason.
//!
//! A test runs the guard under strace and compares: nothing outside of the list is called, and what is in it and was not
//! seen is marked as [`Call::rare`], with the reason telling when it is.

use nix::libc;
use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

/// What needs a call. A feature that is not configured is not allowed its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// The daemon, whatever is configured.
    Always,
    /// eBPF: `[probe] mode` is not `off`.
    Probe,
    /// Kprobes: where `[probe] mode` asks for them, or they see more than what else there is.
    Kprobes,
    /// The API server: `[kubernetes] mode` is not `off`.
    Kubernetes,
    /// `[notify] url`.
    Webhook,
    /// `[notify] command`: talking to the process that runs it.
    Command,
    /// `[brake]` by fanotify: talking to its helper.
    Fanotify,
    /// The process that looks through /proc.
    Finder,
}

impl Feature {
    /// Every one.
    pub const ALL: [Feature; 8] = [
        Feature::Always,
        Feature::Probe,
        Feature::Kprobes,
        Feature::Kubernetes,
        Feature::Webhook,
        Feature::Command,
        Feature::Fanotify,
        Feature::Finder,
    ];
}

/// A system call that is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its constant's name, `SYS_read`.
    constant: &'static str,
    /// Its number on this architecture.
    pub number: i64,
    /// Who needs it.
    pub features: &'static [Feature],
    /// Which arguments.
    only: Only,
    /// What for.
    pub why: &'static str,
    /// Not seen in every life of a guard, nor on every machine; `why` tells when.
    pub rare: bool,
}

/// Which arguments of a call are allowed.
#[derive(Clone, Copy, Debug)]
enum Only {
    /// Any.
    All,
    /// One argument is one of these.
    OneOf(u8, &'static [u64]),
    /// Of one argument these bits are as in the last.
    Bits(u8, u64, u64),
}

impl Call {
    /// Its name in the manual.
    pub fn name(&self) -> &'static str {
        self.constant.trim_start_matches("SYS_")
    }

    /// As seccompiler wants it: no rule is every argument.
    pub(super) fn rules(&self) -> Result<Vec<SeccompRule>, String> {
        let condition = |argument, operator, value| {
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
                .and_then(|condition| SeccompRule::new(vec![condition]))
                .map_err(|error| error.to_string())
        };
        match self.only {
            Only::All => Ok(Vec::new()),
            Only::OneOf(argument, values) => {
                values.iter().map(|value| condition(argument, SeccompCmpOp::Eq, *value)).collect()
            }
            Only::Bits(argument, mask, value) => {
                Ok(vec![condition(argument, SeccompCmpOp::MaskedEq(mask), value)?])
            }
        }
    }
}

use Feature::{Always, Command, Fanotify, Finder, Kprobes, Kubernetes, Probe, Webhook};

const BOTH: &[Feature] = &[Always, Finder];
const GUARD: &[Feature] = &[Always];

macro_rules! call {
    ($constant:ident, $features:expr, $why:literal $(, $rare:ident)?) => {
        call!($constant, $features, Only::All, $why $(, $rare)?)
    };
    ($constant:ident, $features:expr, $only:expr, $why:literal) => {
        call!(@ $constant, $features, $only, $why, false)
    };
    ($constant:ident, $features:expr, $only:expr, $why:literal, rare) => {
        call!(@ $constant, $features, $only, $why, true)
    };
    (@ $constant:ident, $features:expr, $only:expr, $why:literal, $rare:expr) => {
        Call {
            constant: stringify!($constant),
            number: libc::$constant,
            features: $features,
            only: $only,
            why: $why,
            rare: $rare,
        }
    };
}

/// New threads only: no new process, no new namespace. clone3(2), whose flags a filter cannot see, is refused, and the C
/// library then takes clone(2).
const THREADS: Only = Only::Bits(0, (libc::CLONE_THREAD | NAMESPACES) as u64, libc::CLONE_THREAD as u64);
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Memory that is never code: nothing that was written can be run.
const NOT_EXECUTABLE: Only = Only::Bits(2, libc::PROT_EXEC as u64, 0);

/// The address families that are served and called.
const FAMILIES: Only = Only::OneOf(0, &[libc::AF_INET as u64, libc::AF_INET6 as u64]);

const THREAD_NAMES: Only = Only::OneOf(0, &[libc::PR_SET_NAME as u64, libc::PR_SET_VMA as u64]);

/// Only what asks a filesystem about itself, and what sockets and terminals are asked.
const IOCTLS: Only = Only::OneOf(
    1,
    &[
        0x5401,      // TCGETS: is the log a terminal?
        0x5421,      // FIONBIO: sockets that do not block
        0x8400_941f, // BTRFS_IOC_FS_INFO: its UUID
        0x8008_9418, // BTRFS_IOC_START_SYNC: show what was freed
        0x8008_6601, // FS_IOC_GETFLAGS, and
        0x4008_6602, // FS_IOC_SETFLAGS: no copy on write for the audit log on btrfs
        0xc009_6616, // FS_IOC_GET_ENCRYPTION_POLICY_EX: whether a directory is encrypted
        0x801c_581f, // FS_IOC_FSGETXATTR, and
        0x401c_5820, // FS_IOC_FSSETXATTR: the extent size hint on xfs
        0x4004_2408, // PERF_EVENT_IOC_SET_BPF, and
        0x2400,      // PERF_EVENT_IOC_ENABLE, and
        0x2401,      // PERF_EVENT_IOC_DISABLE: kprobes before Linux 5.15
    ],
);

/// Maps are made and used, programs loaded and attached; nothing is pinned, and nothing of others is looked up.
const BPF_COMMANDS: Only = Only::OneOf(
    0,
    &[
        0,  // MAP_CREATE
        1,  // MAP_LOOKUP_ELEM
        2,  // MAP_UPDATE_ELEM
        3,  // MAP_DELETE_ELEM
        4,  // MAP_GET_NEXT_KEY
        5,  // PROG_LOAD
        15, // OBJ_GET_INFO_BY_FD
        17, // RAW_TRACEPOINT_OPEN
        18, // BTF_LOAD
        22, // MAP_FREEZE
        28, // LINK_CREATE: the loader asks whether the kernel has it
    ],
);

/// `PERF_FLAG_FD_CLOEXEC`: a group of its own, of no control group, for no other program.
const PERF_FLAGS: Only = Only::OneOf(4, &[8]);

/// Every call that is allowed. In groups of purpose; each call once.
pub const CALLS: &[Call] = &[
    // Files, by descriptor.
    call!(SYS_read, BOTH, "read what was opened; events of inotify, bells between threads"),
    call!(SYS_write, BOTH, "the audit log, the log, bells between threads"),
    call!(SYS_pread64, GUARD, "headers of archives, where they lie"),
    call!(SYS_pwrite64, GUARD, "the probe file of the eBPF self-test where it is written in place", rare),
    call!(SYS_readv, GUARD, "the standard library where it reads into two buffers", rare),
    call!(SYS_writev, GUARD, "answers over HTTP"),
    call!(SYS_close, BOTH, "give descriptors back"),
    call!(SYS_lseek, BOTH, "the audit log is read from where it was left; directories from their beginning"),
    call!(SYS_fcntl, BOTH, "leases, copies of descriptors"),
    call!(SYS_ioctl, GUARD, IOCTLS, "btrfs; sockets; whether the log is a terminal", rare),
    call!(SYS_fstat, BOTH, "what is behind a descriptor", rare),
    call!(SYS_statx, BOTH, "the same for the standard library"),
    call!(SYS_fstatfs, GUARD, "how much is available: the heart of it all"),
    call!(SYS_statfs, GUARD, "the same by path", rare),
    call!(
        SYS_ftruncate,
        GUARD,
        "xfs gives space back sooner so; a torn line of the audit log is cut off",
        rare
    ),
    call!(SYS_fallocate, GUARD, "the audit log's space is set aside"),
    call!(SYS_fsync, GUARD, "btrfs shows what was freed", rare),
    call!(SYS_fdatasync, GUARD, "the audit log reaches the disk"),
    call!(SYS_flock, GUARD, "two guards, one audit log"),
    call!(SYS_fchmod, GUARD, "an audit log that others may read is taken from them", rare),
    call!(SYS_getdents64, BOTH, "read directories"),
    // Files, by name.
    call!(SYS_openat, BOTH, "open them"),
    call!(SYS_openat2, GUARD, "open what lies in pod checkpoints, never through a mount or a link", rare),
    #[cfg(target_arch = "x86_64")]
    call!(SYS_newfstatat, BOTH, "what a name leads to"),
    #[cfg(not(target_arch = "x86_64"))]
    call!(SYS_newfstatat, BOTH, "what a name leads to", rare),
    call!(SYS_readlinkat, BOTH, "say where a directory really lies", rare),
    call!(SYS_unlinkat, GUARD, "delete"),
    call!(SYS_renameat2, GUARD, "move aside what is to be deleted, without replacing anything"),
    call!(SYS_renameat, GUARD, "rotate the audit log", rare),
    call!(SYS_linkat, GUARD, "on xfs, show that nobody can get at what was deleted", rare),
    call!(SYS_mkdirat, GUARD, "the private directory"),
    call!(SYS_inotify_init1, GUARD, "names that come and go"),
    call!(SYS_inotify_add_watch, GUARD, "the same"),
    call!(SYS_inotify_rm_watch, GUARD, "a directory, or a file that was written, is no longer watched", rare),
    #[cfg(target_arch = "x86_64")]
    call!(SYS_open, BOTH, "the C library reads /sys and /proc with it for itself", rare),
    #[cfg(target_arch = "x86_64")]
    call!(SYS_readlink, BOTH, "say where a directory really lies", rare),
    #[cfg(target_arch = "x86_64")]
    call!(SYS_stat, BOTH, "older C libraries ask so", rare),
    #[cfg(target_arch = "x86_64")]
    call!(SYS_lstat, BOTH, "older C libraries ask so", rare),
    #[cfg(target_arch = "x86_64")]
    call!(SYS_access, GUARD, "the C library asks so before it names the host", rare),
    #[cfg(target_arch = "x86_64")]
    call!(SYS_rename, GUARD, "rotate the audit log", rare),
    #[cfg(target_arch = "x86_64")]
    call!(SYS_mkdir, GUARD, "the directory of the audit log", rare),
    call!(SYS_getcwd, GUARD, "configuration by a relative path", rare),
    // Waiting.
    #[cfg(target_arch = "x86_64")]
    call!(SYS_poll, BOTH, "the loops sleep"),
    call!(SYS_ppoll, BOTH, "the same on other architectures, or with other C libraries", rare),
    call!(SYS_epoll_create1, GUARD, "HTTP and signals", rare),
    call!(SYS_epoll_ctl, GUARD, "HTTP and signals"),
    #[cfg(target_arch = "x86_64")]
    call!(SYS_epoll_wait, GUARD, "HTTP and signals"),
    call!(SYS_epoll_pwait, GUARD, "the same on other architectures", rare),
    call!(SYS_eventfd2, GUARD, "bells between threads"),
    call!(SYS_clock_nanosleep, GUARD, "wait for what was freed to be shown"),
    call!(SYS_nanosleep, GUARD, "the same with other C libraries", rare),
    call!(
        SYS_clock_gettime,
        BOTH,
        "the clock, where there is none without a call (some virtual machines)",
        rare
    ),
    call!(SYS_gettimeofday, BOTH, "the same for the C library", rare),
    call!(SYS_futex, BOTH, "threads wait for each other"),
    call!(SYS_restart_syscall, BOTH, "the kernel resumes a sleep after a stop", rare),
    call!(SYS_sched_yield, GUARD, "locks of the standard library under contention", rare),
    // Threads and memory.
    call!(SYS_clone, GUARD, THREADS, "threads"),
    call!(SYS_set_robust_list, GUARD, "each thread of the C library", rare),
    call!(SYS_rseq, GUARD, "each thread of the C library", rare),
    call!(SYS_exit, GUARD, "threads end"),
    call!(SYS_exit_group, BOTH, "the process ends"),
    call!(SYS_gettid, GUARD, "the thread that asks eBPF which directory a descriptor is"),
    call!(SYS_getpid, BOTH, "not to take itself for somebody else"),
    call!(SYS_getppid, BOTH, "any call makes eBPF answer: this is the cheapest"),
    call!(SYS_geteuid, GUARD, "whether the private directory is ours"),
    call!(SYS_sched_setscheduler, GUARD, "before ordinary processes, on a busy node"),
    call!(SYS_setpriority, GUARD, "the same, where that is not allowed; archives are read so in any case"),
    call!(SYS_sched_getaffinity, GUARD, "the C library asks for the stack of a new thread", rare),
    call!(SYS_prctl, GUARD, THREAD_NAMES, "names of threads"),
    call!(SYS_prlimit64, BOTH, "the C library asks how large a stack may be", rare),
    call!(SYS_mmap, BOTH, NOT_EXECUTABLE, "memory"),
    call!(SYS_mprotect, GUARD, NOT_EXECUTABLE, "stacks of threads"),
    call!(SYS_munmap, BOTH, "memory"),
    call!(SYS_mremap, BOTH, "memory that grows", rare),
    call!(SYS_madvise, BOTH, "memory given back: what was freed, and what of the program is no longer used"),
    call!(SYS_brk, BOTH, "memory", rare),
    call!(SYS_membarrier, GUARD, "allocators and runtimes, where they ask for it", rare),
    call!(SYS_getrandom, BOTH, "hash tables that cannot be made to collide", rare),
    call!(SYS_uname, GUARD, "the eBPF loader asks for the kernel's version", rare),
    call!(SYS_sysinfo, GUARD, "the C library asks how much memory there is", rare),
    // Signals: SIGTERM ends it, SIGHUP makes it read its configuration.
    call!(SYS_rt_sigaction, BOTH, "say which are expected"),
    call!(SYS_rt_sigprocmask, BOTH, "the C library, around new threads"),
    call!(SYS_rt_sigreturn, BOTH, "return from one", rare),
    call!(SYS_sigaltstack, BOTH, "each thread: a stack that overflows is reported"),
    call!(SYS_tgkill, BOTH, "abort after a panic in a panic", rare),
    call!(SYS_socketpair, GUARD, "the runtime passes signals on to itself"),
    // HTTP, served.
    call!(SYS_socket, GUARD, FAMILIES, "the listener; the one on a path is made before"),
    call!(SYS_setsockopt, GUARD, "of the listener and its connections"),
    call!(SYS_bind, GUARD, "the listener"),
    call!(SYS_listen, GUARD, "the listener"),
    call!(SYS_accept4, GUARD, "who asks for metrics"),
    call!(SYS_getsockname, GUARD, "where it listens, when any port will do", rare),
    call!(SYS_getsockopt, GUARD, "errors of connections", rare),
    call!(SYS_recvfrom, BOTH, "requests; signals, from the runtime itself"),
    call!(SYS_sendto, BOTH, "answers; signals, to the runtime itself", rare),
    call!(SYS_shutdown, GUARD, "the end of an answer"),
    // eBPF.
    call!(SYS_bpf, &[Probe], BPF_COMMANDS, "count what is written"),
    // CAP_BPF and CAP_PERFMON read kernel memory already: what perf adds to them is what it costs the node, not rights.
    call!(SYS_perf_event_open, &[Kprobes], PERF_FLAGS, "attach a program to a kprobe", rare),
    // Kubernetes and the webhook, called; companions, told.
    call!(SYS_connect, &[Kubernetes, Webhook], "the API server, who is told of rounds, the resolver", rare),
    call!(SYS_getpeername, &[Kubernetes, Webhook], "whom it is connected to", rare),
    call!(
        SYS_recvmsg,
        &[Kubernetes, Webhook, Fanotify, Command],
        "the resolver's answers, those of the brake's helper and of who runs the command",
        rare
    ),
    call!(
        SYS_sendmsg,
        &[Kubernetes, Webhook, Fanotify, Command],
        "the resolver; what the brake's helper and who runs the command are told",
        rare
    ),
    call!(SYS_sendmmsg, &[Kubernetes, Webhook], "the resolver", rare),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_call_stands_here_twice_and_each_says_why() {
        let numbers: BTreeSet<_> = CALLS.iter().map(|call| call.number).collect();
        assert_eq!(numbers.len(), CALLS.len());
        assert!(CALLS.iter().all(|call| !call.why.is_empty() && !call.features.is_empty()));
        assert!(CALLS.iter().all(|call| call.rules().is_ok()));
    }

    #[test]
    fn what_would_undo_the_rest_is_not_there() {
        for call in [
            "ptrace",
            "process_vm_readv",
            "process_vm_writev",
            "mount",
            "umount2",
            "setns",
            "unshare",
            "pivot_root",
            "chroot",
            "execve",
            "execveat",
            "fork",
            "vfork",
            "clone3",
            "kill",
            "tkill",
            "pidfd_open",
            "pidfd_getfd",
            "init_module",
            "finit_module",
            "kexec_load",
            "reboot",
            "swapon",
            "open_by_handle_at",
            "mknodat",
            "symlinkat",
            "chown",
            "fchownat",
            "fchmodat",
            "setuid",
            "capset",
            "keyctl",
            "add_key",
            "userfaultfd",
            "io_uring_setup",
            "seccomp",
            "memfd_create",
            "setxattr",
            "quotactl",
            "iopl",
            "ioperm",
            "acct",
            "syslog",
        ] {
            assert!(CALLS.iter().all(|it| it.name() != call), "{call}");
        }
        let perf = CALLS.iter().find(|it| it.name() == "perf_event_open").map(|it| it.features);
        assert_eq!(perf, Some(&[Kprobes][..]), "for kprobes and nothing else");
    }
}
