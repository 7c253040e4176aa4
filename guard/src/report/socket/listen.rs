//! Making the socket: only where nobody else could have put it, and never in place of anything but a dead one.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, socket};
use nix::sys::stat::{Mode, SFlag, fchmod, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, geteuid};

/// More wait to be accepted than are served at a time ([`super::serve`]).
const BACKLOG: i32 = 16;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody answers there.
    #[error(
        "another checkpoint-guard serves {path:?}; two guards of the same directories only get in each other's way. \
         Another path goes into [socket] path"
    )]
    InUse {
        /// `[socket] path`.
        path: PathBuf,
    },
    /// There is something else.
    #[error("{path:?} is not a socket, and is left alone; another path goes into [socket] path")]
    NotASocket {
        /// `[socket] path`.
        path: PathBuf,
    },
    /// Somebody else could replace the socket.
    #[error(
        "others than root may write in {directory:?}, and could put a socket of their own in place of ours; chmod it to \
         0700, or name another directory in [socket] path"
    )]
    Exposed {
        /// The directory of the socket.
        directory: PathBuf,
    },
    /// Anything else.
    #[error("cannot serve {path:?}, as [socket] path says: {what}: {}", source.desc())]
    Other {
        /// `[socket] path`.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: Errno,
    },
}

/// Makes the socket `path`, mode 0600, and its directory, mode 0700, if there is none. A socket that nobody answers at
/// is what a guard left behind that was killed: it is replaced.
///
/// # Errors
/// When it cannot be made, or could not be trusted; the message says what to do about it.
pub fn listen(path: &Path) -> Result<UnixListener, SocketError> {
    let failed = |what, source| SocketError::Other { path: path.to_owned(), what, source };
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed("the path names no file", Errno::EINVAL));
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| failed("making its directory", errno(&error)))?;
    let directory = open(directory, path)?;
    // Two guards that start at once must not take each other's new socket for a dead one.
    let directory = Flock::lock(directory, FlockArg::LockExclusiveNonblock)
        .map_err(|(_, errno)| failed("another guard is just making it", errno))?;
    let at = directory.as_fd();
    let address = address(at, name).map_err(|errno| failed("its name", errno))?;
    make_way(at, name, &address, path)?;
    let listener = new_socket().map_err(|errno| failed("making a socket", errno))?;
    // The kernel makes the file with the mode that the socket has, less the umask: it is at no moment open to others.
    fchmod(listener.as_fd(), Mode::S_IRUSR | Mode::S_IWUSR)
        .map_err(|errno| failed("setting the socket's mode", errno))?;
    bind(listener.as_raw_fd(), &address).map_err(|errno| failed("binding it", errno))?;
    let backlog = Backlog::new(BACKLOG).expect("it is below SOMAXCONN");
    nix::sys::socket::listen(&listener, backlog).map_err(|errno| failed("listening on it", errno))?;
    Ok(UnixListener::from(listener))
}

/// The directory, once it is clear that only root and we can change what lies in it.
fn open(directory: &Path, path: &Path) -> Result<std::fs::File, SocketError> {
    let failed = |what, source| SocketError::Other { path: path.to_owned(), what, source };
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(directory);
    let opened = opened.map_err(|error| failed("opening its directory", errno(&error)))?;
    let stat = fstat(&opened).map_err(|errno| failed("examining its directory", errno))?;
    let is_ours = stat.st_uid == 0 || stat.st_uid == geteuid().as_raw();
    let mode = Mode::from_bits_truncate(stat.st_mode);
    // In a directory like /tmp others may make entries, but not replace ours.
    let is_writable = mode.intersects(Mode::S_IWGRP | Mode::S_IWOTH) && !mode.contains(Mode::S_ISVTX);
    if !is_ours || is_writable {
        return Err(SocketError::Exposed { directory: directory.to_owned() });
    }
    Ok(opened)
}

/// The socket's address through the directory's descriptor: the same directory that was examined, whatever the path
/// leads to by now.
fn address(directory: BorrowedFd<'_>, name: &OsStr) -> Result<UnixAddr, Errno> {
    UnixAddr::new(&PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name))
}

/// Removes a socket that nobody serves any more.
fn make_way(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    address: &UnixAddr,
    path: &Path,
) -> Result<(), SocketError> {
    let failed = |what, source| SocketError::Other { path: path.to_owned(), what, source };
    let there = match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(there) => there,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(failed("examining what is there", errno)),
    };
    if SFlag::from_bits_truncate(there.st_mode) & SFlag::S_IFMT != SFlag::S_IFSOCK {
        return Err(SocketError::NotASocket { path: path.to_owned() });
    }
    let caller = new_socket().map_err(|errno| failed("making a socket", errno))?;
    match connect(caller.as_raw_fd(), address) {
        Err(Errno::ECONNREFUSED) => {
            remove_socket(directory, name).map_err(|errno| failed("removing a dead one", errno))
        }
        // EAGAIN: its backlog is full.
        Ok(()) | Err(Errno::EAGAIN) => Err(SocketError::InUse { path: path.to_owned() }),
        Err(errno) => Err(failed("asking whether anybody serves it", errno)),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the daemon's own dead socket, seen to be one; no checkpoint is a socket"
)]
fn remove_socket(directory: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match nix::unistd::unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::ENOENT) => Ok(()),
        other => other,
    }
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn socket_and_directory_are_for_the_owner_alone_and_a_dead_socket_is_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("run/checkpoint-guard/guard.sock");
        let first = listen(&path).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert!(matches!(listen(&path), Err(SocketError::InUse { .. })), "somebody serves it");
        drop(first);
        assert!(UnixStream::connect(&path).is_err(), "its file is still there");
        let _second = listen(&path).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn what_is_not_a_socket_is_left_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let victim = scratch.path().join("passwd");
        std::fs::write(&victim, "root").unwrap();
        let link = scratch.path().join("guard.sock");
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        for path in [&victim, &link] {
            assert!(matches!(listen(path), Err(SocketError::NotASocket { .. })), "{path:?}");
        }
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "root");
    }

    #[test]
    fn a_directory_where_others_may_write_is_refused_unless_they_cannot_replace_anything() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("open/guard.sock");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        let set = |mode| {
            std::fs::set_permissions(path.parent().unwrap(), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set(0o777);
        let error = listen(&path).unwrap_err().to_string();
        assert!(error.contains("chmod it to 0700"), "{error}");
        set(0o1777);
        listen(&path).unwrap();
        assert_eq!(mode(path.parent().unwrap()), 0o1777, "a directory that was there stays as it is");
    }
}
