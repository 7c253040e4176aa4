//! Plans are carried out on real filesystems, measured, and stopped in time.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use guard::act::executor::Ended;
use guard::act::journal::Verdict;
use guard::act::refusal::{Changed, Pin, Refused};
use guard::model::{Bytes, Observation, Trigger};
use guard::observe::filesystem::observe;
use guard::report::audit::{AuditLog, AuditSettings, verify};
use nix::errno::Errno;
use tests::checkpoints::{Carrier, Recorder, inventory_of, plan_for, plan_with, write_archive};
use tests::loopfs::{Filesystem, LoopMount};

const ALL: [Filesystem; 4] = [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs, Filesystem::Tmpfs];
const NAMES: [&str; 5] = ["a.tar", "b.tar", "c.tar", "d.tar", "e.tar"];

fn mount(filesystem: Filesystem) -> LoopMount {
    LoopMount::new(filesystem, Bytes::mib(512))
}

/// Five archives of 16 MiB.
fn five(directory: &Path) {
    for name in NAMES {
        write_archive(&directory.join(name), Bytes::mib(16));
    }
    settle(directory);
}

/// btrfs tells of new data at its next commit.
fn settle(directory: &Path) {
    nix::unistd::syncfs(File::open(directory).unwrap()).unwrap();
}

fn left(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(".tar"))
        .collect();
    names.sort();
    names
}

#[test]
fn case_25_exactly_one_of_five_dies_when_one_is_enough_on_every_filesystem() {
    for filesystem in ALL {
        let mount = mount(filesystem);
        five(mount.path());
        let inventory = inventory_of(mount.path(), &NAMES);
        let plan = plan_for(&inventory, Bytes::mib(15));
        let round = Carrier::new(&plan, &inventory).run();
        assert_eq!(round.ended, Ended::Done, "{filesystem:?}: {round:?}");
        assert_eq!(left(mount.path()), NAMES[1..], "{filesystem:?}");
        assert!(round.freed.bytes >= Bytes::mib(15), "{filesystem:?}: {round:?}");
        assert!(!round.outcomes[0].fell_short(), "{filesystem:?}: {round:?}");
    }
}

#[test]
fn case_20_it_goes_on_until_the_target_is_measured() {
    for filesystem in ALL {
        let mount = mount(filesystem);
        five(mount.path());
        let inventory = inventory_of(mount.path(), &NAMES);
        let plan = plan_for(&inventory, Bytes::mib(40));
        let round = Carrier::new(&plan, &inventory).run();
        assert_eq!(round.ended, Ended::Done, "{filesystem:?}: {round:?}");
        assert_eq!(left(mount.path()), NAMES[3..], "{filesystem:?}");
    }
}

#[test]
fn case_23_no_second_victim_dies_while_the_numbers_lag() {
    let mount = mount(Filesystem::Tmpfs);
    five(mount.path());
    let inventory = inventory_of(mount.path(), &NAMES);
    let plan = plan_for(&inventory, Bytes::mib(15));
    let directory = File::open(mount.path()).unwrap();
    // What it shows is 30 looks old.
    let mut shown: Vec<Observation> = Vec::new();
    let mut lagging = || {
        shown.push(observe(&directory)?);
        Ok(shown[shown.len().saturating_sub(30)])
    };
    let carrier = Carrier { patience: Some(Duration::from_millis(100)), ..Carrier::new(&plan, &inventory) };
    let round = carrier.run_observing(&mut Recorder::default(), &mut lagging, &mut |_, _| {});
    assert_eq!(round.ended, Ended::Done);
    assert_eq!(left(mount.path()), NAMES[1..]);
}

#[test]
fn a_filesystem_that_does_not_answer_is_not_deleted_from() {
    let mount = mount(Filesystem::Tmpfs);
    five(mount.path());
    let inventory = inventory_of(mount.path(), &NAMES);
    let plan = plan_for(&inventory, Bytes::mib(40));
    let run = |answers: u32| {
        let mut left = answers;
        let directory = File::open(mount.path()).unwrap();
        let mut observe = move || {
            left = left.checked_sub(1).ok_or(Errno::EIO)?;
            observe(&directory)
        };
        Carrier::new(&plan, &inventory).run_observing(&mut Recorder::default(), &mut observe, &mut |_, _| {})
    };
    assert_eq!(run(0).ended, Ended::Unmeasurable(Errno::EIO));
    assert_eq!(run(1).ended, Ended::Unmeasurable(Errno::EIO));
    assert_eq!(left(mount.path()), NAMES);
    // Two looks are enough to begin the first deletion, and none of the others is begun blindly.
    assert_eq!(run(2).ended, Ended::Unmeasurable(Errno::EIO));
    assert_eq!(left(mount.path()), NAMES[1..]);
}

