//! What the guard's sandbox refuses, tried from inside, and that the running daemon is in it.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use guard::model::Bytes;
use nix::sys::signal::Signal;
use tests::scene::{Scene, directory_table};
use tests::setting::{Setting, binary};

/// Whether this machine has all of it; said when not.
fn is_possible() -> bool {
    let missing: Vec<_> = guard::sandbox::available().into_iter().filter(|it| !it.usable).collect();
    if !missing.is_empty() {
        println!("SKIPPED: this kernel lacks {missing:?}");
    }
    missing.is_empty()
}

/// The attempts of the program `sandbox_inside`, and what came of each.
fn attempts() -> BTreeMap<String, String> {
    let inside = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::write(outside.path().join("victim"), "not a checkpoint").unwrap();
    let directory = inside.path().join("kubelet/checkpoints");
    fs::create_dir_all(&directory).unwrap();
    let setting = Setting::new();
    setting.configure(&format!("{}\n[pressure]\nkubelet-config = \"off\"", directory_table(&directory)));
    let program = binary().with_file_name("sandbox_inside");
    let output = Command::new(program).arg(setting.config()).arg(outside.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(outside.path().join("victim")).unwrap(), "not a checkpoint");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, outcome)| (name.into(), outcome.into()))
        .collect()
}

#[test]
fn from_inside_what_is_needed_works_and_the_rest_is_refused() {
    if !is_possible() {
        return;
    }
    let attempts = attempts();
    let (needed, refused): (Vec<_>, Vec<_>) = attempts
        .iter()
        .filter(|(name, _)| !name.starts_with("layer:"))
        .partition(|(name, _)| name.starts_with("need:"));
    assert_eq!((needed.len(), refused.len()), (6, 39), "{attempts:?}");
    assert!(needed.iter().all(|(_, outcome)| *outcome == "ok"), "{needed:?}");
    let is_refusal = |outcome: &str| ["ENOSYS", "EACCES", "EPERM", "EXDEV"].contains(&outcome);
    assert!(refused.iter().all(|(_, outcome)| is_refusal(outcome)), "{refused:?}");
}

/// A line of /proc/<pid>/task/<tid>/status.
fn status(task: &std::path::Path, key: &str) -> String {
    let status = fs::read_to_string(task.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

/// The bits of capabilities in the kernel's notation.
fn bits(names: &[u8]) -> u64 {
    names.iter().map(|bit| 1 << bit).sum()
}

#[test]
fn every_thread_of_the_daemon_is_confined_and_only_its_finder_may_look_into_others() {
    if !is_possible() {
        return;
    }
    // DAC_OVERRIDE 1, FOWNER 3, SYS_PTRACE 19, SYS_NICE 23, LEASE 28, PERFMON 38, BPF 39, CHECKPOINT_RESTORE 40.
    let (guard, finder) = (bits(&[1, 3, 23, 28, 38, 39]), bits(&[1, 19, 40]));
    let scene = Scene::new();
    scene.archive("web", 1, Bytes::mib(1));
    // A brake by fanotify has a companion of its own.
    scene.configure("[brake]\nmode = \"off\"");
    let mut daemon = scene.setting.start();
    daemon.wait_until("telling", |daemon| daemon.metric("checkpoint_guard_sandbox_active") == Some(4.0));
    let check = |task: &std::path::Path, allowed: u64| {
        for set in ["CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"] {
            let held = u64::from_str_radix(&status(task, set), 16).unwrap();
            assert_eq!(held & !allowed, 0, "{set} of {}: {held:x}", status(task, "Name"));
        }
        assert_eq!((status(task, "NoNewPrivs"), status(task, "Seccomp")), ("1".to_owned(), "2".to_owned()));
        // clone3(2) has one of its own, that does not log.
        assert_eq!(status(task, "Seccomp_filters"), "2");
    };
    let threads: Vec<_> = fs::read_dir(format!("/proc/{}/task", daemon.pid()))
        .unwrap()
        .map(|task| task.unwrap().path())
        .collect();
    assert!(threads.len() >= 5, "{threads:?}");
    threads.iter().for_each(|task| check(task, guard));
    let children = fs::read_to_string(threads[0].join("children")).unwrap();
    let children: Vec<_> = children.split_whitespace().collect();
    assert_eq!(children.len(), 1, "{children:?}");
    let child = std::path::PathBuf::from(format!("/proc/{}", children[0]));
    check(&child, finder);
    // It ends with the guard, however that ends.
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let began = std::time::Duration::from_millis(20);
    let gone = (0..250).any(|_| {
        std::thread::sleep(began);
        !child.exists()
    });
    assert!(gone, "the finder outlives the guard");
}

/// The kernel's audit records from now on, as netlink messages (audit(8) has them from there).
fn audit_records() -> OwnedFd {
    use nix::sys::socket::{AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket};
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK);
    let records = socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkAudit).unwrap();
    // AUDIT_NLGRP_READLOG.
    bind(records.as_raw_fd(), &NetlinkAddr::new(0, 1)).unwrap();
    records
}

