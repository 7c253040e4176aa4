//! [`LogFile`]: the file under the audit log, its lock, its reserve, its tail, its older siblings.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{AT_FDCWD, FallocateFlags, RenameFlags, fallocate, renameat2};
use nix::libc;
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// What the first line of all has as the hash of the one before.
pub(super) const NO_LINE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Where the log stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    /// The highest id so far.
    pub(super) last_id: u64,
    /// The hash of the last line.
    pub(super) hash: String,
}

/// An open log file.
#[derive(Debug)]
pub(super) struct LogFile {
    pub(super) file: Arc<File>,
    inode: u64,
    /// How much of it is read into the tail: whole lines only.
    pub(super) len: u64,
    /// Whether its space is set aside.
    reserved: bool,
}

impl LogFile {
    /// Opens the log at `path`, made with mode 0600 when there is none, in a directory made with 0700.
    pub(super) fn open(path: &Path) -> io::Result<LogFile> {
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        // Names of pods and of their owners are nobody else's business (kubernetes#104907).
        if metadata.permissions().mode() & 0o077 != 0 {
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
        }
        if metadata.len() == 0 {
            write_in_place(&file);
        }
        Ok(LogFile { file: Arc::new(file), inode: metadata.ino(), len: 0, reserved: false })
    }

    /// Locks the file against other guards (`checkpoint-guard reclaim` beside the daemon), waiting 20 ms at most: a
    /// stopped process must not stop us. False when it has been rotated away meanwhile.
    pub(super) fn lock(&self, path: &Path) -> io::Result<bool> {
        for attempt in 0.. {
            match self.file.try_lock() {
                Ok(()) => break,
                Err(fs::TryLockError::WouldBlock) if attempt < 20 => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(fs::TryLockError::WouldBlock) => return Err(io::Error::from(io::ErrorKind::WouldBlock)),
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
        }
        let current = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.ino() == self.inode);
        if !current {
            self.unlock();
        }
        Ok(current)
    }

    /// Ends [`LogFile::lock`].
    pub(super) fn unlock(&self) {
        // Closing the file does it too.
        let _ = self.file.unlock();
    }

    /// Sets `size` aside, or as much of it as there is, so that a full disk does not silence the log. The file's
    /// length stays what it is (`FALLOC_FL_KEEP_SIZE`).
    pub(super) fn reserve(&mut self, size: u64) {
        const LEAST: u64 = 64 << 10;
        if self.reserved {
            return;
        }
        let mut part = size.max(LEAST);
        while part >= LEAST {
            let length = i64::try_from(part).unwrap_or(i64::MAX);
            match fallocate(&self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, length) {
                Err(nix::errno::Errno::ENOSPC | nix::errno::Errno::EDQUOT) => part /= 4,
                // A filesystem that cannot do it will not learn it.
                result => {
                    self.reserved = result.is_err() || part >= size;
                    return;
                }
            }
        }
    }

    /// Reads what was added since the last time. A last line without an end is what a crash or a full disk left
    /// of a write: it is cut off, being no record.
    ///
    /// `is_emptied`: it is emptied when it is full. Where it is not, and is shorter than it was, somebody has cut it: the chain
    /// goes on from what was there, so that this is found.
    pub(super) fn read_on(&mut self, tail: &mut Tail, is_emptied: bool) -> io::Result<()> {
        let len = self.file.metadata()?.len();
        if len < self.len {
            // Read it all again. Ids still only grow.
            let hash = tail.hash.clone();
            self.len = scan(&self.file, 0, tail)?;
            if !is_emptied {
                tracing::error!("somebody has cut the audit log");
                tail.hash = hash;
            }
        } else if len > self.len {
            self.len += scan(&self.file, self.len, tail)?;
        }
        if len > self.len {
            tracing::warn!(bytes = len - self.len, "the audit log ends in a torn line; it is cut off");
            self.cut()?;
        }
        Ok(())
    }

    /// Appends `line`, whole or not at all.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        // One write(2): what arrives in the page cache survives our death, if not the machine's.
        let written = (&*self.file).write(line);
        match written {
            Ok(count) if count == line.len() => {
                self.len += count as u64;
                Ok(())
            }
            Ok(_) => {
                self.cut()?;
                Err(io::Error::from_raw_os_error(libc::ENOSPC))
            }
            Err(error) => Err(error),
        }
    }

    /// Cuts off what is no whole line. That gives back the space set aside, so it is due again.
    fn cut(&mut self) -> io::Result<()> {
        self.reserved = false;
        self.file.set_len(self.len)
    }

    /// Moves `path` to `path.1`, that to `path.2` and so on; what was `path.<keep>` is replaced, not deleted. Without
    /// any to keep, the file is emptied.
    pub(super) fn rotate(&mut self, path: &Path, keep: u32) -> io::Result<()> {
        if keep == 0 {
            self.len = 0;
            return self.cut();
        }
        // Out of the way first: when that fails, the older ones stay as they are.
        let aside = sibling(path, 0);
        if !aside.exists() {
            fs::rename(path, &aside)?;
        }
        make_room(path, keep).inspect_err(|_| {
            // Back, unless somebody has begun another one.
            let _ = renameat2(AT_FDCWD, &aside, AT_FDCWD, path, RenameFlags::RENAME_NOREPLACE);
        })
    }

    /// Its inode, and how much of it is known.
    pub(super) fn stands_at(&self) -> (u64, u64) {
        (self.inode, self.len)
    }
}

