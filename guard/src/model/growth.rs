//! [`Growth`]: how fast checkpoints grow, whose they are, and through whom.

use crate::model::{Bytes, Owner};
use std::sync::Arc;

/// What is written into the watched directories of this node, as of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// By namespace, fastest first; each once.
    pub namespaces: Vec<NamespaceGrowth>,
    /// By process and checkpoint, fastest first.
    pub writers: Vec<WriterGrowth>,
}

/// What is written for one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceGrowth {
    /// `None`: nobody knows whose.
    pub namespace: Option<Arc<str>>,
    /// Bytes a second, smoothed like [`crate::decide::Forecast`].
    pub rate: Bytes,
    /// All of it since it was first seen.
    pub bytes: Bytes,
}

/// What one process writes for one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterGrowth {
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// Its command name.
    pub comm: Arc<str>,
    /// For whom it writes: a runtime writes for the container whose checkpoint it is, not for itself.
    pub owner: Owner,
    /// What says so.
    pub known_by: KnownBy,
    /// Bytes a second, smoothed.
    pub rate: Bytes,
    /// All of it since it was first seen.
    pub bytes: Bytes,
}

/// What tells for whom something is written. A later one is only asked when those before it say nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KnownBy {
    /// The identity of the checkpoint that the file is, or is part of.
    Checkpoint,
    /// The file's path in a staging directory: it names the container.
    Path,
    /// The control group of the writing process.
    Cgroup,
    /// Nothing.
    #[default]
    Nothing,
}

impl KnownBy {
    /// The word for it in tables and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            KnownBy::Checkpoint => "checkpoint",
            KnownBy::Path => "path",
            KnownBy::Cgroup => "cgroup",
            KnownBy::Nothing => "nothing",
        }
    }
}
