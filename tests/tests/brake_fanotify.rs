//! The brake by fanotify, on this kernel: who is refused, who is not, and what is left when something dies.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use guard::act::brake::LEASE;
use guard::act::brake::helper::DEADMAN;
use guard::model::Bytes;
use guard::observe::lease::Lease;
use guard::report::socket::{Client, Request};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::brake::{self, PATIENCE, Writer, create, median, monotonic, now, settings, until_open};
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::Scene;
use tests::setting::Daemon;

/// Without permission events there is nothing to test; said loudly.
fn can_brake() -> bool {
    let works = guard::act::brake::try_group();
    if let Err(error) = &works {
        println!("SKIPPED brake_fanotify: {error}");
    }
    works.is_ok()
}

/// Whether this kernel stops writes in progress and says ENOSPC: FAN_PRE_ACCESS, Linux 6.14.
fn stops_writes() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|word| word.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 14)
}

fn refusal() -> Errno {
    if stops_writes() { Errno::ENOSPC } else { Errno::EPERM }
}

fn is_refused<T>(result: std::io::Result<T>) -> bool {
    brake::is_refused(result, refusal())
}

#[track_caller]
fn wait_for_brake(scene: &Scene, daemon: &mut Daemon) {
    brake::wait_for_brake(scene, daemon, refusal());
}

fn helpless() -> Scene {
    brake::helpless(LoopMount::new(Filesystem::Ext4, Bytes::mib(256)), "fanotify")
}

/// The helper of a guard: what its starter has started.
#[track_caller]
fn helper_of(daemon: &Daemon) -> Pid {
    let helpers = children_of(starter_of(daemon)).into_iter().filter(|pid| !is_zombie(*pid));
    let helpers: Vec<_> = helpers.collect();
    assert_eq!(helpers.len(), 1, "{helpers:?}");
    helpers[0]
}

#[track_caller]
fn starter_of(daemon: &Daemon) -> Pid {
    let is_starter = |child: &Pid| {
        let comm = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        comm.trim_end() == "brake-starter"
    };
    children_of(daemon.pid()).into_iter().find(is_starter).expect("it starts with the guard")
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let text = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap())).collect()
}

#[test]
fn writers_are_refused_and_nobody_else() {
    if !can_brake() {
        return;
    }
    let scene = helpless();
    let mut daemon = scene.setting.start();
    wait_for_brake(&scene, &mut daemon);
    let at = |name: &str| scene.directory().join(name);

    assert!(is_refused(File::options().write(true).open(at("readable"))), "opening for writing");
    assert!(is_refused(File::options().read(true).append(true).open(at("readable"))), "appending");
    let mut content = String::new();
    File::open(at("readable")).unwrap().read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
    std::fs::read_dir(scene.directory()).unwrap().for_each(|entry| drop(entry.unwrap()));
    std::fs::rename(at("readable"), scene.mount.path().join("away")).unwrap();
    std::fs::rename(scene.mount.path().join("away"), at("readable")).unwrap();
    std::fs::write(scene.mount.path().join("beside"), "other directories are free").unwrap();
    File::create(at("readable.keep")).expect("a pin may be set at any time");
    #[expect(clippy::disallowed_methods, reason = "somebody else deletes, and may")]
    std::fs::remove_file(at("readable")).unwrap();

    // The guard itself reads and pins there.
    assert!(scene.setting.run(&["list"]).status.success());
    let (status, body) = daemon.get("/readyz").unwrap();
    assert_eq!(status, 200, "{body}");

    // What the refused creation left behind goes.
    assert!(is_refused(create(&scene, "refused.tar")));
    daemon.wait_until("clear of empty files", |_| !scene.has("refused.tar"));
    daemon.wait_until("counting", |daemon| {
        let calls = daemon.metric("checkpoint_guard_brake_refused_calls_total{writer=\"other\"}");
        calls.is_some_and(|calls| calls >= 3.0)
            && daemon.metric("checkpoint_guard_brake_engaged") == Some(1.0)
    });
    let lines = daemon.audit();
    let engaged: Vec<_> = lines.iter().filter(|line| line["kind"] == "Brake").collect();
    assert_eq!(engaged.len(), 1, "{engaged:?}");
    assert_eq!(engaged[0]["engaged"], true);
    assert_eq!(engaged[0]["mode"], "fanotify");
    drop(daemon);
    assert!(!is_refused(create(&scene, "after.tar")), "the guard is gone, and so is the brake");
}