/// Every deletion starts a thread, and a record for each would bury those that somebody should look into.
#[test]
fn what_the_guard_does_all_day_leaves_no_record_of_refused_calls() {
    if !is_possible() {
        return;
    }
    let records = audit_records();
    let scene = Scene::new();
    let names: Vec<_> = (1..=3).map(|hour| scene.archive("web", hour, Bytes::mib(32))).collect();
    scene.configure("[eviction]\nmin-age = \"0s\"\nkeep-last = 0");
    let mut daemon = scene.setting.start();
    scene.leave(Bytes::mib(48));
    daemon.wait_until("deleting", |daemon| !daemon.deleted().is_empty());
    assert!(daemon.deleted().iter().all(|name| names.contains(name)));
    assert!(daemon.metric("checkpoint_guard_deletions_total").is_some());
    assert!(scene.setting.run(&["top", "--once"]).status.success());
    assert!(scene.setting.run(&["doctor"]).status.code().is_some());
    let by_it = format!(" pid={} ", daemon.pid());
    daemon.stop();
    let mut told = Vec::new();
    let mut record = vec![0; 16384];
    while let Ok(length) = nix::unistd::read(&records, &mut record) {
        let line = String::from_utf8_lossy(&record[..length]).into_owned();
        if line.contains(&by_it) && line.contains("syscall=") {
            told.push(line);
        }
    }
    assert!(told.is_empty(), "{told:?}");
}

/// Whether a program that may do everything but look into others, and is root as the guard is, gets to see its memory.
fn is_seen_by_its_user(pid: i32) -> bool {
    // It takes what memory takes, but where tracing is restricted (Yama), and not CAP_PERFMON, which is enough for some files
    // there (`may_access_mm` of kernel/fork.c, Linux 6.16).
    let path = format!("/proc/{pid}/exe");
    Command::new("setpriv").args(WITHOUT_PTRACE).args(["readlink", &path]).output().unwrap().status.success()
}

const WITHOUT_PTRACE: [&str; 2] = ["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];

#[test]
fn nobody_without_the_capability_looks_into_the_guard_or_its_finder_with_or_without_a_sandbox() {
    let mut sleep = Command::new("setpriv").args(WITHOUT_PTRACE).args(["sleep", "600"]).spawn().unwrap();
    let is_seen = (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        is_seen_by_its_user(sleep.id() as i32)
    });
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    assert!(is_seen, "any other program of this user can be looked into");
    for mode in ["", "[sandbox]\nmode = \"off\""] {
        let scene = Scene::new();
        scene.configure(mode);
        let daemon = scene.setting.start();
        let pid = daemon.pid().as_raw();
        assert!(!is_seen_by_its_user(pid), "{mode:?}");
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let seen = children.split_whitespace().find(|child| is_seen_by_its_user(child.parse().unwrap()));
        assert_eq!(seen, None, "{mode:?}: {children}");
    }
}

#[test]
fn a_guard_that_crashes_leaves_no_memory_behind() {
    let place = tempfile::tempdir().unwrap();
    // The kernel writes a core file to the directory that its process runs in, where it is not told otherwise.
    let limited = ["env", "-C", place.path().to_str().unwrap(), "prlimit", "--core=unlimited:unlimited"];
    let crash = Command::new(limited[0]).args(&limited[1..]).args(["sh", "-c", "kill -ABRT $$"]).status();
    let crash = crash.unwrap();
    if !crash.core_dumped() {
        println!("SKIPPED: nothing leaves its memory behind here: {crash}");
        return;
    }
    let before = fs::read_dir(place.path()).unwrap().count();
    for mode in ["", "[sandbox]\nmode = \"off\""] {
        let scene = Scene::new();
        scene.configure(mode);
        let mut daemon = scene.setting.start_through(&limited);
        let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
        let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().collect::<Vec<_>>(), ["0", "0", "bytes"], "{mode:?}");
        daemon.signal(Signal::SIGABRT);
        let crash = daemon.wait();
        assert_eq!((crash.signal(), crash.core_dumped()), (Some(Signal::SIGABRT as i32), false), "{mode:?}");
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), before);
}

#[test]
fn a_guard_without_a_sandbox_says_so() {
    let scene = Scene::new();
    scene.configure("[sandbox]\nmode = \"off\"");
    let daemon = scene.setting.start();
    assert_eq!(daemon.metric("checkpoint_guard_sandbox_active"), Some(0.0));
    assert!(daemon.log().contains("without a sandbox"), "{}", daemon.log());
}

#[test]
fn with_the_directories_alone_within_reach_the_guard_protects_as_well() {
    let scene = Scene::new();
    let names: Vec<_> = (1..=3).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    scene.configure("[eviction]\nmin-age = \"0s\"\n[sandbox]\nreach = \"directories\"");
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting", |daemon| daemon.deleted() == names[..1]);
}

#[test]
fn a_directory_beyond_reach_is_refused_at_a_reload_and_the_old_configuration_stays_in_force() {
    if !is_possible() {
        return;
    }
    let scene = Scene::new();
    scene.configure("");
    let mut daemon = scene.setting.start();
    let before = fs::read_to_string(scene.setting.config()).unwrap();
    let add = |path: &std::path::Path| {
        fs::create_dir_all(path).unwrap();
        fs::write(scene.setting.config(), format!("{}\n{before}", directory_table(path))).unwrap();
    };
    let other = tempfile::tempdir_in("/var/tmp").unwrap();
    add(&other.path().join("checkpoints"));
    daemon.wait_until("refusing", |daemon| daemon.metric("checkpoint_guard_config_valid") == Some(0.0));
    assert!(daemon.log().contains("restart the guard"), "{}", daemon.log());
    // One beside those it knows is within reach.
    add(&scene.mount.path().join("more"));
    daemon.wait_until("taking it up", |daemon| daemon.metric("checkpoint_guard_config_valid") == Some(1.0));
    daemon.wait_until("watching it", |daemon| {
        daemon.log().contains("/more eBPF") || daemon.log().contains("/more\"")
    });
}
