//! SIGKILL at every system call of a reclaim. Afterwards each checkpoint is whole under its name, or on its way out
//! under a private one, or gone; the next start finishes what was begun; the audit log is whole; ids don't repeat.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use guard::model::Bytes;
use guard::observe::filesystem::observe;
use guard::report::audit::{Entry, read, verify};
use nix::sys::ptrace;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use tests::loopfs::{Filesystem, LoopMount};

const ARCHIVE: &str = "checkpoint-web_team-app-2026-01-01T00:00:00Z.tar";
const PINNED: &str = "checkpoint-web_team-app-2026-01-02T00:00:00Z.tar";
const POD: &str = "checkpoint-web_team-2026-01-03T00:00:00Z";
const IN_POD: [&str; 4] =
    ["pod.json", "app/checkpoint.tar", "app/config.dump", "sidecar/deep/checkpoint.tar"];

struct Node {
    mount: LoopMount,
    /// How often the archive's name stands in it.
    times: usize,
    /// What is available while nothing is there to delete.
    available: Bytes,
}

impl Node {
    fn new(filesystem: Filesystem) -> Node {
        // On xfs and ext4 large enough to go by its second name and to be emptied; and xfs is never smaller than 300 MiB.
        let (size, times) = match filesystem {
            Filesystem::Xfs => (Bytes::mib(320), 110_000),
            Filesystem::Ext4 => (Bytes::mib(128), 110_000),
            _ => (Bytes::mib(128), 1000),
        };
        let mount = LoopMount::new(filesystem, size);
        let mut node = Node { mount, times, available: Bytes::ZERO };
        fs::create_dir(node.directory()).unwrap();
        fs::write(node.path(PINNED), PINNED.repeat(100)).unwrap();
        fs::write(node.path(&format!("{PINNED}.keep")), "").unwrap();
        node.available = node.observed();
        node
    }

    fn observed(&self) -> Bytes {
        let directory = fs::File::open(self.directory()).unwrap();
        observe(&directory).unwrap().available
    }

    fn directory(&self) -> PathBuf {
        self.mount.path().join("checkpoints")
    }

    fn audit(&self) -> PathBuf {
        self.mount.path().join("audit.jsonl")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    /// What the guard is to delete.
    fn fill(&self) {
        if !self.path(ARCHIVE).exists() {
            fs::write(self.path(ARCHIVE), ARCHIVE.repeat(self.times)).unwrap();
        }
        if !self.path(POD).exists() {
            // Under another name first: a checkpoint is there whole or not at all.
            let new = self.path("new");
            for file in IN_POD {
                fs::create_dir_all(new.join(file).parent().unwrap()).unwrap();
                fs::write(new.join(file), file.repeat(1000)).unwrap();
            }
            std::os::unix::fs::symlink("/etc/passwd", new.join("app/link")).unwrap();
            fs::rename(new, self.path(POD)).unwrap();
        }
    }

    fn guard(&self, mode: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_reclaim_everything"))
            .arg(self.directory())
            .arg(self.audit())
            .args(mode)
            .spawn()
            .unwrap()
    }

    /// Lets a guard make `stops` entries to and returns from system calls and kills it. False: it ended before.
    fn kill_at(&self, stops: usize) -> bool {
        let mut child = self.guard(&["traced"]);
        let pid = Pid::from_raw(child.id() as i32);
        assert!(matches!(waitpid(pid, None).unwrap(), WaitStatus::Stopped(..)));
        let mut signal = None;
        for _ in 0..stops {
            ptrace::syscall(pid, signal).unwrap();
            signal = match waitpid(pid, None).unwrap() {
                WaitStatus::Exited(_, code) => {
                    assert_eq!(code, 0, "the guard failed");
                    // waitpid(2) has reaped it already.
                    let _ = child.wait();
                    return false;
                }
                WaitStatus::Stopped(_, nix::sys::signal::Signal::SIGTRAP) => None,
                WaitStatus::Stopped(_, other) => Some(other),
                other => panic!("{other:?}"),
            };
        }
        child.kill().unwrap();
        child.wait().unwrap();
        true
    }

    /// What must hold at any moment.
    fn check_untouched(&self, at: usize) {
        let whole = |path: &Path, unit: &str, times: usize| {
            assert!(
                fs::read_to_string(path).unwrap() == unit.repeat(times),
                "killed at {at}: {path:?} is not whole"
            );
        };
        whole(&self.path(PINNED), PINNED, 100);
        if self.path(ARCHIVE).exists() {
            whole(&self.path(ARCHIVE), ARCHIVE, self.times);
        }
        if self.path(POD).exists() {
            for file in IN_POD {
                whole(&self.path(POD).join(file), file, 1000);
            }
        }
        for entry in fs::read_dir(self.directory()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let known = [ARCHIVE, PINNED, POD, &format!("{PINNED}.keep")].contains(&&*name);
            assert!(known || name.starts_with(".evicting-"), "killed at {at}: {name}");
        }
    }

    /// What must hold once a guard has run to its end.
    fn check_finished(&self, at: usize) {
        let mut names: Vec<_> = fs::read_dir(self.directory())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, [PINNED, &format!("{PINNED}.keep")], "killed at {at}");
        // Also of what was half emptied when it was killed. The audit log is on it, too, with its space set aside.
        let is_back = || self.observed() + Bytes::mib(2) >= self.available;
        let is_in_time = (0..100).any(|_| {
            is_back() || {
                std::thread::sleep(Duration::from_millis(10));
                false
            }
        });
        assert!(is_in_time, "killed at {at}: {} of {} is available", self.observed(), self.available);
        assert!(Path::new("/etc/passwd").exists());
    }

