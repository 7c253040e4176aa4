//! The image of `cargo xtask image` in podman: with the capabilities of docs/SECURITY.md and no others it does the main job on
//! a filesystem of its own.
//!
//! `CHECKPOINT_GUARD_IMAGE` names the archive; by default `target/checkpoint-guard.oci.tar`, where that task puts it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use guard::model::Bytes;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tests::http::{free_address, get};
use tests::scene::Scene;
use tests::setting::read_audit;

/// The archive, larger than which it may not be.
const SIZE_MAX: u64 = 20 << 20;

fn archive() -> PathBuf {
    let named = std::env::var_os("CHECKPOINT_GUARD_IMAGE").map(PathBuf::from);
    named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/checkpoint-guard.oci.tar"))
}

fn podman(arguments: &[&str]) -> Option<Output> {
    match Command::new("podman").args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) => {
            println!("SKIPPED podman: {error} (Debian: podman)");
            None
        }
    }
}

/// The capabilities of the DaemonSet.
fn capabilities() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes/base/daemonset.yaml");
    let manifest: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let container = &manifest["spec"]["template"]["spec"]["containers"][0];
    let add = container["securityContext"]["capabilities"]["add"].as_array().unwrap();
    add.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// Lets podman's runtime start containers where the system has cgroups of both versions, and where the limits of this process
/// may not be raised: in a mount namespace of its own, with the limits that are.
const BESIDE: &str = "mount --make-rprivate / && { umount -R /sys/fs/cgroup || umount -l /sys/fs/cgroup; } 2>/dev/null; \
                      mount -t cgroup2 none /sys/fs/cgroup && exec \"$@\"";
const LIMITS: [&str; 3] = ["--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"];

/// `podman run` with these arguments, in one of two ways.
fn run(is_beside: bool, arguments: &[String]) -> Command {
    let mut command = Command::new(if is_beside { "unshare" } else { "podman" });
    if is_beside {
        command.args(["--mount", "sh", "-c", BESIDE, "sh", "podman"]);
    }
    command.args(["run", "--rm", "--pull=never"]);
    if is_beside {
        command.args(LIMITS);
    }
    command.args(arguments);
    command
}

/// A container in the foreground; ended on drop.
struct Container(Child);

impl Drop for Container {
    fn drop(&mut self) {
        // It passes this on. Err: it has ended.
        let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "waits for a container, so it measures time")]
fn the_image_does_the_main_job_with_the_documented_capabilities_only() {
    let archive = archive();
    if !archive.is_file() {
        println!("SKIPPED: there is no {}; `cargo xtask image` makes it", archive.display());
        return;
    }
    let size = std::fs::metadata(&archive).unwrap().len();
    assert!(size <= SIZE_MAX, "{size} bytes");
    let Some(loaded) = podman(&["load", "--input", archive.to_str().unwrap()]) else { return };
    assert!(loaded.status.success(), "{loaded:?}");
    let said = String::from_utf8(loaded.stdout).unwrap();
    let image = said.lines().find_map(|line| line.rsplit_once("image: ").or(line.rsplit_once("image(s): ")));
    let image = image.map(|(_, image)| image.trim().to_owned()).unwrap_or_else(|| panic!("{said}"));

    let scene = Scene::new();
    let names: Vec<_> = (1..=4).map(|hour| scene.archive("web", hour, Bytes::mib(8))).collect();
    let place = tempfile::tempdir().unwrap();
    let address = free_address().unwrap();
    std::fs::create_dir(place.path().join("log")).unwrap();
    let config = format!(
        "[[directory]]\npath = \"/guarded/checkpoints\"\n[pressure]\nsoft = false\n\
         hard = {{ available = \"64MiB\", inodes-free = \"2%\" }}\n\
         critical = {{ available = \"16MiB\", inodes-free = \"1%\" }}\n\
         minimum-reclaim = {{ available = \"8MiB\", inodes-free = \"1%\" }}\nkubelet-config = \"off\"\n\
         [eviction]\nmin-age = \"0s\"\nkeep-last = 0\n[metrics]\nlisten = \"{address}\"\n\
         [audit]\npath = \"/var/log/checkpoint-guard/audit.jsonl\"\n"
    );
    std::fs::write(place.path().join("guard.toml"), config).unwrap();
    let mut arguments: Vec<_> =
        ["--network=host", "--user=0", "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges"]
            .map(str::to_owned)
            .into();
    arguments.extend(capabilities().iter().map(|name| format!("--cap-add={name}")));
    let probe = [&arguments[..], &[image.clone(), "--version".to_owned()]].concat();
    let tried = [false, true].map(|is_beside| (is_beside, run(is_beside, &probe).output().unwrap()));
    let Some((is_beside, _)) = tried.iter().find(|(_, output)| output.status.success()) else {
        let why = tried.map(|(_, output)| String::from_utf8_lossy(&output.stderr).into_owned());
        println!("SKIPPED: podman loads the image, and can start no container here: {why:?}");
        return;
    };
    arguments.extend([
        format!("--volume={}:/guarded:rslave", scene.mount.path().display()),
        format!("--volume={}:/etc/checkpoint-guard:ro", place.path().display()),
        format!("--volume={}:/var/log/checkpoint-guard", place.path().join("log").display()),
        image,
        "run".to_owned(),
    ]);
    let log = place.path().join("said");
    let said = std::fs::File::create(&log).unwrap();
    let mut command = run(*is_beside, &arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
    let mut container = Container(command.spawn().unwrap());
    let wait = |what: &str, is_so: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is_so() {
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(began.elapsed() < Duration::from_secs(30), "not {what}: {}", said());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait("ready", &|| get(address, "/readyz").is_ok_and(|(status, _)| status == 200));
    scene.leave(Bytes::mib(60));
    let audit = place.path().join("log/audit.jsonl");
    let deleted = || {
        let lines = read_audit(&audit);
        let deleted = lines.iter().filter(|line| line["outcome"] == "deleted");
        deleted.map(|line| line["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    wait("making room", &|| deleted().len() == 2);
    assert_eq!(deleted(), names[..2]);
    let (_, metrics) = get(address, "/metrics").unwrap();
    let degraded = metrics.lines().find(|line| line.starts_with("checkpoint_guard_backend_degraded "));
    println!("{size} bytes; {degraded:?}");
    kill(Pid::from_raw(container.0.id().cast_signed()), Signal::SIGTERM).unwrap();
    let status = container.0.wait().unwrap();
    assert!(status.success(), "{status}: {}", std::fs::read_to_string(&log).unwrap());
}