#[test]
fn writing_that_has_begun_under_pressure_is_stopped_in_the_middle() {
    if !can_brake() || !stops_writes() {
        println!("SKIPPED: writes in progress are stopped since Linux 6.14");
        return;
    }
    let scene = Scene::new();
    let name = scene.archive("web", 1, Bytes::mib(64));
    File::create(scene.directory().join(format!("{name}.keep"))).unwrap();
    scene.configure(&settings("fanotify"));
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("at its wits' end", |daemon| {
        daemon.audit().iter().any(|line| line["kind"] == "Unreachable")
    });
    daemon.wait_until("ready", |daemon| daemon.get("/readyz").is_some());
    // Until the helper has set its marks.
    daemon.keeps_running_for(Duration::from_secs(1));
    let mut file = create(&scene, "growing.tar").unwrap();
    let chunk = vec![7; 256 << 10];
    let mut written = Bytes::ZERO;
    let error = loop {
        match file.write(&chunk) {
            Ok(len) => written += Bytes(len as u64),
            Err(error) => break error,
        }
        assert!(written < Bytes::mib(59), "nobody stopped it\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(error.raw_os_error(), Some(Errno::ENOSPC as i32));
    assert!(written > Bytes::mib(40), "stopped at {written}, above critical");
    assert!(is_refused(nix_fallocate(&file)), "fallocate");
    file.set_len(written.0 / 2).expect("who makes his file smaller passes");
    assert_eq!(file.metadata().unwrap().size(), written.0 / 2);
    daemon.wait_until("counting bytes", |daemon| {
        daemon.metric("checkpoint_guard_brake_refused_bytes_total").is_some_and(|bytes| bytes >= 262_144.0)
    });
}

fn nix_fallocate(file: &File) -> std::io::Result<()> {
    let len = file.metadata()?.size() as i64;
    Ok(nix::fcntl::fallocate(file, nix::fcntl::FallocateFlags::empty(), len, 1 << 20)?)
}

#[test]
fn a_guard_that_is_killed_leaves_nothing_engaged() {
    if !can_brake() {
        return;
    }
    let scene = helpless();
    let mut daemon = scene.setting.start();
    wait_for_brake(&scene, &mut daemon);
    let helper = helper_of(&daemon);
    daemon.signal(Signal::SIGKILL);
    let (_, longest) = until_open(&scene, &daemon);
    assert!(longest < DEADMAN, "somebody waited {longest:?}");
    daemon.wait();
    let gone = || kill(helper, None) == Err(Errno::ESRCH) || is_zombie(helper);
    let began = now();
    while !gone() {
        assert!(began.elapsed() < PATIENCE, "the helper lives on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Nobody reaps what a killed guard leaves but init, which in a container may take its time.
fn is_zombie(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

#[test]
fn a_helper_that_is_killed_lets_everybody_pass_and_is_replaced() {
    if !can_brake() {
        return;
    }
    let scene = helpless();
    let mut daemon = scene.setting.start();
    wait_for_brake(&scene, &mut daemon);
    kill(helper_of(&daemon), Signal::SIGKILL).unwrap();
    let (after, longest) = until_open(&scene, &daemon);
    assert!(after < DEADMAN && longest < DEADMAN, "open after {after:?}, somebody waited {longest:?}");
    wait_for_brake(&scene, &mut daemon);
    assert!(daemon.log().contains("helper is gone"), "{}", daemon.log());
}

#[test]
fn a_starter_that_is_killed_is_missed_and_nobody_says_that_writers_are_refused() {
    if !can_brake() {
        return;
    }
    let scene = helpless();
    let mut daemon = scene.setting.start();
    wait_for_brake(&scene, &mut daemon);
    daemon.wait_until("saying so", |daemon| {
        daemon.metric("checkpoint_guard_brake_engaged") == Some(1.0)
            && daemon.metric("checkpoint_guard_brake_failing") == Some(0.0)
    });
    kill(starter_of(&daemon), Signal::SIGKILL).unwrap();
    until_open(&scene, &daemon);
    daemon.wait_until("saying what to do", |_| {
        let status = scene.setting.json(&["brake", "status"]);
        let problem = status["items"][0]["problem"].as_str().unwrap_or_default();
        problem.contains("restart checkpoint-guard") && status["items"][0]["engaged"] == false
    });
    daemon.wait_until("gauging it", |daemon| {
        daemon.metric("checkpoint_guard_brake_engaged") == Some(0.0)
            && daemon.metric("checkpoint_guard_brake_failing") == Some(1.0)
    });
    assert_eq!(scene.setting.run(&["brake", "engage"]).status.code(), Some(1));
    assert_eq!(daemon.log().matches("restart checkpoint-guard").count(), 1, "{}", daemon.log());
}

#[test]
fn who_is_let_go_never_finds_the_file_open_in_the_helper() {
    if !can_brake() {
        return;
    }
    let scene = helpless();
    let mut daemon = scene.setting.start();
    wait_for_brake(&scene, &mut daemon);
    let path = scene.directory().join("readable");
    let held = (0..500).filter(|_| {
        let file = File::open(&path).unwrap();
        Lease::exclusive(&file).is_err()
    });
    assert_eq!(held.count(), 0);
}

#[test]
fn a_helper_that_is_stopped_makes_nobody_wait_longer_than_its_deadman() {
    if !can_brake() {
        return;
    }
    let scene = helpless();
    let mut daemon = scene.setting.start();
    wait_for_brake(&scene, &mut daemon);
    kill(helper_of(&daemon), Signal::SIGSTOP).unwrap();
    let (after, longest) = until_open(&scene, &daemon);
    assert!(after < DEADMAN + Duration::from_secs(2), "open after {after:?}, the longest wait {longest:?}");
    wait_for_brake(&scene, &mut daemon);
}

#[test]
fn a_guard_that_is_stopped_lets_go_when_its_lease_is_over_and_brakes_again_when_it_goes_on() {
    if !can_brake() {
        return;
    }
    let scene = helpless();
    let mut daemon = scene.setting.start();
    wait_for_brake(&scene, &mut daemon);
    daemon.signal(Signal::SIGSTOP);
    let (after, longest) = until_open(&scene, &daemon);
    assert!(after < LEASE + Duration::from_secs(2), "open after {after:?}");
    assert!(longest < DEADMAN, "somebody waited {longest:?}");
    std::fs::write(scene.directory().join("after.tar"), "and written").unwrap();
    daemon.signal(Signal::SIGCONT);
    wait_for_brake(&scene, &mut daemon);
}

#[test]
fn a_guard_that_is_stopped_together_with_its_helper_freezes_nobody() {
    if !can_brake() {
        return;
    }
    let scene = helpless();
    let mut daemon = scene.setting.start();
    wait_for_brake(&scene, &mut daemon);
    let helper = helper_of(&daemon);
    daemon.signal(Signal::SIGSTOP);
    kill(helper, Signal::SIGSTOP).unwrap();
    let (after, longest) = until_open(&scene, &daemon);
    assert!(after < DEADMAN + Duration::from_secs(2), "open after {after:?}, the longest wait {longest:?}");
    daemon.signal(Signal::SIGCONT);
    wait_for_brake(&scene, &mut daemon);
}

#[test]
fn a_guard_that_ends_in_order_for_an_upgrade_releases_and_the_next_one_brakes() {
    if !can_brake() {
        return;
    }
    let scene = helpless();
    let mut daemon = scene.setting.start();
    wait_for_brake(&scene, &mut daemon);
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.wait().success());
    assert!(!is_refused(create(&scene, "between.tar")));
    check_released(&daemon, "the guard ends");
    let mut daemon = scene.setting.start();
    wait_for_brake(&scene, &mut daemon);
}

/// The last line about the brake: why it was released, and that it had refused.
#[track_caller]
fn check_released(daemon: &Daemon, reason: &str) {
    let last = daemon.audit().into_iter().rfind(|line| line["kind"] == "Brake").unwrap();
    assert_eq!((&last["engaged"], &last["reason"]), (&false.into(), &reason.into()), "{last}");
    assert!(last["refusedCalls"].as_u64().unwrap() >= 1, "{last}");
    assert!(!last["directories"].as_array().unwrap().is_empty(), "{last}");
}

#[test]
fn a_directory_that_goes_while_it_is_held_ends_with_who_was_refused() {
    if !can_brake() {
        return;
    }
    let scene = helpless();
    let mut daemon = scene.setting.start();
    wait_for_brake(&scene, &mut daemon);
    std::fs::rename(scene.directory(), scene.mount.path().join("elsewhere")).unwrap();
    let is_release = |line: &serde_json::Value| line["kind"] == "Brake" && line["engaged"] == false;
    daemon.wait_until("releasing", |daemon| daemon.audit().iter().any(is_release));
    check_released(&daemon, "no directory is held there any more");
}

#[test]
fn a_storm_with_everything_pinned_keeps_the_critical_reserve_and_the_rest_of_the_filesystem() {
    if !can_brake() || !stops_writes() {
        println!("SKIPPED: writes in progress are stopped since Linux 6.14");
        return;
    }
    let disk = LoopMount::new(Filesystem::Ext4, Bytes::gib(1));
    brake::storm(disk, "fanotify", refusal(), Duration::from_secs(8));
}

#[test]
fn files_in_directories_of_pod_checkpoints_are_refused_too_also_in_new_ones() {
    if !can_brake() {
        return;
    }
    let scene = Scene::new();
    let pods = scene.directory();
    let old = pods.join("checkpoint-web_team-2026-01-01T00:00:00Z/main");
    std::fs::create_dir_all(&old).unwrap();
    std::fs::write(old.join("pages-1.img"), vec![1; 4 << 20]).unwrap();
    let marker = pods.join("checkpoint-web_team-2026-01-01T00:00:00Z.keep");
    File::create(marker).unwrap();
    scene.configure_fully(&format!(
        "layout = \"pod-checkpoints\"\n[pressure]\nsoft = false\nhard = {{ available = \"64MiB\" }}\n\
         critical = {{ available = \"16MiB\" }}\nkubelet-config = \"off\"\n{}",
        settings("fanotify")
    ));
    scene.leave(Bytes::mib(10));
    let mut daemon = scene.setting.start();
    daemon.wait_until("braking", |_| is_refused(File::create(old.join("attempt.img"))));
    let new = pods.join("checkpoint-db_team-2026-01-01T00:00:00Z/main");
    // Pinned beforehand, or it would go at once: nothing is in it.
    File::create(pods.join("checkpoint-db_team-2026-01-01T00:00:00Z.keep")).unwrap();
    std::fs::create_dir_all(&new).unwrap();
    daemon.wait_until("marking what is new", |_| is_refused(File::create(new.join("attempt.img"))));
    assert_eq!(std::fs::read(old.join("pages-1.img")).unwrap().len(), 4 << 20);
}

#[test]
fn an_operator_engages_it_for_a_time_and_releases_it_at_once() {
    if !can_brake() {
        return;
    }
    let scene = helpless();
    let mut daemon = scene.setting.start();
    wait_for_brake(&scene, &mut daemon);
    let status = scene.setting.json(&["brake", "status"]);
    assert_eq!((&status["kind"], &status["mode"]), (&"Brake".into(), &"fanotify".into()), "{status}");
    assert_eq!(status["items"][0]["engaged"], true, "{status}");
    daemon.wait_until("knowing what it can do", |_| {
        scene.setting.json(&["brake", "status"])["items"][0]["stopsWrites"] == stops_writes()
    });

    let directory = scene.directory();
    let released = scene.setting.json(&["brake", "release", "--filesystem", directory.to_str().unwrap()]);
    assert_eq!(released["items"][0]["engaged"], false, "{released}");
    assert!(released["items"][0]["inhibitedForSeconds"].as_u64().unwrap() > 500, "{released}");
    assert!(!is_refused(create(&scene, "released.tar")));
    daemon.keeps_running_for(Duration::from_secs(2));
    assert!(!is_refused(create(&scene, "released.tar")), "it does not come back by itself");

    assert!(scene.setting.run(&["brake", "engage", "--for", "3s"]).status.success());
    wait_for_brake(&scene, &mut daemon);
    until_open(&scene, &daemon);
    let elsewhere = scene.setting.run(&["brake", "release", "--filesystem", "/nowhere"]);
    assert_eq!(elsewhere.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&elsewhere.stderr).contains("none of the watched directories"));
    assert!(scene.setting.run(&["brake", "release", "--inhibit", "0s"]).status.success());
    wait_for_brake(&scene, &mut daemon);
}

/// A `[[directory]]` in which no checkpoints lie, and nothing else is configured.
fn only_staging() -> Scene {
    let scene = brake::helpless(LoopMount::new(Filesystem::Ext4, Bytes::mib(256)), "fanotify");
    scene.configure_fully(&format!(
        "layout = \"staging\"\n[pressure]\nsoft = false\nhard = {{ available = \"64MiB\" }}\n\
         critical = {{ available = \"16MiB\" }}\nkubelet-config = \"off\"\n{}",
        settings("fanotify")
    ));
    scene
}

#[test]
fn where_no_directory_is_held_nobody_says_that_writers_are_refused() {
    if !can_brake() {
        return;
    }
    let scene = only_staging();
    let mut daemon = scene.setting.start();
    daemon.wait_until("saying that nobody can be refused", |daemon| daemon.log().contains("cannot be"));
    let directory = scene.directory();
    let engage = ["brake", "engage", "--output", "json", "--filesystem", directory.to_str().unwrap()];
    let engaged = scene.setting.run(&engage);
    assert_eq!(engaged.status.code(), Some(1), "{engaged:?}");
    let told: serde_json::Value = serde_json::from_slice(&engaged.stdout).unwrap();
    assert_eq!(told["items"][0]["engaged"], false, "{told}");
    assert!(told["items"][0]["problem"].as_str().unwrap().contains("staging"), "{told}");
    let all = scene.setting.run(&["brake", "engage"]);
    assert_eq!(all.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&all.stderr).contains("none of the watched directories is one"));
    assert!(!is_refused(create(&scene, "free.tar")));
    assert!(daemon.audit().iter().all(|line| line["kind"] != "Brake"));
    assert_eq!(daemon.metric("checkpoint_guard_brake_engaged"), Some(0.0));
    daemon.wait_until("gauging it", |daemon| daemon.metric("checkpoint_guard_brake_failing") == Some(1.0));
    assert_eq!(daemon.log().matches("writers would be refused, and cannot be").count(), 1);
    // With room there is nobody to refuse.
    File::options().write(true).open(scene.mount.path().join("filler")).unwrap().set_len(0).unwrap();
    daemon.wait_until("content", |daemon| daemon.metric("checkpoint_guard_brake_failing") == Some(0.0));
}

#[test]
fn what_an_operator_wants_is_in_force_when_the_command_has_ended() {
    if !can_brake() {
        return;
    }
    let scene = Scene::new();
    scene.configure(&settings("fanotify"));
    // There is no pressure, and so no helper yet.
    let daemon = scene.setting.start();
    for round in 0..5 {
        let engaged = scene.setting.json(&["brake", "engage"]);
        assert!(is_refused(create(&scene, &format!("engaged-{round}.tar"))), "{engaged}\n{}", daemon.log());
        assert_eq!(engaged["items"][0]["engaged"], true, "{engaged}");
        assert_eq!(engaged["items"][0]["problem"], serde_json::Value::Null, "{engaged}");
        assert!(scene.setting.run(&["brake", "release", "--inhibit", "0s"]).status.success());
        create(&scene, &format!("released-{round}.tar")).expect("in force when the command has ended");
    }
}

#[test]
fn a_release_tells_of_everybody_who_was_refused_up_to_then_and_the_next_of_nobody_else() {
    // More than the guard hears of at once.
    const REFUSED: u64 = 300;
    if !can_brake() {
        return;
    }
    let scene = Scene::new();
    scene.configure(&settings("fanotify"));
    let mut daemon = scene.setting.start();
    File::create(scene.directory().join("there")).unwrap();
    let mut tell = |names: std::ops::Range<u64>| {
        assert!(scene.setting.run(&["brake", "engage"]).status.success());
        // A tick of the filesystem's clock: what is made within the same one may be from before, and stays.
        daemon.keeps_running_for(Duration::from_millis(20));
        daemon.wait_until("braking", |_| is_refused(create(&scene, "there")));
        let refused = names.clone().filter(|it| is_refused(create(&scene, &format!("{it}.tar")))).count();
        assert_eq!(refused as u64, names.end - names.start);
        let released = scene.setting.json(&["brake", "release", "--inhibit", "0s"]);
        assert_eq!(released["items"][0]["engaged"], false, "{released}");
        let last = daemon.audit().into_iter().rfind(|line| line["kind"] == "Brake").unwrap();
        assert_eq!(last["engaged"], false, "{last}");
        last
    };
    let first = tell(0..REFUSED);
    // And the one that showed that the brake is engaged.
    assert_eq!(first["refusedCalls"], REFUSED + 1, "{first}");
    assert_eq!(first["writers"].as_array().unwrap().len(), 1, "{first}");
    let second = tell(0..1);
    assert_eq!(second["refusedCalls"], 2, "{second}");
    daemon.wait_until("clear of empty files", |_| (0..REFUSED).all(|it| !scene.has(&format!("{it}.tar"))));
    assert!(scene.has("there"));
}

#[test]
fn a_truncated_archive_of_a_refused_writer_goes_first_and_lets_go_of_the_brake() {
    if !can_brake() || !stops_writes() {
        println!("SKIPPED: writes in progress are stopped since Linux 6.14");
        return;
    }
    let scene = Scene::new();
    let pinned = scene.archive("golden", 1, Bytes::mib(32));
    File::create(scene.directory().join(format!("{pinned}.keep"))).unwrap();
    scene.configure(&settings("fanotify"));
    scene.leave(Bytes::mib(63));
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_secs(1));
    let name = "checkpoint-web_team-main-2026-01-01T02:00:00Z.tar";
    let mut archive = create(&scene, name).unwrap();
    let chunk = vec![7; 256 << 10];
    let written = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(2));
        archive.write(&chunk)
    });
    let written = written.take(300).take_while(Result::is_ok).count();
    assert!(written < 260, "nobody stopped it\n{}", daemon.log());
    drop(archive);
    daemon.wait_until("rid of the truncated archive", |daemon| daemon.deleted() == [name]);
    until_open(&scene, &daemon);
    // The kernel lets writers through before the release is written down.
    daemon.wait_until("telling of the release", |daemon| {
        let lines = daemon.audit();
        let brakes =
            lines.iter().filter(|line| line["kind"] == "Brake").map(|line| line["engaged"].as_bool());
        brakes.eq([Some(true), Some(false)])
    });
}

