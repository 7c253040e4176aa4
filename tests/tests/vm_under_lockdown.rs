//! A kernel under `lockdown=confidentiality`, where no program may read kernel memory. The last program of a VM: a kernel
//! that is locked down stays so until it is switched off.

use guard::model::Bytes;
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::Scene;
use tests::vm::kernel;

const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

#[test]
fn a_kernel_that_hides_its_memory_is_told_by_name_and_the_guard_protects() {
    // Never this machine's own.
    if kernel().is_none() {
        println!("SKIPPED vm_under_lockdown: only in a VM, for it cannot be undone");
        return;
    }
    std::fs::write(LOCKDOWN, "confidentiality").unwrap();
    assert!(std::fs::read_to_string(LOCKDOWN).unwrap().contains("[confidentiality]"));

    let scene = Scene::on(LoopMount::new(Filesystem::Ext4, Bytes::mib(256)));
    scene.archive("web", 1, Bytes::mib(16));
    scene.configure("[eviction]\nmin-age = \"0s\"\nkeep-last = 0\n");
    let mut daemon = scene.setting.start();
    scene.leave(Bytes::mib(60));
    daemon.wait_until("making room", |daemon| !daemon.deleted().is_empty());
    let log = daemon.log();
    assert!(log.contains("lockdown"), "{log}");
    assert_eq!(daemon.get("/readyz").unwrap().0, 200);
    let report = String::from_utf8(scene.setting.run(&["doctor"]).stdout).unwrap();
    let wanted = "boot with lockdown=integrity";
    assert!(report.contains("confidentiality") && report.contains(wanted), "{report}\n{log}");
    let is_said_to_work = |line: &str| {
        let mut words = line.split_whitespace();
        words.clone().any(|word| word == "works")
            && words.any(|word| ["fexit", "kprobe", "raw-tracepoint"].contains(&word))
    };
    assert!(!report.lines().any(is_said_to_work), "no directory can be watched by any of them\n{report}");
    assert_eq!(daemon.metric("checkpoint_guard_backend_degraded"), Some(1.0), "{log}");
    drop(daemon);

    scene.configure("[probe]\nmode = \"raw-tracepoint\"\n");
    let mut refused = scene.setting.launch(&[], &mut |_| {});
    assert!(!refused.wait().success(), "{}", refused.log());
    assert!(refused.log().contains("lockdown"), "{}", refused.log());
}
