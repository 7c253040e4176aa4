//! What a thread that waits for our answer wants: to read or to write.
//!
//! A permission event tells the file and the thread, but not why the thread came. The thread is blocked in its system call,
//! so `/proc/<tid>/syscall` (proc(5)) tells which one, with its arguments.

use nix::libc;

/// The system call that a thread is blocked in, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// open(2), openat(2), open_by_handle_at(2), creat(2), with these flags.
    Open(libc::c_int),
    /// openat2(2), whose flags are in the caller's memory at this address.
    OpenHow(u64),
    /// read(2) and its like.
    Read,
    /// write(2) and its like, of so many bytes where an argument says so.
    Write(Option<u64>),
    /// fallocate(2) with this mode, of so many bytes.
    Allocate(libc::c_int, u64),
    /// truncate(2), ftruncate(2): growing so allocates nothing.
    SetLength,
    /// sendfile(2), splice(2), copy_file_range(2): writes to this descriptor, reads from another; so many bytes.
    CopyTo(libc::c_int, u64),
    /// mmap(2) with this protection and these flags.
    Map(libc::c_int, libc::c_int),
    /// Anything else: io_uring, aio, ioctl, a kernel thread.
    Other,
}

/// What a thread wants with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Only to read it, or to make it smaller.
    Read,
    /// To create it, or to let it grow by so many bytes where that is known.
    Write(Option<u64>),
    /// The one or the other, if the descriptor of this number is the file.
    WriteIf(libc::c_int, u64),
    /// The one or the other, if the flags at this address say so.
    WriteIfFlagsAt(u64),
    /// Cannot be told.
    Unknown,
}

impl Call {
    /// Reads `/proc/<tid>/syscall`: the number and six arguments, in hexadecimal. `None` while the thread runs (it has not
    /// gone to sleep yet) and where the kernel does not tell.
    pub fn parse(text: &str) -> Option<Call> {
        let mut words = text.split_ascii_whitespace();
        // `-1`: blocked, but not in a system call.
        let number: i64 = words.next()?.parse().ok()?;
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            let word = words.next();
            match word.map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16)) {
                Some(Ok(value)) => *argument = value,
                _ if number < 0 => return Some(Call::Other),
                _ => return None,
            }
        }
        Some(Call::of(number, arguments))
    }

    fn of(number: i64, [first, second, third, fourth, fifth, _]: [u64; 6]) -> Call {
        // Flags, modes and descriptors are ints: the upper half of their registers means nothing.
        let int = |argument: u64| argument as libc::c_int;
        #[cfg(target_arch = "x86_64")]
        match number {
            libc::SYS_open => return Call::Open(int(second)),
            libc::SYS_creat => return Call::Open(libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC),
            _ => {}
        }
        match number {
            libc::SYS_openat | libc::SYS_open_by_handle_at => Call::Open(int(third)),
            libc::SYS_openat2 => Call::OpenHow(third),
            libc::SYS_read | libc::SYS_pread64 | libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => {
                Call::Read
            }
            libc::SYS_readahead | libc::SYS_fadvise64 | libc::SYS_execve | libc::SYS_execveat => Call::Read,
            libc::SYS_write | libc::SYS_pwrite64 => Call::Write(Some(third)),
            libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => Call::Write(None),
            libc::SYS_fallocate => Call::Allocate(int(second), fourth),
            libc::SYS_truncate | libc::SYS_ftruncate => Call::SetLength,
            libc::SYS_sendfile => Call::CopyTo(int(first), fourth),
            libc::SYS_splice | libc::SYS_copy_file_range => Call::CopyTo(int(third), fifth),
            libc::SYS_mmap => Call::Map(int(third), int(fourth)),
            _ => Call::Other,
        }
    }

    /// What a thread in this call wants with a file that it opens (`opening`) or has opened.
    pub fn wish(self, opening: bool) -> Wish {
        match self {
            Call::Open(flags) if opening => wish_of_flags(flags),
            Call::OpenHow(address) if opening => Wish::WriteIfFlagsAt(address),
            Call::Read if !opening => Wish::Read,
            Call::SetLength => Wish::Read,
            Call::Write(bytes) if !opening => Wish::Write(bytes),
            Call::Allocate(mode, _) if mode & FREEING != 0 => Wish::Read,
            Call::Allocate(_, bytes) if !opening => Wish::Write(Some(bytes)),
            Call::CopyTo(descriptor, bytes) if !opening => Wish::WriteIf(descriptor, bytes),
            Call::Map(protection, flags) if !opening => {
                let grows = protection & libc::PROT_WRITE != 0 && flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
                if grows { Wish::Write(None) } else { Wish::Read }
            }
            _ => Wish::Unknown,
        }
    }
}

