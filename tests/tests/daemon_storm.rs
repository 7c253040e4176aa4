//! The main job: checkpoints arrive at full speed, the disk does not fill, and what must stay stays.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use guard::model::Bytes;
use tests::archives::Archive;
use tests::loopfs::{Filesystem, LoopMount};
use tests::sampler::Sampler;
use tests::setting::{Daemon, Setting};
use tests::storm::{Method, Options, Storm, Until};

/// Below hard by so much at most. The promise is 32 MiB on a machine of one's own, and `cargo xtask bench storm` measures it;
/// here others may use the disk, and what must fail is a guard that does not act: it gets 200 MiB below and into ENOSPC.
const BELOW_HARD_MAX: Bytes = Bytes::mib(96);
/// A machine that stands still for a tenth of a second, as a shared one does now and then, is no guard's fault; one that
/// does in each of so many storms is.
const STORMS_MAX: u32 = 3;

struct Scene {
    mount: LoopMount,
    setting: Setting,
}

impl Scene {
    /// 1 GiB, hard at 20 %, critical at 5 %, 2 % beyond.
    fn new(filesystem: Filesystem) -> Scene {
        let mount = LoopMount::new(filesystem, Bytes::gib(1));
        let setting = Setting::new();
        std::fs::create_dir(mount.path().join("checkpoints")).unwrap();
        setting.configure(&format!(
            r#"
            [[directory]]
            path = "{}/checkpoints"
            [pressure]
            soft = false
            hard = {{ available = "20%", inodes-free = "2%" }}
            critical = {{ available = "5%", inodes-free = "1%" }}
            minimum-reclaim = {{ available = "2%" }}
            kubelet-config = "off"
            # Deleting alone must do here; refusing writers has its own storm (brake_fanotify).
            [brake]
            mode = "off"
            [eviction]
            min-age = "0s"
            [protection]
            namespaces = {{ forensics = 100, team-prod = 90, team = 5 }}
            "#,
            mount.path().display()
        ));
        Scene { mount, setting }
    }

    fn directory(&self) -> std::path::PathBuf {
        self.mount.path().join("checkpoints")
    }
}

/// What a storm came to.
struct Outcome {
    lowest: Bytes,
    hard: Bytes,
    out_of_space: u64,
    archives: u64,
}

fn weather(scene: &Scene, writers: u32, time: Duration) -> Outcome {
    let sampler = Sampler::start(scene.mount.path(), Duration::from_millis(1)).unwrap();
    let storm = Storm::start(Options {
        directory: scene.directory(),
        writers,
        size: (Bytes::mib(16), Bytes::mib(64)),
        namespaces: ["team", "team-prod", "ci"].map(str::to_owned).to_vec(),
        pods: 2,
        method: Method::Write,
        first_age: Duration::from_secs(3 * 3600),
        until: Until { time: Some(time), ..Until::default() },
    });
    let totals = storm.join();
    let samples = sampler.stop();
    let capacity = size_of_filesystem(scene.mount.path());
    let outcome = Outcome {
        lowest: samples.lowest.expect("a storm is sampled").available,
        hard: Bytes(capacity.0 / 5),
        out_of_space: totals.out_of_space,
        archives: totals.archives,
    };
    println!(
        "{} with {writers} writers: {} archives, {}; lowest {} of hard {}, blind for {:?} at most",
        scene.mount.filesystem().as_str(),
        totals.archives,
        totals.bytes,
        outcome.lowest,
        outcome.hard,
        samples.longest_gap
    );
    outcome
}

fn size_of_filesystem(path: &Path) -> Bytes {
    let stat = nix::sys::statvfs::statvfs(path).unwrap();
    Bytes(stat.blocks() * stat.fragment_size())
}

/// No deletion began with the target reached, so after none there was more than the target and one checkpoint.
fn check_no_more_than_needed(daemon: &Daemon, hard: Bytes) {
    let target = hard.0 + hard.0 / 10;
    for line in daemon.audit().iter().filter(|line| line["outcome"] == "deleted") {
        let before = line["availableBeforeBytes"].as_u64().unwrap();
        assert!(before < target, "deleted although {} were available: {line}", Bytes(before));
    }
}

/// What must survive every storm. The oldest of all, so they would come first.
struct Bystanders {
    paths: Vec<PathBuf>,
    _held: [File; 2],
}