#[test]
fn writer() {
    brake::be_writer(refusal());
}

/// From an operator's wish at the socket to the first write that is refused to somebody who writes all the time: through
/// the loop, the helper, and the kernel's question to it.
#[test]
fn who_is_writing_is_refused_within_milliseconds() {
    const ROUNDS: usize = 9;
    if !can_brake() || !stops_writes() {
        println!("SKIPPED: writes in progress are stopped since Linux 6.14");
        return;
    }
    let scene = helpless();
    let mut daemon = scene.setting.start();
    wait_for_brake(&scene, &mut daemon);
    let socket = scene.setting.socket();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let release = Request::BrakeRelease { filesystem: None, inhibit_seconds: 3600 };
        Client::ask(&socket, &release).unwrap();
        // It looks again, finds itself near critical, and asks to be told of writes.
        daemon.keeps_running_for(Duration::from_millis(1500));
        let writer = Writer::start(&scene.directory().join("under-way.tar"));
        let began = monotonic();
        Client::ask(&socket, &Request::BrakeEngage { filesystem: None, seconds: None }).unwrap();
        let done = monotonic();
        let stopped = writer.stopped();
        assert!(stopped.last_began <= done, "a write began after the answer and was let through");
        times.push(stopped.refused.saturating_sub(began));
    }
    println!("from the wish to the refusal: {times:?}");
    assert!(median(times.clone()) < Duration::from_millis(10), "{times:?}");
}
