//! What breaks around a running guard: disks, mounts, limits, clocks. Each time: it says so, it counts it where it acts, it
//! goes on running, nothing wrong is deleted, and once the trouble is over it does what it is there for.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use guard::model::Bytes;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tests::clocks::Clocks;
use tests::faults::{Call, Faults};
use tests::fuse::Fuse;
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::{Scene, TARGET, directory_table, make_old};
use tests::setting::{Daemon, Setting};

const UNHURRIED: &str = "[eviction]\nmin-age = \"0s\"";
const CALLS: [libc::c_long; 5] =
    [libc::SYS_unlinkat, libc::SYS_renameat2, libc::SYS_openat, libc::SYS_fstatfs, libc::SYS_bpf];

/// Four archives of one container, of which three may go.
fn scene() -> (Scene, Vec<String>) {
    let scene = Scene::new();
    let names = (1..=4).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    scene.configure(UNHURRIED);
    (scene, names)
}

/// A guard that knows every archive and has nothing to do, with faults at hand.
#[track_caller]
fn ready(scene: &Scene) -> (Daemon, Faults) {
    let (mut daemon, faults) = Faults::launch(&scene.setting, &CALLS, |_| None);
    daemon.wait_until_ready();
    // What has not been read yet is no candidate.
    daemon.keeps_running_for(Duration::from_secs(1));
    (daemon, faults)
}

#[track_caller]
fn check_all_there(scene: &Scene, names: &[String], daemon: &Daemon) {
    for name in names {
        assert!(scene.has(name), "{name} is gone\n{}", daemon.log());
    }
    assert_eq!(daemon.deleted(), [""; 0], "{}", daemon.log());
}

/// Waits for the fault to be said, checks that nothing is gone, ends it, and waits for the deletion that was due.
#[track_caller]
fn check_survived(scene: &Scene, names: &[String], daemon: &mut Daemon, faults: &Faults, said: &str) {
    daemon.wait_until("saying it", |daemon| daemon.log().contains(said));
    daemon.keeps_running_for(Duration::from_millis(1500));
    assert!(faults.injected() > 0);
    check_all_there(scene, names, daemon);
    faults.clear();
    check_reclaims_one(scene, names, daemon);
}

/// Waits until the oldest one is deleted, and checks that this was enough and all.
#[track_caller]
fn check_reclaims_one(scene: &Scene, names: &[String], daemon: &mut Daemon) {
    daemon.wait_until("deleting", |daemon| !daemon.deleted().is_empty());
    daemon.wait_until("at its target", |_| scene.available() >= TARGET);
    assert_eq!(daemon.deleted(), names[..1], "{}", daemon.log());
}

fn on(
    number: libc::c_long,
    errno: Errno,
    concerns: fn(&Call) -> bool,
) -> impl Fn(&Call) -> Option<Errno> + Send {
    move |call| (call.number == number && concerns(call)).then_some(errno)
}

