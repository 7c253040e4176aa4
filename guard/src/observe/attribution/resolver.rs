//! [`Resolver`]: from what the kernel says of a writer to its container and pod.

use std::collections::HashMap;
use std::os::unix::fs::DirEntryExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use super::cgroup_path::{Workload, of_path};
use super::proc_cgroup::of_proc_cgroup;
use crate::model::Monotonic;
use crate::observe::probe::Writer;

/// Looks writers up, by their control group's id where the node has version 2, else by their process id.
///
/// The id is what the kernel noted while the process wrote, and its group outlives the process; a process id is reused. On
/// version 1 every process has the id of the version 2 root (KERNEL.md, section 7), and `/proc/PID/cgroup` is what there is.
#[derive(Debug)]
pub struct Resolver {
    proc: PathBuf,
    /// Where version 2 is mounted.
    unified: Option<PathBuf>,
    /// The id of its root, which says nothing of anybody.
    root: u64,
    by_id: HashMap<u64, Workload>,
    walked: Option<Monotonic>,
    by_writer: HashMap<Writer, Workload>,
}

/// An id that is not known is looked for again after this long.
const WALK_AGAIN: Duration = Duration::from_secs(5);
/// A node has some hundred groups; walking so many takes 30 ms.
const GROUPS_MAX: usize = 20_000;
/// Writers remembered; a node has a handful at a time.
const WRITERS_MAX: usize = 1024;

impl Default for Resolver {
    fn default() -> Resolver {
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        let is_unified =
            |path: &PathBuf| statfs(path).is_ok_and(|statfs| statfs.filesystem_type() == CGROUP2_SUPER_MAGIC);
        Resolver::with(PathBuf::from("/proc"), mounts.into_iter().find(is_unified))
    }
}

impl Resolver {
    /// With another procfs, and where version 2 of the hierarchy is mounted, if it is.
    pub fn with(proc: PathBuf, unified: Option<PathBuf>) -> Resolver {
        let id_of =
            |path: &PathBuf| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).ok()?).into();
        let root = unified.as_ref().and_then(id_of).unwrap_or(0);
        Resolver { proc, unified, root, by_id: HashMap::new(), walked: None, by_writer: HashMap::new() }
    }

    /// The container and pod that `writer` runs in; nothing is known of the node's own services, and of a process that
    /// has ended before anybody looked on a node without version 2.
    pub fn workload(&mut self, writer: &Writer, now: Monotonic) -> Workload {
        if let Some(known) = self.by_writer.get(writer) {
            return known.clone();
        }
        let found = self.by_cgroup(writer.cgroup, now).unwrap_or_else(|| self.by_pid(writer));
        if self.by_writer.len() >= WRITERS_MAX {
            self.by_writer.clear();
        }
        self.by_writer.insert(writer.clone(), found.clone());
        found
    }

    /// `None` where the id says nothing.
    fn by_cgroup(&mut self, id: u64, now: Monotonic) -> Option<Workload> {
        let unified = self.unified.clone().filter(|_| id > 1 && id != self.root)?;
        if !self.by_id.contains_key(&id) && self.walked.is_none_or(|walked| now.since(walked) >= WALK_AGAIN) {
            self.walked = Some(now);
            self.by_id = groups(&unified);
        }
        self.by_id.get(&id).cloned()
    }

    /// By `/proc`, when the process that has this id now is called as the writer was, it or one of its threads: else the
    /// id was given to another, or means another one in our pid namespace.
    fn by_pid(&self, writer: &Writer) -> Workload {
        let process = self.proc.join(writer.pid.to_string());
        let is_it = |comm: std::io::Result<String>| comm.is_ok_and(|comm| comm.trim_end() == writer.comm);
        let is_leader = is_it(std::fs::read_to_string(process.join("comm")));
        let mut threads = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
        if !is_leader && !threads.any(|task| is_it(std::fs::read_to_string(task.path().join("comm")))) {
            return Workload::default();
        }
        std::fs::read_to_string(process.join("cgroup")).map(|text| of_proc_cgroup(&text)).unwrap_or_default()
    }
}

