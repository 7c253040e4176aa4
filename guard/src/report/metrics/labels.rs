//! The labels and the closed sets of values that they take.

use super::families::LabelKey;
use crate::model::{Certainty, Level, States, Trigger};

pub(super) const FILESYSTEM: LabelKey =
    LabelKey { name: "filesystem", values: "each watched filesystem, by its mount point or first directory" };
pub(super) const NAMESPACE: LabelKey = LabelKey {
    name: "namespace",
    values: "at most 50 namespaces, `other` for the rest, `unknown` where no identity is known",
};
pub(super) const LEVEL: LabelKey = LabelKey { name: "level", values: "`normal`, `soft`, `hard`, `critical`" };
pub(super) const THRESHOLD: LabelKey = LabelKey { name: "level", values: "`soft`, `hard`, `critical`" };
pub(super) const TRIGGER: LabelKey =
    LabelKey { name: "trigger", values: "`soft`, `hard`, `critical`, `retention`, `orphan`, `manual`" };
pub(super) const STATE: LabelKey = LabelKey {
    name: "state",
    values: "`pinned`, `in-use`, `being-written`, `incomplete`, `unproven`, `linked`, `orphan`; one may be in several",
};
pub(super) const IDENTITY: LabelKey =
    LabelKey { name: "identity", values: "`exact`, `name-only`, `ambiguous`, `unknown`" };
pub(super) const FAILURE: LabelKey =
    LabelKey { name: "cause", values: "`permission`, `read-only`, `io`, `no-space`, `other`" };
pub(super) const REFUSAL: LabelKey = LabelKey {
    name: "cause",
    values: "`pinned`, `in-use`, `changed`, `not-a-checkpoint`, `gone`, `linked`, `cannot-prove`, `command-failed`",
};
pub(super) const LOST: LabelKey =
    LabelKey { name: "kind", values: "`ring-buffer`, `ledger`, `inotify-queue`" };
pub(super) const WRITER: LabelKey =
    LabelKey { name: "writer", values: "`containerd`, `crio`, `podman`, `criu`, `kubelet`, `other`" };
pub(super) const WAKE: LabelKey =
    LabelKey { name: "cause", values: "`budget`, `directory`, `timer`, `configuration`, `request`" };
pub(super) const BACKEND: LabelKey =
    LabelKey { name: "backend", values: "`fexit`, `kprobe`, `raw-tracepoint`, `inotify`" };
pub(super) const LAYER: LabelKey =
    LabelKey { name: "layer", values: "`no-new-privileges`, `capabilities`, `landlock`, `seccomp`" };
pub(super) const POOL: LabelKey =
    LabelKey { name: "pool", values: "the node's pool as the configuration names it, or nothing" };
pub(super) const RESOURCE: LabelKey =
    LabelKey { name: "resource", values: "`nodes`, `pods`, `namespaces`, `podcheckpoints`" };
pub(super) const CALL: LabelKey =
    LabelKey { name: "call", values: "`discover`, `list`, `watch`, `get`, `create`" };
pub(super) const API_CAUSE: LabelKey = LabelKey {
    name: "cause",
    values: "`unauthorized`, `forbidden`, `expired`, `throttled`, `refused`, `server`, `timeout`, `unreachable`",
};
pub(super) const DELIVERY: LabelKey =
    LabelKey { name: "outcome", values: "`published`, `refused`, `dropped`" };
pub(super) const ROUND: LabelKey = LabelKey { name: "outcome", values: "`delivered`, `refused`, `dropped`" };
pub(super) const COMMAND: LabelKey =
    LabelKey { name: "outcome", values: "`done`, `failed`, `timed-out`, `given-up`" };
pub(super) const VERSION: LabelKey = LabelKey { name: "version", values: "the guard's version" };

/// Every value of [`CALL`].
pub(super) const CALLS: [&str; 5] = ["discover", "list", "watch", "get", "create"];

/// Every value of [`API_CAUSE`].
pub(super) const API_CAUSES: [&str; 8] =
    ["unauthorized", "forbidden", "expired", "throttled", "refused", "server", "timeout", "unreachable"];

/// Every value of [`BACKEND`].
pub(super) const BACKENDS: [&str; 4] = ["fexit", "kprobe", "raw-tracepoint", "inotify"];

/// The levels that have a threshold.
pub(super) const THRESHOLD_LEVELS: [Level; 3] = [Level::Soft, Level::Hard, Level::Critical];

