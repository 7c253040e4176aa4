//! Whose file is it: below the watched directory at any depth, and no other. Root only.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use guard::model::Bytes;
use guard::observe::probe::{Probe, Slot, Written};
use tests::loopfs::{Filesystem, LoopMount};
use tests::watching::{Watching, file_id};
use tests::ways::Mapping;

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

/// Stores a byte into every page of each of `files`, from four threads. `together`: all threads share each file's
/// pages, meeting before each; else each has files of its own.
fn write_from_four_threads(files: &[Mapping], together: bool) {
    const THREADS: usize = 4;
    let start = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for (n, file) in files.iter().enumerate() {
                    if together {
                        start.wait();
                        file.dirty_pages((thread * 4096..LEN.0 as usize).step_by(THREADS * 4096));
                    } else if n % THREADS == thread {
                        file.dirty_pages((0..LEN.0 as usize).step_by(4096));
                    }
                }
            });
        }
    });
}

#[test]
fn writers_at_the_same_time_lose_no_byte() {
    const FILES: u64 = 500;
    // Through mappings, since write(2) waits for others at the inode's lock.
    for (filesystem, together) in
        [(Filesystem::Ext4, true), (Filesystem::Ext4, false), (Filesystem::Xfs, true)]
    {
        let watching = watching(filesystem);
        let new = |n| {
            let path = watching.path().join(format!("{n}"));
            let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
            file.set_len(LEN.0).unwrap();
            file
        };
        let files: Vec<File> = (0..FILES).map(new).collect();
        let mappings: Vec<Mapping> = files.iter().map(|file| Mapping::new(file, LEN.0 as usize)).collect();
        write_from_four_threads(&mappings, together);
        for file in &files {
            assert_eq!(watching.counted(file), LEN, "{filesystem:?}, together: {together}");
        }
        let added = watching.probe.written(Watching::SLOT).unwrap().added;
        assert_eq!(added, Bytes(FILES * LEN.0), "{filesystem:?}, together: {together}");
    }
}
