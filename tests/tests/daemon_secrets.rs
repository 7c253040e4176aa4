//! Checkpoints hold memory. Nothing of it leaves them: not into a log, a metric, a record, a file, or the guard's memory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use guard::model::Bytes;
use nix::unistd::Pid;
use serde_json::json;
use tests::forged::Forged;
use tests::scene::{Scene, hour_of_2026};

/// Not a constant of this program: the guard is another one, but nobody should find it in a core dump of ours either.
fn canary(place: &str) -> String {
    ["s3cr3t", "canary", place, "0b5e55ed"].join("-")
}

const PLACES: [&str; 4] = ["pages", "environment", "annotation", "label"];

/// Whether `needle` stands anywhere in what is writable in the memory of `pid`.
fn remembers(pid: Pid, needle: &str) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let writable =
        maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|rights| rights.starts_with("rw")));
    writable.filter_map(|line| line.split(' ').next()?.split_once('-')).any(|(start, end)| {
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        let mut bytes = vec![0; (end - start) as usize];
        // Pages that cannot be read (guard pages) hold nothing.
        memory.read_at(&mut bytes, start).is_ok() && contains(&bytes, needle)
    })
}

fn contains(bytes: &[u8], needle: &str) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle.as_bytes())
}

fn files_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files
}

#[test]
fn what_lies_in_checkpoints_stays_there() {
    let scene = Scene::new();
    let secret = |owner, hour| Forged {
        labels: Some(json!({"secret": canary("label"), "io.kubernetes.pod.namespace": "team"})),
        pages: canary("pages").repeat(4000).into_bytes(),
        ..Forged::honest(owner, hour_of_2026(hour)).planting(json!({
            "example.org/token": canary("annotation"),
            "env": [canary("environment")],
        }))
    };
    for hour in 1..=3 {
        secret(["team", "web", "main"], hour).write_in(&scene.directory()).unwrap();
        scene.archive("big", hour, Bytes::mib(16));
    }
    // Broken ones make for messages.
    let whole = secret(["team", "torn", "main"], 4);
    fs::write(
        scene.directory().join("checkpoint-torn_team-main-2026-01-01T04:00:00Z.tar"),
        &whole.bytes()[..90_000],
    )
    .unwrap();
    fs::write(scene.directory().join("foreign.tar"), canary("annotation").repeat(100)).unwrap();
    scene.configure("[eviction]\nmin-age = \"0s\"\nkeep-last = 0\n[protection]\nnamespaces = { team = 10 }");
    let before: Vec<_> = files_below(scene.mount.path());
    let mut daemon = scene.setting.start_with(&["--log-level", "trace"], &mut |_| {});
    scene.leave(Bytes::mib(40));
    daemon.wait_until("deleting", |daemon| daemon.deleted().len() >= 3);
    daemon.keeps_running_for(Duration::from_millis(300));

    let (_, metrics) = daemon.get("/metrics").unwrap();
    let (_, ready) = daemon.get("/readyz").unwrap();
    let mut told = vec![("metrics", metrics), ("readyz", ready), ("log", daemon.log())];
    for command in [&["list"][..], &["plan", "--assume-available", "5%"], &["history"]] {
        let output = scene.setting.run(command);
        told.push((
            "command",
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        ));
        told.push(("command as JSON", scene.setting.json(command).to_string()));
    }
    let scratch = scene.setting.config().parent().unwrap().to_owned();
    for path in files_below(&scratch).into_iter().filter(|path| path.is_file()) {
        told.push(("file", String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()));
    }
    for (what, text) in &told {
        assert!(text.contains("team") || *what != "log", "there is something to look through");
        for place in PLACES {
            assert!(!text.contains(&canary(place)), "{place} in {what}: {text}");
        }
    }
    // Memory pages of plain archives are never read, so they are not in the guard's memory either.
    assert!(remembers(daemon.pid(), "checkpoint-web_team"), "the search finds what is there");
    assert!(!remembers(daemon.pid(), &canary("pages")));
    // No copy, no temporary file.
    let new: Vec<_> =
        files_below(scene.mount.path()).into_iter().filter(|path| !before.contains(path)).collect();
    assert_eq!(new, [scene.mount.path().join("filler")]);
}
