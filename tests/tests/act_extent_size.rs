//! Files that grow on xfs take what is written and no more.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Command;

use guard::act::extent_size::{Hint, ensure, fitting};
use guard::model::Bytes;
use nix::errno::Errno;
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::available_at;
use tests::setting::Setting;

const SIZE: Bytes = Bytes::mib(16);

/// Writes `len` in pieces of 1 MiB; the largest fall of what is available from one piece to the next.
fn largest_step(path: &Path, len: Bytes) -> Bytes {
    let mut file = File::create(path).unwrap();
    let piece = vec![1; 1 << 20];
    let mut before = available_at(path);
    let mut largest = Bytes::ZERO;
    for _ in 0..len.0 >> 20 {
        file.write_all(&piece).unwrap();
        let now = available_at(path);
        largest = largest.max(before.saturating_sub(now));
        before = now;
    }
    largest
}

/// The hint of a file or directory, as xfs_io(8) sees it.
fn hint_of(path: &Path) -> u64 {
    let output = Command::new("xfs_io").args(["-r", "-c", "extsize"]).arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim_start_matches('[').split(']').next().unwrap().parse().unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn a_growing_file_takes_smaller_steps_with_the_hint() {
    let mount = LoopMount::new(Filesystem::Xfs, Bytes::gib(1));
    let directory = File::open(mount.path()).unwrap();
    let without = largest_step(&mount.path().join("before"), Bytes::mib(40));
    assert!(without > SIZE, "nothing to prevent: {without}");

    let hint = ensure(directory.as_fd(), SIZE).unwrap();
    assert_eq!(hint, Hint { size: SIZE, was_there: false });
    let with = largest_step(&mount.path().join("after"), Bytes::mib(40));
    assert!(with <= SIZE, "{with}");

    let pod = mount.path().join("pod");
    std::fs::create_dir(&pod).unwrap();
    let below = largest_step(&pod.join("pages-1.img"), Bytes::mib(40));
    assert!(below <= SIZE, "a pod checkpoint's directory inherits it: {below}");
}

#[test]
fn a_hint_costs_a_small_file_nothing() {
    let mount = LoopMount::new(Filesystem::Xfs, Bytes::mib(320));
    let directory = File::open(mount.path()).unwrap();
    ensure(directory.as_fd(), SIZE).unwrap();
    let path = mount.path().join("small.tar");
    std::fs::write(&path, vec![1; 5000]).unwrap();
    nix::unistd::syncfs(&directory).unwrap();
    assert_eq!(hint_of(&path), SIZE.0);
    assert_eq!(std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap()) * 512, 8192);
}

#[test]
fn on_a_small_filesystem_steps_are_small() {
    assert_eq!(fitting(SIZE, Bytes::gib(100)), SIZE);
    assert_eq!(fitting(SIZE, Bytes::gib(1) + Bytes::mib(10)), SIZE);
    assert_eq!(fitting(SIZE, Bytes::mib(960)), Bytes::mib(2));
    assert_eq!(fitting(SIZE, Bytes::mib(20)), Bytes::mib(1));
    assert_eq!(fitting(Bytes(64 << 10), Bytes::gib(1)), Bytes(64 << 10), "what is smaller stays");
}

#[test]
fn what_an_administrator_has_set_stays() {
    let mount = LoopMount::new(Filesystem::Xfs, Bytes::mib(320));
    let directory = File::open(mount.path()).unwrap();
    assert!(Command::new("xfs_io").args(["-c", "extsize 4m"]).arg(mount.path()).status().unwrap().success());
    let hint = ensure(directory.as_fd(), SIZE).unwrap();
    assert_eq!(hint, Hint { size: Bytes::mib(4), was_there: true });
    assert_eq!(hint_of(mount.path()), Bytes::mib(4).0);
}

#[test]
fn filesystems_without_hints_and_read_only_ones_say_so() {
    let ext4 = LoopMount::new(Filesystem::Ext4, Bytes::mib(64));
    let error = ensure(File::open(ext4.path()).unwrap().as_fd(), SIZE).unwrap_err();
    assert!(matches!(error, Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::EINVAL), "{error}");
    let xfs = LoopMount::new(Filesystem::Xfs, Bytes::mib(320));
    assert!(Command::new("mount").args(["-o", "remount,ro"]).arg(xfs.path()).status().unwrap().success());
    assert_eq!(ensure(File::open(xfs.path()).unwrap().as_fd(), SIZE), Err(Errno::EROFS));
}

/// Starts the daemon on an xfs; the hint that the directory has then.
#[track_caller]
fn check_daemon(directory: &str, arguments: &[&str], expect: Bytes, log: &str) {
    let mount = LoopMount::new(Filesystem::Xfs, Bytes::mib(320));
    let setting = Setting::new();
    let rest = "[pressure]\nkubelet-config = \"off\"\n";
    setting.configure(&format!("[[directory]]\npath = \"{}\"\n{directory}\n{rest}", mount.path().display()));
    let mut daemon = setting.start_with(arguments, &mut |_| {});
    daemon.wait_until_ready();
    assert_eq!(hint_of(mount.path()), expect.0, "{}", daemon.log());
    assert!(daemon.log().contains(log), "{}", daemon.log());
    daemon.stop();
}

#[test]
fn the_daemon_sets_it_and_says_so() {
    check_daemon("", &[], Bytes::mib(2), "extent size hint");
    check_daemon("extent-size = \"256KiB\"", &[], Bytes(256 << 10), "extent size hint");
}

#[test]
fn the_daemon_leaves_directories_alone_when_told_to() {
    check_daemon("extent-size = false", &[], Bytes::ZERO, "");
    check_daemon("", &["--dry-run"], Bytes::ZERO, "");
    check_daemon("layout = \"staging\"", &[], Bytes::ZERO, "");
}