/// `.evicting-<id>-<inode>`: a checkpoint on its way out.
fn is_aside(call: &Call) -> bool {
    call.text(1)
        .strip_prefix(".evicting-")
        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

fn is_checkpoint(call: &Call) -> bool {
    call.text(1).starts_with("checkpoint-")
}

#[test]
fn a_disk_that_fails_in_unlink() {
    let (scene, names) = scene();
    let (mut daemon, faults) = ready(&scene);
    faults.set(on(libc::SYS_unlinkat, Errno::EIO, is_aside));
    scene.leave(Bytes::mib(60));
    let failures = "checkpoint_guard_deletion_failures_total{cause=\"io\"}";
    daemon.wait_until("failing", |daemon| daemon.metric(failures).is_some_and(|count| count >= 3.0));
    assert!(faults.injected() >= 3 && daemon.log().contains("EIO"), "{}", daemon.log());
    daemon.wait_until("saying it", |daemon| daemon.log().contains("the disk fails (dmesg)"));
    daemon.keeps_running_for(Duration::from_millis(1500));
    check_all_there(&scene, &names, &daemon);
    // At first, and each ten seconds: taking its name away and giving it back are no news.
    let began = daemon.audit();
    for name in &names {
        let tries = began.iter().filter(|line| line["outcome"] == "failed" && line["name"] == **name).count();
        assert!(tries <= 4, "{name} was tried {tries} times\n{}", daemon.log());
    }
    faults.clear();
    check_reclaims_one(&scene, &names, &mut daemon);
}

#[test]
fn a_handle_that_is_stale_when_it_counts() {
    let (scene, names) = scene();
    let (mut daemon, faults) = ready(&scene);
    faults.set(on(libc::SYS_openat, Errno::ESTALE, is_checkpoint));
    scene.leave(Bytes::mib(60));
    check_survived(&scene, &names, &mut daemon, &faults, "ESTALE");
}

#[test]
fn a_filesystem_that_cannot_rename_any_more() {
    let (scene, names) = scene();
    let (mut daemon, faults) = ready(&scene);
    faults.set(on(libc::SYS_renameat2, Errno::EIO, is_checkpoint));
    scene.leave(Bytes::mib(60));
    check_survived(&scene, &names, &mut daemon, &faults, "renameat2: EIO");
}

#[test]
fn a_filesystem_that_cannot_be_measured() {
    let (scene, names) = scene();
    let (mut daemon, faults) = ready(&scene);
    faults.set(on(libc::SYS_fstatfs, Errno::EIO, |_| true));
    scene.leave(Bytes::mib(60));
    check_survived(&scene, &names, &mut daemon, &faults, "cannot measure the filesystem");
    let said = daemon.log().matches("cannot measure the filesystem").count();
    assert_eq!(said, 1, "once per episode\n{}", daemon.log());
}

#[test]
fn a_directory_that_cannot_be_read_is_said_and_counted() {
    let (scene, names) = scene();
    let rule = on(libc::SYS_getdents64, Errno::EIO, |_| true);
    let (mut daemon, faults) = Faults::launch(&scene.setting, &[libc::SYS_getdents64], rule);
    let failures = "checkpoint_guard_scan_failures_total";
    daemon.wait_until("counting it", |daemon| daemon.metric(failures).is_some_and(|count| count >= 1.0));
    assert!(daemon.log().contains("cannot read the directory"), "{}", daemon.log());
    assert!(faults.injected() > 0);
    let (status, body) = daemon.get("/readyz").unwrap();
    assert_eq!(status, 503, "it knows nothing of what lies there: {body}");
    check_all_there(&scene, &names, &daemon);
    faults.clear();
    daemon.wait_until_ready();
    scene.leave(Bytes::mib(60));
    check_reclaims_one(&scene, &names, &mut daemon);
}

#[test]
fn a_kernel_without_memory_for_maps_leaves_inotify() {
    let (scene, names) = scene();
    let rule = on(libc::SYS_bpf, Errno::ENOMEM, |call| call.arguments[0] == 0);
    let (mut daemon, faults) = Faults::launch(&scene.setting, &CALLS, rule);
    daemon.wait_until_ready();
    assert!(faults.injected() > 0 && daemon.log().contains("eBPF does not work here"), "{}", daemon.log());
    scene.leave(Bytes::mib(60));
    check_reclaims_one(&scene, &names, &mut daemon);
}

#[test]
fn no_descriptor_left() {
    let (scene, names) = scene();
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_secs(1));
    let open: HashSet<u64> = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid()))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap().parse().unwrap())
        .collect();
    // The limit is one on numbers: from the lowest that is free on, there is none.
    limit_files(daemon.pid().as_raw(), (0..).find(|number| !open.contains(number)).unwrap());
    scene.leave(Bytes::mib(60));
    daemon.wait_until("saying it", |daemon| daemon.log().contains("raise the limit of open files"));
    daemon.keeps_running_for(Duration::from_millis(1500));
    check_all_there(&scene, &names, &daemon);
    limit_files(daemon.pid().as_raw(), 1024);
    check_reclaims_one(&scene, &names, &mut daemon);
    daemon.wait_until("serving again", |daemon| {
        daemon.metric("checkpoint_guard_deletion_failures_total").is_some()
    });
}

