//! [`Tree`]: a directory and those below it, each with a mark of its own.
//!
//! A mark on a directory tells of the files in it and not of those further down. A mark on the filesystem would, but then
//! every open(2) on it, the kubelet's and every container's, would wait for our answer. So each directory below gets its
//! own mark, and inotify tells of new ones. Between mkdir(2) and the mark a file can be opened unseen; a checkpoint is many
//! files, and the next one is seen.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use super::Stance;
use super::group::Group;

/// So many directories are marked. Each mark keeps an inode in memory, about 1 KiB.
const MARKS_MAX: usize = 4096;

/// The marks of one watched directory.
#[derive(Debug)]
pub(super) struct Tree {
    directory: OwnedFd,
    /// Below the directory, by path from it; empty while nothing is marked, and where nothing below counts.
    marked: Vec<PathBuf>,
    news: Option<News>,
    nested: bool,
}

/// What tells of new directories.
#[derive(Debug)]
struct News {
    inotify: Inotify,
    paths: HashMap<WatchDescriptor, PathBuf>,
}

impl Tree {
    pub(super) fn new(directory: OwnedFd, nested: bool) -> Tree {
        Tree { directory, marked: Vec::new(), news: None, nested }
    }

    /// Readable when there may be new directories.
    pub(super) fn news(&self) -> Option<BorrowedFd<'_>> {
        self.news.as_ref().map(|news| news.inotify.as_fd())
    }

    /// Gives the marks `stance`, not [`Stance::Off`]; the first time, finds what is to be marked.
    pub(super) fn mark(&mut self, group: &mut Group, stance: Stance) -> Result<(), Errno> {
        group.mark(self.directory.as_fd(), stance)?;
        if self.nested && self.news.is_none() {
            self.news = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
                .ok()
                .map(|inotify| News { inotify, paths: HashMap::new() });
            return self.mark_below(group, stance, PathBuf::new());
        }
        for path in &self.marked {
            // One that is gone has lost its mark with its inode.
            if let Some(directory) = open_below(self.directory.as_fd(), path) {
                group.mark(directory.as_fd(), stance)?;
            }
        }
        Ok(())
    }

    /// Forgets what was marked; the group with the marks is closed.
    pub(super) fn clear(&mut self) {
        self.marked.clear();
        self.news = None;
    }

    /// Marks what is new.
    pub(super) fn catch_up(&mut self, group: &mut Group, stance: Stance) -> Result<(), Errno> {
        let Some(news) = &self.news else { return Ok(()) };
        let mut new = Vec::new();
        let mut overflow = false;
        for event in news.inotify.read_events().unwrap_or_default() {
            overflow |= event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW);
            if let (true, Some(name), Some(path)) =
                (event.mask.contains(AddWatchFlags::IN_ISDIR), event.name, news.paths.get(&event.wd))
            {
                new.push(path.join(name));
            }
        }
        if overflow {
            new = vec![PathBuf::new()];
        }
        new.into_iter().try_for_each(|path| self.mark_below(group, stance, path))
    }

    /// Marks `path` and everything below it. The empty path is the directory itself, which has its mark.
    fn mark_below(&mut self, group: &mut Group, stance: Stance, path: PathBuf) -> Result<(), Errno> {
        let mut left = vec![path];
        while let Some(path) = left.pop() {
            let Some(directory) = open_below(self.directory.as_fd(), &path) else { continue };
            if !path.as_os_str().is_empty() {
                if self.marked.len() >= MARKS_MAX {
                    return Err(Errno::ENOSPC);
                }
                group.mark(directory.as_fd(), stance)?;
                if !self.marked.contains(&path) {
                    self.marked.push(path.clone());
                }
            }
            // First the watch, then the look: what comes in between is seen by one of them.
            if let Some(news) = &mut self.news {
                let flags = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ONLYDIR;
                let itself = format!("/proc/self/fd/{}", directory.as_raw_fd());
                if let Ok(watch) = news.inotify.add_watch(itself.as_str(), flags) {
                    news.paths.insert(watch, path.clone());
                }
            }
            left.extend(directories_in(directory).into_iter().map(|name| path.join(name)));
        }
        Ok(())
    }
}

/// Opens a directory below another, following no link and crossing no mount: a mark must not land elsewhere.
fn open_below(root: BorrowedFd<'_>, path: &std::path::Path) -> Option<OwnedFd> {
    let path = if path.as_os_str().is_empty() { std::path::Path::new(".") } else { path };
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(
            ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV,
        );
    openat2(root, path, how).ok()
}

/// The names of the directories in a directory, the guard's own left out.
fn directories_in(directory: OwnedFd) -> Vec<OsString> {
    let Ok(mut dir) = Dir::from_fd(directory) else { return Vec::new() };
    let entries =
        dir.iter().flatten().filter(|entry| matches!(entry.file_type(), Some(Type::Directory) | None));
    let names = entries.map(|entry| {
        use std::os::unix::ffi::OsStrExt;
        OsStr::from_bytes(entry.file_name().to_bytes()).to_owned()
    });
    let prefix = crate::act::checkpoint_dir::EVICTING_PREFIX.as_bytes();
    names.filter(|name| name != "." && name != ".." && !name.as_encoded_bytes().starts_with(prefix)).collect()
}
