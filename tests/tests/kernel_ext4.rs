//! What the probe counts on ext4: every block, exactly. Root only.

use std::fs::File;
use std::io::Write;

use guard::model::Bytes;
use guard::observe::probe::{Coverage, SelfTest};
use nix::fcntl::{FallocateFlags, fallocate};
use tests::loopfs::{Filesystem, LoopMount};
use tests::watching::{Watching, allocated};
use tests::ways::Way;

fn ext4() -> Watching {
    Watching::new(LoopMount::new(Filesystem::Ext4, Bytes::mib(128)))
}

/// That the ledger says what `st_blocks` says, before writeback and after.
#[track_caller]
fn check(watching: &Watching, file: &File, what: &str) {
    assert_eq!(watching.counted(file), allocated(file), "{what}, before writeback");
    file.sync_all().unwrap();
    assert_eq!(watching.counted(file), allocated(file), "{what}, after writeback");
}

#[test]
fn ext4_is_covered_and_the_self_test_agrees() {
    let watching = ext4();
    assert_eq!(watching.coverage, Coverage::Blocks);
    assert!(matches!(watching.probe.self_test(watching.directory()), Ok(SelfTest::Counts)));
}

#[test]
fn every_way_of_writing_is_counted_exactly() {
    let watching = ext4();
    for len in [4096, 300 << 10, 3 << 20] {
        for way in Way::ALL {
            let path = watching.path().join(format!("{way:?}-{len}"));
            let file = way.write(&path, watching.mount().path(), len).unwrap();
            assert_eq!(watching.counted(&file), Bytes(len as u64), "{way:?} of {len}");
            check(&watching, &file, &format!("{way:?} of {len}"));
        }
    }
}

#[test]
fn every_way_is_counted_exactly_without_delayed_allocation_too() {
    let mount = LoopMount::with_options(Filesystem::Ext4, Bytes::mib(128), &[], "nodelalloc").unwrap();
    let watching = Watching::new(mount);
    for way in Way::ALL {
        let file =
            way.write(&watching.path().join(format!("{way:?}")), watching.mount().path(), 300 << 10).unwrap();
        check(&watching, &file, &format!("{way:?}"));
    }
}

#[test]
fn blocks_of_other_sizes_are_counted_exactly() {
    for (arguments, smallest) in [
        (&["-b", "1024"][..], Bytes(1024)),
        (&["-b", "2048"], Bytes(2048)),
        (&["-O", "bigalloc", "-C", "65536"], Bytes(65536)),
    ] {
        let mount = LoopMount::with_options(Filesystem::Ext4, Bytes::mib(128), arguments, "").unwrap();
        let watching = Watching::new(mount);
        let elsewhere = watching.mount().path();
        for way in Way::ALL {
            let file = way.write(&watching.path().join(format!("{way:?}")), elsewhere, 300 << 10).unwrap();
            check(&watching, &file, &format!("{way:?} with {arguments:?}"));
        }
        let file = Way::Write.write(&watching.path().join("smallest"), elsewhere, 1).unwrap();
        assert_eq!(watching.counted(&file), smallest, "{arguments:?}");
    }
}

#[test]
fn odd_sizes_are_rounded_up_to_blocks() {
    let watching = ext4();
    for len in [1, 4095, 4097, 100_000] {
        let file =
            Way::Write.write(&watching.path().join(format!("{len}")), watching.mount().path(), len).unwrap();
        check(&watching, &file, &format!("{len} bytes"));
    }
}

#[test]
fn overwriting_counts_nothing_and_truncating_takes_back() {
    let watching = ext4();
    let mut file = File::create(watching.path().join("a")).unwrap();
    file.write_all(&[1; 64 << 10]).unwrap();
    for _ in 0..3 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[2; 64 << 10], 0).unwrap();
        check(&watching, &file, "overwritten");
        assert_eq!(watching.counted(&file), Bytes(64 << 10));
    }
    file.set_len(10 << 10).unwrap();
    check(&watching, &file, "truncated after writeback");
    file.set_len(1 << 30).unwrap();
    check(&watching, &file, "grown without data");
    file.write_all(&[3; 64 << 10]).unwrap();
    file.set_len(0).unwrap();
    check(&watching, &file, "truncated before writeback");
    assert_eq!(watching.counted(&file), Bytes::ZERO);
}

#[test]
fn allocating_over_dirty_pages_and_punching_holes_is_counted_exactly() {
    let watching = ext4();
    let mut file = File::create(watching.path().join("a")).unwrap();
    file.write_all(&[1; 64 << 10]).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 128 << 10).unwrap();
    check(&watching, &file, "fallocate over dirty pages");
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, punch, 16 << 10, 32 << 10).unwrap();
    check(&watching, &file, "a hole punched");
    assert_eq!(watching.counted(&file), Bytes(96 << 10));
}
