//! CASES.md, surroundings, through the real guard: other kernels, filesystems, mounts and configurations.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use guard::model::Bytes;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use nix::sys::statvfs::statvfs;
use tests::loopfs::{Filesystem, LoopMount};
use tests::sampler::Sampler;
use tests::scene::{CRITICAL, HARD, Scene, TARGET};
use tests::setting::{Daemon, Setting};
use tests::ways::Way;

const UNHURRIED: &str = "[eviction]\nmin-age = \"0s\"";
const MISSING: &str = "checkpoint_guard_missing_directories";
const DEGRADED: &str = "checkpoint_guard_backend_degraded";

/// Archives, pressure, and a guard started by `start` that must relieve it, by deleting the oldest.
#[track_caller]
fn check_protection(rest: &str, start: impl FnOnce(&Setting) -> Daemon) -> (Scene, Daemon) {
    let scene = Scene::new();
    let names: Vec<_> = (1..=3).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    scene.configure(&format!("{UNHURRIED}\n{rest}"));
    let mut daemon = start(&scene.setting);
    scene.leave(Bytes::mib(60));
    daemon.wait_until("deleting", |daemon| daemon.deleted() == names[..1]);
    (scene, daemon)
}

#[test]
fn case_08_a_kernel_that_refuses_ebpf_is_said_and_the_next_mode_down_protects() {
    let capabilities = "--bounding-set=-bpf,-perfmon,-sys_admin";
    let (_scene, daemon) = check_protection("", |setting| setting.start_through(&["setpriv", capabilities]));
    assert!(daemon.log().contains("eBPF does not work here"), "{}", daemon.log());
    assert_eq!(daemon.metric(DEGRADED), Some(1.0));
    assert_eq!(daemon.metric("checkpoint_guard_backend_info{backend=\"inotify\"}"), Some(1.0));
}

#[test]
fn case_08_ebpf_that_loads_and_cannot_watch_any_directory_is_said_to_be_missing() {
    // CAP_BPF alone: maps can be made, and no program reads the kernel's memory.
    let capabilities = "--bounding-set=-perfmon,-sys_admin";
    let (_scene, daemon) = check_protection("", |setting| setting.start_through(&["setpriv", capabilities]));
    if !daemon.log().contains("eBPF loaded") {
        println!("SKIPPED: eBPF does not even load here");
        return;
    }
    assert_eq!(daemon.metric(DEGRADED), Some(1.0), "{}", daemon.log());
    assert_eq!(daemon.metric("checkpoint_guard_backend_info{backend=\"inotify\"}"), Some(1.0));
}

#[test]
fn case_08_no_inotify_instances_and_no_ebpf_leave_the_clock() {
    // The limit of a user namespace of its own, in which there is no eBPF either.
    let forbid = "echo 0 > /proc/sys/user/max_inotify_instances; exec \"$@\"";
    let wrapper = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"];
    let (_scene, daemon) = check_protection("", |setting| setting.start_through(&wrapper));
    assert!(daemon.log().contains("no inotify instance"), "{}", daemon.log());
    assert_eq!(daemon.metric(DEGRADED), Some(1.0));
}

#[test]
fn case_08_ebpf_that_was_switched_off_is_not_missed() {
    let (_scene, daemon) = check_protection("[probe]\nmode = \"off\"", Setting::start);
    assert!(daemon.log().contains("eBPF is switched off"), "{}", daemon.log());
    assert_eq!(daemon.metric(DEGRADED), Some(0.0));
}

#[test]
fn case_41_gauges_are_back_within_a_cycle_after_the_pressure() {
    let scene = Scene::new();
    scene.configure(UNHURRIED);
    let filler = scene.leave(Bytes::mib(20));
    let mut daemon = scene.setting.start();
    let unreclaimable = "checkpoint_guard_unreclaimable_bytes";
    daemon.wait_until("short", |daemon| daemon.metric(unreclaimable).is_some_and(|bytes| bytes > 0.0));
    assert_eq!(level(&daemon), "hard");
    File::create(filler).unwrap();
    // A transition period of one second, and five seconds between two publications.
    daemon.keeps_running_for(Duration::from_millis(6500));
    assert_eq!(daemon.metric(unreclaimable), Some(0.0));
    assert_eq!(level(&daemon), "normal");
}

/// The level that the metrics show.
#[track_caller]
fn level(daemon: &Daemon) -> &'static str {
    let shows =
        |level: &&str| daemon.metric(&format!("checkpoint_guard_level{{level=\"{level}\"}}")) == Some(1.0);
    ["normal", "soft", "hard", "critical"].into_iter().find(shows).expect("one of them")
}

