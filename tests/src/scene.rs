//! [`Scene`]: a filesystem of its own with a directory of checkpoints, and a guard's configuration for it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use guard::model::Bytes;
use jiff::Timestamp;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;

use crate::archives::Archive;
use crate::loopfs::{Filesystem, LoopMount};
use crate::setting::Setting;

/// The hard threshold of [`Scene::configure`].
pub const HARD: Bytes = Bytes::mib(64);
/// Where reclaiming ends: hard and the minimum reclaim.
pub const TARGET: Bytes = Bytes::mib(72);
/// The critical threshold.
pub const CRITICAL: Bytes = Bytes::mib(16);

/// What [`Scene::configure`] says about pressure.
const PRESSURE: &str = r#"
[pressure]
soft = false
hard = { available = "64MiB", inodes-free = "2%" }
critical = { available = "16MiB", inodes-free = "1%" }
minimum-reclaim = { available = "8MiB", inodes-free = "1%" }
transition-period = "1s"
kubelet-config = "off"
"#;

/// A filesystem, the directory `checkpoints` on it, and a guard that is still to be started.
#[derive(Debug)]
pub struct Scene {
    /// The filesystem.
    pub mount: LoopMount,
    /// The guard's configuration.
    pub setting: Setting,
}

impl Scene {
    /// An ext4 of 256 MiB.
    #[track_caller]
    pub fn new() -> Scene {
        Scene::on(LoopMount::new(Filesystem::Ext4, Bytes::mib(256)))
    }

    /// On this filesystem.
    #[track_caller]
    pub fn on(mount: LoopMount) -> Scene {
        std::fs::create_dir(mount.path().join("checkpoints")).expect("a new filesystem has room");
        Scene { mount, setting: Setting::new() }
    }

    /// Where the checkpoints lie.
    pub fn directory(&self) -> PathBuf {
        self.mount.path().join("checkpoints")
    }

    /// The directory with thresholds at [`HARD`] and [`CRITICAL`], and `rest`, which begins with a table.
    pub fn configure(&self, rest: &str) {
        self.configure_fully(&format!("{PRESSURE}\n{rest}"));
    }

    /// The directory, and `rest` as the only thresholds.
    pub fn configure_fully(&self, rest: &str) {
        self.setting.configure(&format!("{}\n{rest}", directory_table(&self.directory())));
    }

    /// Writes an archive of namespace `team`, made at this hour of 2026-01-01; gives its name.
    #[track_caller]
    pub fn archive(&self, pod: &str, hour: u32, size: Bytes) -> String {
        self.archive_of("team", pod, hour, size)
    }

    /// The same for another namespace.
    #[track_caller]
    pub fn archive_of(&self, namespace: &str, pod: &str, hour: u32, size: Bytes) -> String {
        let archive = Archive::new(namespace, pod, "main", hour_of_2026(hour), size.0);
        archive.write_in(&self.directory()).expect("the archive fits");
        archive.kubelet_name()
    }

    /// Whether the directory has this entry.
    pub fn has(&self, name: &str) -> bool {
        std::fs::symlink_metadata(self.directory().join(name)).is_ok()
    }

    /// Fills the filesystem with a file outside the directory until so much is available.
    #[track_caller]
    pub fn leave(&self, available: Bytes) -> PathBuf {
        fill(self.mount.path(), available)
    }

    /// What is available now.
    pub fn available(&self) -> Bytes {
        available_at(self.mount.path())
    }
}

impl Default for Scene {
    fn default() -> Scene {
        Scene::new()
    }
}

/// The `[[directory]]` of a configuration.
pub fn directory_table(path: &Path) -> String {
    format!("[[directory]]\npath = {path:?}")
}

/// Some hour on the first of January 2026: old enough for every `min-age`.
pub fn hour_of_2026(hour: u32) -> Timestamp {
    format!("2026-01-01T{hour:02}:00:00Z").parse().expect("a day has 24 hours")
}

/// Makes a file look unchanged for an hour.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "the guard compares with the real time")]
pub fn make_old(path: &Path) {
    let file = File::options().write(true).open(path).expect("the file is there");
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).expect("its owner may");
}

/// Bytes that are available on the filesystem of `path`.
pub fn available_at(path: &Path) -> Bytes {
    let stat = statvfs(path).expect("it is mounted");
    Bytes(stat.blocks_available() * stat.fragment_size())
}

/// Lets the file `filler` in `root` grow until so much is available.
#[track_caller]
pub fn fill(root: &Path, available: Bytes) -> PathBuf {
    let path = root.join("filler");
    let file = File::options().append(true).create(true).open(&path).expect("a file can be made");
    // What is written but has no blocks yet would come off later.
    nix::unistd::syncfs(&file).expect("a healthy disk");
    let len = file.metadata().expect("it is open").len();
    let more = available_at(root).saturating_sub(available);
    fallocate(&file, FallocateFlags::empty(), len as i64, more.0 as i64)
        .expect("less than what is available");
    path
}
