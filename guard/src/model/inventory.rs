//! [`Inventory`]: everything that is known to lie on one filesystem.

use std::path::PathBuf;

use crate::model::{Bytes, Checkpoint};

/// The checkpoints of all watched directories that share one filesystem. Inventory against disk is *drift*;
/// rescans keep it small, and the executor looks again before each deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// The watched directories; [`Checkpoint::directory`] points here.
    pub directories: Vec<PathBuf>,
    /// In no particular order.
    pub checkpoints: Vec<Checkpoint>,
    /// How many entries are not checkpoints (foreign files, links, special files). Never touched.
    pub foreign: usize,
}

impl Inventory {
    /// What deleting everything would free.
    pub fn allocated(&self) -> Bytes {
        self.checkpoints.iter().map(|checkpoint| checkpoint.allocated).sum()
    }

    /// The directory that `checkpoint` lies in.
    pub fn directory_of(&self, checkpoint: &Checkpoint) -> &std::path::Path {
        &self.directories[usize::from(checkpoint.directory)]
    }
}
