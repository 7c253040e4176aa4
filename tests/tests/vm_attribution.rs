//! Whose container a writer is in, as the daemon tells it: groups are made as engines and the kubelet's drivers name them, and
//! somebody writes from inside each. Root only.

use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use guard::model::Bytes;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use serde_json::Value;
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::Scene;
use tests::setting::Daemon;

/// So much each of them writes.
const LEN: usize = 1 << 20;

/// `{u}` is the pod's uid, `{_}` the same as systemd's slices have it, `{s}` a static pod's, `{c}` the container's id.
const GROUPS: [(&str, &str); 16] = [
    (
        "containerd-systemd",
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_}.slice/cri-containerd-{c}.scope",
    ),
    ("containerd-cgroupfs", "kubepods/burstable/pod{u}/{c}"),
    ("containerd-guaranteed", "kubepods/pod{u}/{c}"),
    ("containerd-static", "kubepods/besteffort/pod{s}/{c}"),
    (
        "containerd-mixed",
        "system.slice/containerd.service/kubepods-burstable-pod{_}.slice:cri-containerd:{c}",
    ),
    ("crio-systemd", "kubepods.slice/kubepods-pod{_}.slice/crio-{c}.scope"),
    ("crio-cgroupfs", "kubepods/besteffort/pod{u}/crio-{c}"),
    (
        "crio-conmon",
        "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{_}.slice/crio-conmon-{c}.scope",
    ),
    ("crio-crun", "kubepods.slice/kubepods-pod{_}.slice/crio-{c}.scope/container"),
    ("podman-systemd", "machine.slice/libpod-{c}.scope/container"),
    ("podman-cgroupfs", "libpod_parent/libpod-{c}"),
    ("podman-conmon", "machine.slice/libpod-conmon-{c}.scope"),
    ("podman-user", "user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{c}.scope/container"),
    (
        "kind-systemd",
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{_}.slice/cri-containerd-{c}.scope",
    ),
    ("pod-alone", "kubepods/burstable/pod{u}"),
    ("nobody", "system.slice/containerd.service"),
];

/// What the kubelet has kept of the pods, by which ids become names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// A log for each container.
    Containers,
    /// A directory for each pod.
    Pods,
}

/// A group, and who is in it.
#[derive(Debug)]
struct Group {
    label: &'static str,
    path: PathBuf,
    /// What of its writer can be known.
    pod: bool,
    container: bool,
    writer: Option<Child>,
}

impl Group {
    /// Makes the group below `root`, and what is kept of its pod below `logs`.
    fn new(number: usize, root: &Path, logs: &Path, kept: Kept) -> Group {
        let (label, form) = GROUPS[number];
        let uid = format!("19799841-684a-43df-95e8-{number:012x}");
        let hash = uid.replace('-', "");
        let container = format!("{number:064x}");
        let uid_of_pod = if form.contains("{s}") { &hash } else { &uid };
        let namespace = namespace(label);
        let has_container = form.contains("{c}") && kept == Kept::Containers;
        let has_pod = ["{u}", "{_}", "{s}"].iter().any(|word| form.contains(word)) && kept == Kept::Pods;
        if has_container {
            std::fs::write(logs.join(format!("containers/web_{namespace}_main-{container}.log")), "")
                .unwrap();
        }
        if has_pod {
            std::fs::create_dir(logs.join(format!("pods/{namespace}_web_{uid_of_pod}"))).unwrap();
        }
        let path = form
            .replace("{u}", &uid)
            .replace("{_}", &uid.replace('-', "_"))
            .replace("{s}", &hash)
            .replace("{c}", &container);
        let path = root.join(path);
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&path).unwrap();
        Group { label, path, pod: has_container || has_pod, container: has_container, writer: None }
    }

    /// Somebody in the group writes a file in `directory`, and stays.
    fn write_in(&mut self, directory: &Path) {
        let file = directory.join(format!("dump-of-{}", self.label));
        let mut dd = Command::new("dd")
            .args(["bs=64K", &format!("of={}", file.display())])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("dd is everywhere");
        std::fs::write(self.path.join("cgroup.procs"), dd.id().to_string()).unwrap();
        dd.stdin.as_mut().expect("it is piped").write_all(&vec![1; LEN]).unwrap();
        self.writer = Some(dd);
    }

    fn pid(&self) -> u32 {
        self.writer.as_ref().expect("it writes").id()
    }

    /// What it wrote is written, and it is no more.
    fn end(&mut self) {
        if let Some(mut dd) = self.writer.take() {
            drop(dd.stdin.take());
            // Err: it is gone, which is what is wanted.
            let _ = dd.wait();
            self.writer = Some(dd);
        }
    }

    /// Whether `told` of its writer is true.
    fn is(&self, told: &Value) -> bool {
        let text = |it: &str, is_known: bool| if is_known { Value::from(it) } else { Value::Null };
        let known_by = if self.pod { "cgroup" } else { "nothing" };
        let expect = [
            ("comm", Value::from("dd")),
            ("knownBy", Value::from(known_by)),
            ("namespace", text(&namespace(self.label), self.pod)),
            ("pod", text("web", self.pod)),
            ("container", text("main", self.container)),
        ];
        expect.iter().all(|(key, value)| told[key] == *value)
    }
}