#[test]
fn a_directory_that_appears_while_no_descriptor_is_left_for_its_loop() {
    let (scene, names) = scene();
    let away = scene.mount.path().join("away");
    std::fs::rename(scene.directory(), &away).unwrap();
    let mut daemon = scene.setting.launch(&[], &mut |_| {});
    daemon.wait_until("missing it", |daemon| daemon.log().contains("does not exist"));
    daemon.wait_until("serving", |daemon| daemon.get("/readyz").is_some());
    let number =
        |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let open: Vec<u64> = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid()))
        .unwrap()
        .map(|entry| number(entry).parse().unwrap())
        .collect();
    // One to open the directory with, and none more.
    let free = (0..).find(|number| !open.contains(number)).unwrap();
    limit_files(daemon.pid().as_raw(), free + 1);
    std::fs::rename(&away, scene.directory()).unwrap();
    daemon.wait_until("saying it", |daemon| daemon.log().contains("cannot start watching"));
    limit_files(daemon.pid().as_raw(), 1024);
    daemon.wait_until_ready();
    scene.leave(Bytes::mib(60));
    check_reclaims_one(&scene, &names, &mut daemon);
}

fn limit_files(pid: i32, soft: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the one structure it is given; no new limit is set.
    let status = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &mut limit) };
    Errno::result(status).unwrap();
    limit.rlim_cur = soft.min(limit.rlim_max);
    // SAFETY: reads the one structure it is given; no old limit is asked for.
    let status = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()) };
    Errno::result(status).unwrap();
}

#[test]
fn a_filesystem_that_became_read_only() {
    let (scene, names) = scene();
    scene.leave(Bytes::mib(60));
    let remount = |flags| {
        mount(None::<&str>, scene.mount.path(), None::<&str>, MsFlags::MS_REMOUNT | flags, None::<&str>)
    };
    remount(MsFlags::MS_RDONLY).unwrap();
    let mut daemon = scene.setting.start();
    daemon.wait_until("saying it", |daemon| daemon.log().contains("the filesystem is read-only"));
    daemon.keeps_running_for(Duration::from_millis(1500));
    let failures = "checkpoint_guard_deletion_failures_total{cause=\"read-only\"}";
    assert!(daemon.metric(failures).is_some_and(|count| count >= 1.0), "{}", daemon.log());
    check_all_there(&scene, &names, &daemon);
    remount(MsFlags::empty()).unwrap();
    check_reclaims_one(&scene, &names, &mut daemon);
}

#[test]
fn a_mount_that_hangs_stops_nobody_else() {
    let stuck = Fuse::mount().unwrap();
    let (scene, names) = scene();
    let settings = "[pressure]\nsoft = false\nhard = { available = \"64MiB\" }\ncritical = { available = \"16MiB\" }\n\
                    minimum-reclaim = { available = \"8MiB\" }\nkubelet-config = false";
    let directories = format!("{}\n{}", directory_table(stuck.path()), directory_table(&scene.directory()));
    scene.setting.configure(&format!("{directories}\n{settings}\n{UNHURRIED}"));
    let mut daemon = scene.setting.start();
    stuck.hang();
    // Its loop looks at least once a second, and then waits for ever.
    daemon.keeps_running_for(Duration::from_millis(2500));
    scene.leave(Bytes::mib(60));
    check_reclaims_one(&scene, &names, &mut daemon);
    assert!(daemon.stop() < Duration::from_secs(10), "a mount that hangs holds up the end");
}

#[test]
fn a_mount_that_hangs_from_the_start_stops_nobody_else() {
    let stuck = Fuse::mount().unwrap();
    stuck.hang();
    let (scene, names) = scene();
    let settings = "[pressure]\nsoft = false\nhard = { available = \"64MiB\" }\ncritical = { available = \"16MiB\" }\n\
                    minimum-reclaim = { available = \"8MiB\" }\nkubelet-config = false";
    let optional = format!("{}\noptional = true", directory_table(stuck.path()));
    scene
        .setting
        .configure(&format!("{optional}\n{}\n{settings}\n{UNHURRIED}", directory_table(&scene.directory())));
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.launch(&[], &mut |_| {});
    check_reclaims_one(&scene, &names, &mut daemon);
}

