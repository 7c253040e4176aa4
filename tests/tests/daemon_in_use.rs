//! Checkpoints that somebody reads: they stay, he reads them to their end, and people are told who he is.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use guard::model::{Bytes, FileId};
use tests::fuse::Fuse;
use tests::scene::Scene;

const UNHURRIED: &str = "[eviction]\nmin-age = \"0s\"\nkeep-last = 0";

/// A process that has a file open and does nothing with it, ended on drop.
struct Holder(Child);

impl Holder {
    fn new(scene: &Scene, name: &str, wrapper: &[&str]) -> Holder {
        let mut words = wrapper.iter().chain(&["sleep", "120"]);
        let mut command = Command::new(words.next().unwrap());
        let file = File::open(scene.directory().join(name)).unwrap();
        Holder(command.args(words).stdin(Stdio::from(file)).spawn().unwrap())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Err: it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_leaked_descriptor_is_told_with_its_process_when_it_blocks_the_target() {
    let scene = Scene::new();
    let names: Vec<_> = (1..=2).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    scene.configure(UNHURRIED);
    // One in a mount namespace of its own, where the path may mean anything.
    let holders =
        [Holder::new(&scene, &names[0], &[]), Holder::new(&scene, &names[1], &["unshare", "--mount"])];
    scene.leave(Bytes::mib(40));
    let mut daemon = scene.setting.start();
    for holder in &holders {
        let named = format!("in use: sleep (pid {})", holder.0.id());
        daemon.wait_until("naming the holder", |daemon| daemon.log().contains(&named));
        daemon.wait_until("recording the holder", |daemon| {
            daemon.audit().iter().any(|line| line["kind"] == "InUse" && line["reason"] == *named)
        });
    }
    daemon.keeps_running_for(Duration::from_millis(1500));
    assert_eq!(daemon.deleted(), [""; 0]);
    let told = daemon.audit().iter().filter(|line| line["kind"] == "InUse").count();
    assert!(told <= 4, "told again and again: {told} times in a second and a half\n{}", daemon.log());
    drop(holders);
    daemon.wait_until("deleting both", |daemon| daemon.deleted() == names);
}

#[test]
fn a_restore_in_progress_is_never_cut_off() {
    let scene = Scene::new();
    let names: Vec<_> = (1..=4).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    let path = scene.directory().join(&names[0]);
    let whole = std::fs::read(&path).unwrap();
    scene.configure(UNHURRIED);
    let mut restore = File::open(&path).unwrap();
    let mut content = vec![0; whole.len() / 2];
    restore.read_exact(&mut content).unwrap();
    let mut daemon = scene.setting.start();
    // Below critical, where neither age nor being the last counts.
    scene.leave(Bytes::mib(8));
    daemon.wait_until("deleting the others", |daemon| daemon.deleted().len() == 3);
    daemon.keeps_running_for(Duration::from_millis(1500));
    assert!(scene.has(&names[0]), "{}", daemon.log());
    restore.read_to_end(&mut content).unwrap();
    assert!(content == whole, "the restore read something else");
    drop(restore);
    scene.leave(Bytes::mib(8));
    daemon.wait_until("deleting it when it is over", |daemon| daemon.deleted().len() == 4);
}

#[test]
fn a_descriptor_on_a_filesystem_that_hangs_keeps_nobody_from_being_found() {
    let stuck = Fuse::mount().unwrap();
    let scene = Scene::new();
    let name = scene.archive("web", 1, Bytes::mib(1));
    let metadata = std::fs::metadata(scene.directory().join(&name)).unwrap();
    let file = FileId { dev: metadata.dev(), ino: metadata.ino() };
    let mut on_stuck = Command::new("sleep");
    let on_stuck = on_stuck.arg("120").stdin(Stdio::from(File::open(stuck.path()).unwrap()));
    let _on_stuck = Holder(on_stuck.spawn().unwrap());
    let holder = Holder::new(&scene, &name, &[]);
    stuck.hang();
    let (found, finding) = std::sync::mpsc::channel();
    std::thread::spawn(move || found.send(guard::observe::holders::find(&[file])));
    let scan = finding.recv_timeout(Duration::from_secs(20)).expect("the search does not hang");
    let pids: Vec<_> = scan.holders[&file].iter().map(|it| it.pid as u32).collect();
    assert_eq!(pids, [holder.0.id()]);
}

#[test]
fn who_has_a_part_of_a_pod_checkpoint_open_is_told_when_it_blocks_the_target() {
    let scene = Scene::new();
    let name = "checkpoint-web_team-2026-01-01T00:00:00Z";
    std::fs::create_dir(scene.directory().join(name)).unwrap();
    let part = format!("{name}/main.tar");
    std::fs::write(scene.directory().join(&part), vec![1; 16 << 20]).unwrap();
    scene.configure_fully(&format!(
        "layout = \"pod-checkpoints\"\n[pressure]\nsoft = false\nhard = {{ available = \"64MiB\" }}\n\
         critical = {{ available = \"16MiB\" }}\nkubelet-config = \"off\"\n{UNHURRIED}"
    ));
    let holder = Holder::new(&scene, &part, &[]);
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    let named = format!("in use: sleep (pid {})", holder.0.id());
    daemon.wait_until("naming the holder", |daemon| daemon.log().contains(&named));
    daemon.keeps_running_for(Duration::from_secs(3));
    let told = daemon.audit().iter().filter(|line| line["kind"] == "InUse").count();
    assert!(told <= 2, "told again and again: {told} times in three seconds\n{}", daemon.log());
    drop(holder);
    daemon.wait_until("deleting it", |_| !scene.has(name));
}
