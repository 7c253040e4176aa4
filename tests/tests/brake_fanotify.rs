//! The brake by fanotify, on this kernel: who is refused, who is not, and what is left when something dies.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guard::act::brake::LEASE;
use guard::act::brake::helper::DEADMAN;
use guard::model::Bytes;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::loopfs::{Filesystem, LoopMount};
use tests::sampler::Sampler;
use tests::scene::Scene;
use tests::setting::Daemon;
use tests::storm::{Method, Options, Storm, Until};

/// Longer than a lease, a deadman and a busy machine together.
const PATIENCE: Duration = Duration::from_secs(15);
const FANOTIFY: &str = "[eviction]\nmin-age = \"0s\"\n[brake]\nmode = \"fanotify\"";

/// Without permission events there is nothing to test; said loudly.
fn can_brake() -> bool {
    let works = guard::act::brake::fanotify::Fanotify::new(PathBuf::new(), guard::agent::clock::monotonic);
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

/// Below critical, with one checkpoint that is pinned, and another file that lies there.
fn helpless() -> Scene {
    let scene = Scene::new();
    let name = scene.archive("web", 1, Bytes::mib(8));
    File::create(scene.directory().join(format!("{name}.keep"))).unwrap();
    std::fs::write(scene.directory().join("readable"), "content").unwrap();
    scene.configure(FANOTIFY);
    scene.leave(Bytes::mib(10));
    scene
}

fn create(scene: &Scene, name: &str) -> std::io::Result<File> {
    File::options().write(true).create(true).truncate(false).open(scene.directory().join(name))
}

fn is_refused<T>(result: std::io::Result<T>) -> bool {
    let refusal = if stops_writes() { Errno::ENOSPC } else { Errno::EPERM };
    match result {
        Ok(_) => false,
        Err(error) if error.raw_os_error() == Some(refusal as i32) => true,
        Err(error) => panic!("neither allowed nor refused as promised: {error}"),
    }
}

#[track_caller]
fn wait_for_brake(scene: &Scene, daemon: &mut Daemon) {
    daemon.wait_until("braking", |_| is_refused(create(scene, "attempt.tar")));
}

#[expect(clippy::disallowed_methods, reason = "measures how long others wait")]
fn now() -> Instant {
    Instant::now()
}

/// How long it takes until a file can be made, whatever was refused before; and the longest single wait.
#[track_caller]
fn until_open(scene: &Scene, daemon: &Daemon) -> (Duration, Duration) {
    let (began, mut longest) = (now(), Duration::ZERO);
    loop {
        let asked = now();
        let opened = create(scene, "after.tar");
        longest = longest.max(asked.elapsed());
        if opened.is_ok() {
            return (began.elapsed(), longest);
        }
        assert!(began.elapsed() < PATIENCE, "still refused after {PATIENCE:?}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The helper of a guard: its only child.
#[track_caller]
fn helper_of(daemon: &Daemon) -> Pid {
    let pid = daemon.pid();
    let children = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flat_map(|task| {
        let children = std::fs::read_to_string(task.unwrap().path().join("children")).unwrap();
        children.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>()
    });
    let children: Vec<_> = children.collect();
    assert_eq!(children.len(), 1, "{children:?}\n{}", daemon.log());
    Pid::from_raw(children[0])
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
    std::fs::remove_file(at("readable")).unwrap();

    // The guard itself reads and pins there.
    assert!(scene.setting.run(&["list"]).status.success());
    let (status, body) = daemon.get("/readyz").unwrap();
    assert_eq!(status, 200, "{body}");

    // What the refused creation left behind goes.
    daemon.wait_until("clear of empty files", |_| !scene.has("attempt.tar"));
    daemon.wait_until("counting", |daemon| {
        let calls = daemon.metric("checkpoint_guard_brake_refused_calls_total{writer=\"other\"}");
        calls.is_some_and(|calls| calls >= 3.0) && daemon.metric("checkpoint_guard_brake_engaged") == Some(1.0)
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
    scene.configure(FANOTIFY);
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
    daemon.stop();
    assert!(!is_refused(create(&scene, "between.tar")));
    let mut daemon = scene.setting.start();
    wait_for_brake(&scene, &mut daemon);
}

#[test]
fn a_storm_with_everything_pinned_keeps_the_critical_reserve_and_the_rest_of_the_filesystem() {
    if !can_brake() || !stops_writes() {
        return;
    }
    let scene = Scene::on(LoopMount::new(Filesystem::Ext4, Bytes::gib(1)));
    let mut pins = Vec::new();
    for hour in 1..=8 {
        let name = scene.archive("web", hour, Bytes::mib(64));
        pins.push(scene.directory().join(format!("{name}.keep")));
        File::create(pins.last().unwrap()).unwrap();
    }
    let critical = Bytes::mib(128);
    scene.configure_fully(&format!(
        "[pressure]\nsoft = {{ available = \"400MiB\", grace-period = \"0s\" }}\nhard = {{ available = \"192MiB\" }}\n\
         critical = {{ available = \"128MiB\" }}\nminimum-reclaim = {{ available = \"16MiB\" }}\n\
         transition-period = \"1s\"\nkubelet-config = \"off\"\n[protection]\ndefault = 100\n{FANOTIFY}"
    ));
    scene.leave(Bytes::mib(390));
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_secs(1));
    let sampler = Sampler::start(scene.mount.path(), Duration::from_millis(1)).unwrap();
    let (stop, beside) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Another directory of the same filesystem: small files, one after the other, never refused.
        let other = scope.spawn(|| {
            let path = scene.mount.path().join("beside");
            while !stop.load(Ordering::Relaxed) {
                std::fs::write(&path, vec![1; 64 << 10]).expect("nobody refuses this");
                beside.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let storm = Storm::start(Options {
            directory: scene.directory(),
            writers: 3,
            size: (Bytes::mib(8), Bytes::mib(64)),
            namespaces: vec!["team".to_owned(), "ci".to_owned()],
            pods: 3,
            method: Method::Write,
            first_age: Duration::from_secs(3600),
            until: Until { time: Some(Duration::from_secs(8)), ..Until::default() },
        });
        let totals = storm.join();
        stop.store(true, Ordering::Relaxed);
        other.join().unwrap();
        assert!(totals.out_of_space > 10, "{totals:?}\n{}", daemon.log());
        assert_eq!(totals.failures, 0, "{totals:?}");
    });
    let lowest = sampler.stop().lowest.unwrap().available;
    assert!(beside.load(Ordering::Relaxed) > 200);
    assert!(lowest + Bytes::mib(32) >= critical, "lowest {lowest}\n{}", daemon.log());
    println!("lowest {lowest} of {critical}");
    assert!(is_refused(create(&scene, "attempt.tar")));
    assert!(daemon.deleted().is_empty(), "everything is protected");

    // Somebody lets go of a few.
    scene.configure_fully(&format!(
        "[pressure]\nsoft = {{ available = \"400MiB\", grace-period = \"0s\" }}\nhard = {{ available = \"192MiB\" }}\n\
         critical = {{ available = \"128MiB\" }}\nminimum-reclaim = {{ available = \"16MiB\" }}\n\
         transition-period = \"1s\"\nkubelet-config = \"off\"\n{FANOTIFY}"
    ));
    for pin in &pins[..4] {
        std::fs::remove_file(pin).unwrap();
    }
    daemon.wait_until("released", |_| create(&scene, "again.tar").is_ok());
    scene.archive("again", 1, Bytes::mib(4));
    let released = daemon.audit().into_iter().find(|line| line["kind"] == "Brake" && line["engaged"] == false);
    let released = released.expect("it is in the audit log");
    assert!(released["refusedCalls"].as_u64().unwrap() > 10, "{released}");
    assert!(released["refusedBytes"].as_u64().unwrap() > 0, "{released}");
    assert!(released["writers"][0]["comm"].as_str().unwrap().starts_with("storm"), "{released}");
    assert_eq!(ErrorKind::StorageFull, std::io::Error::from(Errno::ENOSPC).kind());
}
