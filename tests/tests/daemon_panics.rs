//! A bug that panics in a loop: its filesystem is guarded again at once, somebody is told, and the others are not left alone.
//!
//! The panics are real ones: a clock that fails, in the loop's thread only, is something that the guard rightly takes to be
//! impossible.

use std::time::Duration;

use guard::model::Bytes;
use nix::sys::signal::Signal;
use tests::clocks::Clocks;
use tests::loopfs::{Filesystem, LoopMount};
use tests::receiver::{Answer, Receiver};
use tests::scene::{Scene, directory_table, make_old};
use tests::setting::Daemon;

const PANICS: &str = "checkpoint_guard_loop_panics_total";
const LOOP: &str = "fs-checkpoints";
const SETTINGS: &str = "[pressure]\nsoft = false\nhard = { available = \"64MiB\" }\n\
                        critical = { available = \"16MiB\" }\nminimum-reclaim = { available = \"8MiB\" }\n\
                        kubelet-config = false\n[eviction]\nmin-age = \"0s\"";

/// A filesystem with four archives, of which three may go, and clocks that can fail.
fn scene() -> Option<(Scene, Vec<String>, Clocks)> {
    let clocks =
        Clocks::new().inspect_err(|error| println!("SKIPPED: no clocks that fail: {error:#}")).ok()?;
    let scene = Scene::new();
    let names: Vec<_> = (1..=4).map(|hour| scene.archive("web", hour, Bytes::mib(16))).collect();
    names.iter().for_each(|name| make_old(&scene.directory().join(name)));
    scene.configure_fully(SETTINGS);
    Some((scene, names, clocks))
}

#[track_caller]
fn check_reclaims_oldest(scene: &Scene, names: &[String], daemon: &mut Daemon) {
    scene.leave(Bytes::mib(60));
    daemon.wait_until("deleting", |daemon| !daemon.deleted().is_empty());
    daemon.keeps_running_for(Duration::from_millis(500));
    assert_eq!(daemon.deleted(), names[..1], "{}", daemon.log());
}

#[test]
fn a_loop_that_panics_is_followed_by_one_that_looks_afresh() {
    let Some((scene, names, clocks)) = scene() else { return };
    let mut daemon = scene.setting.start_with(&[], &mut |command| clocks.rule(command));
    assert_eq!(daemon.metric(PANICS), Some(0.0));
    for panics in 1..=2 {
        clocks.fail_in(LOOP, 1);
        daemon.wait_until("told", |daemon| daemon.metric(PANICS) == Some(f64::from(panics)));
        daemon.wait_until_ready();
    }
    assert_eq!(daemon.log().matches("a bug: the loop of this filesystem panicked").count(), 2);
    assert_eq!(daemon.get("/healthz").map(|(status, _)| status), Some(200), "{}", daemon.log());
    check_reclaims_oldest(&scene, &names, &mut daemon);
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.wait().success(), "{}", daemon.log());
}

#[test]
fn a_guard_whose_only_loop_panics_again_and_again_ends_so_that_it_is_started_anew() {
    let Some((scene, names, clocks)) = scene() else { return };
    let mut daemon = scene.setting.start_with(&[], &mut |command| clocks.rule(command));
    clocks.fail_in(LOOP, i64::MAX);
    let status = daemon.wait();
    assert_eq!(status.code(), Some(1), "{}", daemon.log());
    let stop = daemon.audit().pop().expect("it has started and stopped");
    assert_eq!(stop["kind"], "Stop", "{}", daemon.log());
    assert!(stop["reason"].as_str().is_some_and(|reason| reason.contains("panicked")), "{stop}");
    clocks.fail_in(LOOP, 0);
    let mut anew = scene.setting.start_with(&[], &mut |command| clocks.rule(command));
    check_reclaims_oldest(&scene, &names, &mut anew);
}

