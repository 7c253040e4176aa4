//! What a checkpoint is, from what was seen and read of it.

use std::ffi::OsStr;

use super::Version;
use crate::model::{Bytes, Certainty, Checkpoint, Cluster, Fate, Identity, Kind, Owner, States};
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
        identity: Default::default(),
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
pub(super) fn declare(checkpoint: &mut Checkpoint, strings: &mut Interner, cluster: &Cluster) {
    let Some(declared) = cluster.declared(checkpoint) else { return };
    if declared.restoring {
        checkpoint.states.insert(States::IN_USE);
    }
    let known = &*checkpoint.identity;
    let pod_uid = declared.pod_uid.clone().or(known.pod_uid.clone());
    let owner =
        Owner { namespace: Some(declared.namespace.clone()), pod: declared.pod.clone(), container: None };
    let identity = if declared.pod.is_none() || known.owner == owner && known.certainty != Certainty::NameOnly
    {
        Identity { pod_uid, ..known.clone() }
    } else {
        let known: Vec<Owner> = known.readings().filter(|it| it.namespace.is_some()).cloned().collect();
        let agrees = known.is_empty() || known.contains(&owner);
        Identity {
            owner,
            alternatives: if agrees { Box::default() } else { known.into() },
            pod_uid,
            engine: checkpoint.identity.engine,
            certainty: if agrees { Certainty::Exact } else { Certainty::Ambiguous },
        }
    };
    checkpoint.identity = strings.share(identity);
}

/// Whose it is and since when, from its name and, once read, its content.
pub(super) fn describe(
    checkpoint: &mut Checkpoint,
    contents: Option<&Contents>,
    strings: &mut Interner,
    cluster: &Cluster,
) {
    let name = CheckpointName::parse(&checkpoint.name, checkpoint.kind);
    let (identity, created) = archive::identify(name.as_ref(), contents);
    checkpoint.identity = strings.share(identity);
    checkpoint.created = created.unwrap_or(checkpoint.modified);
    declare(checkpoint, strings, cluster);
    checkpoint.states.set(States::ORPHAN, cluster.fate(checkpoint) == Fate::Gone);
    if let Some(contents) = contents {
        checkpoint.states.set(States::INCOMPLETE, contents.incomplete());
        checkpoint.states.set(States::HAS_PARENT, contents.has_parent);
        checkpoint.states.set(States::PRE_CHECKPOINT, contents.pre_checkpoint);
    }
}
