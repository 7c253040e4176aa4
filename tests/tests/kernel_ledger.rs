//! The ledger: who wrote, what is forgotten, and what happens when it is full. Root only.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;
use std::time::Duration;

use guard::model::Bytes;
use tests::loopfs::{Filesystem, LoopMount};
use tests::watching::{Watching, allocated, file_id};

#[test]
fn the_last_writer_is_named() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs] {
        let watching = Watching::new(LoopMount::new(filesystem, Bytes::mib(320)));
        let path = watching.path().join("a");
        let mut file = File::create(&path).unwrap();
        file.write_all(&[1; 4096]).unwrap();
        assert_eq!(watching.entry(&file).unwrap().writer.pid, std::process::id());
        let before = watching.entry(&file).unwrap().last;
        // Two writes within one tick of the kernel's clock have the same time.
        std::thread::sleep(Duration::from_millis(20));

        let arguments = ["if=/dev/zero", "bs=64K", "count=1", "conv=notrunc,fsync", "seek=1", "status=none"];
        let mut dd =
            Command::new("dd").args(arguments).arg(format!("of={}", path.display())).spawn().unwrap();
        let pid = dd.id();
        assert!(dd.wait().unwrap().success());
        let entry = watching.entry(&file).unwrap();
        assert_eq!((entry.writer.pid, entry.writer.comm.as_str()), (pid, "dd"), "{filesystem:?}");
        assert!(entry.last > before && entry.writer.cgroup != 0, "{entry:?}");
    }
}

#[test]
fn a_direct_writer_is_named_though_its_request_ends_elsewhere() {
    let watching = Watching::new(LoopMount::new(Filesystem::Xfs, Bytes::mib(320)));
    let path = watching.path().join("a");
    let arguments = ["if=/dev/zero", "bs=1M", "count=4", "oflag=direct", "status=none"];
    let mut dd = Command::new("dd").args(arguments).arg(format!("of={}", path.display())).spawn().unwrap();
    let pid = dd.id();
    assert!(dd.wait().unwrap().success());
    let entry = watching.entry(&File::open(&path).unwrap()).unwrap();
    assert_eq!((entry.bytes, entry.writer.pid, entry.writer.comm.as_str()), (Bytes::mib(4), pid, "dd"));
}

#[test]
fn a_forgotten_file_begins_at_zero() {
    let watching = Watching::new(LoopMount::new(Filesystem::Ext4, Bytes::mib(64)));
    let mut file = File::create(watching.path().join("a")).unwrap();
    file.write_all(&[1; 8192]).unwrap();
    watching.probe.forget(file_id(&file)).unwrap();
    assert_eq!(watching.entry(&file), None);
    watching.probe.forget(file_id(&file)).unwrap();
    file.write_all(&[1; 4096]).unwrap();
    assert_eq!(watching.counted(&file), Bytes(4096));
}

#[test]
fn files_that_nobody_writes_to_are_swept_and_begin_at_zero() {
    let watching = Watching::new(LoopMount::new(Filesystem::Xfs, Bytes::mib(320)));
    let write = |name: &str| {
        let mut file = File::create(watching.path().join(name)).unwrap();
        file.write_all(&[1; 8192]).unwrap();
        file
    };
    let files = ["idle", "idle too", "busy"].map(write);
    let since = watching.entry(&files[2]).unwrap().last;
    let entries = watching.probe.ledger().unwrap();
    assert_eq!(watching.probe.sweep(&entries, since).unwrap(), 2);
    assert_eq!(files.each_ref().map(|file| watching.entry(file).is_some()), [false, false, true]);
    assert_eq!(watching.probe.lost().unwrap().ledger_full, 0);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "deleting is what is tested")]
fn deleted_files_leave_the_ledger_even_if_counted_too_much() {
    // bigalloc frees the rest of a last cluster without telling.
    let arguments = ["-O", "bigalloc", "-C", "65536"];
    let mount = LoopMount::with_options(Filesystem::Ext4, Bytes::mib(128), &arguments, "").unwrap();
    let watching = Watching::new(mount);
    let path = watching.path().join("a");
    let mut file = File::create(&path).unwrap();
    file.write_all(&[1; 100_000]).unwrap();
    file.sync_all().unwrap();
    assert_eq!(watching.counted(&file), allocated(&file));
    fs::remove_file(&path).unwrap();
    drop(file);
    for _ in 0..2 {
        assert_eq!(watching.probe.ledger().unwrap(), []);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "deleting is what is tested")]
fn a_full_ledger_counts_what_it_misses_and_the_budget_goes_on() {
    const ROOM: u64 = 16 * 1024;
    let arguments = ["-b", "1024", "-N", "20000"];
    let mount = LoopMount::with_options(Filesystem::Ext4, Bytes::mib(128), &arguments, "").unwrap();
    let watching = Watching::new(mount);
    let directory = watching.path().join("d");
    fs::create_dir(&directory).unwrap();
    for n in 0..ROOM + 100 {
        fs::write(directory.join(format!("{n}")), [1; 1024]).unwrap();
    }
    let lost = watching.probe.lost().unwrap();
    // The directory's own blocks are counted too.
    assert_eq!(watching.probe.ledger().unwrap().len() as u64, ROOM);
    assert!(lost.ledger_full >= 100, "{lost:?}");
    let added = watching.probe.written(Watching::SLOT).unwrap().added;
    assert!(added >= Bytes((ROOM + 100) * 1024), "{added:?}");

    fs::remove_dir_all(&directory).unwrap();
    let file = File::create(watching.path().join("a")).unwrap();
    fs::write(watching.path().join("a"), [1; 1024]).unwrap();
    assert_eq!(watching.counted(&file), Bytes(1024), "there is room again");
}
