//! Attackers rename, replace, link, pin, open and rewrite entries while they are being deleted. What must never
//! happen is checked from outside, by inode: a file that was pinned, open, replaced, or none of the plan's is gone.
//!
//! A second per filesystem; `CHECKPOINT_GUARD_RACE_SECONDS=120` for minutes, `cargo xtask test --soak` for one each.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use guard::act::checkpoint_dir::Expected;
use guard::act::pin;
use guard::act::refusal::Refused;
use guard::observe::scan::measure;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use tests::arena::{Arena, LEN, Witness, breathe, on_every_filesystem, race, remove_link};
use tests::checkpoints::checkpoint_at;

#[test]
fn what_replaces_the_victim_is_never_deleted_in_its_place() {
    on_every_filesystem(|arena| {
        let victim = arena.path.join("a.tar");
        // Nothing but the guard deletes here: the attacker only exchanges, so that each inode always has a name,
        // until the guard takes one away. Then it must be the one that was planned.
        let pool: Vec<PathBuf> = (0..3).map(|n| arena.outside(&format!("pool-{n}"))).collect();
        let exchange = |turn: u64| {
            let other = &pool[turn as usize % pool.len()];
            let _ = renameat2(AT_FDCWD, other, AT_FDCWD, &victim, RenameFlags::RENAME_EXCHANGE);
        };
        let (mut deleted, mut refused) = (0, 0);
        let turns = race(&[&exchange], |turn| {
            for path in &pool {
                if fs::symlink_metadata(path).is_err() {
                    fs::write(path, [2; LEN]).unwrap();
                }
            }
            if fs::symlink_metadata(&victim).is_err() {
                fs::write(arena.outside("next"), [1; LEN]).unwrap();
                let from = arena.outside("next");
                let _ = renameat2(AT_FDCWD, &from, AT_FDCWD, &victim, RenameFlags::RENAME_NOREPLACE);
            }
            let Ok(file) = File::open(&victim) else { return };
            let planned_inode = file.metadata().unwrap().ino();
            drop(file);
            let planned = checkpoint_at(&victim);
            if planned.file.ino != planned_inode {
                return;
            }
            let all: Vec<Witness> =
                pool.iter().chain([&victim]).filter_map(|path| Witness::of(path)).collect();
            let result = arena.dir.remove(&Expected::from(&planned), turn);
            deleted += u64::from(result.is_ok());
            refused += u64::from(result.is_err());
            for witness in all {
                let gone = witness.links() == 0;
                let may_go = witness.inode() == planned.file.ino && result.is_ok();
                assert!(!gone || may_go, "inode {} is gone, {planned:?}, {result:?}", witness.inode());
            }
        });
        println!("{turns} turns: {deleted} deleted, {refused} refused");
        assert!(deleted > 0 && refused > 0, "no race: {deleted} deleted, {refused} refused");
    });
}

#[test]
fn what_is_pinned_at_any_moment_is_never_deleted() {
    on_every_filesystem(|arena| {
        let name: OsString = "a.tar".into();
        let pin_it = |_| {
            if pin::pin(&arena.dir, &name) == Ok(true) {
                // It may be missing for the moment in which a deletion takes its name, looks for the marker a
                // second time, and gives the name back. What is deleted never comes back: nobody makes a new one,
                // because the deletion returns only then.
                let inode = (0..1000).find_map(|_| {
                    std::thread::sleep(Duration::from_micros(50));
                    fs::metadata(arena.path.join("a.tar")).ok().map(|metadata| metadata.ino())
                });
                let inode = inode.expect("pinned and gone");
                let witness = Witness::of(&arena.path.join("a.tar"));
                std::thread::sleep(Duration::from_micros(200));
                for witness in witness.into_iter().filter(|witness| witness.inode() == inode) {
                    assert_eq!(witness.links(), 1, "pinned and deleted");
                }
                pin::unpin(&arena.dir, &name).unwrap();
                std::thread::sleep(Duration::from_micros(300));
            }
        };
        let (mut deleted, mut spared) = (0, 0);
        race(&[&pin_it], |turn| {
            if !arena.path.join("a.tar").exists() {
                arena.write("a.tar", 1);
            }
            let planned = checkpoint_at(&arena.path.join("a.tar"));
            match arena.dir.remove(&Expected::from(&planned), turn) {
                Ok(_) => deleted += 1,
                Err(Refused::Pinned(_)) => spared += 1,
                // A test beside this one forks: until it execs, its child has our descriptors too.
                Err(Refused::InUse { .. }) => {}
                Err(refused) => panic!("{refused}"),
            }
        });
        println!("{deleted} deleted, {spared} spared");
        assert!(deleted > 0 && spared > 0, "no race: {deleted} deleted, {spared} spared");
    });
}

