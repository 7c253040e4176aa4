//! Directories that come, are replaced, and go.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use super::Filesystem;
use crate::act::checkpoint_dir::CheckpointDir;
use crate::act::extent_size;
use crate::agent::clock::{moment, monotonic};
use crate::agent::{Happened, braking};
use crate::config::{DirectoryConfig, Layout};
use crate::model::Bytes;
use crate::observe::catalog::Holds;
use crate::observe::filesystem::observe;
use crate::observe::host::encryption::Encryption;
use crate::observe::host::mounts::Mount;
use crate::observe::inotify::Detail;
use crate::observe::probe::Coverage;

/// One watched directory.
pub(in crate::agent) struct Directory {
    pub(super) config: DirectoryConfig,
    /// A descriptor of the same directory for the reader's thread.
    pub(super) fd: Option<Arc<OwnedFd>>,
    /// What inotify tells of it: of each write, because no probe does; or of no file that is closed, because that is asked
    /// of single files.
    pub(super) detail: Detail,
    /// Nothing that can be seen encrypts it; `None` until that was looked into.
    is_unencrypted: Option<bool>,
    /// Its filesystem takes space in steps of this, more than what is written.
    pub(super) step: Bytes,
    /// Its path leads elsewhere: no longer looked at, and its checkpoints are out of the catalog.
    pub(super) gone: bool,
}

impl Directory {
    pub(super) fn holds(&self) -> Option<Holds> {
        holds(self.config.layout)
    }
}

/// What a checkpoint is in a directory of this layout; `None`: nothing there is one.
fn holds(layout: Layout) -> Option<Holds> {
    match layout {
        Layout::Archives => Some(Holds::Archives),
        Layout::PodCheckpoints => Some(Holds::PodCheckpoints),
        Layout::Staging => None,
    }
}

/// By itself xfs sets aside as much beyond the end of a growing file as the file has, in one step: at 32 MiB another 32 MiB.
/// That is half of a checkpoint of 64 MiB, so acting one step ahead never costs a whole one beyond need.
const STEP_WITHOUT_HINT: Bytes = Bytes::mib(32);

impl Filesystem {
    /// Begins to watch a directory.
    pub(super) fn add(&mut self, config: DirectoryConfig, dir: CheckpointDir) {
        self.catalog.set_now(moment());
        let path = config.path.clone();
        let shared = self.shared.clone();
        let is_staging = config.layout == Layout::Staging;
        // In an engine's directory nothing is ours, whatever it is called.
        if !shared.dry_run && !is_staging {
            match dir.finish_leftovers(&|id| shared.name_of(id)) {
                Ok(leftovers) => {
                    leftovers.iter().for_each(|leftover| shared.record_leftover(&path, leftover))
                }
                Err(error) => {
                    tracing::warn!(directory = %path.display(), %error, "unfinished deletions stay")
                }
            }
        }
        let index = self.catalog.add_directory(path.clone());
        let mut detail = Detail::Writes;
        let mut coverage = Coverage::Nothing;
        if is_staging && self.staging.is_none() {
            self.staging = shared.probing.as_ref().and_then(|probing| probing.slot(self.bell.clone()));
        }
        let watched = if is_staging { &mut self.staging } else { &mut self.watched };
        if let Some(watched) = watched {
            match watched.add(dir.as_fd()) {
                Ok(Coverage::Nothing) => {
                    tracing::warn!(directory = %path.display(), "eBPF does not see writes on this filesystem");
                }
                Ok(found) => {
                    coverage = found;
                    let backend = coverage.backend();
                    tracing::info!(directory = %path.display(), %backend, %coverage, "eBPF counts what is written");
                    let unseen = coverage.lacking();
                    if !unseen.is_empty() {
                        tracing::warn!(directory = %path.display(), %backend, %unseen, "the kernel lacks hooks for some ways of \
                            writing, or has others than are known; statfs must show what is written so");
                    }
                    detail = Detail::Entries;
                }
                Err(error) => tracing::warn!(directory = %path.display(), %error, "not watched by eBPF"),
            }
        }
        self.shared.metrics.filesystem(&self.label).backend(coverage.backend().as_str());
        self.shared.is_taken_by(&path, Some(coverage));
        if is_staging {
            // Somebody looks every second while there is anything to see.
            detail = Detail::Entries;
            match dir.as_fd().try_clone_to_owned() {
                Ok(fd) => shared.staging.add(&path, fd),
                Err(error) => tracing::error!(directory = %path.display(), %error, "not looked at"),
            }
        }
        if let Some(watcher) = &mut self.watcher
            && let Err(errno) = watcher.add(dir.as_fd(), index, detail)
        {
            tracing::warn!(directory = %path.display(), %errno, "inotify refused; scanning by the clock instead");
        }
        let fd = dir.as_fd().try_clone_to_owned().ok().map(Arc::new);
        if config.layout == Layout::PodCheckpoints
            && let Some(fd) = &fd
        {
            shared.growths.add_tree(&path, fd.clone());
        }
        let step = match dir.sets_aside() {
            true => self.limit_steps(&config, &dir).unwrap_or(STEP_WITHOUT_HINT).min(STEP_WITHOUT_HINT),
            false => Bytes::ZERO,
        };
        self.directories.push(Directory { config, fd, detail, is_unencrypted: None, step, gone: false });
        self.dirs.push(dir);
        braking::add(self, usize::from(index));
        match self.directories[usize::from(index)].holds() {
            Some(_) => {
                let rest = self.scan(usize::from(index));
                // Another one may be waiting to be tried again.
                if rest.is_none() || self.directories.len() == 1 {
                    self.scan_again_after(rest);
                }
            }
            None => self.shared.health.scanned(&path),
        }
        self.due.publish = monotonic();
    }

