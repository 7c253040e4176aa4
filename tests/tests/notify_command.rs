//! The command before a deletion: one that copies, one that fails, one that hangs, with the real binary.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use guard::model::Bytes;
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::cluster::eventually;
use tests::scene::Scene;
use tests::setting::Daemon;

/// Nothing is spared for being young or last.
const UNHURRIED: &str = "[eviction]\nmin-age = \"0s\"\nkeep-last = 0\n";

/// A scene with four archives, and a shell script before each deletion. `$1` is a directory of its own.
struct Errand {
    scene: Scene,
    names: Vec<String>,
    /// Outside of the sandbox and of the guarded filesystem.
    place: tempfile::TempDir,
}

impl Errand {
    fn new(script: &str, more: &str) -> Errand {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let program = place.path().join("errand");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let scene = Scene::new();
        let names = (1..=4).map(|hour| scene.archive("web", hour, Bytes::mib(8))).collect();
        let command = [&program, &place.path().to_owned()].map(|path| format!("{path:?}")).join(", ");
        scene.configure(&format!("{UNHURRIED}[notify]\ncommand = [{command}]\n{more}"));
        Errand { scene, names, place }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }
}

/// What the audit log says of commands: the checkpoint and the outcome.
fn commands(daemon: &Daemon) -> Vec<(String, String)> {
    let lines = daemon.audit();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = lines.iter().filter(|line| line["kind"] == "Command");
    of.map(|line| (text(&line["name"]), text(&line["outcome"]))).collect()
}

fn runs(daemon: &Daemon, outcome: &str) -> f64 {
    daemon
        .metric(&format!("checkpoint_guard_command_runs_total{{outcome=\"{outcome}\"}}"))
        .unwrap_or_default()
}

/// Whether any process has `argument` in its command line.
fn is_running(argument: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| fs::read(process.path().join("cmdline")).ok())
        .any(|line| line.split(|byte| *byte == 0).any(|part| part == argument.as_bytes()))
}

/// A number for `sleep` that nobody else has.
fn seconds(place: &Path) -> String {
    use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(place);
    format!("{}.{}", 3600 + std::process::id(), hash % 1_000_000)
}

#[test]
fn what_is_deleted_was_copied_away_before() {
    let errand = Errand::new(
        "name=$(basename \"$CHECKPOINT_GUARD_PATH\")\n\
         cat >\"$1/$name.json\"\necho \"$CHECKPOINT_GUARD_TRIGGER\" >\"$1/$name.trigger\"\n\
         exec cp \"$CHECKPOINT_GUARD_PATH\" \"$1/$name\"",
        "",
    );
    let contents: Vec<_> =
        errand.names.iter().map(|name| fs::read(errand.scene.directory().join(name)).unwrap()).collect();
    let mut daemon = errand.scene.setting.start();
    errand.scene.leave(Bytes::mib(60));
    daemon.wait_until("two deleted", |daemon| daemon.deleted().len() == 2);
    daemon.keeps_running_for(Duration::from_millis(300));
    assert_eq!(daemon.deleted(), errand.names[..2]);
    for (name, content) in errand.names.iter().zip(&contents).take(2) {
        assert!(fs::read(errand.path(name)).unwrap() == *content, "{name} is not copied in full");
        let record = fs::read_to_string(errand.path(&format!("{name}.json"))).unwrap();
        let record: Value = serde_json::from_str(&record).unwrap();
        assert_eq!((&record["name"], &record["namespace"]), (&name.as_str().into(), &"team".into()));
        assert_eq!(fs::read_to_string(errand.path(&format!("{name}.trigger"))).unwrap(), "hard\n");
    }
    assert!(!errand.path(&errand.names[2]).exists());
    // In this order: the command, the intent, the outcome.
    let audit = daemon.audit();
    let of_first = audit.iter().filter(|line| line["name"] == *errand.names[0]);
    let order: Vec<_> =
        of_first.map(|line| line["phase"].as_str().or(line["kind"].as_str()).unwrap().to_owned()).collect();
    assert_eq!(order, ["Command", "intent", "outcome"]);
    assert_eq!((runs(&daemon, "done"), runs(&daemon, "failed")), (2.0, 0.0));
    assert!(daemon.metric("checkpoint_guard_command_seconds_total").is_some_and(|seconds| seconds > 0.0));
    daemon.stop();
}

#[test]
fn a_checkpoint_whose_command_fails_is_spared_until_critical() {
    let errand = Errand::new("echo 'the store is away' >&2; exit 3", "");
    let mut daemon = errand.scene.setting.start();
    errand.scene.leave(Bytes::mib(60));
    daemon.wait_until("all tried", |daemon| runs(daemon, "failed") >= 4.0);
    daemon.keeps_running_for(Duration::from_millis(500));
    assert!(daemon.deleted().is_empty(), "{}", daemon.log());
    let audit = daemon.audit();
    let spared = audit.iter().find(|line| line["outcome"] == "spared").unwrap();
    assert_eq!(spared["error"], "the command before the deletion ended with 3: the store is away");
    assert!(audit.iter().any(|line| line["kind"] == "Unreachable"));
    let refused = "checkpoint_guard_deletion_refusals_total{cause=\"command-failed\"}";
    assert!(daemon.metric(refused).is_some_and(|count| count >= 4.0));
    errand.scene.leave(Bytes::mib(10));
    daemon.wait_until("making room at critical", |daemon| daemon.deleted().len() >= 2);
    let last = commands(&daemon)
        .into_iter()
        .find(|(name, outcome)| *name == daemon.deleted()[0] && outcome == "given-up");
    assert!(last.is_some(), "{:?}", commands(&daemon));
    daemon.stop();
}