/// Every group below `root` by its id, which is its inode number (Linux 5.5).
fn groups(root: &Path) -> HashMap<u64, Workload> {
    let mut found = HashMap::new();
    let mut below = vec![root.to_owned()];
    while let Some(directory) = below.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            if found.len() >= GROUPS_MAX {
                return found;
            }
            if entry.file_type().is_ok_and(|sort| sort.is_dir()) {
                let path = entry.path();
                let relative = path.strip_prefix(root).unwrap_or(&path);
                found.insert(entry.ino(), of_path(&relative.to_string_lossy()));
                below.push(path);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    const ID: &str = "2540fdaa9dd148c3096a1f4c1a07eb2cbdd6a22aaed07a589d538a4dc1b7c4f3";

    fn at(seconds: u64) -> Monotonic {
        Monotonic(Duration::from_secs(seconds))
    }

    fn process(proc: &Path, pid: u32, comm: &str, cgroup: &str) {
        let directory = proc.join(pid.to_string());
        std::fs::create_dir_all(directory.join("task/9")).unwrap();
        std::fs::write(directory.join("comm"), "leader\n").unwrap();
        std::fs::write(directory.join("task/9/comm"), format!("{comm}\n")).unwrap();
        std::fs::write(directory.join("cgroup"), cgroup).unwrap();
    }

    fn writer(pid: u32, comm: &str, cgroup: u64) -> Writer {
        Writer { pid, comm: comm.to_owned(), cgroup }
    }

    #[test]
    fn without_version_2_the_process_says_it_if_it_is_still_the_same() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 7, "criu", &format!("4:pids:/docker/{ID}\n"));
        let mut resolver = Resolver::with(proc.path().to_owned(), None);
        assert_eq!(resolver.workload(&writer(7, "criu", 1), at(1)).container.as_deref(), Some(ID));
        assert_eq!(resolver.workload(&writer(7, "leader", 1), at(1)).container.as_deref(), Some(ID));
        assert_eq!(resolver.workload(&writer(7, "dd", 1), at(1)), Workload::default(), "the id was reused");
        assert_eq!(resolver.workload(&writer(8, "criu", 1), at(1)), Workload::default(), "gone");
    }

    #[test]
    fn with_version_2_the_groups_id_says_it_even_when_the_process_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let mut resolver = Resolver::with(PathBuf::from("/nonexistent"), Some(root.path().to_owned()));
        let group = root.path().join(format!("kubepods/burstable/pod{}/{ID}", "0".repeat(32)));
        std::fs::create_dir_all(&group).unwrap();
        let id = std::fs::metadata(&group).unwrap().ino();
        let found = resolver.workload(&writer(7, "criu", id), at(1));
        assert_eq!((found.container.as_deref(), found.pod_uid), (Some(ID), Some("0".repeat(32))));
        let top = std::fs::metadata(root.path()).unwrap().ino();
        assert_eq!(resolver.workload(&writer(7, "dd", top), at(1)), Workload::default());
    }

    #[test]
    fn a_new_group_is_found_but_groups_are_not_walked_all_the_time() {
        let root = tempfile::tempdir().unwrap();
        let mut resolver = Resolver::with(PathBuf::from("/nonexistent"), Some(root.path().to_owned()));
        assert_eq!(resolver.workload(&writer(1, "a", u64::MAX), at(10)), Workload::default());
        let group = root.path().join(ID);
        std::fs::create_dir(&group).unwrap();
        let id = std::fs::metadata(&group).unwrap().ino();
        assert_eq!(resolver.by_cgroup(id, at(12)), None, "walked a moment ago");
        assert_eq!(resolver.by_cgroup(id, at(15)).unwrap().container.as_deref(), Some(ID));
    }
}