    /// Keeps xfs from taking space in large steps; says in which it does then. `None`: in its own.
    fn limit_steps(&self, config: &DirectoryConfig, dir: &CheckpointDir) -> Option<Bytes> {
        let (Some(size), Some(_)) = (config.extent_size, holds(config.layout)) else { return None };
        if self.shared.dry_run {
            return None;
        }
        let directory = config.path.display();
        let size = observe(dir).map_or(size, |seen| extent_size::fitting(size, seen.capacity));
        match extent_size::ensure(dir.as_fd(), size) {
            Ok(hint) => {
                tracing::info!(%directory, size = %hint.size, was_there = hint.was_there,
                    "files created here take space in steps of their extent size hint");
                Some(hint.size)
            }
            Err(errno) => {
                tracing::warn!(%directory, %size, %errno,
                    "cannot set an extent size hint; xfs will set aside as much space as a growing file has, and the guard \
                     acts earlier for that (extent-size = false says the same without trying)");
                None
            }
        }
    }

    /// Notices directories that were replaced, unmounted or mounted over, and has them opened anew.
    pub(super) fn check_places(&mut self) {
        for index in 0..self.directories.len() {
            let it = &self.directories[index];
            if it.gone || self.dirs[index].is_still_at(&it.config.path) {
                continue;
            }
            tracing::warn!(directory = %it.config.path.display(), "the path leads to another directory now; opening it again");
            let _ = self.outbox.send(Happened::Lost(it.config.clone()));
            self.let_go(index);
        }
    }

    /// No longer watches a directory.
    pub(super) fn let_go(&mut self, index: usize) {
        if std::mem::replace(&mut self.directories[index].gone, true) {
            return;
        }
        if let Some(watcher) = &mut self.watcher {
            watcher.remove(index as u16);
        }
        if let Some(watched) = self.watched.as_ref().or(self.staging.as_ref()) {
            watched.remove(self.dirs[index].as_fd());
        }
        let DirectoryConfig { path, layout, .. } = &self.directories[index].config;
        self.shared.is_taken_by(path, None);
        match layout {
            Layout::Staging => self.shared.staging.remove(path),
            Layout::PodCheckpoints => self.shared.growths.remove_tree(path),
            Layout::Archives => {}
        }
        braking::let_go(self, index);
        self.directories[index].fd = None;
        self.catalog.forget_directory(index as u16);
        self.relief.catalog_changed();
    }

    /// Whether checkpoints of the directory at `index` have directories of their own; `None` where no checkpoints lie.
    pub(in crate::agent) fn holds_nested(&self, index: usize) -> Option<bool> {
        self.directories[index].holds().map(|holds| holds == Holds::PodCheckpoints)
    }

    /// The directory by which the filesystem is measured.
    pub(in crate::agent) fn measured(&self) -> usize {
        self.directories.iter().position(|it| !it.gone).unwrap_or(0)
    }

    /// The watched directories, for records.
    pub(in crate::agent) fn directory_names(&self) -> Vec<String> {
        let watched = self.directories.iter().filter(|it| !it.gone);
        watched.map(|it| it.config.path.display().to_string()).collect()
    }

    /// Whether archives are expected here.
    pub(super) fn is_destination(&self) -> bool {
        let destination = self.config.destination();
        self.directories.iter().any(|it| !it.gone && Some(&it.config) == destination)
    }

    /// How many directories nothing encrypts. Looked into once for each, and not before the first decisions are made: it
    /// reads the table of mounts, which is long on a node with many pods.
    pub(super) fn unencrypted(&mut self) -> usize {
        for (it, dir) in self.directories.iter_mut().zip(&self.dirs).filter(|(it, _)| !it.gone) {
            it.is_unencrypted.get_or_insert_with(|| {
                let mount = Mount::of(&dir.resolved());
                matches!(Encryption::of(dir.as_fd(), mount.as_ref()), Encryption::None { .. })
            });
        }
        self.directories.iter().filter(|it| !it.gone && it.is_unencrypted == Some(true)).count()
    }

    /// The path of a directory, for messages.
    pub(in crate::agent) fn path_of(&self, directory: u16) -> &Path {
        self.directories.get(usize::from(directory)).map_or(Path::new(""), |it| &it.config.path)
    }
}
