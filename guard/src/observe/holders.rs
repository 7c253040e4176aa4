//! Who has a file open.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{AtFlags, OFlag, openat};
use nix::libc;
use nix::sys::stat::{Mode, SFlag, fstatat};

use crate::model::{FileId, Holder};
use crate::observe::lease::{Lease, NoLease};
use crate::observe::scan::{self, Stat};

/// What leases tell of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenState {
    /// Nobody has it open.
    Free,
    /// Somebody has it open, nobody for writing.
    Reading,
    /// Somebody has it open for writing.
    Writing,
    /// Its filesystem has no leases.
    NoLeases,
    /// Not a regular file, gone, or not readable for us.
    Unknown,
}

/// Whether anybody has the file `name` in `directory` open: five system calls, about 4 µs, whatever runs on the node.
///
/// For an instant an opener may have to wait for us. Nothing is written, and inotify reports no close-write.
pub fn probe_open(directory: impl AsFd, name: &OsStr) -> OpenState {
    // First by name: opening a device can have effects.
    let is_file = fstatat(&directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFREG);
    if !is_file {
        return OpenState::Unknown;
    }
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let Ok(file) = openat(&directory, name, flags, Mode::empty()) else { return OpenState::Unknown };
    // Bound before the match, so that one lease is given back before the next is asked for.
    let exclusive = Lease::exclusive(&file).map(drop);
    match exclusive {
        Ok(()) => OpenState::Free,
        Err(NoLease::Unsupported(_)) => OpenState::NoLeases,
        Err(NoLease::Held) => match Lease::shared(&file) {
            Ok(_) => OpenState::Reading,
            Err(NoLease::Held) => OpenState::Writing,
            Err(NoLease::Unsupported(_)) => OpenState::NoLeases,
        },
    }
}

/// The files of the pod checkpoint `name` in `directory` that somebody has open, `most` of them at most.
pub fn open_below(directory: impl AsFd, name: &OsStr, most: usize) -> Vec<FileId> {
    let mut open = Vec::new();
    let mut look = |dir: BorrowedFd<'_>, name: &OsStr| {
        if open.len() < most
            && matches!(probe_open(dir, name), OpenState::Reading | OpenState::Writing)
            && let Ok(stat) = Stat::at(dir, name)
        {
            open.push(stat.file);
        }
        false
    };
    // Err: it has gone, and so has who had it open.
    let _ = scan::measure(directory.as_fd(), name, &mut look);
    open
}

/// What a walk through `/proc` found.
#[derive(Debug, Default)]
pub struct Scan {
    /// Holders by file; each process once per file, in the order of pids.
    pub holders: HashMap<FileId, Vec<Holder>>,
    /// Whether every process of the node could be looked at. Otherwise, finding nobody proves nothing.
    pub complete: bool,
}

/// Finds who has any of `files` open or mapped, this process excepted.
///
/// stat(2) follows `/proc/<pid>/fd/<n>` to the inode itself, so names, mount namespaces and unlinked files make
/// no difference. Costs a stat per descriptor on the node, and for files that no descriptor leads to another per
/// mapping: 47 ms with 103 processes, 148 ms with 403 (6.18, unoptimised build). Names who, for people; what
/// proves that nobody does is a [`Lease`].
///
/// Asks the process that is there for it ([`crate::observe::finder`]), where there is one.
pub fn find(files: &[FileId]) -> Scan {
    if files.is_empty() {
        return Scan { complete: sees_every_process(), ..Scan::default() };
    }
    super::finder::ask(files).unwrap_or_else(|| look(files, &[std::process::id() as i32]))
}

/// The walk itself, by this process; `but` are the pids that do not count.
pub(super) fn look(files: &[FileId], but: &[i32]) -> Scan {
    let mut scan = Scan { complete: sees_every_process(), ..Scan::default() };
    if files.is_empty() {
        return scan;
    }
    let Ok(mut pids) = pids() else { return Scan { complete: false, ..scan } };
    pids.retain(|pid| !but.contains(pid));
    pids.sort_unstable();
    for &pid in &pids {
        scan.look(pid, files, descriptors);
    }
    // A mapping keeps a file open without a descriptor.
    let unknown: Vec<FileId> =
        files.iter().filter(|file| !scan.holders.contains_key(file)).copied().collect();
    if !unknown.is_empty() {
        for &pid in &pids {
            scan.look(pid, &unknown, |process, files, open| collect(&process.join("map_files"), files, open));
        }
    }
    scan
}

