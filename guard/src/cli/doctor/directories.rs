//! Each configured directory: whether it can be watched and emptied, and what its filesystem is like.

use std::os::fd::AsFd as _;
use std::path::PathBuf;

use nix::fcntl::AtFlags;
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{AccessFlags, faccessat};

use super::backends::Survey;
use super::report::{Check, Section};
use crate::act::checkpoint_dir::{CheckpointDir, OpenError};
use crate::config::{Config, DirectoryConfig, Layout};
use crate::model::{Bytes, Observation};
use crate::observe::filesystem::observe;
use crate::observe::host::attributes::{Attributes, attributes};
use crate::observe::host::mounts::Mount;

/// A directory that is there.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) config: DirectoryConfig,
    pub(super) dir: CheckpointDir,
    pub(super) mount: Option<Mount>,
}

impl Opened {
    /// As people know it.
    pub(super) fn name(&self) -> String {
        self.config.path.display().to_string()
    }
}

/// Those that can be opened.
pub(super) fn open(config: &Config) -> Vec<Opened> {
    let opened = config.directories.iter().filter_map(|directory| {
        let dir = CheckpointDir::open(&directory.path).ok()?;
        let mount = Mount::of(&dir.resolved());
        Some(Opened { config: directory.clone(), dir, mount })
    });
    opened.collect()
}

/// Every configured directory.
pub(super) fn section(config: &Config, opened: &[Opened], survey: &Survey) -> Section {
    let mut checks: Vec<_> = config.directories.iter().filter_map(absent).collect();
    for (place, it) in opened.iter().enumerate() {
        checks.extend(present(it, survey.seen(place)).into_iter().map(|check| check.on(&it.name())));
    }
    Section { name: "directories", checks }
}

fn absent(directory: &DirectoryConfig) -> Option<Check> {
    let name = directory.path.display().to_string();
    match CheckpointDir::open(&directory.path) {
        Ok(_) => None,
        Err(OpenError::Missing(_)) if directory.optional => {
            Some(Check::note("there", "not yet (optional); it is watched for").on(&name))
        }
        Err(error) => {
            let advice = match error {
                OpenError::Missing(_) => {
                    "make it (mkdir -m 700), mount it into the container, or write optional = true"
                }
                _ => "name another in [[directory]] path",
            };
            Some(Check::missing("there", error.to_string(), advice).on(&name))
        }
    }
}

fn present(it: &Opened, seen: Option<Check>) -> Vec<Check> {
    let mut checks = vec![Check::ok("layout", it.config.layout.as_str())];
    checks.push(match &it.mount {
        Some(mount) => {
            let what = format!("{} from {} at {}", mount.filesystem, mount.source, mount.point.display());
            Check::ok("mount", format!("{what} ({})", mount.options.join(",")))
        }
        None => Check::note("mount", "not to be found in /proc/self/mountinfo"),
    });
    if it.config.layout != Layout::Staging {
        checks.push(may_delete(it));
    }
    checks.push(space(it));
    checks.extend(it.mount.as_ref().into_iter().flat_map(|mount| peculiarities(&mount.filesystem, mount)));
    checks.extend(seen);
    checks
}

/// Whether what lies there can be deleted: without that, there is no guard.
fn may_delete(it: &Opened) -> Check {
    const NAME: &str = "deleting";
    if it.mount.as_ref().is_some_and(|mount| mount.has("ro")) {
        return Check::missing(
            NAME,
            "the filesystem is mounted read-only",
            "mount it rw, or readOnly: false",
        );
    }
    let Attributes { is_immutable, is_append_only } = attributes(it.dir.as_fd());
    if is_immutable || is_append_only {
        let (what, flag) = if is_immutable { ("immutable", "i") } else { ("append-only", "a") };
        return Check::missing(
            NAME,
            format!("the directory is {what}"),
            format!("chattr -{flag} {}", it.name()),
        );
    }
    let access = AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK;
    match faccessat(it.dir.as_fd(), ".", access, AtFlags::AT_EACCESS) {
        Ok(()) => Check::ok(NAME, "permitted"),
        Err(errno) => Check::missing(
            NAME,
            format!("not permitted: {}", errno.desc()),
            "run as the owner of the directory, or with CAP_DAC_OVERRIDE; or make the filesystem writable",
        ),
    }
}