/// Every value of [`TRIGGER`]; counters start at zero for each, so that the first deletion is an increase.
pub(super) const TRIGGERS: [&str; 6] = [
    Trigger::Pressure(Level::Soft).label(),
    Trigger::Pressure(Level::Hard).label(),
    Trigger::Pressure(Level::Critical).label(),
    "retention",
    Trigger::Orphan.label(),
    Trigger::Manual.label(),
];

/// The observed states that are worth a series.
pub(super) const STATES: [(States, &str); 7] = [
    (States::PINNED, "pinned"),
    (States::IN_USE, "in-use"),
    (States::BEING_WRITTEN, "being-written"),
    (States::INCOMPLETE, "incomplete"),
    (States::UNPROVEN, "unproven"),
    (States::LINKED, "linked"),
    (States::ORPHAN, "orphan"),
];

/// Every value of [`IDENTITY`].
pub(super) const CERTAINTIES: [Certainty; 4] =
    [Certainty::Exact, Certainty::NameOnly, Certainty::Ambiguous, Certainty::Unknown];

/// Every value of [`WRITER`].
pub(super) const WRITERS: [&str; 6] = ["containerd", "crio", "podman", "criu", "kubelet", "other"];

/// What kind of program a command name is: `containerd-shim` is `containerd`. Which one exactly, the audit log tells.
pub(super) fn writer_of(comm: &str) -> &'static str {
    WRITERS.into_iter().find(|kind| comm.starts_with(kind)).unwrap_or("other")
}

/// How a filesystem is named in metrics: its mount point or, where that is not known, the first directory
/// watched on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FilesystemLabel(String);

impl FilesystemLabel {
    /// The label for the filesystem that `path` stands for. Invalid UTF-8 is replaced: a label is text.
    pub fn new(path: &std::path::Path) -> FilesystemLabel {
        FilesystemLabel(path.to_string_lossy().into_owned())
    }

    /// The label's value.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A closed set of label values.
macro_rules! label_values {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident => $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every value.
            pub const ALL: &[$name] = &[$($name::$variant,)+];

            /// The label's value.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }
        }
    };
}

label_values! {
    /// Why a deletion that was tried did not succeed.
    FailureCause {
        /// EPERM or EACCES: an immutable or append-only file, a missing capability.
        Permission => "permission",
        /// EROFS: the filesystem is read-only, perhaps after an error.
        ReadOnly => "read-only",
        /// EIO: the disk.
        Io => "io",
        /// ENOSPC: a full copy-on-write filesystem (borgbackup#2557).
        NoSpace => "no-space",
        /// Anything else; the audit log has the error.
        Other => "other",
    }
}

impl FailureCause {
    /// The cause that an errno stands for.
    pub fn from_errno(errno: nix::errno::Errno) -> FailureCause {
        use nix::errno::Errno;
        match errno {
            Errno::EPERM | Errno::EACCES => FailureCause::Permission,
            Errno::EROFS => FailureCause::ReadOnly,
            Errno::EIO => FailureCause::Io,
            Errno::ENOSPC => FailureCause::NoSpace,
            _ => FailureCause::Other,
        }
    }
}

label_values! {
    /// Why a planned deletion was given up at the last look.
    RefusalCause {
        /// A `.keep` appeared.
        Pinned => "pinned",
        /// Somebody opened it.
        InUse => "in-use",
        /// Another inode, size or mtime than planned.
        Changed => "changed",
        /// A link or a special file stands in its place.
        NotACheckpoint => "not-a-checkpoint",
        /// Somebody else deleted it.
        Gone => "gone",
        /// Another hard link holds its data.
        Linked => "linked",
        /// That nobody uses it could not be shown.
        CannotProve => "cannot-prove",
        /// The command before the deletion did not succeed.
        CommandFailed => "command-failed",
    }
}

label_values! {
    /// Events that the guard did not see; statfs and a rescan make up for them.
    LostEvents {
        /// The kernel's ring buffer was full.
        RingBuffer => "ring-buffer",
        /// The kernel's table of bytes by file was full.
        Ledger => "ledger",
        /// inotify's queue overflowed (IN_Q_OVERFLOW).
        InotifyQueue => "inotify-queue",
    }
}

label_values! {
    /// What woke the loop.
    Wake {
        /// The kernel: as many bytes were written as there was headroom for.
        Budget => "budget",
        /// A change in a watched directory.
        Directory => "directory",
        /// The timer.
        Timer => "timer",
        /// A new configuration.
        Configuration => "configuration",
        /// A person: a signal or a command.
        Request => "request",
    }
}
