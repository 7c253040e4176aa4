//! [`Group`]: a fanotify group of permission events. The system calls, and no decision.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::libc;

use super::Stance;

/// `FAN_PRE_ACCESS` (Linux 6.14, uapi/linux/fanotify.h): before the content of a file is read or written.
const FAN_PRE_ACCESS: u64 = 0x0010_0000;
/// `FAN_EVENT_INFO_TYPE_RANGE` (Linux 6.14): which part of the file.
const INFO_RANGE: u8 = 6;
/// `FAN_DENY_ERRNO` (Linux 6.13): the errno lies in the upper byte of the answer.
const ERRNO_SHIFT: u32 = 24;
/// Bytes of `struct fanotify_event_metadata`.
const METADATA: usize = 24;

/// A group. Closing it allows everything that waits for an answer, and takes its marks away.
#[derive(Debug)]
pub(super) struct Group {
    fd: OwnedFd,
    stops_writes: bool,
    says_no_space: bool,
}

/// Somebody waits for an answer.
#[derive(Debug)]
pub(super) struct Event {
    /// The file.
    pub(super) file: OwnedFd,
    /// The thread that waits, in our pid namespace; 0 when it has no number there.
    pub(super) tid: i32,
    /// It opens the file; else it has it open.
    pub(super) opening: bool,
    /// How much of the file it wants, rounded up to pages.
    pub(super) range: Option<u64>,
}

/// Whether the kernel grants this process permission events. Nothing stays.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN (fanotify_init(2)); `EINVAL` and `ENOSYS` on kernels without them.
pub fn try_group() -> Result<(), Errno> {
    // A kernel without CONFIG_FANOTIFY_ACCESS_PERMISSIONS makes groups and refuses marks. In this directory there is no
    // file that anybody would open and wait (and procfs takes no such marks).
    let quiet = std::fs::File::open("/sys").map_err(|_| Errno::ENOENT)?;
    Group::open()?.mark(quiet.as_fd(), Stance::Refusing)
}

impl Group {
    /// An empty one.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN (fanotify_init(2)).
    pub(super) fn open() -> Result<Group, Errno> {
        let flags = libc::FAN_CLASS_PRE_CONTENT
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            // Whose call it is: threads of one process may be in different ones.
            | libc::FAN_REPORT_TID
            // An event that finds no room in the queue is allowed unasked.
            | libc::FAN_UNLIMITED_QUEUE
            | libc::FAN_UNLIMITED_MARKS;
        let event_flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_LARGEFILE;
        // SAFETY: takes numbers only.
        let fd = Errno::result(unsafe { libc::fanotify_init(flags, event_flags.cast_unsigned()) })?;
        // SAFETY: the kernel has just made this descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Group { fd, stops_writes: true, says_no_space: true })
    }

    /// Lets the events of the files in `directory`, not of those further down, follow `stance`.
    pub(super) fn mark(&mut self, directory: BorrowedFd<'_>, stance: Stance) -> Result<(), Errno> {
        if self.stops_writes {
            let mask = if stance == Stance::Off { 0 } else { FAN_PRE_ACCESS };
            match self.set(directory, FAN_PRE_ACCESS, mask) {
                // Before Linux 6.14; a filesystem without pre-content events.
                Err(Errno::EINVAL | Errno::EOPNOTSUPP) if mask != 0 => self.stops_writes = false,
                result => result?,
            }
        }
        let mask = if stance == Stance::Refusing { libc::FAN_OPEN_PERM } else { 0 };
        self.set(directory, libc::FAN_OPEN_PERM, mask)
    }

    /// Adds `mask`, or takes `all` away when that is zero.
    fn set(&self, directory: BorrowedFd<'_>, all: u64, mask: u64) -> Result<(), Errno> {
        let (operation, mask) =
            if mask == 0 { (libc::FAN_MARK_REMOVE, all) } else { (libc::FAN_MARK_ADD, mask) };
        let (flags, mask) = (operation | libc::FAN_MARK_ONLYDIR, mask | libc::FAN_EVENT_ON_CHILD);
        // SAFETY: without a path the mark is for the directory of the descriptor, which is borrowed for the call.
        let result = unsafe {
            libc::fanotify_mark(self.fd.as_raw_fd(), flags, mask, directory.as_raw_fd(), std::ptr::null())
        };
        match Errno::result(result) {
            // There was no such mark to take away.
            Err(Errno::ENOENT) if operation == libc::FAN_MARK_REMOVE => Ok(()),
            result => result.map(drop),
        }
    }