#[test]
fn case_44_with_reserved_blocks_the_numbers_are_the_kubelets() {
    let scene =
        Scene::on(LoopMount::with_options(Filesystem::Ext4, Bytes::mib(256), &["-m", "5"], "").unwrap());
    scene.archive("web", 1, Bytes::mib(16));
    File::open(scene.mount.path()).map(|root| nix::unistd::syncfs(root).unwrap()).unwrap();
    scene.configure(UNHURRIED);
    let mut daemon = scene.setting.start();
    daemon
        .wait_until("measuring", |daemon| daemon.metric("checkpoint_guard_filesystem_size_bytes").is_some());
    let stat = statvfs(scene.mount.path()).unwrap();
    let is = |metric: &str, blocks: u64| {
        let told = daemon.metric(&format!("checkpoint_guard_filesystem_{metric}"));
        assert_eq!(told, Some((blocks * stat.fragment_size()) as f64), "{metric}");
    };
    assert!(stat.blocks_available() < stat.blocks_free());
    is("available_bytes", stat.blocks_available());
    is("size_bytes", stat.blocks());
}

#[track_caller]
fn check_no_inode_signal(mount: LoopMount) {
    let scene = Scene::on(mount);
    let names: Vec<_> = (1..=3).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    scene.configure(UNHURRIED);
    let mut daemon = scene.setting.start();
    daemon
        .wait_until("measuring", |daemon| daemon.metric("checkpoint_guard_filesystem_size_bytes").is_some());
    assert_eq!(daemon.metric("checkpoint_guard_filesystem_inodes"), None);
    assert_eq!(level(&daemon), "normal");
    assert_eq!(daemon.deleted(), [""; 0]);
    scene.leave(Bytes::mib(56));
    daemon.wait_until("deleting", |daemon| daemon.deleted().starts_with(&names[..1]));
}

#[test]
fn case_45_btrfs_has_no_inode_signal() {
    check_no_inode_signal(LoopMount::new(Filesystem::Btrfs, Bytes::mib(512)));
}

#[test]
fn case_45_a_tmpfs_without_inode_limit_has_no_inode_signal() {
    let mount = LoopMount::with_options(Filesystem::Tmpfs, Bytes::mib(256), &[], "nr_inodes=0").unwrap();
    check_no_inode_signal(mount);
}

/// A mount over a directory, gone on drop.
struct Over<'a>(&'a Path);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        umount2(self.0, MntFlags::MNT_DETACH).unwrap();
    }
}

