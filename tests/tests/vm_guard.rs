//! The whole guard on a kernel: it watches, and what is written does not fill the disk. Root only.

use std::time::Duration;

use guard::model::Bytes;
use tests::loopfs::{Filesystem, LoopMount};
use tests::sampler::Sampler;
use tests::setting::Setting;
use tests::storm::{Method, Options, Storm, Until};

/// The storm's promise.
const BELOW_HARD_MAX: Bytes = Bytes::mib(32);

/// An archive at a time with a pause after it: an emulated processor has to do everything that a real one does, and
/// its disk is memory.
fn write_archives(directory: &std::path::Path, count: u64) {
    for number in 0..count {
        let storm = Storm::start(Options {
            directory: directory.to_owned(),
            writers: 1,
            size: (Bytes::mib(4), Bytes::mib(8)),
            namespaces: vec!["team".to_owned()],
            pods: 1,
            method: Method::Write,
            first_age: Duration::from_secs(3 * 3600 - 2 * number),
            until: Until { archives: Some(1), ..Until::default() },
        });
        let totals = storm.join();
        assert_eq!((totals.archives, totals.out_of_space, totals.failures), (1, 0, 0), "archive {number}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn check(filesystem: Filesystem) {
    if !filesystem.is_known() {
        println!("SKIPPED on {}: this kernel has none", filesystem.as_str());
        return;
    }
    let mount = LoopMount::new(filesystem, Bytes::mib(320));
    let directory = mount.path().join("checkpoints");
    std::fs::create_dir(&directory).unwrap();
    let setting = Setting::new();
    setting.configure(&format!(
        "[[directory]]\npath = {directory:?}\n[pressure]\nsoft = false\nhard = {{ available = \"96MiB\", inodes-free = \"2%\" }}\n\
         critical = {{ available = \"16MiB\", inodes-free = \"1%\" }}\nminimum-reclaim = {{ available = \"16MiB\" }}\n\
         kubelet-config = \"off\"\n[eviction]\nmin-age = \"0s\"\n"
    ));
    let daemon = setting.start();
    let sampler = Sampler::start(mount.path(), Duration::from_millis(5)).unwrap();
    write_archives(&directory, 60);
    let lowest = sampler.stop().lowest.unwrap().available;
    let log = daemon.log();
    println!(
        "{}: lowest {lowest} with hard at 96 MiB, {} deleted",
        filesystem.as_str(),
        daemon.deleted().len()
    );
    assert!(lowest + BELOW_HARD_MAX >= Bytes::mib(96), "lowest {lowest}\n{log}");
    assert!(daemon.deleted().len() > 10, "360 MiB do not fit\n{log}");
    assert!(log.contains("eBPF counts what is written"), "{log}");
    let named = ["fexit", "kprobe", "raw-tracepoint"].iter().find(|backend| {
        let series = format!("checkpoint_guard_backend_info{{backend=\"{backend}\"}}");
        daemon.metric(&series) == Some(1.0)
    });
    assert!(named.is_some(), "{log}");
    assert!(daemon.stop() < Duration::from_secs(10), "SIGTERM took too long");
}

#[test]
fn ext4_does_not_fill() {
    check(Filesystem::Ext4);
}

#[test]
fn xfs_does_not_fill() {
    check(Filesystem::Xfs);
}