    /// Whoever waits, as many as fit into one read; nobody: empty.
    pub(super) fn events(&self) -> Result<Vec<Event>, Errno> {
        let mut buffer = [0; 4096];
        match nix::unistd::read(&self.fd, &mut buffer) {
            Ok(len) => Ok(parse(&buffer[..len])),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Vec::new()),
            Err(errno) => Err(errno),
        }
    }

    /// Lets go of who waits.
    ///
    /// Its descriptor is closed first, so that whoever waited, or looks at the file because he was let go, does not find it
    /// open: the guard could not prove then that nobody else has it. The answer names the descriptor all the same: the
    /// kernel compares the number with those it gave out (`process_access_response` in
    /// fs/notify/fanotify/fanotify_user.c), and nothing is opened in between that could get the same.
    pub(super) fn answer(&mut self, event: Event, refuse: bool) -> Result<(), Errno> {
        let descriptor = event.file.as_raw_fd();
        drop(event);
        if refuse && self.says_no_space {
            let no_space = libc::FAN_DENY | (libc::ENOSPC.cast_unsigned() << ERRNO_SHIFT);
            match self.respond(descriptor, no_space) {
                // Before Linux 6.13.
                Err(Errno::EINVAL) => self.says_no_space = false,
                result => return result,
            }
        }
        self.respond(descriptor, if refuse { libc::FAN_DENY } else { libc::FAN_ALLOW })
    }

    fn respond(&self, descriptor: RawFd, response: u32) -> Result<(), Errno> {
        let mut answer = [0; 8];
        answer[..4].copy_from_slice(&descriptor.to_ne_bytes());
        answer[4..].copy_from_slice(&response.to_ne_bytes());
        match nix::unistd::write(&self.fd, &answer) {
            // Whoever waited was killed meanwhile.
            Ok(_) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Whether those that have their file open already are stopped too, as far as is known.
    pub(super) fn stops_writes(&self) -> bool {
        self.stops_writes
    }

    /// Whether those that are refused get ENOSPC, as far as is known.
    pub(super) fn says_no_space(&self) -> bool {
        self.says_no_space
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What read(2) gave: `struct fanotify_event_metadata`, each followed by information of its own.
fn parse(mut bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while bytes.len() >= METADATA {
        let len = usize::try_from(u32_at(bytes, 0)).unwrap_or(0);
        if len < METADATA || len > bytes.len() {
            break;
        }
        let (event, rest) = bytes.split_at(len);
        bytes = rest;
        let fd = u32_at(event, 16).cast_signed();
        if fd < 0 {
            continue;
        }
        // SAFETY: the kernel has opened this descriptor for the reader of the event, which is us, and tells it once.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        events.push(Event {
            file,
            tid: u32_at(event, 20).cast_signed(),
            opening: u64_at(event, 8) & libc::FAN_OPEN_PERM != 0,
            range: range(event),
        });
    }
    events
}

/// `struct fanotify_event_info_range`: a header of four bytes, four bytes of padding, offset, count.
fn range(event: &[u8]) -> Option<u64> {
    let mut information = event.get(usize::from(u16_at(event, 6))..)?;
    while information.len() >= 4 {
        let len = usize::from(u16_at(information, 2));
        if information[0] == INFO_RANGE && information.len() >= 24 {
            return Some(u64_at(information, 16));
        }
        information = information.get(len.max(4)..)?;
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes[at..].first_chunk().map_or(0, |chunk| u16::from_ne_bytes(*chunk))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |chunk| u32::from_ne_bytes(*chunk))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |chunk| u64::from_ne_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event as the kernel writes it. Its descriptor is a real one: whoever parses it owns it.
    fn event(mask: u64, information: &[u8]) -> Vec<u8> {
        let fd = std::os::fd::IntoRawFd::into_raw_fd(std::fs::File::open("/dev/null").unwrap());
        let mut bytes = Vec::new();
        bytes.extend(((METADATA + information.len()) as u32).to_ne_bytes());
        bytes.extend([3, 0]);
        bytes.extend((METADATA as u16).to_ne_bytes());
        bytes.extend(mask.to_ne_bytes());
        bytes.extend(fd.to_ne_bytes());
        bytes.extend(4711_i32.to_ne_bytes());
        bytes.extend(information);
        bytes
    }

    fn information(kind: u8, words: &[u64]) -> Vec<u8> {
        let len = (8 + 8 * words.len()) as u16;
        let mut bytes = vec![kind, 0];
        bytes.extend(len.to_ne_bytes());
        bytes.extend([0; 4]);
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn events_are_read_with_what_follows_them() {
        let mut bytes = event(libc::FAN_OPEN_PERM, &[]);
        let others = [information(9, &[1]), information(INFO_RANGE, &[4096, 65536])].concat();
        bytes.extend(event(FAN_PRE_ACCESS, &others));
        let events = parse(&bytes);
        let told: Vec<_> = events.iter().map(|event| (event.tid, event.opening, event.range)).collect();
        assert_eq!(told, [(4711, true, None), (4711, false, Some(65536))]);
    }

    #[test]
    fn an_event_that_is_cut_short_ends_the_reading() {
        let whole = event(libc::FAN_OPEN_PERM, &information(INFO_RANGE, &[0, 1]));
        for len in 0..whole.len() {
            assert!(parse(&whole[..len]).is_empty(), "{len} bytes");
        }
        assert_eq!(parse(&whole).len(), 1);
        assert!(parse(&[0; METADATA]).is_empty(), "an event of no length");
    }
}