/// What statvfs(3) says, root's reserve included.
fn space(it: &Opened) -> Check {
    const NAME: &str = "space";
    let (seen, reserved) = match (observe(&it.dir), fstatvfs(it.dir.as_fd())) {
        (Ok(seen), Ok(raw)) => {
            let blocks = raw.blocks_free().saturating_sub(raw.blocks_available());
            (seen, Bytes(blocks.saturating_mul(raw.fragment_size())))
        }
        (Err(errno), _) | (_, Err(errno)) => {
            let advice = "the guard decides by statvfs(3): without it nothing is deleted";
            return Check::missing(NAME, format!("cannot be measured: {}", errno.desc()), advice);
        }
    };
    let Observation { capacity, available, inodes } = seen;
    let inodes = match inodes {
        Some(inodes) => format!("{} of {} inodes free", inodes.free, inodes.total),
        None => "inodes are not counted, so there is no inode signal".to_owned(),
    };
    let mut text = format!("{available} of {capacity} available; {inodes}");
    if !reserved.is_zero() {
        text.push_str(&format!(
            "; {reserved} are reserved for root: not available, as the kubelet counts, but open to checkpoint writers"
        ));
    }
    Check::ok(NAME, text)
}

/// What is good to know about a kind of filesystem.
fn peculiarities(filesystem: &str, mount: &Mount) -> Vec<Check> {
    const NAME: &str = "peculiarity";
    let note = |text: &str| Check::note(NAME, text);
    match filesystem {
        "xfs" => {
            let mut notes = vec![note(
                "xfs sets space aside beyond the end of growing files, in steps: available falls in jumps, which the guard \
                 allows for",
            )];
            if mount
                .options
                .iter()
                .any(|it| matches!(it.as_str(), "prjquota" | "pquota" | "usrquota" | "uquota"))
            {
                notes.push(note(
                    "quotas are in force: a project's limit may be reached before the filesystem is full",
                ));
            }
            notes
        }
        "btrfs" => vec![note(
            "what a snapshot or a reflink still holds is not freed by deleting; delete snapshots first. Inodes are not \
             counted. What btrfs owes to writers is read from sysfs and counts as gone",
        )],
        "overlay" => vec![Check::degraded(
            NAME,
            "this is a container's own layer, not the node's directory",
            "mount the node's directory into the container (hostPath), at the same path",
        )],
        "tmpfs" | "ramfs" => {
            vec![note("it lives in memory: checkpoints are gone after a restart, and take RAM")]
        }
        "ext4" if mount.has("nodelalloc") => {
            vec![note("nodelalloc: blocks are counted when they are allocated")]
        }
        remote if remote.starts_with("nfs") || remote.starts_with("fuse") || remote.starts_with("cifs") => {
            vec![Check::degraded(
                NAME,
                format!("{remote} answers as fast as its server: statfs may hang, and others write unseen"),
                "keep checkpoints on a local disk",
            )]
        }
        _ => Vec::new(),
    }
}

/// The directories of one filesystem each, in the order of the configuration.
pub(super) fn by_filesystem(opened: &[Opened]) -> Vec<(Vec<PathBuf>, &Opened)> {
    let mut groups: Vec<(Vec<PathBuf>, &Opened)> = Vec::new();
    for it in opened {
        match groups.iter_mut().find(|(_, first)| first.dir.id().dev == it.dir.id().dev) {
            Some((paths, _)) => paths.push(it.config.path.clone()),
            None => groups.push((vec![it.config.path.clone()], it)),
        }
    }
    groups
}