#[test]
fn a_directory_far_below_a_mount_that_hangs_keeps_nobody_from_starting() {
    let stuck = Fuse::mount().unwrap();
    stuck.hang();
    let (scene, names) = scene();
    let settings = "[pressure]\nsoft = false\nhard = { available = \"64MiB\" }\ncritical = { available = \"16MiB\" }\n\
                    minimum-reclaim = { available = \"8MiB\" }\nkubelet-config = false\n\
                    [notify]\ncommand = [\"/bin/true\"]";
    let below = format!("{}\noptional = true", directory_table(&stuck.path().join("pods/one")));
    let directories = format!("{below}\n{}", directory_table(&scene.directory()));
    scene.setting.configure(&format!("{directories}\n{settings}\n{UNHURRIED}"));
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.launch(&[], &mut |_| {});
    check_reclaims_one(&scene, &names, &mut daemon);
    assert!(daemon.log().contains("the sandbox leaves it out"), "{}", daemon.log());
    assert!(daemon.audit().iter().any(|line| line["kind"] == "Command" && line["outcome"] == "done"));
}

/// A filesystem on which every write waits, until this is dropped.
struct Frozen<'m>(&'m LoopMount);

impl Frozen<'_> {
    fn new(mount: &LoopMount) -> Frozen<'_> {
        assert!(Command::new("fsfreeze").arg("-f").arg(mount.path()).status().unwrap().success());
        Frozen(mount)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(self.0.path()).status();
    }
}

#[test]
fn a_frozen_audit_log_delays_no_deletion_and_has_every_line_in_the_end() {
    let logs = LoopMount::new(Filesystem::Ext4, Bytes::mib(64));
    let log = logs.path().join("audit.jsonl");
    let (mut scene, names) = scene();
    scene.setting = Setting::new().audit_at(log.clone());
    scene.configure(UNHURRIED);
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_secs(1));
    let frozen = Frozen::new(&logs);
    scene.leave(Bytes::mib(60));
    daemon.wait_until("making room", |_| scene.available() >= TARGET);
    assert!(!scene.has(&names[0]) && scene.has(&names[1]));
    let said = |daemon: &Daemon| daemon.log().contains("the audit log's filesystem does not answer");
    daemon.wait_until("saying so", said);
    daemon.wait_until("counting it", |daemon| {
        daemon.metric("checkpoint_guard_audit_failures_total").is_some_and(|count| count >= 1.0)
    });
    assert!(daemon.log().contains(&names[0]), "the line is in the process's log");
    drop(frozen);
    daemon.wait_until("catching up", |daemon| daemon.log().contains("the audit log is written again"));
    daemon.stop();
    let (count, broken) = guard::report::audit::verify(&log).unwrap();
    assert_eq!(broken, [], "{count} lines");
    let lines = guard::report::audit::read(&log).unwrap();
    let phases: Vec<_> = lines
        .iter()
        .filter(|line| line.text("name") == Some(&names[0]))
        .map(|line| (line.id(), line.text("phase").unwrap()))
        .collect();
    assert!(matches!(phases[..], [(one, "intent"), (two, "outcome")] if one == two), "{phases:?}");
}

#[test]
fn an_audit_log_that_hangs_from_the_start_stops_nobody() {
    let stuck = Fuse::mount().unwrap();
    stuck.hang();
    let (mut scene, names) = scene();
    scene.setting = Setting::new().audit_at(stuck.path().join("logs/audit.jsonl"));
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.launch(&[], &mut |_| {});
    daemon.wait_until("making room", |_| scene.available() >= TARGET);
    assert!(!scene.has(&names[0]) && scene.has(&names[1]));
    assert!(daemon.stop() < Duration::from_secs(10), "it holds up the end");
}

