//! What the probe counts on filesystems other than ext4: pages that become dirty, and direct writes. Root only.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use guard::model::Bytes;
use guard::observe::probe::{Backend, Coverage, SelfTest};
use tests::loopfs::{Filesystem, LoopMount};
use tests::watching::Watching;
use tests::ways::Way;

const ON_DISK: [Filesystem; 2] = [Filesystem::Xfs, Filesystem::Btrfs];

fn watching(filesystem: Filesystem) -> Watching {
    let mount = LoopMount::new(filesystem, Bytes::mib(320));
    Watching::through(Backend::RawTracepoint, mount).expect("every kernel takes raw tracepoints")
}

#[test]
fn pages_are_covered_and_the_self_test_agrees() {
    for filesystem in ON_DISK {
        let watching = watching(filesystem);
        assert!(matches!(watching.coverage, Coverage::Pages { .. }), "{filesystem:?}");
        let outcome = watching.probe.self_test(watching.directory());
        assert!(matches!(outcome, Ok(SelfTest::Counts)), "{filesystem:?}: {outcome:?}");
    }
}

#[test]
fn every_way_that_writes_is_counted_exactly_in_whole_pages() {
    for filesystem in ON_DISK {
        let watching = watching(filesystem);
        for len in [4096, 300 << 10, 3 << 20] {
            for way in Way::ALL {
                let path = watching.path().join(format!("{way:?}-{len}"));
                let file = way.write(&path, watching.mount().path(), len).unwrap();
                let expect = match way {
                    // A reflink takes no space, allocating without writing dirties no page: both are for statfs.
                    Way::CopyFileRange | Way::Fallocate | Way::FallocateKeepSize => 0,
                    _ => len as u64,
                };
                assert_eq!(watching.counted(&file), Bytes(expect), "{filesystem:?}: {way:?} of {len}");
            }
        }
    }
}

#[test]
fn odd_sizes_are_rounded_up_to_pages() {
    for filesystem in ON_DISK {
        let watching = watching(filesystem);
        for len in [1, 4095, 4097, 100_000] {
            let path = watching.path().join(format!("{len}"));
            let file = Way::Write.write(&path, watching.mount().path(), len).unwrap();
            let pages = Bytes((len as u64).next_multiple_of(4096));
            assert_eq!(watching.counted(&file), pages, "{filesystem:?}: {len} bytes");
        }
    }
}

#[test]
fn rewriting_counts_once_for_each_time_it_went_to_disk() {
    for filesystem in ON_DISK {
        let watching = watching(filesystem);
        let file = File::create(watching.path().join("a")).unwrap();
        for _ in 0..3 {
            file.write_all_at(&[1; 64 << 10], 0).unwrap();
        }
        assert_eq!(watching.counted(&file), Bytes(64 << 10), "{filesystem:?}: dirty pages count once");
        file.sync_all().unwrap();
        file.write_all_at(&[1; 64 << 10], 0).unwrap();
        assert_eq!(
            watching.counted(&file),
            Bytes(128 << 10),
            "{filesystem:?}: written back, they count again"
        );
    }
}

#[test]
fn reading_counts_nothing() {
    for filesystem in ON_DISK {
        let watching = watching(filesystem);
        let path = watching.path().join("a");
        let mut file = File::create(&path).unwrap();
        file.write_all(&[1; 64 << 10]).unwrap();
        file.sync_all().unwrap();
        for flags in [0, libc::O_DIRECT] {
            let mut buffer = vec![0; (64 << 10) + 4096];
            let start = buffer.as_ptr().align_offset(4096);
            let buffer = &mut buffer[start..start + (64 << 10)];
            File::options().read(true).custom_flags(flags).open(&path).unwrap().read_exact(buffer).unwrap();
        }
        assert_eq!(watching.counted(&file), Bytes(64 << 10), "{filesystem:?}");
    }
}

#[test]
fn of_tmpfs_nothing_is_seen_and_that_is_said() {
    let mount = LoopMount::new(Filesystem::Tmpfs, Bytes::mib(16));
    let watching =
        Watching::through(Backend::RawTracepoint, mount).expect("every kernel takes raw tracepoints");
    assert_eq!(watching.coverage, Coverage::Nothing);
    assert_eq!(watching.coverage.to_string(), "nothing, statfs only");
    assert!(watching.probe.self_test(watching.directory()).is_err());
}
