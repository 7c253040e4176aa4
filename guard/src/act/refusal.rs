//! [`Refused`]: why something was not deleted.

use std::fmt;

use nix::errno::Errno;

use crate::model::{FileId, Holder};

/// Why a checkpoint was not deleted. Whatever the reason, it still has its name and all of its content, unless
/// the variant says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is not there any more: somebody else was faster. As good as deleted.
    #[error("it is gone already")]
    Gone,
    /// It is not what was planned for. The next scan sees what it is now.
    #[error("changed since it was planned: {0}")]
    Changed(Changed),
    /// Its marker is there.
    #[error("pinned: {0}")]
    Pinned(Pin),
    /// Somebody has it open, or asked for it while we were about to delete it.
    #[error("in use{}", Named(.holders))]
    InUse {
        /// The file: the archive itself, or one below a pod checkpoint.
        file: FileId,
        /// Who; empty until somebody looked ([`crate::observe::holders::find`]), or when it is the kernel itself
        /// or a process that we cannot see.
        holders: Vec<Holder>,
    },
    /// It is no archive and no pod checkpoint.
    #[error("not a checkpoint: {0}")]
    NotACheckpoint(&'static str),
    /// Another hard link holds its data.
    #[error("another hard link holds its data: deleting it would free nothing")]
    Linked,
    /// That nobody uses it, or that nothing else would be deleted in its place, cannot be shown here.
    #[error("cannot prove that deleting it is safe: {0}")]
    CannotProve(String),
    /// What is to be done before a deletion did not succeed ([`crate::act::command`]).
    #[error("the command before the deletion {0}")]
    CommandFailed(String),
    /// The kernel refused.
    #[error("{call}: {errno}{}", hint(.call, .errno))]
    Failed {
        /// The system call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
    /// Like [`Refused::Failed`], but content is gone. What is left of a pod checkpoint lies in its directory as
    /// `.evicting-*`, is never listed as a checkpoint, and is taken up again by
    /// [`crate::act::checkpoint_dir::CheckpointDir::finish_leftovers`]; what is left of an archive is an empty file.
    #[error("deleted in part: {call}: {errno}{}", hint(.call, .errno))]
    Partly {
        /// The system call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

impl Refused {
    /// A system call failed; `ENOENT` means that the checkpoint is gone.
    pub(super) fn failed(call: &'static str) -> impl Fn(Errno) -> Refused {
        move |errno| if errno == Errno::ENOENT { Refused::Gone } else { Refused::Failed { call, errno } }
    }

    /// Whether the kernel refused, rather than we ourselves.
    pub const fn is_failure(&self) -> bool {
        matches!(self, Refused::Failed { .. } | Refused::Partly { .. })
    }

    /// The cause as a metric label: few values.
    pub const fn label(&self) -> &'static str {
        match self {
            Refused::Gone => "gone",
            Refused::Changed(_) => "changed",
            Refused::Pinned(_) => "pinned",
            Refused::InUse { .. } => "in-use",
            Refused::NotACheckpoint(_) => "not-a-checkpoint",
            Refused::Linked => "linked",
            Refused::CannotProve(_) => "cannot-prove",
            Refused::CommandFailed(_) => "command-failed",
            Refused::Failed { .. } => "failed",
            Refused::Partly { .. } => "partly",
        }
    }
}

/// What is different from what was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The watched directory was replaced, renamed, unmounted or mounted over.
    Directory,
    /// Another file bears the name.
    File,
    /// The content: its size or its modification time.
    Content,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Changed::Directory => "its directory's path leads somewhere else now",
            Changed::File => "another file bears its name",
            Changed::Content => "its content was written to",
        })
    }
}

/// How sure a pin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// `<name>.keep` is there.
    Marker,
    /// Whether it is there could not be found out: in doubt, it is.
    Doubt(Errno),
    /// Nobody knows the name it had, and a marker lies there that may be its.
    Nameless,
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pin::Marker => f.write_str("a .keep lies beside it"),
            Pin::Nameless => f.write_str(
                "the name it had is not known, and a .keep of something that is not there may be its",
            ),
            Pin::Doubt(errno) => write!(f, "cannot see whether a .keep lies beside it ({errno})"),
        }
    }
}

/// `: restore (pid 4242), tar (pid 17)`.
struct Named<'h>(&'h [Holder]);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, holder) in self.0.iter().enumerate() {
            let lead = if place == 0 { ": " } else { ", " };
            write!(f, "{lead}{} (pid {})", holder.comm, holder.pid)?;
        }
        Ok(())
    }
}

/// What to do about it, where that is known.
fn hint(call: &str, errno: &Errno) -> &'static str {
    match (call, *errno) {
        ("unlinkat" | "renameat2", Errno::EPERM) => {
            "; is it immutable, or its directory append-only? (lsattr)"
        }
        (_, Errno::EACCES | Errno::EPERM) => "; the guard needs CAP_DAC_OVERRIDE, CAP_FOWNER and CAP_LEASE",
        (_, Errno::EROFS) => "; the filesystem is read-only, after an error perhaps (dmesg)",
        (_, Errno::EIO) => "; the disk fails (dmesg)",
        (_, Errno::EMFILE | Errno::ENFILE) => "; raise the limit of open files",
        (_, Errno::ENOTEMPTY) => "; somebody adds files faster than they are deleted",
        (_, Errno::EXDEV) => "; something is mounted beneath it",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_who_and_what_to_do() {
        let file = FileId { dev: 1, ino: 2 };
        let holders = vec![Holder { pid: 4242, comm: "criu".into() }, Holder { pid: 17, comm: "tar".into() }];
        assert_eq!(Refused::InUse { file, holders }.to_string(), "in use: criu (pid 4242), tar (pid 17)");
        assert_eq!(Refused::InUse { file, holders: vec![] }.to_string(), "in use");
        let immutable = Refused::Failed { call: "renameat2", errno: Errno::EPERM };
        assert!(immutable.to_string().ends_with("(lsattr)"), "{immutable}");
        assert_eq!(Refused::failed("openat")(Errno::ENOENT), Refused::Gone);
    }
}