#[test]
fn case_07_a_pin_that_appears_after_the_plan_spares() {
    for filesystem in ALL {
        let mount = mount(filesystem);
        five(mount.path());
        let inventory = inventory_of(mount.path(), &NAMES);
        let plan = plan_for(&inventory, Bytes::mib(40));
        let mut journal = Recorder::default();
        let marker = mount.path().join("b.tar.keep");
        let round = Carrier::new(&plan, &inventory)
            .run_with(&mut journal, &mut |_, _| _ = File::create(&marker).unwrap());
        assert_eq!(round.outcomes[1].verdict, Verdict::Refused(Refused::Pinned(Pin::Marker)));
        assert_eq!(left(mount.path()), ["b.tar", "b.tar.keep", "e.tar"], "{filesystem:?}");
        assert_eq!(journal.outcomes, ["deleted", "spared", "deleted", "deleted"]);
    }
}

#[test]
fn case_33_a_victim_that_cannot_be_deleted_is_passed_over() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs] {
        let mount = mount(filesystem);
        five(mount.path());
        let immutable = |flag: &str| {
            let changed = Command::new("chattr").arg(flag).arg(mount.path().join("a.tar")).status().unwrap();
            assert!(changed.success());
        };
        immutable("+i");
        let inventory = inventory_of(mount.path(), &NAMES);
        let plan = plan_for(&inventory, Bytes::mib(15));
        let round = Carrier::new(&plan, &inventory).run();
        immutable("-i");
        assert_eq!(round.ended, Ended::Done, "{filesystem:?}: {round:?}");
        let refused = round.outcomes[0].refused().unwrap();
        assert!(refused.is_failure() && refused.to_string().contains("lsattr"), "{refused}");
        assert_eq!(left(mount.path()), ["a.tar", "c.tar", "d.tar", "e.tar"], "{filesystem:?}");
    }
}

#[test]
fn a_pod_checkpoint_of_which_a_part_could_not_be_deleted_stays_whole() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs] {
        let mount = mount(filesystem);
        let tree = mount.path().join("checkpoint-web");
        fs::create_dir_all(tree.join("deep")).unwrap();
        let parts = ["app.tar", "deep/pages", "deep"];
        parts[..2].iter().for_each(|part| write_archive(&tree.join(part), Bytes::mib(1)));
        for (flag, part) in [("i", "app.tar"), ("a", "deep/pages"), ("i", "deep"), ("a", ".")] {
            let chattr = |sign: &str| {
                let changed =
                    Command::new("chattr").arg(format!("{sign}{flag}")).arg(tree.join(part)).status();
                assert!(changed.unwrap().success());
            };
            chattr("+");
            let inventory = inventory_of(mount.path(), &["checkpoint-web"]);
            let plan = plan_for(&inventory, Bytes::mib(1));
            let round = Carrier::new(&plan, &inventory).run();
            chattr("-");
            let refused = round.outcomes[0].refused().unwrap();
            assert!(
                matches!(refused, Refused::Failed { errno: Errno::EPERM, .. }),
                "{filesystem:?}: {refused}"
            );
            assert!(parts.iter().all(|part| tree.join(part).exists()), "{filesystem:?}: +{flag} {part}");
        }
        let inventory = inventory_of(mount.path(), &["checkpoint-web"]);
        let round = Carrier::new(&plan_for(&inventory, Bytes::mib(1)), &inventory).run();
        assert_eq!(round.ended, Ended::Done, "{filesystem:?}: {round:?}");
        assert!(!tree.exists());
    }
}

#[test]
fn case_33_a_read_only_filesystem_ends_the_round_after_one_try_each() {
    for filesystem in ALL {
        let mount = mount(filesystem);
        five(mount.path());
        let inventory = inventory_of(mount.path(), &NAMES);
        let plan = plan_for(&inventory, Bytes::mib(40));
        let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(mount.path()).status().unwrap();
        assert!(remounted.success());
        let round = Carrier::new(&plan, &inventory).run();
        assert_eq!((round.ended, round.outcomes.len()), (Ended::Short, 5), "{filesystem:?}");
        for outcome in &round.outcomes {
            let refused = outcome.refused().unwrap();
            assert!(matches!(refused, Refused::Failed { errno: Errno::EROFS, .. }), "{refused}");
        }
        assert_eq!(left(mount.path()), NAMES);
    }
}