#[test]
fn whoever_has_it_open_reads_all_of_it_and_whoever_comes_later_finds_nothing() {
    on_every_filesystem(|arena| {
        let victim = arena.path.join("a.tar");
        let reads = AtomicU64::new(0);
        let read = |_| {
            let Ok(mut file) = File::open(&victim) else { return };
            let mut content = Vec::new();
            file.read_to_end(&mut content).unwrap();
            assert!(content == [1; LEN], "{} bytes read", content.len());
            reads.fetch_add(1, Ordering::Relaxed);
            drop(file);
            breathe();
        };
        let (mut deleted, mut in_use) = (0, 0);
        race(&[&read, &read], |turn| {
            if !victim.exists() {
                arena.write("a.tar", 1);
            }
            let planned = checkpoint_at(&victim);
            let witness = Witness::of(&victim).unwrap();
            match arena.dir.remove(&Expected::from(&planned), turn) {
                Ok(_) => {
                    assert_eq!(witness.links(), 0);
                    deleted += 1;
                }
                Err(Refused::InUse { .. }) => {
                    assert_eq!(witness.links(), 1);
                    in_use += 1;
                    breathe();
                }
                Err(refused) => panic!("{refused}"),
            }
        });
        let reads = reads.into_inner();
        println!("{deleted} deleted, {in_use} in use, {reads} read whole");
        assert!(deleted > 0 && in_use > 0 && reads > 0, "{deleted} deleted, {in_use} in use, {reads} read");
    });
}

#[test]
fn what_is_written_to_or_linked_meanwhile_stays() {
    on_every_filesystem(|arena| {
        let victim = arena.path.join("a.tar");
        let link = arena.outside("link");
        // Rewrites in place and appends through the name; and hard links, which keep the data alive.
        let write = |_| {
            let Ok(mut file) = File::options().append(true).open(&victim) else { return };
            let before = file.metadata().unwrap();
            file.write_all(&[3; 10]).unwrap();
            let after = file.metadata().unwrap();
            assert!(before.nlink() == 0 || after.nlink() > 0, "deleted while it was open for writing");
            drop(file);
            breathe();
        };
        // Through a descriptor that was opened long before.
        let rewrite = |turn: u64| {
            let Ok(file) = File::options().read(true).write(true).open(&victim) else { return };
            std::thread::sleep(Duration::from_micros(turn.wrapping_mul(7919) % 2000));
            let before = file.metadata().unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[1; 10], turn % 1000).unwrap();
            let after = file.metadata().unwrap();
            assert!(before.nlink() == 0 || after.nlink() > 0, "deleted while it was open for writing");
            assert!(after.len() >= LEN as u64, "cut short while it was open for writing");
            drop(file);
            breathe();
            breathe();
        };
        let hard_link = |_| {
            let _ = fs::hard_link(&victim, &link);
            if let Ok(metadata) = fs::metadata(&link) {
                assert!(metadata.nlink() >= 1);
                assert!(fs::read(&link).unwrap().starts_with(&[1; LEN]), "linked and cut short");
                remove_link(&link);
            }
            breathe();
        };
        let (mut deleted, mut spared) = (0, 0);
        race(&[&write, &rewrite, &hard_link], |turn| {
            if !victim.exists() {
                arena.write("a.tar", 1);
            }
            let planned = checkpoint_at(&victim);
            match arena.dir.remove(&Expected::from(&planned), turn) {
                Ok(_) => deleted += 1,
                Err(Refused::Failed { call, errno }) => panic!("{call}: {errno}"),
                Err(_) => {
                    spared += 1;
                    breathe();
                }
            }
        });
        println!("{deleted} deleted, {spared} spared");
        assert!(deleted > 0 && spared > 0, "no race: {deleted} deleted, {spared} spared");
    });
}

