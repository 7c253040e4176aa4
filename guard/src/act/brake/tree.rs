//! [`Tree`]: a directory and those below it, each with a mark of its own.
//!
//! A mark on a directory tells of the files in it and not of those further down. A mark on the filesystem would, but then
//! every open(2) on it, the kubelet's and every container's, would wait for our answer. So each directory below gets its
//! own mark, and inotify tells of new ones. Between mkdir(2) and the mark a file can be opened unseen; a checkpoint is many
//! files, and the next one is seen.

use std::collections::{BTreeSet, HashMap};
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
    marked: BTreeSet<PathBuf>,
    news: Option<News>,
    /// Not everything that was found could be marked.
    is_incomplete: bool,
    nested: bool,
}

/// Why something is not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unmarked {
    /// fanotify_mark(2) failed.
    #[error("a directory cannot be marked (fanotify_mark): {0}{hint}", hint = mark_hint(*.0))]
    Refused(Errno),
    /// More than [`MARKS_MAX`].
    #[error(
        "more than {MARKS_MAX} directories of pod checkpoints: in those beyond, writers are not refused; delete some"
    )]
    TooMany,
}

fn mark_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOSPC => "; raise fs.fanotify.max_user_marks",
        Errno::ENOMEM => "; raise the memory limit of checkpoint-guard",
        Errno::EINVAL => {
            "; this kernel was built without CONFIG_FANOTIFY_ACCESS_PERMISSIONS, or the filesystem takes no marks"
        }
        Errno::EOPNOTSUPP | Errno::ENODEV | Errno::EXDEV => {
            "; this filesystem takes no permission marks, and has no brake by fanotify"
        }
        _ => "",
    }
}

impl From<Errno> for Unmarked {
    fn from(errno: Errno) -> Unmarked {
        Unmarked::Refused(errno)
    }
}

/// What tells of new directories.
#[derive(Debug)]
struct News {
    inotify: Inotify,
    paths: HashMap<WatchDescriptor, PathBuf>,
}

impl Tree {
    pub(super) fn new(directory: OwnedFd, nested: bool) -> Tree {
        Tree { directory, marked: BTreeSet::new(), news: None, is_incomplete: false, nested }
    }

