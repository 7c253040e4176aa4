//! Staging directories through the real guard: room is made before the archive needs it, no more than it needs, and nothing
//! in them is ever touched. Root only.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use guard::model::Bytes;
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::{HARD, Scene};
use tests::setting::Daemon;

const CONTAINER: &str = "2540fdaa9dd148c3096a1f4c1a07eb2cbdd6a22aaed07a589d538a4dc1b7c4f3";
const OLD: Bytes = Bytes::mib(32);

/// Archives of 32 MiB on one filesystem, an engine's work directory, and a guard.
struct Stage {
    scene: Scene,
    old: Vec<String>,
    staging: PathBuf,
    daemon: Daemon,
    _other: Option<LoopMount>,
}

impl Stage {
    /// `available` on the archives' filesystem; the work directory on the same one or on another; `rest` of the settings.
    #[track_caller]
    fn new(filesystem: Filesystem, is_shared: bool, available: Bytes, rest: &str) -> Stage {
        let scene = Scene::on(LoopMount::new(filesystem, Bytes::mib(640)));
        let other = (!is_shared).then(|| LoopMount::new(filesystem, Bytes::mib(400)));
        let staging = other.as_ref().unwrap_or(&scene.mount).path().join("overlay-containers");
        fs::create_dir(&staging).unwrap();
        // What was there before announces nothing, and what looks like ours is not.
        fs::create_dir_all(staging.join(".evicting-3/x")).unwrap();
        fs::write(staging.join(".evicting-3/x/pages-1.img"), vec![1; 5 << 20]).unwrap();
        let old: Vec<_> = (1..=8).map(|hour| scene.archive("web", hour, OLD)).collect();
        scene.configure(&format!(
            "[eviction]\nmin-age = \"0s\"\n{rest}\n[[directory]]\npath = {staging:?}\nlayout = \"staging\"\n"
        ));
        scene.leave(available);
        let mut daemon = scene.setting.start();
        daemon.wait_until("watching both", |daemon| {
            daemon.log().matches("eBPF counts what is written").count() == 2
        });
        // Its first look finds what is old.
        daemon.keeps_running_for(Duration::from_millis(400));
        Stage { scene, old, staging, daemon, _other: other }
    }

    fn dump(&self) -> PathBuf {
        self.staging.join(CONTAINER).join("userdata/checkpoint")
    }

    /// Lets the dump grow by `mib` files of 1 MiB, as criu writes images.
    #[track_caller]
    fn stage(&self, name: &str, mib: u64) {
        fs::create_dir_all(self.dump()).unwrap();
        let mut file = File::create(self.dump().join(name)).unwrap();
        for n in 0..mib {
            file.write_all(&vec![n as u8; 1 << 20]).unwrap();
        }
    }

    fn metric(&self, name: &str) -> Bytes {
        Bytes(self.daemon.metric(name).unwrap_or_default() as u64)
    }

    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "clears up as the engine does")]
    fn clear(&self) {
        fs::remove_dir_all(self.staging.join(CONTAINER)).unwrap();
    }

    /// What was deleted, once the announcement has had every time to do more.
    #[track_caller]
    fn deleted(&mut self) -> Vec<String> {
        self.daemon.keeps_running_for(Duration::from_millis(1200));
        self.daemon.deleted()
    }

    #[track_caller]
    fn check_untouched(&self, files: &[(&str, u64)]) {
        for (name, mib) in files {
            let content = fs::read(self.dump().join(name)).unwrap();
            assert_eq!(content.len() as u64, mib << 20);
            assert!(
                content
                    .chunks(1 << 20)
                    .enumerate()
                    .all(|(n, piece)| piece.iter().all(|byte| *byte == n as u8))
            );
        }
        assert_eq!(fs::read(self.staging.join(".evicting-3/x/pages-1.img")).unwrap().len(), 5 << 20);
    }
}

/// 80 MiB are staged, and `expect` of the old ones go before the archive begins.
#[track_caller]
fn staged(filesystem: Filesystem, is_shared: bool, available: Bytes, expect: usize) -> Stage {
    let mut stage = Stage::new(filesystem, is_shared, available, "");
    stage.stage("pages-1.img", 40);
    stage.stage("pages-2.img", 40);
    stage.daemon.wait_until("making room", |daemon| daemon.deleted().len() >= expect);
    assert_eq!(stage.deleted(), stage.old[..expect], "{}", stage.daemon.log());
    stage.daemon.wait_until("telling", |daemon| {
        let announced = daemon.metric("checkpoint_guard_announced_bytes").unwrap_or_default() as u64;
        (Bytes::mib(80)..=Bytes::mib(82)).contains(&Bytes(announced))
    });
    stage.check_untouched(&[("pages-1.img", 40), ("pages-2.img", 40)]);
    let audit = stage.daemon.audit();
    let reasons: Vec<_> = audit
        .iter()
        .filter(|line| line["phase"] == "intent")
        .filter_map(|line| line["reason"].as_str())
        .collect();
    let from = format!("on their way from {}", stage.staging.display());
    assert!(reasons.len() == expect && reasons.iter().all(|reason| reason.contains(&from)), "{reasons:?}");
    stage
}

