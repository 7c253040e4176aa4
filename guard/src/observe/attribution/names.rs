//! [`Names`]: from ids to names, by what the kubelet calls the logs of containers and pods.
//!
//! The kubelet keeps a link `/var/log/containers/<pod>_<namespace>_<container>-<id>.log` for each container and a directory
//! `/var/log/pods/<namespace>_<pod>_<uid>` for each pod (pkg/kubelet/kuberuntime: `logSymlink`, `BuildPodLogsDirectory`).
//! Neither part holds an underscore, so both are exact. No API server is needed for it, and no engine's socket.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cgroup_path::{Workload, is_container_id};
use crate::model::{Monotonic, Owner};

/// The names of what runs, or ran lately, on this node.
#[derive(Debug)]
pub struct Names {
    containers: PathBuf,
    pods: PathBuf,
    by_container: HashMap<String, Owner>,
    by_pod: HashMap<String, Owner>,
    read: Option<Monotonic>,
}

/// An id that is not known is looked for again after this long: a container is there before its log.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// A node runs some hundred containers; more names than this are not the kubelet's.
const ENTRIES_MAX: usize = 20_000;

impl Default for Names {
    fn default() -> Names {
        Names::below(Path::new("/var/log"))
    }
}

impl Names {
    /// With the logs below `root`, the kubelet's `/var/log`. Nothing is read yet.
    pub fn below(root: &Path) -> Names {
        Names {
            containers: root.join("containers"),
            pods: root.join("pods"),
            by_container: HashMap::new(),
            by_pod: HashMap::new(),
            read: None,
        }
    }

    /// Who `workload` is; what is not known stays `None`. Reads the directories when it is a new one, but not more often
    /// than every 5 s.
    pub fn owner(&mut self, workload: &Workload, now: Monotonic) -> Owner {
        if !workload.is_known() {
            return Owner::default();
        }
        if let Some(owner) = self.known(workload) {
            return owner;
        }
        if self.read.is_none_or(|read| now.since(read) >= READ_AGAIN) {
            self.read = Some(now);
            self.read();
        }
        self.known(workload).unwrap_or_default()
    }

    fn known(&self, workload: &Workload) -> Option<Owner> {
        let by_container = || self.by_container.get(workload.container.as_ref()?);
        let by_pod = || self.by_pod.get(workload.pod_uid.as_ref()?);
        by_container().or_else(by_pod).cloned()
    }

    /// A directory that is not there or may not be read says nothing: the ids then stay ids.
    fn read(&mut self) {
        self.by_container = entries(&self.containers).filter_map(|name| of_container_log(&name)).collect();
        self.by_pod = entries(&self.pods).filter_map(|name| of_pod_directory(&name)).collect();
    }
}

fn entries(directory: &Path) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.take(ENTRIES_MAX).filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}

/// `<pod>_<namespace>_<container>-<id>.log`
fn of_container_log(name: &str) -> Option<(String, Owner)> {
    let (names, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    let [pod, namespace, container] = three(names)?;
    is_container_id(id).then(|| (id.to_owned(), Owner::new(namespace, pod, container)))
}

/// `<namespace>_<pod>_<uid>`
fn of_pod_directory(name: &str) -> Option<(String, Owner)> {
    let [namespace, pod, uid] = three(name)?;
    let owner = Owner { container: None, ..Owner::new(namespace, pod, "") };
    Some((uid.to_owned(), owner))
}

fn three(text: &str) -> Option<[&str; 3]> {
    let parts: Vec<&str> = text.split('_').collect();
    let three: [&str; 3] = parts.try_into().ok()?;
    three.iter().all(|part| !part.is_empty()).then_some(three)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "2540fdaa9dd148c3096a1f4c1a07eb2cbdd6a22aaed07a589d538a4dc1b7c4f3";
    const UID: &str = "19799841-684a-43df-95e8-50ad687b8d68";

    #[test]
    fn a_containers_log_names_all_three() {
        let check = |name: &str, expect: Option<&str>| {
            let found = of_container_log(&name.replace("{id}", ID));
            assert_eq!(found.as_ref().map(|(_, owner)| owner.to_string()).as_deref(), expect, "{name}");
        };
        check("web-7d9c_team-prod_side-car-{id}.log", Some("team-prod/web-7d9c/side-car"));
        check("a.b.c_ns_c-{id}.log", Some("ns/a.b.c/c"));
        for name in [
            "web_team_app.log",
            "web_team_app-{id}",
            "web_app-{id}.log",
            "_team_app-{id}.log",
            "a_b_c_d-{id}.log",
        ] {
            check(name, None);
        }
    }

    #[test]
    fn ids_are_looked_up_again_when_they_are_new_but_not_all_the_time() {
        let at = |seconds| Monotonic(Duration::from_secs(seconds));
        let logs = tempfile::tempdir().unwrap();
        let container = Workload { container: Some(ID.to_owned()), ..Workload::default() };
        let pod = Workload { pod_uid: Some(UID.to_owned()), ..Workload::default() };
        let mut names = Names::below(logs.path());
        assert_eq!(names.owner(&container, at(10)), Owner::default());

        std::fs::create_dir(logs.path().join("containers")).unwrap();
        std::fs::write(logs.path().join(format!("containers/web_team_app-{ID}.log")), "").unwrap();
        std::fs::create_dir_all(logs.path().join(format!("pods/team_web_{UID}"))).unwrap();
        assert_eq!(names.owner(&container, at(12)), Owner::default(), "read a moment ago");
        assert_eq!(names.owner(&container, at(16)), Owner::new("team", "web", "app"));
        assert_eq!(names.owner(&pod, at(16)).to_string(), "team/web/?");
        // The container's own name says more than the pod's.
        let both = Workload { pod_uid: pod.pod_uid, ..container };
        assert_eq!(names.owner(&both, at(16)), Owner::new("team", "web", "app"));
        assert_eq!(names.owner(&Workload::default(), at(99)), Owner::default());
    }
}
