//! What a checkpoint is, from what was seen and read of it.

use std::ffi::OsStr;

use super::Version;
use crate::model::{Bytes, Certainty, Checkpoint, Cluster, Fate, Kind, Owner, States};
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

/// What the PodCheckpoint object of `checkpoint` says of it, where there is one: its status is the kubelet's to write. Where
/// the name says something else, nobody loses by it: the most protected reading counts.
pub(super) fn declare(checkpoint: &mut Checkpoint, cluster: &Cluster) {
    let Some(declared) = cluster.declared(checkpoint) else { return };
    if declared.restoring {
        checkpoint.states.insert(States::IN_USE);
    }
    let identity = &mut checkpoint.identity;
    identity.pod_uid = declared.pod_uid.clone().or(identity.pod_uid.take());
    let owner =
        Owner { namespace: Some(declared.namespace.clone()), pod: declared.pod.clone(), container: None };
    if declared.pod.is_none() || identity.owner == owner && identity.certainty != Certainty::NameOnly {
        return;
    }
    let known: Vec<Owner> = identity.readings().filter(|it| it.namespace.is_some()).cloned().collect();
    let agrees = known.is_empty() || known.contains(&owner);
    identity.certainty = if agrees { Certainty::Exact } else { Certainty::Ambiguous };
    identity.alternatives = if agrees { Box::default() } else { known.into() };
    identity.owner = owner;
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
    declare(checkpoint, cluster);
    checkpoint.states.set(States::ORPHAN, cluster.fate(checkpoint) == Fate::Gone);
    if let Some(contents) = contents {
        checkpoint.states.set(States::INCOMPLETE, contents.incomplete());
        checkpoint.states.set(States::HAS_PARENT, contents.has_parent);
        checkpoint.states.set(States::PRE_CHECKPOINT, contents.pre_checkpoint);
    }
}
