//! What the guard keeps in memory once it knows everything and nothing happens. Root only.

use std::fs;
use std::time::Duration;

use guard::model::Bytes;
use tests::footprint::{Footprint, write_small};
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::Scene;
use tests::setting::Daemon;

const CHECKPOINTS: u64 = 10_000;
/// What is promised for so many. The mapped part of the program counts, so this says nothing about one that was not optimised.
const RESIDENT_MAX: Bytes = if cfg!(debug_assertions) { Bytes(u64::MAX) } else { Bytes::mib(16) };
/// Of that, what is allocated, however the program was built.
const ANONYMOUS_MAX: Bytes = Bytes::mib(8);
/// The same of a companion, which waits in one call: half of it is what the loader relocated.
const COMPANION_MAX: Bytes = Bytes::mib(3);

/// Its footprint once `is_small`, or as it is after a minute: what reading everything took is given back some seconds after.
fn settled(daemon: &mut Daemon, pid: i32, is_small: impl Fn(&Footprint) -> bool) -> Footprint {
    for _ in 0..120 {
        let now = Footprint::of(pid).unwrap();
        if is_small(&now) {
            return now;
        }
        daemon.keeps_running_for(Duration::from_millis(500));
    }
    Footprint::of(pid).unwrap()
}

#[test]
fn ten_thousand_checkpoints_take_no_more_than_is_promised() {
    let options = ["-N", "20000"];
    let scene = Scene::on(LoopMount::with_options(Filesystem::Ext4, Bytes::mib(512), &options, "").unwrap());
    for number in 0..CHECKPOINTS {
        write_small(&scene.directory(), number).unwrap();
    }
    scene.configure("");
    let mut daemon = scene.setting.start();
    daemon.wait_until("knowing what all of them say inside", |daemon| {
        daemon.metric("checkpoint_guard_checkpoints_by_identity{identity=\"exact\"}")
            == Some(CHECKPOINTS as f64)
    });
    let pid = daemon.pid().as_raw();
    let guard =
        settled(&mut daemon, pid, |now| now.resident <= RESIDENT_MAX && now.anonymous <= ANONYMOUS_MAX);
    println!("the guard: {guard:?}");
    assert!(guard.anonymous <= ANONYMOUS_MAX, "{} allocated", guard.anonymous);
    assert!(guard.resident <= RESIDENT_MAX, "{} resident", guard.resident);

    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let companions: Vec<i32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert!(!companions.is_empty(), "the guard has no companion");
    for pid in companions {
        let companion = settled(&mut daemon, pid, |now| now.anonymous <= COMPANION_MAX);
        println!("a companion: {companion:?}");
        assert!(companion.anonymous <= COMPANION_MAX, "{} allocated in a companion", companion.anonymous);
    }
}
