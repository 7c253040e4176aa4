//! The kubelet's own thresholds. `kubelet_file` reads them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::model::{Percent, Quantity, Signal};

/// One of the filesystems that the kubelet watches. `containerfs` is always one of these two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KubeletFilesystem {
    /// Where the kubelet's own directory lies, and so its checkpoints.
    Nodefs,
    /// Where images lie; on most nodes the same disk.
    Imagefs,
}

impl KubeletFilesystem {
    /// Both.
    pub const ALL: [KubeletFilesystem; 2] = [KubeletFilesystem::Nodefs, KubeletFilesystem::Imagefs];

    /// The kubelet's word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            KubeletFilesystem::Nodefs => "nodefs",
            KubeletFilesystem::Imagefs => "imagefs",
        }
    }
}

/// The kubelet evicts pods when less than this is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletThreshold {
    /// The filesystem it is about.
    pub filesystem: KubeletFilesystem,
    /// The signal it is about.
    pub signal: Signal,
    /// How much.
    pub value: Quantity,
    /// How long it waits; zero for evictionHard.
    pub grace_period: Duration,
    /// How far past the threshold it reclaims.
    pub minimum_reclaim: Option<Quantity>,
    /// The file that says so; `None`: the kubelet's default.
    pub source: Option<PathBuf>,
}

impl KubeletThreshold {
    /// `nodefs.available`
    pub fn name(&self) -> String {
        signal_name(self.filesystem, self.signal)
    }
}

/// `nodefs.available<10%`
impl fmt::Display for KubeletThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}<{}", self.name(), self.value.display(self.signal)))
    }
}

/// The disk thresholds of the kubelet; memory and process ids are not ours to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletThresholds {
    /// evictionHard.
    pub hard: Vec<KubeletThreshold>,
    /// evictionSoft.
    pub soft: Vec<KubeletThreshold>,
    /// imageGCHighThresholdPercent: images are removed when more than this is used.
    pub image_gc_high: Percent,
    /// imageGCLowThresholdPercent: until no more than this is used.
    pub image_gc_low: Percent,
    /// The files that were read, in order; empty: the kubelet's defaults.
    pub files: Vec<PathBuf>,
}

/// Why the kubelet's thresholds are not known.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// The file or directory cannot be read.
    #[error("cannot read the kubelet's configuration {path:?}: {source}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not what a kubelet reads.
    #[error("the kubelet's configuration {path:?} is not a KubeletConfiguration: {problem}")]
    Malformed {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The kubelet would refuse it.
    #[error("the kubelet's configuration: {key}: {problem}")]
    Refused {
        /// `evictionHard.nodefs.available`
        key: String,
        /// What is wrong.
        problem: String,
    },
}

impl KubeletError {
    /// Whether the file simply is not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, KubeletError::Unreadable { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }
}

/// `nodefs.inodesFree`
pub(super) fn signal_name(filesystem: KubeletFilesystem, signal: Signal) -> String {
    let signal = match signal {
        Signal::Available => "available",
        Signal::InodesFree => "inodesFree",
    };
    format!("{}.{signal}", filesystem.as_str())
}

impl KubeletThresholds {
    /// What a kubelet without configuration does.
    pub fn defaults() -> KubeletThresholds {
        KubeletThresholds::load(None, None).expect("the kubelet's defaults are valid")
    }

    /// Leaves out what is about other filesystems.
    pub fn about(mut self, filesystems: &[KubeletFilesystem]) -> KubeletThresholds {
        self.hard.retain(|threshold| filesystems.contains(&threshold.filesystem));
        self.soft.retain(|threshold| filesystems.contains(&threshold.filesystem));
        self
    }

    /// Of `thresholds` the one that is crossed first on a filesystem of `total` bytes or inodes.
    pub(super) fn earliest(
        thresholds: &[KubeletThreshold],
        signal: Signal,
        total: u64,
    ) -> Option<&KubeletThreshold> {
        let about = thresholds.iter().filter(|threshold| threshold.signal == signal);
        about.max_by_key(|threshold| threshold.value.resolve(total))
    }
}