    fn check_audit(&self, at: usize) {
        assert_eq!(verify(&self.audit()).unwrap().1, [], "killed at {at}");
        let entries = read(&self.audit()).unwrap();
        let intents: Vec<u64> = of_phase(&entries, "intent").map(Entry::id).collect();
        assert!(intents.windows(2).all(|pair| pair[0] < pair[1]), "killed at {at}: {intents:?}");
        let oldest = intents.first().copied().unwrap_or(0);
        let announced: HashSet<u64> = intents.into_iter().collect();
        let mut told = HashSet::new();
        for outcome in of_phase(&entries, "outcome") {
            // What was announced in a file that has been rotated away by now is not looked for.
            let old = outcome.id() < oldest;
            assert!(
                old || announced.contains(&outcome.id()),
                "killed at {at}: {outcome:?} without an intent"
            );
            assert!(told.insert(outcome.id()), "killed at {at}: two outcomes of {outcome:?}");
        }
    }
}

fn of_phase<'e>(entries: &'e [Entry], phase: &'static str) -> impl Iterator<Item = &'e Entry> {
    entries.iter().filter(move |entry| entry.text("phase") == Some(phase))
}

#[test]
fn killed_at_any_system_call_a_reclaim_is_before_or_after_and_the_next_start_finishes_it() {
    for filesystem in [Filesystem::Tmpfs, Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs] {
        let node = Node::new(filesystem);
        // Every place on one of them; where a disk makes it slow, every third, and every seventh where each waits for a commit.
        // All with `cargo xtask test --soak`.
        let is_soak = std::env::var_os("CHECKPOINT_GUARD_RACE_SECONDS").is_some();
        let step = match filesystem {
            Filesystem::Tmpfs => 1,
            _ if is_soak => 1,
            Filesystem::Btrfs => 7,
            _ => 3,
        };
        let mut stops = 0;
        loop {
            node.fill();
            let killed = node.kill_at(stops);
            node.check_untouched(stops);
            // Every second time the next start is killed as well, at the same place.
            if killed && stops % 2 == 1 {
                node.kill_at(stops);
                node.check_untouched(stops);
            }
            assert!(node.guard(&[]).wait().unwrap().success());
            node.check_finished(stops);
            if stops % 15 == 0 || !killed {
                node.check_audit(stops);
            }
            if !killed {
                break;
            }
            stops += step;
        }
        println!("{filesystem:?}: killed at {} places", stops / step);
        assert!(stops > 200, "{stops}");
    }
}