#[test]
fn a_loop_that_panics_again_and_again_leaves_no_other_filesystem_alone() {
    let Some((scene, names, clocks)) = scene() else { return };
    let other = LoopMount::new(Filesystem::Tmpfs, Bytes::mib(128));
    let sick = other.path().join("sick");
    std::fs::create_dir(&sick).unwrap();
    let directories = format!("{}\n{}", directory_table(&sick), directory_table(&scene.directory()));
    scene.setting.configure(&format!("{directories}\n{SETTINGS}"));
    let mut daemon = scene.setting.start_with(&[], &mut |command| clocks.rule(command));
    clocks.fail_in("fs-sick", i64::MAX);
    daemon.wait_until("pausing", |daemon| daemon.metric(PANICS) == Some(5.0));
    let ready = daemon.get("/readyz").expect("it serves");
    assert!(ready.0 == 503 && ready.1.contains("sick"), "{ready:?}");
    check_reclaims_oldest(&scene, &names, &mut daemon);
    assert_eq!(daemon.metric(PANICS), Some(5.0), "{}", daemon.log());
}

#[test]
fn a_thread_beside_the_loops_that_panics_begins_again_and_is_told() {
    let Some((scene, names, clocks)) = scene() else { return };
    let staging = scene.mount.path().join("staging");
    std::fs::create_dir(&staging).unwrap();
    scene.configure_fully(&format!("{}\nlayout = \"staging\"\n{SETTINGS}", directory_table(&staging)));
    let mut daemon = scene.setting.start_with(&[], &mut |command| clocks.rule(command));
    for panics in 1..=2 {
        clocks.fail_in("staging", 1);
        daemon.wait_until("told", |daemon| daemon.metric(PANICS) == Some(f64::from(panics)));
    }
    assert_eq!(daemon.log().matches("a bug: a thread beside the loops panicked").count(), 2);
    check_reclaims_oldest(&scene, &names, &mut daemon);
}

#[test]
fn who_posts_rounds_goes_on_after_a_panic_and_so_does_the_guard() {
    let Some((scene, names, clocks)) = scene() else { return };
    let answer = |count| if count == 1 { Answer::Late(Duration::from_secs(3)) } else { Answer::Status(204) };
    let receiver = Receiver::start(answer);
    scene.configure_fully(&format!("{SETTINGS}\n[notify]\nurl = {:?}", receiver.url()));
    let mut daemon = scene.setting.start_with(&[], &mut |command| clocks.rule(command));
    for panics in 1..=2 {
        clocks.fail_in("webhook", 1);
        daemon.wait_until("told", |daemon| daemon.metric(PANICS) == Some(f64::from(panics)));
    }
    check_reclaims_oldest(&scene, &names, &mut daemon);
    let rounds = |daemon: &Daemon, outcome: &str| {
        daemon.metric(&format!("checkpoint_guard_webhook_rounds_total{{outcome=\"{outcome}\"}}"))
    };
    daemon.wait_until("posted", |daemon| rounds(daemon, "delivered") == Some(1.0));
    // The second one is what it panics at.
    scene.leave(Bytes::mib(60));
    daemon.wait_until("posting", |_| receiver.requests().len() == 2);
    clocks.fail_in("webhook", 1);
    daemon.wait_until("dropped", |daemon| rounds(daemon, "dropped") == Some(1.0));
    scene.leave(Bytes::mib(60));
    daemon.wait_until("posted", |daemon| rounds(daemon, "delivered") == Some(2.0));
    assert_eq!(daemon.metric(PANICS), Some(3.0), "{}", daemon.log());
}

#[test]
fn who_asks_the_api_server_goes_on_after_a_panic_and_so_does_the_guard() {
    let Some((mut scene, names, clocks)) = scene() else { return };
    // It takes connections and says nothing.
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
         clusters: [{{name: it, cluster: {{server: 'http://{address}'}}}}]\n\
         users: [{{name: it, user: {{token: none}}}}]\n\
         contexts: [{{name: it, context: {{cluster: it, user: it}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    scene.setting = scene.setting.in_cluster(&kubeconfig, "node", "");
    scene.configure_fully(SETTINGS);
    let mut daemon = scene.setting.start_with(&[], &mut |command| clocks.rule(command));
    drop(server.accept().unwrap());
    for panics in 1..=2 {
        clocks.fail_in("cluster", 1);
        daemon.wait_until("told", |daemon| daemon.metric(PANICS) == Some(f64::from(panics)));
    }
    std::thread::spawn(move || while server.accept().is_ok() {});
    let calls = "checkpoint_guard_cluster_calls_total{call=\"list\"}";
    let before = daemon.metric(calls);
    daemon.wait_until("asking", |daemon| daemon.metric(calls) > before);
    check_reclaims_oldest(&scene, &names, &mut daemon);
}
