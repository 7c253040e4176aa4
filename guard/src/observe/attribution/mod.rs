//! Whose write is it: from a process or a path to a container, a pod and a namespace.
//!
//! Three witnesses, in the order in which the agent asks them: the checkpoint that the file is (the catalog's business),
//! the path of the file in an engine's work directory, and the control group of the writer. What these give are ids;
//! [`Names`] turns ids into names without asking anybody, by what the kubelet calls its log files.

mod cgroup_path;
mod names;
mod proc_cgroup;
mod resolver;

pub use cgroup_path::{Workload, is_container_id, of_path};
pub use names::Names;
pub use proc_cgroup::of_proc_cgroup;
pub use resolver::Resolver;