#[test]
fn a_directory_that_is_removed_and_made_again() {
    let (scene, names) = scene();
    let mut daemon = scene.setting.start();
    let away = scene.mount.path().join("away");
    std::fs::rename(scene.directory(), &away).unwrap();
    daemon.wait_until("missing it", |daemon| daemon.log().contains("does not exist"));
    assert!(Command::new("rm").arg("-r").arg(&away).status().unwrap().success());
    std::fs::create_dir(scene.directory()).unwrap();
    let names: Vec<_> =
        names.iter().zip(1..).map(|(_, hour)| scene.archive("web", hour, Bytes::mib(16))).collect();
    daemon.keeps_running_for(Duration::from_secs(2));
    scene.leave(Bytes::mib(60));
    check_reclaims_one(&scene, &names, &mut daemon);
}

#[test]
fn a_parent_that_shows_through_after_an_unmount_is_judged_by_itself() {
    // Beneath: a directory with checkpoints on a filesystem without pressure. Above: one that is full.
    let (scene, names) = scene();
    let beneath = scene.directory();
    let above = LoopMount::new(Filesystem::Tmpfs, Bytes::mib(128));
    mount(Some(above.path()), &beneath, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let mounted = Mounted(&beneath);
    let over: Vec<_> = (1..=3).map(|hour| scene.archive("api", hour, Bytes::mib(16))).collect();
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_secs(1));
    drop(mounted);
    daemon.wait_until("elsewhere", |daemon| daemon.log().contains("the path leads to another directory now"));
    // The one that went away gets full; nobody can reach it by its configured path any more.
    tests::scene::fill(above.path(), Bytes::mib(8));
    daemon.keeps_running_for(Duration::from_secs(2));
    check_all_there(&scene, &names, &daemon);
    assert!(over.iter().all(|name| above.path().join(name).exists()), "{}", daemon.log());
    // And mounted again it is watched again.
    mount(Some(above.path()), &beneath, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let _mounted = Mounted(&beneath);
    daemon.wait_until("reclaiming there", |daemon| !daemon.deleted().is_empty());
    assert_eq!(daemon.deleted()[0], over[0]);
    daemon.keeps_running_for(Duration::from_millis(500));
    assert!(daemon.deleted().iter().all(|name| over.contains(name)), "{:?}", daemon.deleted());
}

struct Mounted<'p>(&'p Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Err: it is unmounted with what is beneath it.
        let _ = umount2(self.0, MntFlags::MNT_DETACH);
    }
}

/// A guard whose clocks can be set, with two archives a second old and a `min-age` of half an hour.
fn with_clocks() -> Option<(Scene, Vec<String>, Clocks, Daemon)> {
    let clocks = match Clocks::new() {
        Ok(clocks) => clocks,
        Err(error) => {
            println!("SKIPPED: no clocks to be set: {error:#}");
            return None;
        }
    };
    let (scene, names) = scene();
    for name in &names {
        make_old(&scene.directory().join(name));
    }
    let daemon = scene.setting.start_with(&[], &mut |command| clocks.rule(command));
    Some((scene, names, clocks, daemon))
}

#[test]
fn case_39_a_clock_that_steps_back_an_hour_stops_nothing() {
    let Some((scene, names, clocks, mut daemon)) = with_clocks() else { return };
    daemon.keeps_running_for(Duration::from_millis(300));
    clocks.set_wall(-3600);
    daemon.keeps_running_for(Duration::from_millis(1200));
    scene.leave(Bytes::mib(60));
    check_reclaims_one(&scene, &names, &mut daemon);
    let times: Vec<String> =
        daemon.audit().iter().map(|line| line["time"].as_str().unwrap().to_owned()).collect();
    assert!(times.first() > times.last(), "the guard did see the clock go back: {times:?}");
    let ids: Vec<u64> = daemon.audit().iter().map(|line| line["id"].as_u64().unwrap()).collect();
    assert!(ids.is_sorted(), "{ids:?}");
}