/// Asks for a file that is overwritten in place, where the filesystem would copy on write (btrfs): there, space set
/// aside serves the first write to a block only, and each line but the first in a block is a later one. Works on
/// empty files; elsewhere it is refused and not needed.
fn write_in_place(file: &File) {
    const FS_IOC_GETFLAGS: libc::c_ulong = 0x8008_6601;
    const FS_IOC_SETFLAGS: libc::c_ulong = 0x4008_6602;
    const FS_NOCOW_FL: libc::c_int = 0x0080_0000;
    let mut flags: libc::c_int = 0;
    // SAFETY: whatever the size in their numbers says, both ioctls move one int (ioctl_iflags(2)) through the pointer,
    // which points to one that outlives the calls; the descriptor is borrowed for them.
    let _ = unsafe {
        if libc::ioctl(file.as_raw_fd(), FS_IOC_GETFLAGS, &mut flags) == 0 {
            flags |= FS_NOCOW_FL;
            libc::ioctl(file.as_raw_fd(), FS_IOC_SETFLAGS, &flags)
        } else {
            0
        }
    };
}

/// Moves what was put aside to the older files. Those from the first gap on stay where they are: an interrupted rotation has
/// moved them already.
fn make_room(path: &Path, keep: u32) -> io::Result<()> {
    let gap = (1..=keep).find(|number| !sibling(path, *number).exists()).unwrap_or(keep);
    for number in (0..gap).rev() {
        fs::rename(sibling(path, number), sibling(path, number + 1))?;
    }
    Ok(())
}

/// Ends a rotation that was interrupted, unless another guard is at it.
pub(super) fn finish_rotation(path: &Path, keep: u32) {
    // Whoever rotates has the file locked that he has put aside.
    let is_left = File::open(sibling(path, 0)).is_ok_and(|aside| aside.try_lock().is_ok());
    if is_left && let Err(error) = make_room(path, keep) {
        tracing::warn!(%error, "a rotation of the audit log that was interrupted cannot be ended");
    }
}

/// The log's `number`th older file.
pub(super) fn sibling(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// The newest older file.
pub(super) struct Older {
    pub(super) inode: u64,
    pub(super) len: u64,
    file: File,
}

/// The newest older file; with the number zero where a rotation was interrupted.
pub(super) fn newest_older(path: &Path) -> Option<Older> {
    let file = [0, 1].into_iter().find_map(|number| File::open(sibling(path, number)).ok())?;
    let metadata = file.metadata().ok()?;
    Some(Older { inode: metadata.ino(), len: metadata.len(), file })
}

/// Whether the file `inode` is one of the older ones.
pub(super) fn is_older(path: &Path, keep: u32, inode: u64) -> bool {
    let is_it = |number| fs::symlink_metadata(sibling(path, number)).is_ok_and(|it| it.ino() == inode);
    (0..=keep).any(is_it)
}

impl Older {
    /// Its tail, for a current one that is still empty.
    pub(super) fn tail(&self) -> Tail {
        let mut tail = Tail { last_id: 0, hash: NO_LINE.to_owned() };
        if let Err(error) = scan(&self.file, 0, &mut tail) {
            tracing::warn!(%error, "cannot read the audit log's older file; ids continue from the current one");
        }
        tail
    }
}

/// Reads the whole lines of `file` from `offset` on into `tail`, and tells their length.
fn scan(file: &File, offset: u64, tail: &mut Tail) -> io::Result<u64> {
    #[derive(Deserialize)]
    struct Id {
        id: u64,
    }
    let mut reader = BufReader::with_capacity(64 << 10, file);
    reader.seek(SeekFrom::Start(offset))?;
    let mut length = 0;
    let mut line = Vec::new();
    while read_line(&mut reader, &mut line)? {
        length += line.len() as u64 + 1;
        if let Ok(Id { id }) = serde_json::from_slice(&line) {
            tail.last_id = tail.last_id.max(id);
        }
        tail.hash = hash_of(&line);
    }
    Ok(length)
}

/// Reads the next whole line, without its end, into `line`; false when there is none. Lines longer than 1 MiB are
/// none of ours, and end the reading.
pub(super) fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    const LINE_MAX: u64 = 1 << 20;
    line.clear();
    reader.take(LINE_MAX).read_until(b'\n', line)?;
    Ok(line.pop_if(|last| *last == b'\n').is_some())
}

/// SHA-256 in hexadecimal.
pub(super) fn hash_of(line: &[u8]) -> String {
    use std::fmt::Write;
    Sha256::digest(line).iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
