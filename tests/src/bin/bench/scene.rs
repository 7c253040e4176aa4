//! Disks of one's own, and looking at them.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;
use guard::model::Bytes;
use nix::sys::statvfs::statvfs;
use tests::loopfs::{Filesystem, LoopMount};

/// A filesystem with a checkpoint directory, and the thresholds for it.
#[derive(Debug)]
pub(crate) struct Scene {
    mount: LoopMount,
    /// Below it is pressure.
    pub hard: Bytes,
    /// Reclaiming goes on until so much more is available.
    pub minimum_reclaim: Bytes,
}

impl Scene {
    pub(crate) fn new(
        filesystem: Filesystem,
        size: Bytes,
        hard: Bytes,
        minimum_reclaim: Bytes,
    ) -> Result<Scene> {
        Scene::on(LoopMount::with_options(filesystem, size, &[], "")?, hard, minimum_reclaim)
    }

    /// The same with room for so many files, which mkfs would not foresee on so small an ext4.
    pub(crate) fn with_inodes(
        size: Bytes,
        inodes: u32,
        hard: Bytes,
        minimum_reclaim: Bytes,
    ) -> Result<Scene> {
        let arguments = ["-N", &inodes.to_string()];
        Scene::on(LoopMount::with_options(Filesystem::Ext4, size, &arguments, "")?, hard, minimum_reclaim)
    }

    fn on(mount: LoopMount, hard: Bytes, minimum_reclaim: Bytes) -> Result<Scene> {
        std::fs::create_dir(mount.path().join("checkpoints"))?;
        Ok(Scene { mount, hard, minimum_reclaim })
    }

    /// The watched directory.
    pub(crate) fn directory(&self) -> PathBuf {
        self.mount.path().join("checkpoints")
    }

    /// The filesystem's root.
    pub(crate) fn root(&self) -> &Path {
        self.mount.path()
    }

    /// What reclaiming aims at.
    pub(crate) fn target(&self) -> Bytes {
        self.hard + self.minimum_reclaim
    }

    pub(crate) fn available(&self) -> io::Result<Bytes> {
        available(self.root())
    }

    /// For the guard.
    pub(crate) fn settings(&self) -> String {
        let Scene { hard, minimum_reclaim, .. } = self;
        format!(
            "[pressure]\nsoft = false\nhard = {{ available = \"{}\" }}\ncritical = false\n\
             minimum-reclaim = {{ available = \"{}\" }}\ntransition-period = \"0s\"\nkubelet-config = \"off\"\n",
            quantity(*hard),
            quantity(*minimum_reclaim)
        )
    }
}

/// As configured, exactly.
fn quantity(bytes: Bytes) -> String {
    format!("{}KiB", bytes.0 >> 10)
}

/// `f_bavail × f_frsize`, what the kubelet compares.
pub(crate) fn available(path: &Path) -> io::Result<Bytes> {
    let stat = statvfs(path)?;
    Ok(Bytes(stat.blocks_available() * stat.fragment_size()))
}
