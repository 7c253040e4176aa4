//! [`LoopMount`]: a real filesystem of a chosen type and size, there as long as the value lives.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use guard::model::Bytes;
use nix::mount::{MntFlags, umount2};

/// What can be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filesystem {
    /// Blocks of 4 KiB whatever the size (mkfs alone would give a small one 1 KiB blocks); 0 % reserved for root.
    Ext4,
    /// At least 300 MiB, or mkfs.xfs refuses.
    Xfs,
    /// At least 110 MiB, or mkfs.btrfs refuses.
    Btrfs,
    /// No loop device: lives in memory.
    Tmpfs,
    /// An overlay above an ext4 of its own.
    Overlay,
}

impl Filesystem {
    /// Its name in mount(8) and `/proc/filesystems`.
    pub fn as_str(self) -> &'static str {
        match self {
            Filesystem::Ext4 => "ext4",
            Filesystem::Xfs => "xfs",
            Filesystem::Btrfs => "btrfs",
            Filesystem::Tmpfs => "tmpfs",
            Filesystem::Overlay => "overlay",
        }
    }

    fn mkfs(self) -> Option<&'static [&'static str]> {
        match self {
            Filesystem::Ext4 => Some(&["mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0"]),
            Filesystem::Xfs => Some(&["mkfs.xfs", "-q", "-f"]),
            Filesystem::Btrfs => Some(&["mkfs.btrfs", "-q", "-f"]),
            Filesystem::Tmpfs | Filesystem::Overlay => None,
        }
    }

    /// Whether this kernel knows it, as far as its module is loaded or built in.
    pub fn is_known(self) -> bool {
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        known.lines().any(|line| line.split('\t').next_back() == Some(self.as_str()))
    }
}

/// A mounted filesystem of its own: unmounted, its loop device freed and its image deleted on drop.
///
/// Needs root. Image and mount point lie in a fresh directory below `TMPDIR`, so tests run in parallel.
#[derive(Debug)]
pub struct LoopMount {
    mount_point: PathBuf,
    filesystem: Filesystem,
    /// What an overlay lies above.
    _below: Option<Box<LoopMount>>,
    // Last: its drop deletes image and mount point, after ours has unmounted.
    _scratch: tempfile::TempDir,
}

impl LoopMount {
    /// Makes and mounts a filesystem of `size`, panicking with the failing command when that can't be done.
    #[track_caller]
    pub fn new(filesystem: Filesystem, size: Bytes) -> LoopMount {
        LoopMount::with_options(filesystem, size, &[], "")
            .unwrap_or_else(|error| panic!("no {} of {size}: {error:#}", filesystem.as_str()))
    }

    /// The same with further arguments for mkfs and further mount options (`"nodelalloc"`, `"noatime"`).
    pub fn with_options(
        filesystem: Filesystem,
        size: Bytes,
        mkfs_arguments: &[&str],
        mount_options: &str,
    ) -> Result<LoopMount> {
        let scratch = tempfile::Builder::new().prefix("checkpoint-guard-fs-").tempdir()?;
        let mount_point = scratch.path().join("mnt");
        std::fs::create_dir(&mount_point)?;
        let comma = if mount_options.is_empty() { "" } else { "," };
        let mount = ["mount", "-t", filesystem.as_str(), "-o"];
        let mut below = None;
        match filesystem.mkfs() {
            None if filesystem == Filesystem::Overlay => {
                let lower = LoopMount::with_options(Filesystem::Ext4, size, mkfs_arguments, mount_options)?;
                let folder = |name: &str| lower.path().join(name);
                ["lower", "upper", "work"].iter().try_for_each(|name| std::fs::create_dir(folder(name)))?;
                let options = format!(
                    "lowerdir={},upperdir={},workdir={}",
                    folder("lower").display(),
                    folder("upper").display(),
                    folder("work").display()
                );
                let paths = [OsStr::new(&options), OsStr::new("overlay"), mount_point.as_os_str()];
                run(mount.iter().map(OsStr::new).chain(paths))?;
                below = Some(Box::new(lower));
            }
            Some(mkfs) => {
                let image = scratch.path().join("image");
                File::create(&image)?.set_len(size.0)?;
                run(mkfs.iter().chain(mkfs_arguments).map(OsStr::new).chain([image.as_os_str()]))?;
                // `-o loop` sets autoclear: the device goes with the mount, even when this process is killed.
                let options = format!("loop{comma}{mount_options}");
                let paths = [OsStr::new(&options), image.as_os_str(), mount_point.as_os_str()];
                run(mount.iter().map(OsStr::new).chain(paths))?;
            }
            None => {
                let options = format!("size={}{comma}{mount_options}", size.0);
                let paths = [OsStr::new(&options), OsStr::new("tmpfs"), mount_point.as_os_str()];
                run(mount.iter().map(OsStr::new).chain(paths))?;
            }
        }
        Ok(LoopMount { mount_point, filesystem, _below: below, _scratch: scratch })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// Its type.
    pub fn filesystem(&self) -> Filesystem {
        self.filesystem
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        // A lazy unmount when something is still open, which a failing test may well leave behind.
        let unmounted = umount2(&self.mount_point, MntFlags::empty())
            .or_else(|_| umount2(&self.mount_point, MntFlags::MNT_DETACH));
        if let Err(errno) = unmounted {
            eprintln!("cannot unmount {}: {errno}; it stays behind", self.mount_point.display());
        }
    }
}

fn run<'a>(command_line: impl Iterator<Item = &'a OsStr>) -> Result<()> {
    let words: Vec<&OsStr> = command_line.collect();
    let output = Command::new(words[0]).args(&words[1..]).output().with_context(|| format!("{words:?}"))?;
    ensure!(
        output.status.success(),
        "{words:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
