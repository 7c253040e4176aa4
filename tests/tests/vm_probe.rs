//! The probe on a kernel: it loads, attaches, counts, names the writer, and wakes. Root only.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::Command;

use guard::model::Bytes;
use guard::observe::probe::{Armed, Backend, Coverage, SelfTest, survey, survey_of};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tests::loopfs::{Filesystem, LoopMount};
use tests::vm::kernel;
use tests::watching::Watching;

const CHUNK: Bytes = Bytes(64 << 10);

/// Every filesystem that this kernel has, watched through every backend that it lets in.
fn watchings() -> impl Iterator<Item = (String, Watching)> {
    let all = [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs, Filesystem::Tmpfs];
    let backends = [Backend::Fexit, Backend::Kprobe, Backend::RawTracepoint];
    let both = all.into_iter().flat_map(move |filesystem| backends.map(|backend| (filesystem, backend)));
    both.filter_map(|(filesystem, backend)| {
        if !filesystem.is_known() {
            println!("SKIPPED on {}: this kernel has none", filesystem.as_str());
            return None;
        }
        let watching = Watching::through(backend, LoopMount::new(filesystem, Bytes::mib(320)))?;
        let place = format!("{} through {backend}", filesystem.as_str());
        println!("{place}: {}", watching.coverage);
        (watching.coverage != Coverage::Nothing).then_some((place, watching))
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
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs, Filesystem::Tmpfs] {
        if !filesystem.is_known() {
            continue;
        }
        let watching = Watching::new(LoopMount::new(filesystem, Bytes::mib(320)));
        let written = watching.probe.written(Watching::SLOT).unwrap();
        assert_eq!(written.added, Bytes::ZERO, "{filesystem:?}: probe files are in nobody's budget");
        let attempts = survey_of(watching.directory());
        println!("{}: {} of {attempts:?}", filesystem.as_str(), watching.coverage.backend());
        let usable: Vec<Backend> = attempts
            .iter()
            .filter(|attempt| attempt.outcome.is_usable())
            .map(|attempt| attempt.backend)
            .collect();
        let taken = watching.coverage.backend();
        assert!(usable.contains(&taken), "{filesystem:?}: {taken} of {usable:?}");
        match filesystem {
            Filesystem::Ext4 => assert_eq!(taken, Backend::RawTracepoint),
            _ => assert!(taken == usable[0] || taken == usable[1], "{filesystem:?}: {taken} of {usable:?}"),
        }
    }
}

#[test]
fn what_is_watched_is_counted_and_the_self_test_agrees() {
    for (place, watching) in watchings() {
        let outcome = watching.probe.self_test(watching.directory());
        assert!(matches!(outcome, Ok(SelfTest::Counts)), "{place}: {outcome:?}");
        let mut file = File::create(watching.path().join("a")).unwrap();
        file.write_all(&vec![1; CHUNK.0 as usize]).unwrap();
        assert_eq!(watching.counted(&file), CHUNK, "{place}");
        let mut beside = File::create(watching.mount().path().join("a")).unwrap();
        beside.write_all(&vec![1; CHUNK.0 as usize]).unwrap();
        assert_eq!(watching.entry(&beside), None, "{place}: beside the directory");
    }
}

#[test]
fn the_writer_is_named() {
    for (place, watching) in watchings() {
        let path = watching.path().join("a");
        let arguments = ["if=/dev/zero", "bs=64K", "count=1", "status=none"];
        let mut dd =
            Command::new("dd").args(arguments).arg(format!("of={}", path.display())).spawn().unwrap();
        let pid = dd.id();
        assert!(dd.wait().unwrap().success());
        let writer = watching.entry(&File::open(&path).unwrap()).unwrap().writer;
        assert_eq!((writer.pid, writer.comm.as_str()), (pid, "dd"), "{place}");
        assert!(writer.cgroup != 0, "{place}: no cgroup");
    }
}

#[test]
fn the_write_that_uses_a_budget_up_wakes_once() {
    for (place, mut watching) in watchings() {
        let mut file = File::create(watching.path().join("a")).unwrap();
        for round in 0..20 {
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
}