impl Scan {
    /// Adds the process `pid` where `collect` finds one of `files` open in it.
    fn look(
        &mut self,
        pid: i32,
        files: &[FileId],
        collect: impl Fn(&Path, &[FileId], &mut Vec<FileId>) -> bool,
    ) {
        let process = Path::new("/proc").join(pid.to_string());
        let mut open = Vec::new();
        self.complete &= collect(&process, files, &mut open);
        open.sort_unstable();
        open.dedup();
        for file in open {
            self.holders.entry(file).or_default().push(Holder { pid, comm: comm(&process) });
        }
    }
}

/// Looks through the descriptors of each thread: they may have a table each (unshare(CLONE_FILES)).
fn descriptors(process: &Path, files: &[FileId], open: &mut Vec<FileId>) -> bool {
    match fs::read_dir(process.join("task")) {
        Ok(tasks) => {
            let mut seen_all = true;
            for task in tasks.flatten() {
                seen_all &= collect(&task.path().join("fd"), files, open);
            }
            seen_all
        }
        Err(error) => has_ended(&error),
    }
}

/// Adds to `open` which of `files` the links in `directory` lead to; false when it could not be read.
fn collect(directory: &Path, files: &[FileId], open: &mut Vec<FileId>) -> bool {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => return has_ended(&error),
    };
    let mut seen_all = true;
    for entry in entries {
        match entry.and_then(|entry| what_is_known(&entry.path())) {
            Ok(file) => {
                if files.contains(&file) {
                    open.push(file);
                }
            }
            // One that was closed meanwhile holds nothing any more. Anything else may be what is looked for: without
            // CAP_CHECKPOINT_RESTORE every link in `map_files` says EPERM.
            Err(error) => seen_all &= has_ended(&error),
        }
    }
    seen_all
}

/// The file that the link `path` leads to, without asking a server about it (AT_STATX_DONT_SYNC): one descriptor on a network
/// filesystem whose server is gone must not keep everybody else from being found.
fn what_is_known(path: &Path) -> io::Result<FileId> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path ends with a zero, and the kernel writes one `struct statx` to where there is room for one; both outlive
    // the call.
    let status = unsafe {
        libc::statx(
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_STATX_DONT_SYNC,
            libc::STATX_INO,
            stat.as_mut_ptr(),
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled it in, and before that it was all zeros, which are numbers too.
    let stat = unsafe { stat.assume_init() };
    let dev = libc::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    Ok(FileId { dev, ino: stat.stx_ino })
}

/// Whether the error says that the process, or what it had open, is no more.
fn has_ended(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

fn comm(process: &Path) -> String {
    fs::read(process.join("comm"))
        .map(|comm| String::from_utf8_lossy(comm.trim_ascii_end()).into_owned())
        .unwrap_or_default()
}

fn pids() -> io::Result<Vec<i32>> {
    let names = fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(names.collect())
}

/// Whether our `/proc` shows the whole node: we are in the initial pid namespace, whose inode is fixed
/// (`PROC_PID_INIT_INO`, include/linux/proc_ns.h), and not kept from seeing processes of others (`hidepid`).
fn sees_every_process() -> bool {
    const PROC_PID_INIT_INO: u64 = 0xEFFF_FFFC;
    fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == PROC_PID_INIT_INO)
        && fs::read_dir("/proc/1/fd").is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::{Command, Stdio};

    use super::*;

    fn id_of(path: &Path) -> FileId {
        let metadata = fs::metadata(path).unwrap();
        FileId { dev: metadata.dev(), ino: metadata.ino() }
    }

    #[test]
    fn the_process_that_reads_a_file_is_named() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let (file, other) = (id_of(&path), id_of(Path::new("/proc/version")));
        assert!(find(&[file, other]).holders.is_empty());
        let mut reader =
            Command::new("sleep").arg("60").stdin(Stdio::from(File::open(&path).unwrap())).spawn().unwrap();
        let mut scan = find(&[file, other]);
        reader.kill().unwrap();
        reader.wait().unwrap();
        let holders = scan.holders.remove(&file).unwrap();
        assert_eq!(holders.iter().map(|holder| holder.pid).collect::<Vec<_>>(), [reader.id() as i32]);
        assert!(scan.holders.is_empty());
    }

    #[test]
    fn readers_and_writers_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.tar");
        let dir = File::open(directory.path()).unwrap();
        let probe = |name: &str| probe_open(&dir, OsStr::new(name));
        let writer = File::create(&path).unwrap();
        assert_eq!(probe("a.tar"), OpenState::Writing);
        drop(writer);
        assert_eq!(probe("a.tar"), OpenState::Free);
        let _reader = File::open(&path).unwrap();
        assert_eq!(probe("a.tar"), OpenState::Reading);
        assert_eq!(probe("missing"), OpenState::Unknown);
        std::os::unix::fs::symlink(&path, directory.path().join("link")).unwrap();
        assert_eq!(probe("link"), OpenState::Unknown);
    }
}