#[test]
fn nothing_outside_is_reached_through_a_directory_that_is_swapped_for_a_link() {
    on_every_filesystem(|arena| {
        let decoy = arena.path.with_file_name("decoy");
        let link = arena.outside("swap");
        symlink(&decoy, &link).unwrap();
        check_swapped(arena, &decoy, &link);
    });
}

#[test]
fn nothing_in_another_directory_is_deleted_that_takes_its_place() {
    on_every_filesystem(|arena| {
        let decoy = arena.path.with_file_name("decoy");
        check_swapped(arena, &decoy, &decoy);
    });
}

/// Exchanges the directory for `other`, which is or leads to `decoy`, a directory with the same names in it.
fn check_swapped(arena: &Arena, decoy: &Path, other: &Path) {
    fs::create_dir(decoy).unwrap();
    fs::write(decoy.join("a.tar"), [4; LEN]).unwrap();
    let precious = Witness::of(&decoy.join("a.tar")).unwrap();
    let away = arena.path.clone();
    let swap = |_| _ = renameat2(AT_FDCWD, other, AT_FDCWD, &away, RenameFlags::RENAME_EXCHANGE);
    let (mut deleted, mut refused) = (0, 0);
    // By descriptor, because the path is the attacker's.
    let real =
        format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&arena.dir)));
    let real = Path::new(&real);
    race(&[&swap], |turn| {
        if !real.join("a.tar").exists() {
            fs::write(real.join("a.tar"), [1; LEN]).unwrap();
        }
        let planned = checkpoint_at(&real.join("a.tar"));
        match arena.dir.remove(&Expected::from(&planned), turn) {
            Ok(_) => deleted += 1,
            Err(_) => refused += 1,
        }
        assert_eq!(precious.links(), 1);
    });
    println!("{deleted} deleted, {refused} refused");
    assert!(deleted > 0 && refused > 0, "no race: {deleted} deleted, {refused} refused");
}

#[test]
fn nothing_is_deleted_that_is_mounted_over_an_entry_or_over_the_directory() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    on_every_filesystem(|arena| {
        let (decoy, precious) = (arena.outside("decoy"), arena.outside("decoy/a.tar"));
        fs::create_dir(&decoy).unwrap();
        fs::write(&precious, [4; LEN]).unwrap();
        let witness = Witness::of(&precious).unwrap();
        let bind = |from: &Path, onto: &Path| {
            if mount(Some(from), onto, None::<&str>, MsFlags::MS_BIND, None::<&str>).is_ok() {
                breathe();
                while umount2(onto, MntFlags::MNT_DETACH).is_ok() {}
            }
            breathe();
            breathe();
        };
        // By descriptor, because the path leads elsewhere while the directory is mounted over.
        let real = format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&arena.dir))
        );
        let real = Path::new(&real).join("a.tar");
        let over_the_entry = |_| bind(&precious, &real);
        let over_the_directory = |_| bind(&decoy, &arena.path);
        let (mut deleted, mut refused) = (0, 0);
        race(&[&over_the_entry, &over_the_directory], |turn| {
            if !real.exists() {
                fs::write(&real, [1; LEN]).unwrap();
            }
            let planned = checkpoint_at(&real);
            match arena.dir.remove(&Expected::from(&planned), turn) {
                Ok(_) => {
                    assert_ne!(planned.file.ino, witness.inode(), "what is mounted over it was deleted");
                    deleted += 1;
                }
                Err(_) => {
                    refused += 1;
                    breathe();
                }
            }
            assert_eq!(witness.links(), 1);
        });
        // Whatever a loop that was ended in the middle of its attack has left.
        for path in [&arena.path, &real] {
            while umount2(path, MntFlags::MNT_DETACH).is_ok() {}
        }
        println!("{deleted} deleted, {refused} refused");
        assert!(deleted > 0 && refused > 0, "no race: {deleted} deleted, {refused} refused");
        assert!(fs::read(&precious).unwrap() == [4; LEN]);
    });
}

