//! Whose write it is, on the real kernel: a writer in a control group that is called as an engine calls it. Root only.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use guard::model::{Bytes, Monotonic};
use guard::observe::attribution::{Resolver, Workload};
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, FsType, statfs};
use tests::loopfs::{Filesystem, LoopMount};
use tests::watching::Watching;

const ID: &str = "2540fdaa9dd148c3096a1f4c1a07eb2cbdd6a22aaed07a589d538a4dc1b7c4f3";
const UID: &str = "19799841-684a-43df-95e8-50ad687b8d68";
const NOW: Monotonic = Monotonic(Duration::from_secs(100));

/// Control groups, removed with those above them on drop.
struct Group {
    /// The deepest first.
    made: Vec<PathBuf>,
}

impl Group {
    /// `path` below the first of `mounts` that is a hierarchy of this `sort`; says why when that is not to be had.
    fn new(mounts: &[&str], sort: FsType, path: &str) -> Option<Group> {
        let mounts = mounts.iter().map(Path::new);
        let mount = mounts.into_iter().find(|it| statfs(*it).is_ok_and(|it| it.filesystem_type() == sort));
        let Some(mount) = mount else {
            eprintln!("skipped: no such hierarchy of control groups is mounted here");
            return None;
        };
        let mut group = Group { made: Vec::new() };
        let mut whole = mount.to_owned();
        for part in path.split('/') {
            whole.push(part);
            match fs::create_dir(&whole) {
                Ok(()) => group.made.insert(0, whole.clone()),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    eprintln!("skipped: no control group {}: {error}", whole.display());
                    return None;
                }
            }
        }
        Some(group)
    }

    fn take_in(&self, process: &Child) {
        fs::write(self.made[0].join("cgroup.procs"), process.id().to_string()).unwrap();
    }
}

impl Drop for Group {
    #[expect(clippy::disallowed_methods, reason = "removes the groups that it made")]
    fn drop(&mut self) {
        for directory in &self.made {
            if let Err(error) = fs::remove_dir(directory) {
                eprintln!("{} stays behind: {error}", directory.display());
            }
        }
    }
}

/// A shell that writes to `path` when told to, and lives until told to end.
struct Writer {
    process: Child,
    stdin: Option<ChildStdin>,
}

impl Writer {
    fn new(path: &Path) -> Writer {
        let script = format!("read go; echo hello > {}; echo done; read end", path.display());
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = shell.spawn().unwrap();
        let stdin = process.stdin.take();
        Writer { process, stdin }
    }

    fn write(&mut self) {
        self.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(
            &mut std::io::BufReader::new(self.process.stdout.as_mut().unwrap()),
            &mut line,
        )
        .unwrap();
        assert_eq!(line, "done\n");
    }

    fn end(&mut self) {
        self.stdin = None;
        self.process.wait().unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Has a shell in `group` write a file, looks its writer up, while it lives or after it has ended.
#[track_caller]
fn check(group: &Group, has_ended: bool, expect: Workload) {
    let watching = Watching::new(LoopMount::new(Filesystem::Ext4, Bytes::mib(64)));
    let path = watching.path().join("a");
    let mut writer = Writer::new(&path);
    group.take_in(&writer.process);
    writer.write();
    if has_ended {
        writer.end();
    }
    let entry = watching.entry(&File::open(&path).unwrap()).unwrap();
    assert_eq!((entry.writer.pid, entry.writer.comm.as_str()), (writer.process.id(), "sh"));
    assert_eq!(Resolver::default().workload(&entry.writer, NOW), expect, "{entry:?}");
}

fn container() -> Workload {
    Workload { pod_uid: Some(UID.to_owned()), container: Some(ID.to_owned()), is_monitor: false }
}

#[test]
fn version_2_names_the_container_even_of_a_process_that_has_ended() {
    let uid = UID.replace('-', "_");
    let pod = format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice");
    let path = format!("{pod}/cri-containerd-{ID}.scope");
    let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let Some(group) = Group::new(&mounts, CGROUP2_SUPER_MAGIC, &path) else { return };
    check(&group, false, container());
    check(&group, true, container());
}

#[test]
fn version_1_names_it_by_the_process_as_long_as_it_lives() {
    let mounts = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/pids"];
    let path = format!("kubepods/besteffort/pod{UID}/{ID}");
    let Some(group) = Group::new(&mounts, CGROUP_SUPER_MAGIC, &path) else { return };
    check(&group, false, container());
    check(&group, true, Workload::default());
}
