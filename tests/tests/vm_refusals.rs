//! What the guard does where the kernel, or whoever started it, grants less: it says what is missing, and goes on with what
//! remains. Root only.

use std::path::Path;

use guard::model::Bytes;
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::Scene;
use tests::setting::Daemon;
use tests::vm::kernel;

const COUNTS: &str = "eBPF counts what is written";

/// A checkpoint that may go, on a filesystem where only fexit and kprobes count.
fn scene(rest: &str) -> Scene {
    let scene = Scene::on(LoopMount::new(Filesystem::Tmpfs, Bytes::mib(128)));
    scene.archive("web", 1, Bytes::mib(8));
    scene.archive("web", 2, Bytes::mib(8));
    scene.configure(&format!("[eviction]\nmin-age = \"0s\"\nkeep-last = 0\n{rest}"));
    scene
}

/// With or without eBPF, this is what it is for.
#[track_caller]
fn protects(scene: &Scene, daemon: &mut Daemon) {
    scene.leave(Bytes::mib(60));
    daemon.wait_until("making room", |daemon| !daemon.deleted().is_empty());
}

#[track_caller]
fn uses(daemon: &Daemon, backend: &str) -> bool {
    daemon.metric(&format!("checkpoint_guard_backend_info{{backend=\"{backend}\"}}")) == Some(1.0)
}

/// Whether this kernel has programs on functions at all.
fn has_fexit() -> bool {
    let attempts = guard::observe::probe::survey();
    let fexit = attempts.iter().any(|it| it.backend.as_str() == "fexit" && it.outcome.is_usable());
    if !fexit {
        println!("SKIPPED vm_refusals: this kernel refuses programs on functions to everybody");
    }
    fexit
}

#[test]
fn a_limit_of_locked_memory_is_lifted_or_named() {
    if !has_fexit() {
        return;
    }
    // Before Linux 5.11 such a limit is too little for any map.
    let counts = guard::observe::host::kernel::Kernel::here().version() < (5, 11);
    let limit = ["prlimit", "--memlock=65536:65536"];
    {
        let scene = scene("");
        let mut daemon = scene.setting.start_through(&limit);
        daemon.wait_until("counting", |daemon| daemon.log().contains(COUNTS));
        protects(&scene, &mut daemon);
    }
    let scene = scene("");
    let without = ["setpriv", "--bounding-set=-sys_resource"];
    let mut daemon = scene.setting.start_through(&[&without[..], &limit].concat());
    if counts {
        daemon.wait_until("telling", |daemon| daemon.log().contains("RLIMIT_MEMLOCK is 64 KiB"));
        assert!(daemon.log().contains("LimitMEMLOCK=infinity"), "{}", daemon.log());
        assert!(uses(&daemon, "inotify"), "{}", daemon.log());
    } else {
        daemon.wait_until("counting", |daemon| daemon.log().contains(COUNTS));
    }
    protects(&scene, &mut daemon);
}

#[test]
fn without_the_capabilities_it_names_them_and_protects_all_the_same() {
    let scene = scene("");
    let less = ["setpriv", "--bounding-set=-bpf,-perfmon,-sys_admin"];
    let mut daemon = scene.setting.start_through(&less);
    daemon.wait_until("telling", |daemon| daemon.log().contains("CAP_BPF and CAP_PERFMON"));
    assert!(uses(&daemon, "inotify"), "{}", daemon.log());
    protects(&scene, &mut daemon);
}

#[test]
fn kprobes_that_are_asked_for_work_inside_the_sandbox() {
    // Of ext4: each kernel of the matrix has the function that they stand on.
    let scene = Scene::on(LoopMount::new(Filesystem::Ext4, Bytes::mib(256)));
    scene.archive("web", 1, Bytes::mib(16));
    scene.configure("[probe]\nmode = \"kprobe\"\n[eviction]\nmin-age = \"0s\"\nkeep-last = 0\n");
    let attempts = guard::observe::probe::survey();
    if !attempts.iter().any(|it| it.backend.as_str() == "kprobe" && it.outcome.is_usable()) {
        assert!(kernel().is_none(), "Debian's kernels have kprobes: {attempts:?}");
        // What was asked for by name and is not to be had is no daemon.
        let mut refused = scene.setting.launch(&[], &mut |_| {});
        assert!(!refused.wait().success(), "{}", refused.log());
        println!("SKIPPED vm_refusals: this kernel has no kprobes");
        return;
    }
    // Debian's kernels come with 3, which only CAP_SYS_ADMIN passes.
    let paranoid = Path::new("/proc/sys/kernel/perf_event_paranoid");
    if kernel().is_some() && std::fs::read_to_string(paranoid).unwrap().trim() == "3" {
        let mut refused = scene.setting.launch(&[], &mut |_| {});
        assert!(!refused.wait().success(), "{}", refused.log());
        assert!(refused.log().contains("perf_event_paranoid is 3"), "{}", refused.log());
        std::fs::write(paranoid, "2").unwrap();
    }
    let mut daemon = scene.setting.start();
    daemon.wait_until("counting", |daemon| daemon.log().contains(COUNTS));
    assert!(uses(&daemon, "kprobe"), "{}", daemon.log());
    let seccomp = "checkpoint_guard_sandbox_active{layer=\"seccomp\"}";
    assert_eq!(daemon.metric(seccomp), Some(1.0), "{}", daemon.log());
    std::fs::write(scene.directory().join("written"), vec![1; 1 << 20]).unwrap();
    daemon.wait_until("counting them", |daemon| {
        daemon.metric("checkpoint_guard_written_bytes_total").is_some_and(|bytes| bytes >= f64::from(1 << 20))
    });
    protects(&scene, &mut daemon);
}