    /// Readable when there may be new directories.
    pub(super) fn news(&self) -> Option<BorrowedFd<'_>> {
        self.news.as_ref().map(|news| news.inotify.as_fd())
    }

    /// Gives the marks `stance`, not [`Stance::Off`]; the first time, finds what is to be marked.
    pub(super) fn mark(&mut self, group: &mut Group, stance: Stance) -> Result<(), Unmarked> {
        group.mark(self.directory.as_fd(), stance)?;
        if self.nested && (self.news.is_none() || self.is_incomplete) {
            if self.news.is_none() {
                self.news = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
                    .ok()
                    .map(|inotify| News { inotify, paths: HashMap::new() });
            }
            return self.mark_all(group, stance, vec![PathBuf::new()]);
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
        self.is_incomplete = false;
    }

    /// Marks what is new, and forgets what is gone.
    pub(super) fn catch_up(&mut self, group: &mut Group, stance: Stance) -> Result<(), Unmarked> {
        let Some(news) = &mut self.news else { return Ok(()) };
        let mut new = Vec::new();
        let mut overflow = false;
        for event in news.inotify.read_events().unwrap_or_default() {
            overflow |= event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW);
            // Its inode is gone, and the mark with it. Another may have the path.
            if event.mask.contains(AddWatchFlags::IN_IGNORED)
                && let Some(path) = news.paths.remove(&event.wd)
                && open_below(self.directory.as_fd(), &path).is_none()
            {
                self.marked.remove(&path);
            }
            if let (true, Some(name), Some(path)) =
                (event.mask.contains(AddWatchFlags::IN_ISDIR), event.name, news.paths.get(&event.wd))
            {
                new.push(path.join(name));
            }
        }
        if overflow {
            new = vec![PathBuf::new()];
        }
        if new.is_empty() { Ok(()) } else { self.mark_all(group, stance, new) }
    }

    /// Marks these and everything below them, and remembers whether that was all.
    fn mark_all(&mut self, group: &mut Group, stance: Stance, paths: Vec<PathBuf>) -> Result<(), Unmarked> {
        let marked = paths.into_iter().try_for_each(|path| self.mark_below(group, stance, path));
        self.is_incomplete = marked.is_err();
        marked
    }

    /// Makes room for one more.
    fn make_room(&mut self) -> Result<(), Unmarked> {
        if self.marked.len() < MARKS_MAX {
            return Ok(());
        }
        // Those of which inotify has not told.
        let directory = self.directory.as_fd();
        self.marked.retain(|path| open_below(directory, path).is_some());
        if self.marked.len() < MARKS_MAX { Ok(()) } else { Err(Unmarked::TooMany) }
    }

    /// Marks `path` and everything below it. The empty path is the directory itself, which has its mark.
    fn mark_below(&mut self, group: &mut Group, stance: Stance, path: PathBuf) -> Result<(), Unmarked> {
        let mut left = vec![path];
        while let Some(path) = left.pop() {
            let Some(directory) = open_below(self.directory.as_fd(), &path) else { continue };
            if !path.as_os_str().is_empty() {
                if !self.marked.contains(&path) {
                    self.make_room()?;
                }
                group.mark(directory.as_fd(), stance)?;
                self.marked.insert(path.clone());
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

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    /// A tree of pod checkpoints whose marks are set; `None` where the kernel grants none.
    fn marked(root: &std::path::Path) -> Option<(Tree, Group)> {
        let Ok(mut group) = Group::open() else {
            eprintln!("skipped: no permission events here");
            return None;
        };
        let mut tree = Tree::new(std::fs::File::open(root).unwrap().into(), true);
        match tree.mark(&mut group, Stance::Ready) {
            Ok(()) => Some((tree, group)),
            Err(error) => {
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    /// As the helper does: as long as there are news.
    fn catch_up(tree: &mut Tree, group: &mut Group) -> Result<(), Unmarked> {
        let mut result = Ok(());
        while tree.news().is_some_and(|news| {
            let mut fds = [PollFd::new(news, PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
        }) {
            result = result.and(tree.catch_up(group, Stance::Ready));
        }
        result
    }

    #[expect(clippy::disallowed_methods, reason = "somebody else deletes")]
    fn remove(path: PathBuf) {
        std::fs::remove_dir(path).unwrap();
    }

    #[test]
    fn directories_that_came_and_went_make_room_for_others() {
        let root = tempfile::tempdir().unwrap();
        let Some((mut tree, mut group)) = marked(root.path()) else { return };
        for round in 0..=MARKS_MAX / 512 {
            for number in 0..512 {
                std::fs::create_dir(root.path().join(format!("{round}-{number}"))).unwrap();
            }
            assert_eq!(catch_up(&mut tree, &mut group), Ok(()), "round {round}");
            assert!(tree.marked.len() >= 512, "round {round}: {} are marked", tree.marked.len());
            for number in 0..512 {
                remove(root.path().join(format!("{round}-{number}")));
            }
        }
        catch_up(&mut tree, &mut group).unwrap();
        assert!(tree.marked.is_empty(), "{} are remembered", tree.marked.len());
        assert!(tree.news.unwrap().paths.len() <= 1);
    }

    #[test]
    fn what_could_not_be_marked_is_marked_when_there_is_room() {
        let root = tempfile::tempdir().unwrap();
        let Some((mut tree, mut group)) = marked(root.path()) else { return };
        for number in 0..=MARKS_MAX {
            std::fs::create_dir(root.path().join(number.to_string())).unwrap();
        }
        assert_eq!(catch_up(&mut tree, &mut group), Err(Unmarked::TooMany));
        assert_eq!(tree.mark(&mut group, Stance::Ready), Err(Unmarked::TooMany), "as before");
        let unmarked = (0..=MARKS_MAX).map(|number| PathBuf::from(number.to_string()));
        let unmarked = unmarked.filter(|path| !tree.marked.contains(path)).collect::<Vec<_>>();
        let gone = tree.marked.first().cloned().unwrap();
        remove(root.path().join(gone));
        assert_eq!(tree.mark(&mut group, Stance::Ready), Ok(()));
        assert!(tree.marked.contains(&unmarked[0]));
    }
}