#[test]
fn case_36_hard_links_are_spared_and_sparse_files_count_what_they_hold() {
    for filesystem in ALL {
        let mount = mount(filesystem);
        five(mount.path());
        fs::hard_link(mount.path().join("a.tar"), mount.path().join("elsewhere")).unwrap();
        let sparse = File::create(mount.path().join("b.tar")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        drop(sparse);
        settle(mount.path());
        let inventory = inventory_of(mount.path(), &NAMES);
        assert!(inventory.checkpoints[1].allocated < Bytes::mib(1));
        let plan = plan_for(&inventory, Bytes::mib(15));
        let round = Carrier::new(&plan, &inventory).run();
        assert_eq!(round.outcomes[0].verdict, Verdict::Refused(Refused::Linked), "{filesystem:?}");
        assert!(matches!(round.outcomes[1].verdict, Verdict::Deleted(_)), "{filesystem:?}: {round:?}");
        assert_eq!(round.ended, Ended::Done, "{filesystem:?}: {round:?}");
        assert_eq!(left(mount.path()), ["a.tar", "d.tar", "e.tar"], "{filesystem:?}");
    }
}

#[test]
fn case_36_a_reflink_copy_frees_less_than_promised_and_the_plan_goes_on() {
    for filesystem in [Filesystem::Xfs, Filesystem::Btrfs] {
        let mount = mount(filesystem);
        five(mount.path());
        let copied = Command::new("cp")
            .arg("--reflink=always")
            .arg(mount.path().join("a.tar"))
            .arg(mount.path().join("copy"))
            .status()
            .unwrap();
        assert!(copied.success());
        settle(mount.path());
        let inventory = inventory_of(mount.path(), &NAMES);
        let plan = plan_for(&inventory, Bytes::mib(15));
        let round = Carrier::new(&plan, &inventory).run();
        assert!(round.outcomes[0].fell_short(), "{filesystem:?}: {round:?}");
        assert!(!round.outcomes[1].fell_short(), "{filesystem:?}: {round:?}");
        assert_eq!(
            (round.ended, left(mount.path())),
            (Ended::Done, NAMES[2..].iter().map(ToString::to_string).collect())
        );
    }
}

#[test]
fn case_38_an_entry_swapped_for_a_link_leads_nowhere() {
    let mount = mount(Filesystem::Ext4);
    five(mount.path());
    let inventory = inventory_of(mount.path(), &NAMES);
    let plan = plan_for(&inventory, Bytes::mib(100));
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("precious.tar");
    fs::write(&target, "precious").unwrap();
    fs::rename(mount.path().join("a.tar"), mount.path().join("moved")).unwrap();
    symlink(&target, mount.path().join("a.tar")).unwrap();
    let round = Carrier::new(&plan, &inventory).run();
    assert_eq!(round.outcomes[0].verdict, Verdict::Refused(Refused::NotACheckpoint("a symbolic link")));
    assert_eq!(round.ended, Ended::Short);
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    assert_eq!(left(mount.path()), ["a.tar"]);
}

#[test]
fn case_46_what_was_mounted_over_the_directory_is_not_deleted_from() {
    let mount = mount(Filesystem::Ext4);
    let directory = mount.path().join("checkpoints");
    fs::create_dir(&directory).unwrap();
    five(&directory);
    let inventory = inventory_of(&directory, &NAMES);
    let plan = plan_for(&inventory, Bytes::mib(100));
    let carrier = Carrier::new(&plan, &inventory);
    let mounted = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&directory).status().unwrap();
    assert!(mounted.success());
    for name in NAMES {
        fs::write(directory.join(name), "another filesystem's").unwrap();
    }
    let round = carrier.run();
    let over = left(&directory);
    nix::mount::umount(&directory).unwrap();
    assert_eq!((over.len(), left(&directory).len()), (5, 5));
    for outcome in &round.outcomes {
        assert_eq!(outcome.refused(), Some(&Refused::Changed(Changed::Directory)));
    }
}

