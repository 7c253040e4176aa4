//! The watched directory is renamed, replaced, mounted over: what counts is what lies at its path, also where writes are seen
//! at the virtual filesystem's functions. Root only.

use std::path::Path;

use guard::model::Bytes;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::{Scene, directory_table};
use tests::setting::Daemon;

const LEN: usize = 1 << 20;

fn uses(daemon: &Daemon, backend: &str) -> bool {
    daemon.metric(&format!("checkpoint_guard_backend_info{{backend=\"{backend}\"}}")) == Some(1.0)
}

/// Waits until the guard has taken up directories so many times, each time by a probe file that was counted in full; and
/// then for what somebody else writes there.
#[track_caller]
fn counts(daemon: &mut Daemon, times: usize, directory: &Path, when: &str) {
    daemon.wait_until(when, |daemon| daemon.log().matches("eBPF counts what is written").count() >= times);
    let written = |daemon: &Daemon| daemon.metric("checkpoint_guard_written_bytes_total").unwrap_or_default();
    let before = written(daemon);
    std::fs::write(directory.join("counted"), vec![1; LEN]).unwrap();
    daemon.wait_until(when, |daemon| written(daemon) >= before + LEN as f64);
}

fn check(filesystem: Filesystem) {
    if !filesystem.is_known() {
        println!("SKIPPED on {}: this kernel has none", filesystem.as_str());
        return;
    }
    let scene = Scene::on(LoopMount::new(filesystem, Bytes::mib(320)));
    scene.configure("");
    let mut daemon = scene.setting.start();
    let directory = scene.directory();
    if uses(&daemon, "inotify") {
        println!("SKIPPED on {}: nothing counts there on this kernel", filesystem.as_str());
        return;
    }
    counts(&mut daemon, 1, &directory, "counting");

    let aside = scene.mount.path().join("aside");
    std::fs::rename(&directory, &aside).unwrap();
    std::fs::create_dir(&directory).unwrap();
    counts(&mut daemon, 2, &directory, "counting in the new directory");

    // Another filesystem mounted over it, and taken away again.
    let over = LoopMount::new(Filesystem::Ext4, Bytes::mib(320));
    let nothing = None::<&str>;
    mount(Some(over.path()), &directory, nothing, MsFlags::MS_BIND, nothing).unwrap();
    counts(&mut daemon, 3, &directory, "counting in what is mounted over it");
    umount2(&directory, MntFlags::MNT_DETACH).unwrap();
    counts(&mut daemon, 4, &directory, "counting below again");

    // The old one comes back in its place.
    std::fs::rename(&directory, scene.mount.path().join("gone")).unwrap();
    std::fs::rename(&aside, &directory).unwrap();
    counts(&mut daemon, 5, &directory, "counting in the one that came back");
}

#[test]
fn on_tmpfs() {
    check(Filesystem::Tmpfs);
}

#[test]
fn on_xfs() {
    check(Filesystem::Xfs);
}

#[test]
fn two_directories_of_one_filesystem_are_two() {
    let scene = Scene::on(LoopMount::new(Filesystem::Tmpfs, Bytes::mib(320)));
    let second = scene.mount.path().join("second");
    std::fs::create_dir(&second).unwrap();
    scene.configure(&directory_table(&second));
    let mut daemon = scene.setting.start();
    if uses(&daemon, "inotify") {
        println!("SKIPPED: nothing counts on tmpfs on this kernel");
        return;
    }
    counts(&mut daemon, 2, &scene.directory(), "counting in the first");
    counts(&mut daemon, 2, &second, "counting in the second");
}
