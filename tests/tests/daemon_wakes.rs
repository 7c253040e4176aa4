//! What wakes the guard: a used-up budget at once, and everything else a few times a second at most. Root only.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use guard::model::Bytes;
use tests::archives::Archive;
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::{Scene, directory_table, hour_of_2026};
use tests::setting::Daemon;

/// 20 and the timer of a second, and what a turn at each end may add.
const A_SECOND: f64 = 23.0;

/// So many turns a second while `storm` goes on. It does one step of writing each time.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "measures a rate")]
fn check(daemon: &mut Daemon, what: &str, mut storm: impl FnMut(u64)) {
    daemon.keeps_running_for(Duration::from_millis(500));
    let wakes = |daemon: &Daemon| daemon.metric("checkpoint_guard_wakes_total").unwrap();
    let (before, began) = (wakes(daemon), Instant::now());
    let mut steps = 0;
    while began.elapsed() < Duration::from_secs(3) {
        storm(steps);
        steps += 1;
    }
    let rate = (wakes(daemon) - before) / began.elapsed().as_secs_f64();
    let causes = ["budget", "directory", "timer", "request"]
        .map(|cause| daemon.metric(&format!("checkpoint_guard_wakes_total{{cause=\"{cause}\"}}")).unwrap());
    println!(
        "{what}: {steps} steps, {rate:.1} turns a second; budget, directory, timer, request so far: {causes:?}"
    );
    assert!(steps > 100, "{what}: this was no storm, {steps} steps");
    assert!(rate <= A_SECOND, "{what}: {rate:.1} turns a second in {steps} steps; {causes:?}");
}

fn small_archive(directory: &Path, n: u64) {
    let pod = format!("web-{}", n % 200);
    Archive::new("team", &pod, "main", hour_of_2026((n % 24) as u32), Archive::SMALLEST)
        .write_in(directory)
        .unwrap();
}

#[expect(clippy::disallowed_methods, reason = "deleting is part of the storm")]
fn check_storms(filesystem: Filesystem) {
    let scene = Scene::on(LoopMount::new(filesystem, Bytes::gib(1)));
    scene.configure("[eviction]\nmin-age = \"0s\"");
    let mut daemon = scene.setting.start();
    let directory = scene.directory();

    check(&mut daemon, "small strangers", |n| {
        let path = directory.join(format!("file-{}", n % 500));
        fs::write(&path, [1; 4096]).unwrap();
    });
    check(&mut daemon, "small archives", |n| small_archive(&directory, n));
    check(&mut daemon, "made and deleted", |n| {
        let path = directory.join(format!("short-{n}"));
        fs::write(&path, [1; 65536]).unwrap();
        fs::remove_file(&path).unwrap();
    });
    let mut file = File::create(directory.join("overwritten")).unwrap();
    file.write_all(&vec![1; 8 << 20]).unwrap();
    check(&mut daemon, "overwriting", |n| {
        file.write_all_at(&vec![n as u8; 1 << 20], (n % 8) << 20).unwrap();
    });
    check(&mut daemon, "truncating", |n| {
        fs::write(directory.join("truncated"), vec![n as u8; 256 << 10]).unwrap();
    });
    assert_eq!(daemon.deleted(), [""; 0]);
}

#[test]
fn a_storm_of_small_files_wakes_it_twenty_times_a_second_on_ext4() {
    check_storms(Filesystem::Ext4);
}

#[test]
fn a_storm_of_small_files_wakes_it_twenty_times_a_second_on_xfs() {
    check_storms(Filesystem::Xfs);
}

#[test]
fn each_filesystem_has_a_budget_of_its_own_and_a_crossing_is_one_wake() {
    let scene = Scene::on(LoopMount::new(Filesystem::Ext4, Bytes::mib(512)));
    let other = Scene::on(LoopMount::new(Filesystem::Ext4, Bytes::mib(512)));
    scene.configure(&format!("[eviction]\nmin-age = \"0s\"\n{}", directory_table(&other.directory())));
    let ours: Vec<_> = (1..=2).map(|hour| scene.archive("web", hour, Bytes::mib(32))).collect();
    let theirs: Vec<_> = (1..=2).map(|hour| other.archive("web", hour, Bytes::mib(32))).collect();
    scene.leave(Bytes::mib(96));
    other.leave(Bytes::mib(96));
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_millis(500));
    let budget = |daemon: &Daemon| daemon.metric("checkpoint_guard_wakes_total{cause=\"budget\"}").unwrap();
    let before = budget(&daemon);
    // 96 MiB less 40 is below 64.
    for directory in [scene.directory(), other.directory()] {
        let mut file = File::create(directory.join("growing")).unwrap();
        for _ in 0..40 {
            file.write_all(&vec![1; 1 << 20]).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    daemon.wait_until("done on both", |daemon| daemon.deleted().len() == 2);
    assert_eq!(daemon.deleted(), [ours[0].as_str(), theirs[0].as_str()]);
    // One for each crossing, and one more where acting ahead of it was worth a look.
    let wakes = budget(&daemon) - before;
    assert!((2.0..=6.0).contains(&wakes), "{wakes} wakes for two crossings");
}

#[test]
fn a_full_ledger_is_counted_and_the_budget_goes_on_without_it() {
    // The ledger holds 16,384 files.
    let options = ["-N", "60000"];
    let mount = LoopMount::with_options(Filesystem::Ext4, Bytes::mib(320), &options, "").unwrap();
    let scene = Scene::on(mount);
    scene.configure("[eviction]\nmin-age = \"0s\"");
    let old: Vec<_> = (1..=2).map(|hour| scene.archive("web", hour, Bytes::mib(32))).collect();
    let mut daemon = scene.setting.start();
    let tree = scene.directory().join("tree");
    fs::create_dir(&tree).unwrap();
    for n in 0..16_600 {
        fs::write(tree.join(n.to_string()), [1; 100]).unwrap();
    }
    daemon.wait_until("counting what the ledger missed", |daemon| {
        daemon.metric("checkpoint_guard_lost_events_total{kind=\"ledger\"}").is_some_and(|lost| lost >= 100.0)
    });
    scene.leave(Bytes::mib(96));
    daemon.keeps_running_for(Duration::from_millis(1500));
    let budget = |daemon: &Daemon| daemon.metric("checkpoint_guard_wakes_total{cause=\"budget\"}").unwrap();
    let before = budget(&daemon);
    fs::write(scene.directory().join("growing"), vec![1; 40 << 20]).unwrap();
    daemon.wait_until("making room", |daemon| !daemon.deleted().is_empty());
    assert_eq!(daemon.deleted(), old[..1]);
    assert!(budget(&daemon) > before, "woken by the budget, not by the timer");
}

#[test]
fn the_table_of_descriptors_does_not_grow_when_there_is_something_to_delete() {
    let scene = Scene::on(LoopMount::new(Filesystem::Ext4, Bytes::mib(64)));
    scene.configure("");
    let daemon = scene.setting.start();
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let room: u64 =
        status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap().trim().parse().unwrap();
    assert!(room >= 1024, "{room}");
}
