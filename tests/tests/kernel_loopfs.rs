//! The loop mounts that the other tests stand on. Root only.

use guard::model::Bytes;
use tests::loopfs::{Filesystem, LoopMount};

#[track_caller]
fn check(filesystem: Filesystem, size: Bytes) {
    let mount = LoopMount::new(filesystem, size);
    let path = mount.path().to_owned();
    let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = format!(" {} {} ", path.display(), filesystem.as_str());
    assert!(mounts().contains(&line), "{} is not mounted", path.display());
    std::fs::write(path.join("file"), "there").unwrap();

    let statistics = nix::sys::statvfs::statvfs(&path).unwrap();
    let total = statistics.blocks() * statistics.fragment_size();
    assert!(total <= size.0 && total > size.0 / 2, "{total} of {size:?}");

    drop(mount);
    assert!(!mounts().contains(&line), "{} is still mounted", path.display());
    assert!(!path.exists());
}

#[test]
fn a_filesystem_of_each_type_is_there_until_dropped() {
    check(Filesystem::Ext4, Bytes::mib(64));
    check(Filesystem::Xfs, Bytes::mib(300));
    check(Filesystem::Btrfs, Bytes::mib(128));
    check(Filesystem::Tmpfs, Bytes::mib(16));
}