/// What somebody wants who opens a file with these flags.
pub fn wish_of_flags(flags: libc::c_int) -> Wish {
    let writes = matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR);
    if writes || flags & libc::O_CREAT != 0 { Wish::Write(None) } else { Wish::Read }
}

/// Modes of fallocate(2) that give space back.
const FREEING: libc::c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_COLLAPSE_RANGE;

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(number: i64, arguments: [u64; 6], opening: bool, expect: Wish) {
        let words: Vec<_> = arguments.iter().map(|argument| format!("{argument:#x}")).collect();
        let text = format!("{number} {} 0x7ffc579838a0 0x7fdbe847d011\n", words.join(" "));
        let call = Call::parse(&text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(call.wish(opening), expect, "{call:?}");
    }

    #[test]
    fn openers_for_writing_and_creators_are_told_from_readers() {
        let at = |flags: i32| [0xffff_ff9c, 0x5000, flags as u64, 0o600, 0, 0];
        let write = Wish::Write(None);
        check(libc::SYS_openat, at(libc::O_RDONLY | libc::O_CLOEXEC), true, Wish::Read);
        check(libc::SYS_openat, at(libc::O_RDONLY | libc::O_TRUNC), true, Wish::Read);
        check(libc::SYS_openat, at(libc::O_WRONLY | libc::O_CREAT), true, write);
        check(libc::SYS_openat, at(libc::O_RDWR), true, write);
        check(libc::SYS_openat, at(libc::O_RDONLY | libc::O_CREAT), true, write);
        check(libc::SYS_open_by_handle_at, at(libc::O_WRONLY), true, write);
        check(libc::SYS_openat2, at(0x7000), true, Wish::WriteIfFlagsAt(0x7000));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_old_calls_open_too() {
        check(libc::SYS_creat, [0x5000, 0o600, 0, 0, 0, 0], true, Wish::Write(None));
        check(libc::SYS_open, [0x5000, libc::O_RDWR as u64, 0, 0, 0, 0], true, Wish::Write(None));
        check(libc::SYS_open, [0x5000, 0, 0, 0, 0, 0], true, Wish::Read);
    }

    #[test]
    fn writers_of_an_open_file_are_told_from_its_readers() {
        check(libc::SYS_read, [3, 0x5000, 10, 0, 0, 0], false, Wish::Read);
        check(libc::SYS_preadv2, [3, 0x5000, 1, 0, 0, 0], false, Wish::Read);
        check(libc::SYS_write, [3, 0x5000, 10, 0, 0, 0], false, Wish::Write(Some(10)));
        check(libc::SYS_pwritev, [3, 0x5000, 2, 0, 0, 0], false, Wish::Write(None));
        check(libc::SYS_sendfile, [7, 8, 0, 4096, 0, 0], false, Wish::WriteIf(7, 4096));
        check(libc::SYS_copy_file_range, [8, 0, 7, 0, 4096, 0], false, Wish::WriteIf(7, 4096));
        check(libc::SYS_io_uring_enter, [3, 1, 1, 0, 0, 0], false, Wish::Unknown);
    }

    #[test]
    fn what_gives_space_back_or_takes_none_passes() {
        let allocate = |mode: i32| [3, mode as u64, 0, 65536, 0, 0];
        check(libc::SYS_fallocate, allocate(0), false, Wish::Write(Some(65536)));
        check(libc::SYS_fallocate, allocate(libc::FALLOC_FL_KEEP_SIZE), false, Wish::Write(Some(65536)));
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        check(libc::SYS_fallocate, allocate(punch), false, Wish::Read);
        check(libc::SYS_ftruncate, [3, 0, 0, 0, 0, 0], false, Wish::Read);
        let map = |protection: i32, flags: i32| [0, 4096, protection as u64, flags as u64, 3, 0];
        let (read, both) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
        check(libc::SYS_mmap, map(read, libc::MAP_SHARED), false, Wish::Read);
        check(libc::SYS_mmap, map(both, libc::MAP_PRIVATE), false, Wish::Read);
        check(libc::SYS_mmap, map(both, libc::MAP_SHARED), false, Wish::Write(None));
    }

    #[test]
    fn a_call_that_cannot_raise_such_an_event_is_of_another_architecture_and_says_nothing() {
        check(libc::SYS_read, [3, 0, 0, 0, 0, 0], true, Wish::Unknown);
        check(libc::SYS_openat, [3, 0, 0, 0, 0, 0], false, Wish::Unknown);
    }

    #[test]
    fn a_running_thread_and_nonsense_tell_nothing() {
        for text in ["running\n", "", "1 0x3", "1 0x3 zz 0 0 0 0 0", "x"] {
            assert_eq!(Call::parse(text), None, "{text:?}");
        }
        assert_eq!(Call::parse("-1 0x7ffc579838a0 0x7fdbe847d011\n"), Some(Call::Other));
    }
}