#[test]
fn a_pod_checkpoint_somebody_plays_with_takes_nothing_outside_with_it() {
    on_every_filesystem(|arena| {
        let root = arena.path.join("checkpoint-web");
        let precious = arena.outside("precious");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("file"), "precious").unwrap();
        let (witness, link) = (Witness::of(&precious.join("file")).unwrap(), arena.outside("link"));
        symlink(&precious, &link).unwrap();
        // Directories inside are exchanged for links to outside; files come and go; readers open what there is.
        let swap = |_| {
            let _ = renameat2(AT_FDCWD, &link, AT_FDCWD, &root.join("sub"), RenameFlags::RENAME_EXCHANGE);
            if !link.is_symlink() {
                let _ = renameat2(AT_FDCWD, &link, AT_FDCWD, &root.join("sub"), RenameFlags::RENAME_EXCHANGE);
            }
        };
        let read = |_| {
            let Ok(mut file) = File::open(root.join("sub/deep/a.tar")) else { return };
            let mut content = Vec::new();
            file.read_to_end(&mut content).unwrap();
            assert!(content.len() == LEN || content.is_empty(), "{} bytes", content.len());
        };
        let (mut deleted, mut refused) = (0, 0);
        race(&[&swap, &read], |turn| {
            if fs::symlink_metadata(&root).is_err() {
                let fresh = arena.outside(&format!("pod-{turn}"));
                fs::create_dir_all(fresh.join("sub/deep")).unwrap();
                fs::create_dir_all(fresh.join("other")).unwrap();
                for file in ["sub/deep/a.tar", "other/b.tar", "pod.json"] {
                    fs::write(fresh.join(file), [1; LEN]).unwrap();
                }
                fs::rename(&fresh, &root).unwrap();
            }
            let planned = checkpoint_at_directory(&root);
            match arena.dir.remove(&Expected::from(&planned), turn) {
                Ok(_) => {
                    deleted += 1;
                    assert!(fs::symlink_metadata(&root).is_err());
                }
                // Somebody put something in behind our back: what is left is out of the way, and is taken up again.
                Err(Refused::Partly { errno: Errno::ENOTEMPTY, .. }) => {
                    assert!(fs::symlink_metadata(&root).is_err());
                    arena.dir.finish_leftovers(&|_| None).unwrap();
                }
                Err(Refused::Partly { call, errno }) => panic!("{call}: {errno}"),
                Err(_) => {
                    refused += 1;
                    assert!(root.join("other/b.tar").exists() && root.join("pod.json").exists());
                }
            }
            assert_eq!(witness.links(), 1);
        });
        println!("{deleted} deleted, {refused} refused");
        assert!(deleted > 0, "no race: {deleted} deleted, {refused} refused");
    });
}

/// Of a directory whose inside may change while it is looked at.
fn checkpoint_at_directory(root: &Path) -> guard::model::Checkpoint {
    let shell = root.with_file_name("shell");
    let _ = fs::create_dir(&shell);
    let metadata = fs::symlink_metadata(root).unwrap();
    let mut checkpoint = checkpoint_at(&shell);
    checkpoint.name = root.file_name().unwrap().into();
    checkpoint.file = guard::model::FileId { dev: metadata.dev(), ino: metadata.ino() };
    let parent = File::open(root.parent().unwrap()).unwrap();
    if let Ok(tree) = measure(parent.as_fd(), root.file_name().unwrap(), &mut |_, _| false) {
        (checkpoint.len, checkpoint.modified) = (tree.len, tree.modified);
    }
    checkpoint
}
