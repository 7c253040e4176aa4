//! What a checkpoint is, from what was seen and read of it.

use std::ffi::OsStr;

use super::Version;
use crate::model::{Bytes, Checkpoint, Cluster, Fate, Kind, States};
use crate::observe::archive::{self, CheckpointName, Contents, Interner};
use crate::observe::reach::Reach;
use crate::observe::scan::Stat;

pub(super) fn version_of(checkpoint: &Checkpoint) -> Version {
    Version { file: checkpoint.file, len: checkpoint.len, modified: checkpoint.modified }
}

pub(super) fn blank(directory: u16, kind: Kind, name: &OsStr, version: Version) -> Checkpoint {
    Checkpoint {
        directory,
        kind,
        states: States::empty(),
        name: name.into(),
        file: version.file,
        created: version.modified,
        modified: version.modified,
        len: version.len,
        allocated: Bytes::ZERO,
        inodes: 1,
        identity: crate::model::Identity::default(),
    }
}

/// What deleting it frees, now; and who may read it.
pub(super) fn set_size(checkpoint: &mut Checkpoint, stat: &Stat, reach: Reach) {
    let linked = stat.links > 1;
    checkpoint.states.set(States::LINKED, linked);
    checkpoint.states.set(States::EXPOSED, reach.exposes(stat.mode, false));
    checkpoint.allocated = if linked { Bytes::ZERO } else { stat.allocated };
    checkpoint.inodes = u32::from(!linked);
}

/// Whose it is and since when, from its name and, once read, its content.
pub(super) fn describe(
    checkpoint: &mut Checkpoint,
    contents: Option<&Contents>,
    strings: &mut Interner,
    cluster: &Cluster,
) {
    let name = CheckpointName::parse(&checkpoint.name, checkpoint.kind);
    let (mut identity, created) = archive::identify(name.as_ref(), contents);
    strings.share(&mut identity);
    checkpoint.identity = identity;
    checkpoint.created = created.unwrap_or(checkpoint.modified);
    checkpoint.states.set(States::ORPHAN, cluster.fate(checkpoint) == Fate::Gone);
    if let Some(contents) = contents {
        checkpoint.states.set(States::INCOMPLETE, contents.incomplete());
        checkpoint.states.set(States::HAS_PARENT, contents.has_parent);
        checkpoint.states.set(States::PRE_CHECKPOINT, contents.pre_checkpoint);
    }
}