#[test]
fn who_holds_a_victim_open_is_named_and_the_next_one_dies() {
    let mount = mount(Filesystem::Ext4);
    five(mount.path());
    let reading = File::open(mount.path().join("a.tar")).unwrap();
    let mut reader = Command::new("sleep").arg("60").stdin(Stdio::from(reading)).spawn().unwrap();
    let inventory = inventory_of(mount.path(), &NAMES);
    let plan = plan_for(&inventory, Bytes::mib(15));
    let round = Carrier::new(&plan, &inventory).run();
    reader.kill().unwrap();
    reader.wait().unwrap();
    assert_eq!(round.ended, Ended::Done);
    assert_eq!(left(mount.path()), ["a.tar", "c.tar", "d.tar", "e.tar"]);
    let refused = round.outcomes[1].refused().unwrap().to_string();
    assert_eq!(refused, format!("in use: sleep (pid {})", reader.id()));
}

#[test]
fn retention_deletes_each_of_its_victims_whatever_is_available() {
    let mount = mount(Filesystem::Tmpfs);
    five(mount.path());
    let inventory = inventory_of(mount.path(), &NAMES);
    let plan = plan_with(&inventory, Bytes::ZERO, &Trigger::Retention("max-count".into()));
    assert_eq!(Carrier::new(&plan, &inventory).run().ended, Ended::Done);
    assert_eq!(left(mount.path()), [""; 0]);
}

#[test]
fn stopped_means_after_the_deletion_in_hand() {
    let mount = mount(Filesystem::Tmpfs);
    five(mount.path());
    let inventory = inventory_of(mount.path(), &NAMES);
    let plan = plan_for(&inventory, Bytes::mib(100));
    let round = Carrier::new(&plan, &inventory).run_with(&mut Recorder::default(), &mut |outcome, stop| {
        stop.store(outcome.index == 1, Ordering::Relaxed);
    });
    assert_eq!(round.ended, Ended::Stopped);
    assert_eq!(left(mount.path()), NAMES[2..]);
}

/// The kernel needs 20 ms and more for its pages.
const SLOW: Bytes = Bytes::mib(768);

/// Deletes `a.tar`, which is slow to come back, for a need of 64 MiB, beside writers who have used up `lost` as soon as it
/// is gone. Whether `b.tar`, of `next`, died with it.
fn is_next_taken(lost: Bytes, hard: Bytes, next: Bytes) -> bool {
    let mount = LoopMount::new(Filesystem::Tmpfs, Bytes::gib(2));
    write_archive(&mount.path().join("a.tar"), SLOW);
    write_archive(&mount.path().join("b.tar"), next);
    let inventory = inventory_of(mount.path(), &["a.tar", "b.tar"]);
    let plan = plan_for(&inventory, Bytes::mib(64));
    let directory = File::open(mount.path()).unwrap();
    let mut observe = || {
        let seen = observe(&directory)?;
        let lost = if mount.path().join("a.tar").exists() { Bytes::ZERO } else { lost };
        Ok(Observation { available: seen.available.saturating_sub(lost), ..seen })
    };
    let carrier = Carrier { hard, ..Carrier::new(&plan, &inventory) };
    let round = carrier.run_observing(&mut Recorder::default(), &mut observe, &mut |_, _| {});
    assert_eq!(round.ended, Ended::Done, "{round:?}");
    !mount.path().join("b.tar").exists()
}

#[test]
fn a_slow_one_that_will_be_enough_is_waited_for_while_nobody_is_in_danger() {
    // Nothing is lost meanwhile, or little, and there is far to hard.
    assert!(!is_next_taken(Bytes::ZERO, Bytes::ZERO, Bytes::mib(16)));
    assert!(!is_next_taken(Bytes::mib(16), Bytes::ZERO, Bytes::mib(16)));
    // Nothing is lost, so below hard as well.
    assert!(!is_next_taken(Bytes::ZERO, Bytes::gib(4), Bytes::mib(16)));
}

#[test]
fn a_slow_one_that_writers_will_have_used_up_when_it_comes_back_is_not_waited_for() {
    // 300 MiB in 2 ms: at this speed another 1 GiB until then.
    assert!(is_next_taken(Bytes::mib(300), Bytes::ZERO, Bytes::mib(16)));
}