/// Then the archive is written, in the room that was made for it, and the dump is cleared away.
#[track_caller]
fn check(is_shared: bool, available: Bytes, expect: usize) {
    let mut stage = staged(Filesystem::Ext4, is_shared, available, expect);
    let arrived = stage.scene.archive("new", 20, Bytes::mib(80));
    assert!(stage.scene.available() >= HARD, "{} left", stage.scene.available());
    assert_eq!(stage.deleted(), stage.old[..expect], "the archive had its room\n{}", stage.daemon.log());
    stage.check_untouched(&[("pages-1.img", 40), ("pages-2.img", 40)]);
    stage.clear();
    stage.daemon.wait_until("expecting nothing", |daemon| {
        daemon.metric("checkpoint_guard_announced_bytes") == Some(0.0)
    });
    assert_eq!(stage.deleted(), stage.old[..expect]);
    assert!(stage.scene.has(&arrived));
}

#[test]
fn room_is_made_on_the_archives_filesystem_while_another_one_is_staged_on() {
    // 64 MiB are hard, 81 are on their way, 100 are there: two of 32 MiB go.
    check(false, Bytes::mib(100), 2);
}

#[test]
fn room_is_made_where_the_dump_and_the_archive_share_a_filesystem() {
    // The dump takes 80 of 160 MiB; 64 and 81 are needed: three of 32 MiB go.
    check(true, Bytes::mib(160), 3);
}

#[test]
fn room_is_made_where_only_pages_are_counted() {
    // What xfs sets aside for the archive while it grows may call for more later, so this ends before.
    staged(Filesystem::Xfs, false, Bytes::mib(100), 2);
}

#[test]
fn a_dump_that_vanishes_is_no_longer_expected() {
    let mut stage = Stage::new(Filesystem::Ext4, false, Bytes::mib(110), "");
    stage.stage("pages-1.img", 30);
    stage.daemon.wait_until("expecting all of it", |daemon| {
        let is = |name, least: f64| daemon.metric(name).is_some_and(|bytes| bytes >= least);
        // A look in the middle of the dump has told of a part.
        is("checkpoint_guard_announced_bytes", 1.0)
            && is("checkpoint_guard_staging_bytes", 30.0 * 1_048_576.0)
    });
    stage.clear();
    stage.daemon.wait_until("expecting nothing", |daemon| {
        daemon.metric("checkpoint_guard_announced_bytes") == Some(0.0)
    });
    // Above hard by less than what was announced.
    stage.scene.leave(Bytes::mib(70));
    assert_eq!(stage.deleted(), [""; 0], "{}", stage.daemon.log());
}

#[test]
fn a_staging_directory_that_is_taken_away_announces_nothing_and_is_watched_again_when_it_is_back() {
    let mut stage = Stage::new(Filesystem::Ext4, false, Bytes::mib(110), "");
    stage.stage("pages-1.img", 30);
    stage.daemon.wait_until("expecting it", |daemon| {
        daemon.metric("checkpoint_guard_announced_bytes").is_some_and(|bytes| bytes > 0.0)
    });
    let away = stage.staging.with_file_name("away");
    fs::rename(&stage.staging, &away).unwrap();
    stage.daemon.wait_until("expecting nothing", |daemon| {
        daemon.metric("checkpoint_guard_announced_bytes") == Some(0.0)
    });
    fs::create_dir(&stage.staging).unwrap();
    stage.daemon.wait_until("watching it again", |daemon| {
        daemon.log().matches("eBPF counts what is written").count() == 3
    });
    stage.daemon.keeps_running_for(Duration::from_millis(400));
    stage.stage("pages-1.img", 80);
    stage.daemon.wait_until("making room", |daemon| !daemon.deleted().is_empty());
    assert!(away.join(CONTAINER).is_dir());
}

#[test]
fn at_most_what_the_cap_says_is_made_ahead_and_nothing_when_it_is_off() {
    let mut stage = Stage::new(Filesystem::Ext4, false, Bytes::mib(100), "[staging]\nahead = \"60MiB\"");
    stage.stage("pages-1.img", 200);
    stage.daemon.wait_until("making room", |daemon| !daemon.deleted().is_empty());
    // 64 and 60 are 24 more than there are.
    assert_eq!(stage.deleted(), stage.old[..1]);
    drop(stage);

    let mut stage = Stage::new(Filesystem::Ext4, false, Bytes::mib(70), "[staging]\nahead = false");
    stage.stage("pages-1.img", 80);
    stage.daemon.wait_until("seeing it", |daemon| {
        daemon.metric("checkpoint_guard_staging_bytes").is_some_and(|bytes| bytes >= 80.0 * 1048576.0)
    });
    assert_eq!(stage.deleted(), [""; 0]);
    assert_eq!(stage.metric("checkpoint_guard_announced_bytes"), Bytes::ZERO);
}

#[test]
fn what_cannot_be_made_room_for_is_said_once_and_costs_nothing() {
    let mut stage = Stage::new(Filesystem::Ext4, false, Bytes::mib(100), "[protection]\ndefault = 100");
    stage.stage("pages-1.img", 80);
    let sentence = "nothing more may be deleted to make room for it";
    stage.daemon.wait_until("at its wits' end", |daemon| daemon.log().contains(sentence));
    let wakes = stage.daemon.metric("checkpoint_guard_wakes_total").unwrap();
    stage.daemon.keeps_running_for(Duration::from_secs(3));
    let wakes = stage.daemon.metric("checkpoint_guard_wakes_total").unwrap() - wakes;
    assert_eq!(stage.daemon.log().matches(sentence).count(), 1, "{}", stage.daemon.log());
    assert!(wakes < 60.0, "{wakes} turns in 3 s of waiting");
    assert_eq!(stage.daemon.deleted(), [""; 0]);
    assert!(Path::new(&stage.dump()).is_dir());
}
