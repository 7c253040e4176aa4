//! Whose file is it: below the watched directory at any depth, and no other. Root only.
#![expect(clippy::unwrap_used, reason = "a test that cannot set the scene fails")]

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use guard::model::Bytes;
use guard::observe::probe::{Probe, Slot, Written};
use tests::loopfs::{Filesystem, LoopMount};
use tests::watching::{Watching, allocated, file_id};

const LEN: Bytes = Bytes(64 << 10);

fn watching(filesystem: Filesystem) -> Watching {
    Watching::new(LoopMount::new(filesystem, Bytes::mib(320)))
}

fn write(mut file: &File) {
    file.write_all(&vec![1; LEN.0 as usize]).unwrap();
}

#[test]
fn any_depth_below_counts_and_beside_does_not() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs] {
        let watching = watching(filesystem);
        let mut directory = watching.path().clone();
        for depth in 1..=16 {
            let file = File::create(directory.join("file")).unwrap();
            write(&file);
            assert_eq!(watching.counted(&file), LEN, "{filesystem:?}, {depth} deep");
            directory.push(format!("level-{depth}"));
            fs::create_dir(&directory).unwrap();
        }
        for beside in [watching.mount().path().join("file"), watching.mount().path().join("checkpoints2")] {
            let file = File::create(beside).unwrap();
            write(&file);
            assert_eq!(watching.entry(&file), None, "{filesystem:?}");
        }
    }
}

#[test]
fn equal_inode_numbers_on_two_filesystems_are_two_files() {
    let first = watching(Filesystem::Ext4);
    let second_mount = LoopMount::new(Filesystem::Ext4, Bytes::mib(64));
    let path = second_mount.path().join("checkpoints");
    fs::create_dir(&path).unwrap();
    let directory = File::open(&path).unwrap();
    first.probe.watch(Slot(1), directory.as_fd()).unwrap();

    let a = File::create(first.path().join("a")).unwrap();
    let b = File::create(path.join("b")).unwrap();
    assert_eq!(a.metadata().unwrap().ino(), b.metadata().unwrap().ino(), "the scene");
    write(&a);
    assert_eq!((first.counted(&a), first.counted(&b)), (LEN, Bytes::ZERO));
    write(&b);
    write(&b);
    assert_eq!((first.counted(&a), first.counted(&b)), (LEN, Bytes(2 * LEN.0)));
    let added = |slot| first.probe.written(slot).unwrap().added;
    assert_eq!((added(Slot(0)), added(Slot(1))), (LEN, Bytes(2 * LEN.0)));
}

#[test]
fn btrfs_files_are_named_as_stat_names_them() {
    let watching = watching(Filesystem::Btrfs);
    let file = File::create(watching.path().join("a")).unwrap();
    write(&file);
    assert_eq!(watching.probe.ledger().unwrap()[0].file, file_id(&file));
}

#[test]
fn a_file_counts_while_its_name_is_inside() {
    let watching = watching(Filesystem::Ext4);
    let (inside, outside) = (watching.path().join("a"), watching.mount().path().join("a"));
    let file = File::create(&outside).unwrap();
    write(&file);
    assert_eq!(watching.entry(&file), None);
    fs::rename(&outside, &inside).unwrap();
    write(&file);
    assert_eq!(watching.counted(&file), LEN, "only what was written inside");
    fs::rename(&inside, &outside).unwrap();
    write(&file);
    assert_eq!(watching.counted(&file), LEN);
}

#[test]
fn one_name_inside_among_others_is_enough() {
    let watching = watching(Filesystem::Ext4);
    let (inside, outside) = (watching.path().join("a"), watching.mount().path().join("a"));
    let file = File::create(&inside).unwrap();
    fs::hard_link(&inside, &outside).unwrap();
    write(&file);
    assert_eq!(watching.counted(&file), LEN, "linked out");

    let (inside, outside) = (watching.path().join("b"), watching.mount().path().join("b"));
    let file = File::create(&outside).unwrap();
    fs::hard_link(&outside, &inside).unwrap();
    write(&file);
    assert_eq!(watching.counted(&file), LEN, "linked in, written by the other name");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "deleting is what is tested")]
fn an_unlinked_file_counts_until_it_is_closed_and_then_gives_everything_back() {
    let watching = watching(Filesystem::Ext4);
    let path = watching.path().join("a");
    let file = File::create(&path).unwrap();
    write(&file);
    fs::remove_file(&path).unwrap();
    write(&file);
    assert_eq!(watching.counted(&file), Bytes(2 * LEN.0));
    drop(file);
    assert_eq!(watching.probe.ledger().unwrap(), [], "the ledger forgets deleted files by itself");
    let Written { added, freed } = watching.probe.written(Watching::SLOT).unwrap();
    assert_eq!((added, freed), (Bytes(2 * LEN.0), Bytes(2 * LEN.0)));
}

#[test]
fn a_file_from_before_the_guard_gives_back_when_truncated() {
    let mount = LoopMount::new(Filesystem::Ext4, Bytes::mib(64));
    let directory = mount.path().join("checkpoints");
    fs::create_dir(&directory).unwrap();
    let file = File::create(directory.join("a")).unwrap();
    write(&file);
    file.sync_all().unwrap();

    let (probe, _wakes) = Probe::load().unwrap();
    let directory = File::open(&directory).unwrap();
    probe.watch(Slot(3), directory.as_fd()).unwrap();
    file.set_len(0).unwrap();
    let Written { added, freed } = probe.written(Slot(3)).unwrap();
    assert_eq!((added, freed), (Bytes::ZERO, LEN));
}

#[test]
fn an_unwatched_directory_no_longer_counts() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs] {
        let watching = watching(filesystem);
        watching.probe.unwatch(watching.directory()).unwrap();
        let file = File::create(watching.path().join("a")).unwrap();
        write(&file);
        assert_eq!(watching.entry(&file), None, "{filesystem:?}");
        watching.probe.watch(Watching::SLOT, watching.directory()).unwrap();
        write(&file);
        assert_eq!(watching.counted(&file), LEN, "{filesystem:?}, watched again");
    }
}

#[test]
fn writers_at_the_same_time_lose_no_byte() {
    let watching = watching(Filesystem::Ext4);
    // Many files, each begun by all writers together: the first insertion into the ledger is the delicate moment.
    let files: Vec<File> =
        (0..200).map(|n| File::create(watching.path().join(format!("{n}"))).unwrap()).collect();
    let start = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for writer in 0..4u64 {
            let (files, start) = (&files, &start);
            scope.spawn(move || {
                start.wait();
                for file in files {
                    std::os::unix::fs::FileExt::write_all_at(file, &[1; 16 << 10], writer * (16 << 10))
                        .unwrap();
                }
            });
        }
    });
    for file in &files {
        assert_eq!(watching.counted(file), allocated(file));
        assert_eq!(watching.counted(file), LEN);
    }
    assert_eq!(watching.probe.written(Watching::SLOT).unwrap().added, Bytes(200 * LEN.0));
}