#[test]
fn below_hard_the_next_one_is_taken_if_less_than_one_can_turn_out_to_be_too_many() {
    assert!(is_next_taken(Bytes::mib(16), Bytes::gib(4), Bytes::mib(16)));
    // As large as the slow one: it would be one too many.
    assert!(!is_next_taken(Bytes::mib(16), Bytes::gib(4), SLOW));
}

#[test]
fn a_dry_run_goes_exactly_as_far_and_deletes_nothing() {
    let mount = mount(Filesystem::Tmpfs);
    five(mount.path());
    let inventory = inventory_of(mount.path(), &NAMES);
    let plan = plan_for(&inventory, Bytes::mib(40));
    let mut journal = Recorder::default();
    let carrier = Carrier { dry_run: true, ..Carrier::new(&plan, &inventory) };
    let round = carrier.run_with(&mut journal, &mut |_, _| {});
    assert_eq!((round.ended, round.outcomes.len()), (Ended::Done, 3), "{round:?}");
    assert!(round.outcomes.iter().all(|outcome| outcome.verdict == Verdict::WouldBeDeleted));
    assert_eq!((left(mount.path()).len(), journal.last_id), (5, 0));
}

#[test]
fn case_37_a_full_copy_on_write_filesystem_lets_its_victim_go() {
    let mount = LoopMount::new(Filesystem::Btrfs, Bytes::mib(128));
    write_archive(&mount.path().join("a.tar"), Bytes::mib(8));
    fill(mount.path());
    let inventory = inventory_of(mount.path(), &["a.tar"]);
    let plan = plan_for(&inventory, Bytes::mib(4));
    let round = Carrier::new(&plan, &inventory).run();
    assert!(matches!(round.outcomes[0].verdict, Verdict::Deleted(_)), "{round:?}");
    assert_eq!(left(mount.path()), [""; 0]);
}

/// Fills data with a large file and metadata with small ones, until nothing fits any more.
fn fill(directory: &Path) {
    use std::io::Write;
    let mut large = File::create(directory.join("filler")).unwrap();
    while large.write_all(&[1; 1 << 16]).is_ok() {}
    let _ = large.sync_data();
    for number in 0..100_000 {
        if fs::write(directory.join(format!("{number:0200}")), [1; 2000]).is_err() {
            break;
        }
    }
    let _ = nix::unistd::syncfs(File::open(directory).unwrap());
}

#[test]
fn case_48_an_audit_log_on_the_full_filesystem_neither_fails_nor_blocks() {
    for filesystem in ALL {
        let mount = mount(filesystem);
        five(mount.path());
        let settings =
            AuditSettings { path: mount.path().join("log/audit.jsonl"), max_size: Bytes::mib(1), keep: 2 };
        let now = || "2026-01-01T00:00:00Z".parse().unwrap();
        fill_data(mount.path());
        // Before the start already: what cannot be written goes to stderr, until there is room.
        let mut log = AuditLog::open(settings.clone(), now);
        let inventory = inventory_of(mount.path(), &NAMES);
        let plan = plan_for(&inventory, Bytes::mib(30));
        let round = Carrier::new(&plan, &inventory).run_with(&mut log, &mut |_, _| {});
        assert_eq!(round.ended, Ended::Done, "{filesystem:?}: {round:?}");
        assert!(round.outcomes.windows(2).all(|pair| pair[0].id < pair[1].id), "{round:?}");
        assert!(log.problem().is_none(), "{filesystem:?}: {:?}", log.problem());
        // Its space is set aside now, so that the next time nothing is lost.
        let failures = log.failures();
        fill_data(mount.path());
        let inventory = inventory_of(mount.path(), &NAMES[2..]);
        let plan = plan_for(&inventory, Bytes::mib(15));
        Carrier::new(&plan, &inventory).run_with(&mut log, &mut |_, _| {});
        assert_eq!(log.failures(), failures, "{filesystem:?}");
        assert_eq!(verify(&settings.path).unwrap().1, [], "{filesystem:?}");
    }
}

fn fill_data(directory: &Path) {
    use std::io::Write;
    let mut filler = File::options().append(true).create(true).open(directory.join("filler")).unwrap();
    // Again after a sync, because btrfs then knows better what is left.
    for size in [1 << 20, 1 << 16, 1 << 12, 1, 1 << 12, 1] {
        while filler.write_all(&vec![1; size]).is_ok() {}
        let _ = filler.sync_data();
    }
    settle(directory);
}
