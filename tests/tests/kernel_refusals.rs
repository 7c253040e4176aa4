//! What the probe says when the kernel does not let it in. Root only: the right is given up thread by thread.

use std::fs::File;
use std::os::fd::AsFd;

use guard::model::Bytes;
use guard::observe::probe::{Probe, ProbeError, Slot};
use tests::loopfs::{Filesystem, LoopMount};

/// Runs `what` in a thread that has no capabilities.
fn without_capabilities<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // _LINUX_CAPABILITY_VERSION_3 takes two sets of three words; pid 0 is this thread.
            let header = Header { version: 0x2008_0522, pid: 0 };
            let none = [0u32; 6];
            // SAFETY: both point to what capset(2) reads, and it writes nothing of ours when it succeeds.
            let done = unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
            assert_eq!(done, 0, "capset: {}", std::io::Error::last_os_error());
            what()
        });
        thread.join().unwrap()
    })
}

#[test]
fn without_capabilities_it_names_those_that_are_missing() {
    let error = without_capabilities(|| Probe::load().map(drop)).unwrap_err();
    assert!(matches!(error, ProbeError::Refused { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("Operation not permitted") && text.contains("CAP_BPF and CAP_PERFMON"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn a_probe_outlives_the_capabilities_it_was_loaded_with() {
    let mount = LoopMount::new(Filesystem::Ext4, Bytes::mib(64));
    let directory = File::open(mount.path()).unwrap();
    let (probe, _wakes) = Probe::load().unwrap();
    probe.watch(Slot(0), directory.as_fd()).unwrap();
    without_capabilities(|| {
        // unprivileged_bpf_disabled says whether bpf(2) is open to us at all; either way no panic and a clear answer.
        match probe.written(Slot(0)) {
            Ok(written) => assert_eq!(written.freed, Bytes::ZERO),
            Err(error) => assert!(error.to_string().contains("CAP_BPF"), "{error}"),
        }
    });
}

#[test]
fn slots_and_directories_have_an_end_and_it_is_said() {
    let mount = LoopMount::new(Filesystem::Ext4, Bytes::mib(64));
    let (probe, _wakes) = Probe::load().unwrap();
    let mut open = Vec::new();
    for n in 0..=guard_ebpf::DIRECTORIES {
        let path = mount.path().join(format!("{n}"));
        std::fs::create_dir(&path).unwrap();
        open.push(File::open(path).unwrap());
    }
    let (last, others) = open.split_last().unwrap();
    for directory in others {
        probe.watch(Slot(0), directory.as_fd()).unwrap();
        // Again is no second one.
        probe.watch(Slot(0), directory.as_fd()).unwrap();
    }
    let error = probe.watch(Slot(0), last.as_fd()).unwrap_err();
    let says = error.to_string();
    assert!(
        says.starts_with("more than 16 directories: ") && says.contains("let checkpoints go to fewer"),
        "{says}"
    );
    probe.unwatch(others[3].as_fd()).unwrap();
    probe.watch(Slot(0), last.as_fd()).unwrap();

    let error = probe.arm(Slot(16), Bytes::gib(1)).unwrap_err();
    assert_eq!(error.to_string(), "there is no filesystem slot 16, only 0 to 15");
}