#[test]
fn case_39_a_clock_that_jumps_ahead_for_a_moment_costs_no_young_one() {
    let Some(clocks) = Clocks::new().ok() else { return println!("SKIPPED: no C compiler") };
    let scene = Scene::new();
    let at = jiff::Timestamp::from_second(jiff_now()).unwrap();
    let young: Vec<_> = (0..3)
        .map(|second| {
            let at = at - jiff::SignedDuration::from_secs(60 + second);
            let archive = tests::archives::Archive::new("team", "web", "main", at, 16 << 20);
            archive.write_in(&scene.directory()).unwrap();
            archive.kubelet_name()
        })
        .collect();
    scene.configure("[eviction]\nmin-age = \"30m\"");
    let mut daemon = scene.setting.start_with(&[], &mut |command| clocks.rule(command));
    // Years ahead, and back: what was decided then must not stick.
    clocks.set_wall(10 * 365 * 86_400);
    daemon.keeps_running_for(Duration::from_millis(1500));
    clocks.set_wall(0);
    scene.leave(Bytes::mib(60));
    daemon.wait_until("helpless", |daemon| daemon.log().contains("can free nothing"));
    daemon.keeps_running_for(Duration::from_millis(1500));
    check_all_there(&scene, &young, &daemon);
}

#[test]
fn case_39_a_clock_that_is_a_month_ahead_makes_nothing_too_old() {
    let Some(clocks) = Clocks::new().ok() else { return println!("SKIPPED: no C compiler") };
    let scene = Scene::new();
    let at = jiff::Timestamp::from_second(jiff_now()).unwrap();
    let write = |second| {
        let archive = tests::archives::Archive::new("team", "web", "main", at - second, 1 << 20);
        archive.write_in(&scene.directory()).unwrap();
        archive.kubelet_name()
    };
    let second = jiff::SignedDuration::from_secs;
    let mut names: Vec<_> = (1..=2).map(|n| write(second(60 * n))).collect();
    scene.configure(
        "[eviction]\nmin-age = \"0s\"\n[[retention]]\nnamespace = \"team\"\nmax-age = \"1d\"\nmax-count.container = 3",
    );
    let mut daemon = scene.setting.start_with(&[], &mut |command| clocks.rule(command));
    daemon.keeps_running_for(Duration::from_secs(1));
    clocks.set_wall(30 * 86_400);
    // One that is complete calls for a run.
    names.push(write(second(30)));
    daemon.wait_until("noticing", |daemon| daemon.log().contains("the wall clock was set"));
    daemon.keeps_running_for(Duration::from_millis(500));
    check_all_there(&scene, &names, &daemon);
    // A count needs no clock.
    write(second(20));
    daemon.wait_until("keeping the count", |daemon| daemon.deleted() == names[1..2]);
    assert_eq!(daemon.log().matches("the wall clock was set").count(), 1);
}

#[test]
fn a_machine_that_slept_goes_on_where_it_was() {
    // CLOCK_MONOTONIC stands still while a machine sleeps; the wall clock does not.
    let Some((scene, names, clocks, mut daemon)) = with_clocks() else { return };
    daemon.keeps_running_for(Duration::from_millis(300));
    clocks.set_wall(8 * 3600);
    daemon.keeps_running_for(Duration::from_millis(1200));
    assert_eq!(daemon.get("/healthz").map(|(status, _)| status), Some(200), "asleep is not hung");
    scene.leave(Bytes::mib(60));
    check_reclaims_one(&scene, &names, &mut daemon);
}

#[test]
fn a_loop_that_was_kept_from_running_for_ten_minutes_is_alive_at_its_next_turn() {
    let Some((scene, names, clocks, mut daemon)) = with_clocks() else { return };
    daemon.keeps_running_for(Duration::from_millis(300));
    // A virtual machine that was paused: monotonic goes on, nobody ran.
    clocks.advance_monotonic(600);
    daemon.keeps_running_for(Duration::from_millis(2500));
    assert_eq!(daemon.get("/healthz").map(|(status, _)| status), Some(200), "{}", daemon.log());
    scene.leave(Bytes::mib(60));
    check_reclaims_one(&scene, &names, &mut daemon);
}

#[expect(clippy::disallowed_methods, reason = "the guard compares with the real time")]
fn jiff_now() -> i64 {
    jiff::Timestamp::now().as_second()
}
