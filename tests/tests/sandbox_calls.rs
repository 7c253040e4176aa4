//! The list of allowed system calls beside what the guard really calls, as strace saw it: nothing is missing, and nothing
//! is there for no reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use guard::model::Bytes;
use guard::sandbox::{CALLS, Feature};
use nix::sys::signal::Signal;
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::{Scene, directory_table};

/// Calls, and how often each was answered with ENOSYS.
type Seen = BTreeMap<String, u32>;

/// What was called once the filter was there. `strace -ff` writes one file a thread.
fn read(traces: &Path) -> Seen {
    let mut seen = Seen::new();
    for trace in fs::read_dir(traces).unwrap() {
        let text = fs::read_to_string(trace.unwrap().path()).unwrap();
        // The first thread and the finder set the filters themselves; the other threads begin within it.
        let (_, confined) = text.rsplit_once("SECCOMP_SET_MODE_FILTER").unwrap_or(("", text.as_str()));
        for line in confined.lines() {
            let line = line.trim_start_matches("<... ");
            let Some(name) = line.split(['(', ' ']).next().filter(|name| is_call(name)) else { continue };
            *seen.entry(name.to_owned()).or_default() += u32::from(line.contains("= -1 ENOSYS"));
        }
    }
    seen
}

fn is_call(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// One life of a guard: it starts, protects, deletes an archive and a pod checkpoint, finds out who reads one, takes a
/// configuration up, is asked for metrics, ends.
fn live(filesystem: Filesystem) -> Seen {
    let scene = Scene::on(LoopMount::new(filesystem, Bytes::mib(320)));
    let names: Vec<_> = (1..=4).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    let pods = scene.mount.path().join("pods");
    let pod = pods.join("checkpoint-web_team-2026-01-01T00:00:00Z");
    fs::create_dir_all(&pod).unwrap();
    fs::write(pod.join("pages.img"), vec![7; 16 << 20]).unwrap();
    let pods = format!("{}\nlayout = \"pod-checkpoints\"", directory_table(&pods));
    // The brake's starter and helper are outside of the sandbox, and strace would follow them.
    scene.configure(&format!("[brake]\nmode = \"off\"\n[eviction]\nmin-age = \"0s\"\nkeep-last = 0\n{pods}"));
    let _reader = fs::File::open(scene.directory().join(&names[3])).unwrap();
    let traces = tempfile::tempdir().unwrap();
    let output = traces.path().join("trace");
    let mut daemon = scene.setting.start_through(&[
        "strace",
        "-D",
        "-ff",
        "-qq",
        "-e",
        "signal=none",
        "-o",
        output.to_str().unwrap(),
    ]);
    let pressed = scene.setting.config();
    scene.leave(Bytes::mib(24));
    daemon.wait_until("deleting", |daemon| daemon.deleted().len() >= 3);
    let text = fs::read_to_string(&pressed).unwrap();
    fs::write(&pressed, text.replace("keep-last = 0", "keep-last = 1")).unwrap();
    daemon.signal(Signal::SIGHUP);
    daemon.wait_until("reloading", |daemon| daemon.log().contains("configuration reloaded"));
    daemon.keeps_running_for(Duration::from_millis(300));
    daemon.stop();
    read(traces.path())
}

#[test]
fn what_the_guard_calls_is_allowed_and_what_is_allowed_is_called() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("SKIPPED: no strace (Debian: strace)");
        return;
    }
    let mut seen = Seen::new();
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs] {
        for (name, refused) in live(filesystem) {
            *seen.entry(name).or_default() += refused;
        }
    }
    let known: BTreeSet<&str> = CALLS.iter().map(|call| call.name()).collect();
    // The C library tries it first and falls back to clone(2), whose flags a filter can see.
    let expected = ["clone3"];
    let surprises: Vec<_> = seen
        .iter()
        .filter(|(name, _)| !known.contains(name.as_str()) && !expected.contains(&name.as_str()))
        .collect();
    assert!(surprises.is_empty(), "called, and not in the list: {surprises:?}");
    let refused: Vec<_> =
        seen.iter().filter(|(name, refused)| **refused > 0 && !expected.contains(&name.as_str())).collect();
    assert!(refused.is_empty(), "in the list, and refused for their arguments: {refused:?}");
    let is_possible = |features: &[Feature]| {
        features.iter().any(|feature| matches!(feature, Feature::Always | Feature::Probe | Feature::Finder))
    };
    let unused: Vec<_> = CALLS
        .iter()
        .filter(|call| !call.rare && is_possible(call.features) && !seen.contains_key(call.name()))
        .map(|call| call.name())
        .collect();
    assert!(unused.is_empty(), "allowed, never called, and not said to be rare: {unused:?}");
    let rare: Vec<_> = CALLS
        .iter()
        .filter(|call| call.rare && seen.contains_key(call.name()))
        .map(|call| call.name())
        .collect();
    println!("{} calls seen; rare ones among them: {rare:?}", seen.len());
}