fn namespace(label: &str) -> String {
    format!("team-{label}")
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

/// Groups below a root of their own, which go with them.
#[derive(Debug)]
struct Hierarchy {
    root: PathBuf,
    /// Mounted for the test, under this name.
    mount: Option<(String, tempfile::TempDir)>,
}

impl Hierarchy {
    /// Version 2, where it is mounted.
    fn unified() -> Option<Hierarchy> {
        let is_unified =
            |path: &&str| statfs(*path).is_ok_and(|it| it.filesystem_type() == CGROUP2_SUPER_MAGIC);
        let root = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter().find(is_unified)?;
        Some(Hierarchy { root: Path::new(root).join(own_name()), mount: None })
    }

    /// Version 1 without a controller, which is what systemd mounts there for itself.
    fn named() -> nix::Result<Hierarchy> {
        let (at, name) = (tempfile::tempdir().unwrap(), own_name());
        mount_named(&name, at.path())?;
        Ok(Hierarchy { root: at.path().join("node"), mount: Some((name, at)) })
    }

    #[expect(clippy::disallowed_methods, reason = "a group is no checkpoint")]
    fn remove(directory: &Path) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|sort| sort.is_dir()) {
                Hierarchy::remove(&entry.path());
            }
        }
        let _ = std::fs::remove_dir(directory);
    }
}

/// Letters, digits, `.`, `_` and `-`: the kernel takes no others for a hierarchy's name.
fn own_name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("checkpoint-guard-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn mount_named(name: &str, at: &Path) -> nix::Result<()> {
    let options = format!("none,name={name}");
    mount(Some("none"), at, Some("cgroup"), MsFlags::empty(), Some(options.as_str()))
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        Hierarchy::remove(&self.root);
        let Some((name, at)) = &self.mount else { return };
        let is_there =
            || std::fs::read_to_string("/proc/self/cgroup").is_ok_and(|text| text.contains(name.as_str()));
        // It goes a moment after its last mount, if it has no groups then; and removed groups go a moment later, too.
        for _ in 0..5 {
            let _ = umount2(at.path(), MntFlags::empty());
            for _ in 0..100 {
                if !is_there() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            if mount_named(name, at.path()).is_err() {
                break;
            }
        }
        println!("the hierarchy {name} stays until the next boot");
    }
}

/// `stays`: the writers are still there when they are looked up.
fn check(hierarchy: Hierarchy, stays: bool, kept: Kept) {
    let scene = Scene::on(LoopMount::new(Filesystem::Ext4, Bytes::mib(256)));
    scene.configure("");
    let logs = tempfile::tempdir().unwrap();
    ["containers", "pods"].iter().for_each(|name| std::fs::create_dir(logs.path().join(name)).unwrap());
    std::fs::create_dir_all("/var/log").unwrap();
    let mut groups: Vec<Group> =
        (0..GROUPS.len()).map(|number| Group::new(number, &hierarchy.root, logs.path(), kept)).collect();

    // The kubelet's logs, as the daemon alone sees them.
    let script = format!("mount --bind {} /var/log && exec \"$0\" \"$@\"", logs.path().display());
    let mut daemon = scene.setting.start_through(&["unshare", "-m", "sh", "-c", &script]);
    if daemon.metric("checkpoint_guard_backend_info{backend=\"inotify\"}") == Some(1.0) {
        println!("SKIPPED: nothing counts on this kernel");
        return;
    }
    for group in &mut groups {
        group.write_in(&scene.directory());
        if !stays {
            group.end();
        }
    }
    all_views_name(&mut daemon, &scene, &groups);
    drop(daemon);
    drop(groups);
}

fn all_views_name(daemon: &mut Daemon, scene: &Scene, groups: &[Group]) {
    let mut before = String::new();
    daemon.wait_until("naming all writers", |_| {
        let snapshot = scene.setting.json(&["top", "--once"]);
        let writers = snapshot["filesystems"][0]["growth"]["writers"].as_array().cloned().unwrap_or_default();
        let told = |group: &&Group| writers.iter().find(|it| it["pid"] == group.pid());
        let missing: String = groups
            .iter()
            .filter(|group| !told(group).is_some_and(|it| group.is(it)))
            .map(|group| format!("  {}: {:?}\n", group.label, told(&group).map(Value::to_string)))
            .collect();
        if missing != before {
            println!("not as expected, so far:\n{missing}");
        }
        before.clone_from(&missing);
        missing.is_empty()
    });
    let list = scene.setting.json(&["list"]);
    let growing = list["growth"].as_array().expect("an array");
    for group in groups.iter().filter(|group| group.pod) {
        let namespace = namespace(group.label);
        let series = format!("checkpoint_guard_growth_bytes_per_second{{namespace=\"{namespace}\"}}");
        daemon.wait_until(&format!("having {series}"), |daemon| daemon.metric(&series).is_some());
        assert!(growing.iter().any(|it| it["namespace"] == namespace.as_str()), "{namespace}: {list}");
    }
}

fn on_version_2(kept: Kept) {
    match Hierarchy::unified() {
        Some(hierarchy) => check(hierarchy, false, kept),
        None => println!("SKIPPED: version 2 is not mounted"),
    }
}

#[test]
fn on_version_2_the_container_is_named_when_the_writer_has_ended() {
    on_version_2(Kept::Containers);
}

#[test]
fn on_version_2_the_pod_is_named_where_no_container_is_known() {
    on_version_2(Kept::Pods);
}

#[test]
fn on_version_1_the_container_is_named_while_the_writer_is_there() {
    match Hierarchy::named() {
        Ok(hierarchy) => check(hierarchy, true, Kept::Containers),
        // Built without it, or told to have none (cgroup_no_v1=).
        Err(Errno::ENODEV | Errno::EPERM) => println!("SKIPPED: no version 1 can be mounted here"),
        Err(errno) => panic!("version 1 is not mounted: {errno}"),
    }
}
