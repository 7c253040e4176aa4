//! Whose checkpoint it is.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// Namespace, pod and container that a checkpoint belongs to; each `None` where nobody knows.
///
/// Shared strings: thousands of checkpoints belong to a few owners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The Kubernetes namespace.
    pub namespace: Option<Arc<str>>,
    /// The pod's name.
    pub pod: Option<Arc<str>>,
    /// The container's name; `None` for a pod checkpoint.
    pub container: Option<Arc<str>>,
}

impl Owner {
    /// An owner whose three parts are known.
    pub fn new(namespace: &str, pod: &str, container: &str) -> Owner {
        Owner { namespace: Some(namespace.into()), pod: Some(pod.into()), container: Some(container.into()) }
    }
}

/// `namespace/pod/container`, with `?` for what is not known.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |part: &Option<Arc<str>>| part.as_deref().unwrap_or("?").to_owned();
        let text = format!("{}/{}/{}", part(&self.namespace), part(&self.pod), part(&self.container));
        f.pad(&text)
    }
}

/// Who wrote the archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// containerd's CRI plugin.
    Containerd,
    /// CRI-O.
    #[serde(rename = "cri-o")]
    CriO,
    /// podman.
    Podman,
    /// Another writer that follows checkpointctl's annotations.
    Other,
    /// Not read, or not recognised.
    #[default]
    Unknown,
}

impl Engine {
    /// The word for it in tables and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Engine::Containerd => "containerd",
            Engine::CriO => "cri-o",
            Engine::Podman => "podman",
            Engine::Other => "other",
            Engine::Unknown => "unknown",
        }
    }
}

/// How far an identity can be relied on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Certainty {
    /// Read from inside, and nothing contradicts it.
    Exact,
    /// Only the file name speaks.
    NameOnly,
    /// Witnesses contradict each other: the most protected of the readings counts.
    Ambiguous,
    /// Nobody knows.
    #[default]
    Unknown,
}

impl Certainty {
    /// The word for it in tables and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Certainty::Exact => "exact",
            Certainty::NameOnly => "name-only",
            Certainty::Ambiguous => "ambiguous",
            Certainty::Unknown => "unknown",
        }
    }
}

/// Who a checkpoint belongs to, and how well that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The reading that counts: the engine's own keys where they could be read, else the name's first reading.
    /// Quotas count against this one.
    pub owner: Owner,
    /// Other readings that a witness supports or the name allows, without `owner`. Protection is the highest
    /// of all readings; nothing else looks at these (FORMAT.md: nobody gains by an ambiguous identity).
    pub alternatives: Box<[Owner]>,
    /// The pod's UID, where the archive says it.
    pub pod_uid: Option<Arc<str>>,
    /// Who wrote it.
    pub engine: Engine,
    /// How far to rely on `owner`.
    pub certainty: Certainty,
}

impl Identity {
    /// The owner and the alternatives.
    pub fn readings(&self) -> impl Iterator<Item = &Owner> {
        std::iter::once(&self.owner).chain(self.alternatives.iter())
    }
}
