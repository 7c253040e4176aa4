//! Attackers who get hold of large archives while they are deleted: whoever has one, by whatever way, reads all of it, also
//! where it would be emptied rather than closed (docs/ARCHITECTURE.md, act/checkpoint_dir/farewell.rs).
//!
//! A second per filesystem; `CHECKPOINT_GUARD_RACE_SECONDS=120` for minutes, `cargo xtask test --soak` for one each.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use guard::act::checkpoint_dir::Expected;
use guard::act::refusal::Refused;
use nix::fcntl::AT_FDCWD;
use tests::arena::{Arena, Witness, race, remove_link};
use tests::checkpoints::checkpoint_at;
use tests::loopfs::Filesystem;

/// Large enough to be emptied rather than closed; on ext4 in three steps.
const LARGE: u64 = 5 << 20;

#[test]
fn a_large_one_is_never_cut_short_for_whoever_got_hold_of_it_in_whatever_way() {
    for filesystem in [Filesystem::Xfs, Filesystem::Ext4] {
        println!("{filesystem:?}");
        check_large_ones(&Arena::new(filesystem));
    }
}

fn check_large_ones(arena: &Arena) {
    let victim = arena.path.join("a.tar");
    let check = |file: &File, how: &str| {
        let mut page = [0; 4096];
        let len = file.metadata().unwrap().len();
        assert_eq!(len, LARGE, "{how}");
        for at in [0, LARGE / 2, LARGE - 4096] {
            std::os::unix::fs::FileExt::read_exact_at(file, &mut page, at).unwrap();
            assert_eq!(page, [1; 4096], "{how}");
        }
    };
    let (by_name, by_handle, by_link) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let pause = |turn: u64| std::thread::sleep(Duration::from_micros(turn.wrapping_mul(7919) % 3000));
    let open = |turn: u64| {
        if let Ok(file) = File::open(&victim) {
            check(&file, "opened by its name");
            by_name.fetch_add(1, Ordering::Relaxed);
        }
        pause(turn);
    };
    // As container runtimes do: a handle first, what it leads to later.
    let reopen = |turn: u64| {
        if let Some(Witness(handle)) = Witness::of(&victim) {
            pause(turn);
            if let Ok(file) = File::open(format!("/proc/self/fd/{}", handle.as_raw_fd())) {
                check(&file, "reopened by a handle");
                by_handle.fetch_add(1, Ordering::Relaxed);
            }
        }
        pause(turn + 1);
    };
    let link = arena.outside("link");
    let relink = |turn: u64| {
        if let Some(Witness(handle)) = Witness::of(&victim) {
            pause(turn);
            let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
            let flags = nix::fcntl::AtFlags::AT_SYMLINK_FOLLOW;
            if nix::unistd::linkat(AT_FDCWD, &*path, AT_FDCWD, &link, flags).is_ok() {
                drop(handle);
                check(&File::open(&link).unwrap(), "linked by a handle");
                remove_link(&link);
                by_link.fetch_add(1, Ordering::Relaxed);
            }
        }
        pause(turn + 2);
    };
    let (mut proved, mut doubted, mut refused) = (0, 0, 0);
    race(&[&open, &reopen, &relink], |turn| {
        if !victim.exists() {
            let fresh = arena.outside("fresh");
            fs::write(&fresh, vec![1; LARGE as usize]).unwrap();
            fs::rename(fresh, &victim).unwrap();
        }
        pause(turn);
        let planned = checkpoint_at(&victim);
        match arena.dir.unlink(&Expected::from(&planned), turn) {
            Ok(unlinked) => {
                if unlinked.is_unreachable() {
                    proved += 1
                } else {
                    doubted += 1
                }
                unlinked.free();
            }
            Err(Refused::Failed { call, errno }) => panic!("{call}: {errno}"),
            Err(_) => refused += 1,
        }
    });
    println!(
        "{proved} truncated, {doubted} closed, {refused} refused; opened {by_name:?} {by_handle:?} {by_link:?} times"
    );
    assert!(proved > 0 && doubted > 0, "no race: {proved} proved, {doubted} doubted, {refused} refused");
}

#[test]
fn that_nobody_can_get_at_a_large_one_is_known_and_that_somebody_can_as_well() {
    for filesystem in [Filesystem::Xfs, Filesystem::Ext4] {
        check_that_it_is_known(&Arena::new(filesystem));
    }
}

fn check_that_it_is_known(arena: &Arena) {
    let path = arena.path.join("a.tar");
    for has_handle in [false, true] {
        fs::write(&path, vec![1; LARGE as usize]).unwrap();
        let handle = has_handle.then(|| Witness::of(&path).unwrap());
        let unlinked = arena.dir.unlink(&Expected::from(&checkpoint_at(&path)), 1).unwrap();
        assert_eq!(unlinked.is_unreachable(), !has_handle);
        unlinked.free();
        if let Some(Witness(handle)) = handle {
            let content = fs::read(format!("/proc/self/fd/{}", handle.as_raw_fd())).unwrap();
            assert!(content == vec![1; LARGE as usize], "{} bytes are left", content.len());
        }
    }
}