impl Bystanders {
    fn put(scene: &Scene) -> Bystanders {
        let directory = scene.directory();
        let at = "2026-01-01T00:00:00Z".parse().unwrap();
        let write = |namespace: &str, pod: &str, container: &str| {
            Archive::new(namespace, pod, container, at, 4 << 20).write_in(&directory).unwrap()
        };
        let protected = write("forensics", "evidence", "main");
        // Told from `team` by what lies inside only. Protection 90: there is always something that matters less.
        let prod = write("team-prod", "x", "app");
        let pinned = write("team", "pinned", "main");
        std::fs::write(format!("{}.keep", pinned.display()), "").unwrap();
        let [open, written, linked] = ["open", "written", "linked"].map(|pod| write("team", pod, "main"));
        let held = [File::open(&open).unwrap(), File::options().append(true).open(&written).unwrap()];
        std::fs::hard_link(&linked, scene.mount.path().join("elsewhere")).unwrap();
        let foreign = directory.join("notes.txt");
        std::fs::write(&foreign, "mine").unwrap();
        let link = directory.join("checkpoint-link_team-main-2026-01-01T00:00:00Z.tar");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        Bystanders { paths: vec![protected, prod, pinned, open, written, linked, foreign, link], _held: held }
    }

    #[track_caller]
    fn check(&self) {
        for path in &self.paths {
            assert!(std::fs::symlink_metadata(path).is_ok(), "{path:?} is gone");
        }
        assert!(Path::new("/etc/passwd").exists());
    }
}

#[track_caller]
fn check_storm(filesystem: Filesystem, writers: u32) {
    for storm in 1..=STORMS_MAX {
        // What builds and tests have left dirty on the disk below the loop device is theirs: xfs's log would wait for it.
        nix::unistd::sync();
        let scene = Scene::new(filesystem);
        let bystanders = Bystanders::put(&scene);
        let daemon = scene.setting.start();
        let outcome = weather(&scene, writers, Duration::from_secs(6));
        assert!(outcome.archives > 20, "not much of a storm");
        assert!(daemon.deleted().len() > 10, "{}", daemon.log());
        bystanders.check();
        check_no_more_than_needed(&daemon, outcome.hard);
        let log = daemon.log();
        assert!(daemon.stop() < Duration::from_secs(2), "SIGTERM took too long");
        if outcome.out_of_space == 0 && outcome.lowest + BELOW_HARD_MAX >= outcome.hard {
            return;
        }
        let Outcome { lowest, hard, out_of_space, .. } = outcome;
        let result = format!("{out_of_space} times out of space, lowest {lowest} with hard at {hard}");
        assert!(storm < STORMS_MAX, "{result}\n{log}");
        println!("{result}; once more");
    }
}

#[test]
fn one_writer_never_gets_far_below_hard_on_ext4() {
    check_storm(Filesystem::Ext4, 1);
}

#[test]
fn one_writer_never_gets_far_below_hard_on_xfs() {
    check_storm(Filesystem::Xfs, 1);
}

#[test]
fn one_writer_never_gets_far_below_hard_on_btrfs() {
    check_storm(Filesystem::Btrfs, 1);
}

#[test]
fn four_writers_never_get_far_below_hard_on_ext4() {
    check_storm(Filesystem::Ext4, 4);
}

#[test]
fn four_writers_never_get_far_below_hard_on_xfs() {
    check_storm(Filesystem::Xfs, 4);
}

#[test]
fn four_writers_never_get_far_below_hard_on_btrfs() {
    check_storm(Filesystem::Btrfs, 4);
}

#[test]
fn four_writers_never_get_far_below_hard_while_both_cores_are_busy() {
    let stop = Arc::new(AtomicBool::new(false));
    let burners: Vec<_> = (0..2)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    check_storm(Filesystem::Ext4, 4);
    stop.store(true, Ordering::Relaxed);
    burners.into_iter().for_each(|burner| burner.join().unwrap());
}

#[test]
fn exactly_the_right_one_of_five_is_deleted_when_one_is_enough() {
    let scene = Scene::new(Filesystem::Ext4);
    let directory = scene.directory();
    // 1 GiB, hard 20 %, target 22 %: 700 MiB of foreign data leave some 260 MiB, five archives of 20 MiB some 160.
    let daemon = scene.setting.start();
    let mut names = Vec::new();
    for hour in 1..=5 {
        let at = format!("2026-01-01T0{hour}:00:00Z").parse().unwrap();
        let archive = Archive::new("ci", "job", "main", at, 40 << 20);
        names.push(archive.kubelet_name());
        archive.write_in(&directory).unwrap();
    }
    let seen = nix::sys::statvfs::statvfs(scene.mount.path()).unwrap();
    let available = seen.blocks_available() * seen.fragment_size();
    let hard = size_of_filesystem(scene.mount.path()).0 / 5;
    let filler = File::create(scene.mount.path().join("filler")).unwrap();
    // 10 MiB below hard; 2 % beyond it is 20 MiB: 30 MiB are needed and one archive of 40 MiB is enough.
    nix::fcntl::fallocate(
        &filler,
        nix::fcntl::FallocateFlags::empty(),
        0,
        (available - hard + (10 << 20)) as i64,
    )
    .unwrap();
    let mut daemon = daemon;
    daemon.wait_until("deleting", |daemon| !daemon.deleted().is_empty());
    daemon.keeps_running_for(Duration::from_millis(500));
    assert_eq!(daemon.deleted(), [names[0].clone()]);
}