#[test]
fn a_command_that_hangs_is_ended_with_all_it_started() {
    let errand = Errand::new(
        "sleep $(cat \"$1/seconds\") & sleep $(cat \"$1/seconds\")",
        "command-timeout = \"300ms\"\ncommand-failure = \"delete\"\n",
    );
    let seconds = seconds(errand.place.path());
    fs::write(errand.path("seconds"), &seconds).unwrap();
    let mut daemon = errand.scene.setting.start();
    errand.scene.leave(Bytes::mib(60));
    eventually(&daemon, "running", || is_running(&seconds));
    daemon.wait_until("two deleted all the same", |daemon| daemon.deleted().len() == 2);
    assert_eq!(runs(&daemon, "timed-out"), 2.0);
    assert!(!is_running(&seconds), "what the command started lives on");
    let outcomes: Vec<_> = commands(&daemon).into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, ["timed-out", "timed-out"]);
    daemon.stop();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "measures how long critical takes to be noticed")]
fn critical_does_not_wait_for_a_command_that_hangs() {
    let errand = Errand::new("sleep $(cat \"$1/seconds\")", "command-timeout = \"1h\"\n");
    let seconds = seconds(errand.place.path());
    fs::write(errand.path("seconds"), &seconds).unwrap();
    let mut daemon = errand.scene.setting.start();
    errand.scene.leave(Bytes::mib(60));
    eventually(&daemon, "running", || is_running(&seconds));
    daemon.keeps_running_for(Duration::from_millis(300));
    assert!(daemon.deleted().is_empty());
    errand.scene.leave(Bytes::mib(10));
    let began = Instant::now();
    daemon.wait_until("making room", |daemon| daemon.deleted().len() >= 2);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    println!("from critical to the second deletion: {took:?}");
    let outcomes: Vec<_> = commands(&daemon).into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes[..2], ["given-up", "given-up"]);
    // The next one may be waited for: it is no longer critical.
    daemon.stop();
    assert!(!is_running(&seconds), "what the commands started lives on");
}

#[test]
fn a_command_that_hangs_delays_the_end_of_the_guard_by_nothing_and_does_not_outlive_it() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let errand = Errand::new("sleep $(cat \"$1/seconds\")", "command-timeout = \"1h\"\n");
        let seconds = seconds(errand.place.path());
        fs::write(errand.path("seconds"), &seconds).unwrap();
        let mut daemon = errand.scene.setting.start();
        errand.scene.leave(Bytes::mib(60));
        eventually(&daemon, "running", || is_running(&seconds));
        match signal {
            Signal::SIGTERM => {
                let took = daemon.stop();
                assert!(took < Duration::from_secs(2), "{took:?}");
            }
            _ => {
                daemon.signal(signal);
                daemon.wait();
            }
        }
        let gone = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            !is_running(&seconds)
        });
        assert!(gone, "the command outlives a guard that ended by {signal}");
        assert!(errand.names.iter().all(|name| errand.scene.has(name)), "deleted without its copy");
    }
}

#[test]
fn a_command_may_pin_what_it_could_not_copy() {
    let errand = Errand::new(": >\"$CHECKPOINT_GUARD_PATH.keep\"", "");
    let mut daemon = errand.scene.setting.start();
    errand.scene.leave(Bytes::mib(60));
    daemon.wait_until("all tried", |daemon| runs(daemon, "done") >= 4.0);
    daemon.keeps_running_for(Duration::from_millis(300));
    assert!(daemon.deleted().is_empty(), "{}", daemon.log());
    assert!(errand.names.iter().all(|name| errand.scene.has(name)));
    daemon.stop();
}

#[test]
fn retention_waits_for_the_copy_too_and_a_missing_program_is_a_failure() {
    let errand = Errand::new("exit 0", "[[retention]]\nnamespace = \"*\"\nmax-count.container = 1\n");
    let mut daemon = errand.scene.setting.start();
    daemon.wait_until("three deleted", |daemon| daemon.deleted().len() == 3);
    assert_eq!(runs(&daemon, "done"), 3.0);
    fs::rename(errand.path("errand"), errand.path("away")).unwrap();
    let newer = errand.scene.archive("web", 5, Bytes::mib(8));
    daemon.wait_until("failing", |daemon| runs(daemon, "failed") >= 1.0);
    assert!(errand.scene.has(&newer) && errand.scene.has(&errand.names[3]));
    assert!(daemon.log().contains("cannot be started"), "{}", daemon.log());
    daemon.stop();
}

#[test]
fn the_companion_keeps_two_capabilities_and_a_manual_reclaim_copies_as_well() {
    let errand =
        Errand::new("grep CapEff /proc/self/status >>\"$1/caps\"; cp \"$CHECKPOINT_GUARD_PATH\" \"$1/\"", "");
    let mut daemon = errand.scene.setting.start();
    errand.scene.leave(Bytes::mib(60));
    daemon.wait_until("two deleted", |daemon| daemon.deleted().len() == 2);
    let caps = fs::read_to_string(errand.path("caps")).unwrap();
    let held = caps.lines().next().unwrap().rsplit('\t').next().unwrap();
    // DAC_OVERRIDE 1, FOWNER 3.
    assert_eq!(u64::from_str_radix(held, 16).unwrap() & !(1 << 1 | 1 << 3), 0, "{caps}");
    daemon.stop();
    let output = errand.scene.setting.run(&["reclaim", "1MiB"]);
    assert!(output.status.success(), "{output:?}");
    assert!(!errand.scene.has(&errand.names[2]) && errand.path(&errand.names[2]).exists());
}
