//! [`ProbeError`]: why the kernel's help is not to be had, said so that an operator can change it.

use super::Backend;
use crate::model::Bytes;

/// Why a probe can't be loaded or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// Built with `--no-default-features`.
    #[error("this checkpoint-guard was built without eBPF (feature `ebpf`)")]
    NotBuilt,
    /// The kernel does not describe its structures.
    #[error(
        "cannot read the kernel's type information {path}: {reason}; the kernel must be built with CONFIG_DEBUG_INFO_BTF"
    )]
    Btf {
        /// `/sys/kernel/btf/…`.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel lacks something that the program reads.
    #[error(
        "this kernel has no {missing}, which the eBPF program reads; is it older than 5.10, or newer than this checkpoint-guard?"
    )]
    Unfamiliar {
        /// A structure's member or an enumerator.
        missing: String,
    },
    /// The kernel refused the object, a map or a program.
    #[error("the kernel refuses {what}: {reason}")]
    Refused {
        /// The object, or a map or program in it.
        what: String,
        /// The errno explained, and the verifier's last line when there is one.
        reason: String,
        /// The errno, where there is one.
        errno: Option<i32>,
    },
    /// A descriptor could not be looked up from within the kernel.
    #[error(
        "the kernel's own view of the directory with descriptor {fd} could not be had; is checkpoint-guard in a sandbox (gVisor)?"
    )]
    Unanswered {
        /// The descriptor.
        fd: i32,
    },
    /// The directory can't be examined.
    #[error("cannot examine the directory with descriptor {fd}: {source}")]
    Directory {
        /// The descriptor.
        fd: i32,
        /// Why.
        source: std::io::Error,
    },
    /// More than [`guard_ebpf::DIRECTORIES`].
    #[error(
        "more than {} directories: this one is left to inotify and the timer, or not held by the brake; let checkpoints go to \
         fewer directories",
        guard_ebpf::DIRECTORIES
    )]
    TooManyDirectories,
    /// Above [`Slot::MAX`](super::Slot::MAX).
    #[error("there is no filesystem slot {slot}, only 0 to {}", guard_ebpf::SLOTS - 1)]
    NoSuchSlot {
        /// The number.
        slot: u8,
    },
    /// A backend that was asked for by name.
    #[error("[probe] mode = \"{backend}\" does not work here: {why}")]
    NotThisOne {
        /// Which.
        backend: Backend,
        /// The refusal in words.
        why: String,
    },
    /// The brake's programs load and attach, and do not run.
    #[error(
        "the brake's programs are attached, and the kernel does not ask them; is `bpf` in /sys/kernel/security/lsm?"
    )]
    DoesNotRefuse,
    /// It loads and attaches, but does not see writes.
    #[error("{backend} is loaded but counted {counted} of {written} written to a probe file")]
    DoesNotCount {
        /// What was to see it.
        backend: Backend,
        /// What the probe file got.
        written: Bytes,
        /// What the ledger says.
        counted: Bytes,
    },
}
