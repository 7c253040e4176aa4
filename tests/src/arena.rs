//! [`Arena`]: a filesystem on which attackers race what deletes, and [`Witness`]es of what became of each file.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guard::act::checkpoint_dir::CheckpointDir;
use guard::model::Bytes;

use crate::loopfs::{Filesystem, LoopMount};

/// So long are the small ones.
pub const LEN: usize = 40_000;

fn duration() -> Duration {
    let seconds = std::env::var("CHECKPOINT_GUARD_RACE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

/// Runs `attack` again and again beside `defend`, which deletes and checks, until the time is over.
#[expect(clippy::disallowed_methods, reason = "a test that runs for a time")]
pub fn race(attackers: &[&(dyn Fn(u64) + Sync)], mut defend: impl FnMut(u64)) -> u64 {
    let over = AtomicBool::new(false);
    let end = Instant::now() + duration();
    std::thread::scope(|scope| {
        for attack in attackers {
            let over = &over;
            scope.spawn(move || (0..).take_while(|_| !over.load(Ordering::Relaxed)).for_each(attack));
        }
        // Also when a check fails: otherwise nobody would end the attackers.
        let stop = Stop(&over);
        let turns = (0..).take_while(|_| Instant::now() < end).inspect(|&turn| defend(turn)).count();
        drop(stop);
        turns as u64
    })
}

/// Takes an attacker's own link away.
#[expect(clippy::disallowed_methods, reason = "the attacker's own link")]
pub fn remove_link(link: &Path) {
    fs::remove_file(link).expect("nobody else takes it away");
}

/// Without pauses an attacker is always in the middle of his attack, and nothing is ever deleted.
pub fn breathe() {
    std::thread::sleep(Duration::from_micros(100));
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A filesystem with a directory of checkpoints and one outside it.
#[derive(Debug)]
pub struct Arena {
    _mount: LoopMount,
    /// The checkpoints' directory.
    pub path: PathBuf,
    /// The same, for deleting.
    pub dir: CheckpointDir,
}

impl Arena {
    /// A fresh one.
    pub fn new(filesystem: Filesystem) -> Arena {
        let mount = LoopMount::new(filesystem, Bytes::mib(400));
        let path = mount.path().join("checkpoints");
        fs::create_dir(&path).expect("a fresh filesystem");
        fs::create_dir(mount.path().join("outside")).expect("a fresh filesystem");
        let dir = CheckpointDir::open(&path).expect("a fresh filesystem");
        Arena { _mount: mount, path, dir }
    }

    /// A path beside the checkpoints, on the same filesystem.
    pub fn outside(&self, name: &str) -> PathBuf {
        self.path.with_file_name("outside").join(name)
    }

    /// A checkpoint at `name`, all of whose bytes are `fill`.
    pub fn write(&self, name: &str, fill: u8) {
        let temporary = self.outside(&format!("new-{name}"));
        fs::write(&temporary, [fill; LEN]).expect("there is room");
        fs::rename(temporary, self.path.join(name)).expect("there is room");
    }
}

/// Runs `test` on each kind of filesystem.
pub fn on_every_filesystem(test: impl Fn(&Arena)) {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs, Filesystem::Tmpfs] {
        println!("{filesystem:?}");
        test(&Arena::new(filesystem));
    }
}

/// Links to an inode from outside: 0 once it was deleted. The descriptor is O_PATH, so it is no use of the file.
#[derive(Debug)]
pub struct Witness(pub File);

impl Witness {
    /// Of what lies at `path`, if there is something.
    pub fn of(path: &Path) -> Option<Witness> {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = nix::libc::O_PATH | nix::libc::O_NOFOLLOW;
        File::options().read(true).custom_flags(flags).open(path).ok().map(Witness)
    }

    /// How many names it has.
    pub fn links(&self) -> u64 {
        self.0.metadata().expect("it is open").nlink()
    }

    /// Which file it is.
    pub fn inode(&self) -> u64 {
        self.0.metadata().expect("it is open").ino()
    }
}
