//! What the guard and its helper say to each other: JSON in packets of a socket, so that each message is whole or not there.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Key, RefusedWriter, Stance};

/// No message is longer, and the kernel takes no longer one: `net.core.wmem_default` is 208 KiB. A report of everything
/// that it may hold is shorter.
const LEN_MAX: usize = 192 << 10;

/// From the guard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Order {
    /// Take up the directory whose descriptor comes along.
    Watch { key: Key, nested: bool },
    /// Let go of it.
    Forget { key: Key },
    /// The guard is alive, and this is what is to happen below each directory until that instant of `CLOCK_MONOTONIC`, in
    /// nanoseconds. To be answered with a [`Report`].
    Beat { number: u64, stances: Vec<(Key, Stance, u64)> },
}

/// From the helper.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    /// Of the beat that it answers.
    pub(super) number: u64,
    /// Not every created file found room; the next report tells of more.
    pub(super) has_more: bool,
    pub(super) directories: Vec<DirectoryReport>,
}

/// What happened below one directory since the last report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct DirectoryReport {
    pub(super) key: Key,
    pub(super) stance: Stance,
    pub(super) writers: Vec<RefusedWriter>,
    /// Name, device, inode.
    pub(super) created: Vec<(Vec<u8>, u64, u64)>,
    pub(super) stops_writes: bool,
    pub(super) says_no_space: bool,
    /// What does not hold, for as long as it does not.
    pub(super) problem: Option<String>,
}

/// Sends one message, with a descriptor or without; never blocks.
///
/// # Errors
/// `EAGAIN` while the other side does not read; `EPIPE` when it is gone.
pub(in crate::act) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(message).map_err(|_| Errno::EINVAL)?;
    let descriptors: Vec<RawFd> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&descriptors)];
    let control = if descriptors.is_empty() { &[][..] } else { &control[..] };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&bytes)], control, flags, None).map(drop)
}

/// The next message, with the descriptor that came along; `None` when there is none now. Never blocks.
///
/// # Errors
/// `EPIPE` when the other side is gone; `EBADMSG` when it says what we do not understand.
pub(in crate::act) fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> Result<Option<(T, Option<OwnedFd>)>, Errno> {
    let mut bytes = vec![0; LEN_MAX];
    let mut space = cmsg_space!(RawFd);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let (len, descriptor) = {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let message = match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Ok(message) => message,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(Errno::ECONNRESET) => return Err(Errno::EPIPE),
            Err(errno) => return Err(errno),
        };
        let mut descriptors = Vec::new();
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(received) = control {
                // SAFETY: the kernel has just installed these descriptors for us, and tells each once.
                descriptors.extend(received.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        (message.bytes, descriptors.pop())
    };
    if len == 0 {
        return Err(Errno::EPIPE);
    }
    let message = serde_json::from_slice(&bytes[..len]).map_err(|_| Errno::EBADMSG)?;
    Ok(Some((message, descriptor)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    #[test]
    fn orders_arrive_with_their_descriptors_and_the_end_is_noticed() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        assert!(receive::<Order>(theirs.as_fd()).unwrap().is_none(), "nothing was said yet");
        let file = std::fs::File::open("/dev/null").unwrap();
        let watch = Order::Watch { key: Key(7), nested: true };
        send(ours.as_fd(), &watch, Some(file.as_fd())).unwrap();
        let beat = Order::Beat { number: 1, stances: vec![(Key(7), Stance::Refusing, u64::MAX)] };
        send(ours.as_fd(), &beat, None).unwrap();
        let (order, descriptor) = receive::<Order>(theirs.as_fd()).unwrap().unwrap();
        assert_eq!((order, descriptor.is_some()), (watch, true));
        let (order, descriptor) = receive::<Order>(theirs.as_fd()).unwrap().unwrap();
        assert_eq!((order, descriptor.is_some()), (beat, false));
        drop(ours);
        assert_eq!(receive::<Order>(theirs.as_fd()).map(drop), Err(Errno::EPIPE));
    }

    #[test]
    fn a_report_of_everything_that_it_may_hold_fits_into_a_message() {
        let writer = RefusedWriter { comm: "x".repeat(15), calls: u64::MAX, bytes: u64::MAX };
        let directory = DirectoryReport {
            key: Key(u32::MAX),
            stance: Stance::Refusing,
            writers: vec![writer; super::super::WRITERS_MAX + 1],
            created: vec![(vec![255; 255], u64::MAX, u64::MAX); super::super::helper::REPORTED_MAX],
            stops_writes: false,
            says_no_space: false,
            problem: Some("x".repeat(200)),
        };
        let quiet = DirectoryReport { created: Vec::new(), ..directory.clone() };
        // The bound on created files is one for all directories together.
        let mut directories = vec![quiet; super::super::DIRECTORIES_MAX - 1];
        directories.push(directory);
        let report = Report { number: u64::MAX, has_more: false, directories };
        let len = serde_json::to_vec(&report).unwrap().len();
        assert!(len <= LEN_MAX, "{len}");
    }
}
