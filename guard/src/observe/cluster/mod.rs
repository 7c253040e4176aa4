//! The API server: the Node's labels, the pods of this node, the namespaces, and what they are annotated with.
//!
//! Three watches for each node, of metadata only: the Node itself, its pods (`spec.nodeName`), and the namespaces. And a
//! look-up for each pod that has a checkpoint here but is not among these, at [`lookup::EVERY`] at the fastest. Nothing of
//! that grows with the number of checkpoints.
//!
//! What is known is kept on disk ([`memory`]), so that a guard that starts while the API server is away goes on with what
//! it last knew. Nobody waits for any of this: loops see the last [`crate::model::Cluster`] as a value.

pub mod annotations;
pub mod client;
pub mod declared;
pub mod knowledge;
pub mod lookup;
pub mod memory;
pub mod trouble;
pub mod watch;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use client::{Access, ClientError};
pub use knowledge::Knowledge;
pub use trouble::Trouble;

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// This machine's Node.
    Nodes,
    /// The pods that are bound to it.
    Pods,
    /// Every namespace: the only watch that no node can narrow down.
    Namespaces,
}

impl Resource {
    /// All three.
    pub const ALL: [Resource; 3] = [Resource::Nodes, Resource::Pods, Resource::Namespaces];

    /// The API's word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Resource::Nodes => "nodes",
            Resource::Pods => "pods",
            Resource::Namespaces => "namespaces",
        }
    }
}

/// What a watch tells.
#[derive(Clone, Debug)]
pub enum Seen {
    /// Everything there is, in place of what was told before.
    All(Vec<ObjectMeta>),
    /// It has come, or changed.
    Changed(Box<ObjectMeta>),
    /// It was deleted.
    Deleted(Box<ObjectMeta>),
    /// A call is about to be made: `list` or `watch`.
    Calling(&'static str),
    /// The server is there, and nothing has changed.
    Current,
    /// The watch has failed; it will be tried again.
    Failed(Trouble),
}

/// A [`Seen`], of what and when.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// Of what.
    pub resource: Resource,
    /// When it came.
    pub at: Timestamp,
    /// What it tells.
    pub seen: Seen,
}
