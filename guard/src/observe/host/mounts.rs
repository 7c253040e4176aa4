//! [`Mount`]: what a directory is mounted from, from `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use std::path::{Path, PathBuf};

use procfs::process::{MountInfo, Process};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where.
    pub point: PathBuf,
    /// `ext4`, `xfs`.
    pub filesystem: String,
    /// `/dev/sda1`, or whatever the filesystem calls its source.
    pub source: String,
    /// Options of the mount and of the filesystem, in order: `rw`, `noatime`, `prjquota`.
    pub options: Vec<String>,
}

impl Mount {
    /// The mount that the resolved path `path` lies on; `None` where mountinfo cannot be read.
    pub fn of(path: &Path) -> Option<Mount> {
        let mounts = Process::myself().and_then(|it| it.mountinfo()).ok()?;
        // Of several at one place the last lies on top.
        let covering = mounts.0.into_iter().filter(|mount| path.starts_with(&mount.mount_point));
        covering.max_by_key(|mount| mount.mount_point.components().count()).map(Mount::from)
    }

    /// Whether it has this option.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|it| it == option)
    }
}

impl From<MountInfo> for Mount {
    fn from(info: MountInfo) -> Mount {
        let mut options: Vec<_> = info.mount_options.into_iter().chain(info.super_options).collect();
        options.sort();
        let mut options: Vec<_> = options
            .into_iter()
            .map(|(key, value)| value.map_or(key.clone(), |value| format!("{key}={value}")))
            .collect();
        options.dedup();
        Mount {
            point: info.mount_point,
            filesystem: info.fs_type,
            source: info.mount_source.unwrap_or_default(),
            options,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_below_a_mount_is_found_on_it() {
        let mount = Mount::of(Path::new("/proc/self")).unwrap();
        assert_eq!((mount.point.as_path(), mount.filesystem.as_str()), (Path::new("/proc"), "proc"));
        assert!(mount.has("rw") || mount.has("ro"), "{mount:?}");
    }
}