#[test]
fn case_46_a_filesystem_mounted_over_the_directory_is_noticed_and_watched() {
    let scene = Scene::new();
    let hidden = scene.archive("below", 1, Bytes::mib(16));
    scene.configure(UNHURRIED);
    let mut daemon = scene.setting.start();
    let other = Scene::new();
    let names: Vec<_> = (1..=3).map(|hour| other.archive("web", hour, Bytes::mib(16))).collect();
    mount(Some(&other.directory()), &scene.directory(), None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .unwrap();
    let directory = scene.directory();
    let over = Over(&directory);
    other.leave(Bytes::mib(60));
    daemon.wait_until("protecting the new filesystem", |daemon| daemon.deleted() == names[..1]);
    assert!(daemon.log().contains("leads to another directory now"), "{}", daemon.log());
    drop(over);
    daemon.keeps_running_for(Duration::from_secs(2));
    assert!(scene.has(&hidden));
    assert!(daemon.get("/readyz").is_some_and(|(status, _)| status == 200), "{}", daemon.log());
}

#[test]
fn case_47_a_directory_that_is_not_there_is_said_loudly_and_waited_for() {
    let scene = Scene::new();
    let elsewhere = scene.mount.path().join("k0s/checkpoints");
    let table = tests::scene::directory_table(&elsewhere);
    scene.setting.configure(&format!("{table}\n[pressure]\nkubelet-config = \"off\""));
    let mut daemon = scene.setting.launch(&[], &mut |_| {});
    daemon.wait_until("complaining", |daemon| daemon.log().contains("cannot watch a directory"));
    assert!(daemon.log().contains("k0s/checkpoints") && daemon.log().contains("ERROR"), "{}", daemon.log());
    assert_ne!(daemon.get("/readyz").map(|(status, _)| status), Some(200));
    daemon.wait_until("counting it", |daemon| daemon.metric(MISSING) == Some(1.0));
    std::fs::create_dir_all(&elsewhere).unwrap();
    daemon.wait_until_ready();
    assert_eq!(daemon.metric(MISSING), Some(0.0));

    // One that goes away under the guard is missing as well, though the guard was ready.
    std::fs::rename(&elsewhere, scene.mount.path().join("away")).unwrap();
    daemon.wait_until("missing it", |daemon| daemon.metric(MISSING) == Some(1.0));
    std::fs::create_dir(&elsewhere).unwrap();
    daemon.wait_until("finding it", |daemon| daemon.metric(MISSING) == Some(0.0));
}

#[test]
fn a_missing_directory_that_left_the_configuration_is_not_waited_for_any_more() {
    let scene = Scene::new();
    let later = scene.mount.path().join("later");
    let table = tests::scene::directory_table(&later);
    let without = format!("{UNHURRIED}\n[protection]\ndefault = 10\n");
    scene.configure(&format!("{without}{table}\n"));
    let names: Vec<_> = (3..=5).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    let mut daemon = scene.setting.launch(&[], &mut |_| {});
    daemon.wait_until("missing one", |daemon| daemon.metric(MISSING) == Some(1.0));
    assert!(daemon.get("/readyz").is_some_and(|(status, _)| status == 503));
    scene.configure(&without);
    // It is named as what readiness waits for, and is no longer.
    daemon.wait_until_ready();
    assert_eq!(daemon.metric(MISSING), Some(0.0));

    std::fs::create_dir(&later).unwrap();
    let older = tests::archives::Archive::new("team", "old", "main", tests::scene::hour_of_2026(1), 16 << 20);
    let older = older.write_in(&later).unwrap();
    daemon.keeps_running_for(Duration::from_millis(2500));
    assert_eq!(daemon.metric("checkpoint_guard_checkpoints"), Some(3.0), "{}", daemon.log());
    scene.leave(Bytes::mib(60));
    daemon.wait_until("deleting", |daemon| !daemon.deleted().is_empty());
    assert_eq!(daemon.deleted(), names[..1]);
    assert!(older.exists());
}

#[test]
fn case_48_a_disk_without_a_byte_and_the_audit_log_on_it_are_no_obstacle() {
    let mut scene = Scene::new();
    let log = scene.mount.path().join("log");
    std::fs::create_dir(&log).unwrap();
    scene.setting = Setting::new().audit_at(log.join("audit.jsonl"));
    let names: Vec<_> = (1..=8).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    scene.configure(UNHURRIED);
    scene.leave(Bytes::ZERO);
    assert_eq!(scene.available(), Bytes::ZERO);
    let mut daemon = scene.setting.start();
    daemon.wait_until("at its target", |_| scene.available() >= TARGET);
    daemon.keeps_running_for(Duration::from_millis(300));
    // 72 MiB up to the target, and the 16 MiB that the audit log sets aside as soon as there is room.
    assert!(names[6..].iter().all(|name| scene.has(name)), "{}", daemon.log());
    for name in &names[..4] {
        assert!(!scene.has(name) && daemon.log().contains(name.as_str()), "{}", daemon.log());
    }
}

#[test]
fn case_48_failed_audit_writes_are_counted_and_block_nothing() {
    let mut scene = Scene::new();
    scene.setting = Setting::new().audit_at("/proc/no/such/audit.jsonl".into());
    let names: Vec<_> = (1..=3).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting", |_| !scene.has(&names[0]));
    daemon.wait_until("counting", |daemon| {
        daemon.metric("checkpoint_guard_audit_failures_total").is_some_and(|count| count > 0.0)
    });
    assert!(daemon.log().contains("/proc/no/such/audit.jsonl"), "{}", daemon.log());
}

/// A setting of the whole machine, put back on drop.
struct Sysctl {
    path: &'static str,
    before: String,
}

impl Sysctl {
    fn set(path: &'static str, value: &str) -> Sysctl {
        let before = std::fs::read_to_string(path).unwrap();
        std::fs::write(path, value).unwrap();
        Sysctl { path, before }
    }
}

impl Drop for Sysctl {
    fn drop(&mut self) {
        std::fs::write(self.path, &self.before).unwrap();
    }
}

#[test]
fn case_49_an_overflow_of_the_event_queue_is_noticed_and_everything_is_looked_at_again() {
    let scene = Scene::new();
    scene.configure(UNHURRIED);
    // Read when a queue is made: needed until the guard is ready, and other processes should not suffer longer.
    let limit = Sysctl::set("/proc/sys/fs/inotify/max_queued_events", "16");
    let mut daemon = scene.setting.start();
    drop(limit);
    // While it is stopped it takes nothing out of its queue.
    daemon.signal(Signal::SIGSTOP);
    for pod in 0..200 {
        scene.archive(&format!("web-{pod}"), 1, Bytes(32 << 10));
    }
    daemon.signal(Signal::SIGCONT);
    daemon.wait_until("aware of the loss", |daemon| {
        daemon
            .metric("checkpoint_guard_lost_events_total{kind=\"inotify-queue\"}")
            .is_some_and(|lost| lost >= 1.0)
    });
    daemon.wait_until("aware of all 200", |daemon| {
        daemon.metric("checkpoint_guard_checkpoints") == Some(200.0)
    });
}

#[test]
fn case_50_however_the_bytes_come_the_filesystem_does_not_fill() {
    let scene = Scene::new();
    scene.configure(&format!("{UNHURRIED}\nkeep-last = 0"));
    scene.leave(Bytes::mib(80));
    let mut daemon = scene.setting.start();
    let elsewhere = scene.mount.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    for (day, way) in Way::ALL.into_iter().enumerate() {
        let sampler = Sampler::start(scene.mount.path(), Duration::from_millis(1)).unwrap();
        for hour in 0..5 {
            let name = format!("checkpoint-web_team-main-2026-01-{:02}T0{hour}:00:00Z.tar", day + 1);
            way.write(&scene.directory().join(name), &elsewhere, 8 << 20).unwrap();
        }
        daemon.wait_until(&format!("past {way:?}"), |_| scene.available() >= HARD);
        let lowest = sampler.stop().lowest.unwrap().available;
        println!("{way:?}: lowest {lowest}");
        assert!(lowest > CRITICAL, "{way:?}: lowest {lowest}\n{}", daemon.log());
    }
}

#[test]
fn case_51_a_configmap_is_taken_up_and_an_invalid_one_leaves_the_old_in_force() {
    let scene = Scene::new();
    let volume = scene.setting.config().parent().unwrap().to_owned();
    let publish = |version: &str, text: Option<&str>| {
        let folder = volume.join(version);
        std::fs::create_dir(&folder).unwrap();
        let now = text.map(str::to_owned).unwrap_or_default();
        std::fs::write(folder.join("guard.toml"), now).unwrap();
        let new = volume.join("..data_tmp");
        symlink(version, &new).unwrap();
        std::fs::rename(new, volume.join("..data")).unwrap();
    };
    publish("..v1", None);
    symlink("..data/guard.toml", scene.setting.config()).unwrap();
    scene.configure(&format!("{UNHURRIED}\n[protection]\ndefault = 100"));
    let first = std::fs::read_to_string(scene.setting.config()).unwrap();
    let names: Vec<_> = (1..=4).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_millis(500));
    assert_eq!(daemon.deleted(), [""; 0]);

    publish("..v2", Some(&first.replace("default = 100", "default = 10")));
    daemon.wait_until("following the new one", |daemon| daemon.deleted() == names[..1]);
    assert_eq!(daemon.metric("checkpoint_guard_config_valid"), Some(1.0));

    publish("..v3", Some("[pressure]\nhard = \"a lot\"\nnonsense = 1"));
    daemon.wait_until("refusing the invalid one", |daemon| {
        daemon.metric("checkpoint_guard_config_valid") == Some(0.0)
    });
    assert_eq!(daemon.metric("checkpoint_guard_config_reload_failures_total"), Some(1.0));
    assert!(daemon.log().contains("nonsense") && daemon.log().contains("a lot"), "{}", daemon.log());
    let is_told = |line: &serde_json::Value| line["kind"] == "Configuration" && line["accepted"] == false;
    assert!(daemon.audit().iter().any(is_told));
    scene.leave(Bytes::mib(60));
    daemon.wait_until("going on with the old one", |daemon| daemon.deleted() == names[..2]);

    // Back to what is in force: nothing to take up, and nothing is wrong any more.
    publish("..v4", Some(&first.replace("default = 100", "default = 10")));
    daemon.wait_until("valid again", |daemon| daemon.metric("checkpoint_guard_config_valid") == Some(1.0));

    publish("..v5", Some("[pressure]\nhard = \"too much\""));
    daemon.wait_until("refusing this one, too", |daemon| {
        daemon.metric("checkpoint_guard_config_valid") == Some(0.0)
    });
    publish("..v6", Some(&first));
    daemon.wait_until("valid again", |daemon| daemon.metric("checkpoint_guard_config_valid") == Some(1.0));
}
