//! The probe on a kernel: it loads, attaches, counts, names the writer, and wakes. Root only.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use guard::model::Bytes;
use guard::observe::probe::{Armed, Attempt, Backend, Coverage, SelfTest, survey, survey_of};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tests::loopfs::{Filesystem, LoopMount};
use tests::vm::kernel;
use tests::watching::Watching;

const CHUNK: Bytes = Bytes(64 << 10);

const ALL: [Filesystem; 4] = [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs, Filesystem::Tmpfs];

/// Every filesystem that this kernel has.
fn mounts() -> impl Iterator<Item = Rc<LoopMount>> {
    ALL.into_iter().filter_map(|filesystem| {
        if filesystem.is_known() {
            return Some(Rc::new(LoopMount::new(filesystem, Bytes::mib(320))));
        }
        println!("not on {}: this kernel has none", filesystem.as_str());
        None
    })
}

#[test]
fn every_backend_says_whether_it_works_and_what_to_do() {
    let attempts = survey();
    let backends: Vec<Backend> = attempts.iter().map(|attempt| attempt.backend).collect();
    assert_eq!(backends, Backend::ALL);
    for attempt in &attempts {
        println!("{}: {:?}, {:?}, {:?}", attempt.backend, attempt.outcome, attempt.why, attempt.remedy);
        assert_eq!(attempt.outcome.is_usable(), attempt.why.is_none(), "{attempt:?}");
        let lines = attempt.why.as_ref().map_or(1, |why| why.lines().count());
        assert_eq!(lines, 1, "{attempt:?}");
    }
    assert!(attempts[2].outcome.is_usable() && attempts[3].outcome.is_usable(), "{attempts:?}");
    if kernel().is_some() {
        // What Debian's kernels are known to take.
        assert!(attempts.iter().all(|attempt| attempt.outcome.is_usable()), "{attempts:?}");
    }
}

#[test]
fn the_best_backend_for_each_filesystem_is_taken_by_itself() {
    for mount in mounts() {
        let filesystem = mount.filesystem();
        let watching = Watching::new(mount);
        let written = watching.probe.written(Watching::SLOT).unwrap();
        assert_eq!(written.added, Bytes::ZERO, "{filesystem:?}: probe files are in nobody's budget");
        let attempts = survey_of(watching.directory());
        let taken = watching.coverage.backend();
        println!("{}: {taken} of {attempts:?}", filesystem.as_str());
        let is_usable = |attempt: &&Attempt| attempt.outcome.is_usable();
        let usable: Vec<Backend> = attempts.iter().filter(is_usable).map(|attempt| attempt.backend).collect();
        assert_eq!(Some(&taken), usable.first(), "{filesystem:?}: {usable:?}");
        assert!(filesystem != Filesystem::Ext4 || taken == Backend::RawTracepoint);
    }
}

#[test]
fn every_backend_counts_names_the_writer_and_wakes() {
    for mount in mounts() {
        for backend in [Backend::Fexit, Backend::Kprobe, Backend::RawTracepoint] {
            let Some(mut watching) = Watching::through(backend, mount.clone()) else { continue };
            let place = format!("{} through {backend}", mount.filesystem().as_str());
            println!("{place}: {}", watching.coverage);
            if watching.coverage != Coverage::Nothing {
                counts(&watching, &place);
                names_the_writer(&watching, &place);
                wakes_once(&mut watching, &place);
            }
        }
    }
}

fn counts(watching: &Watching, place: &str) {
    let outcome = watching.probe.self_test(watching.directory());
    assert!(matches!(outcome, Ok(SelfTest::Counts)), "{place}: {outcome:?}");
    let write = |path: &Path| {
        let mut file = File::create(path).unwrap();
        file.write_all(&vec![1; CHUNK.0 as usize]).unwrap();
        file
    };
    assert_eq!(watching.counted(&write(&watching.path().join("a"))), CHUNK, "{place}");
    let beside = write(&watching.mount().path().join("a"));
    assert_eq!(watching.entry(&beside), None, "{place}: beside the directory");
    let deep = watching.path().join("b/c/d");
    std::fs::create_dir_all(&deep).unwrap();
    assert_eq!(watching.counted(&write(&deep.join("e"))), CHUNK, "{place}: below the directory");
}

fn names_the_writer(watching: &Watching, place: &str) {
    let path = watching.path().join("by-dd");
    let arguments = ["if=/dev/zero", "bs=64K", "count=1", "status=none"];
    let mut dd = Command::new("dd").args(arguments).arg(format!("of={}", path.display())).spawn().unwrap();
    let pid = dd.id();
    assert!(dd.wait().unwrap().success());
    let writer = watching.entry(&File::open(&path).unwrap()).unwrap().writer;
    assert_eq!((writer.pid, writer.comm.as_str()), (pid, "dd"), "{place}");
    assert!(writer.cgroup != 0, "{place}: no cgroup");
}

fn wakes_once(watching: &mut Watching, place: &str) {
    let mut file = File::create(watching.path().join("c")).unwrap();
    for round in 0..10 {
        let armed = watching.probe.arm(Watching::SLOT, Bytes(3 * CHUNK.0)).unwrap();
        assert_eq!(armed, Armed::Waiting);
        for chunk in 1..=5 {
            file.write_all(&vec![1; CHUNK.0 as usize]).unwrap();
            let mut fds = [PollFd::new(watching.wakes.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap();
            let wakes: Vec<_> = watching.wakes.drain().collect();
            let expect = usize::from(chunk == 3);
            assert_eq!(wakes.len(), expect, "{place}, round {round}, chunk {chunk}");
            assert!(wakes.iter().all(|wake| wake.pid == std::process::id()));
        }
    }
}
