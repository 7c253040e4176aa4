//! [`Faults`]: system calls of a running guard that fail because a test wants it.
//!
//! A seccomp filter in the guard hands the calls that were named to us (`SECCOMP_RET_USER_NOTIF`, seccomp_unotify(2)); we let
//! the kernel carry each out, or have it fail with an error that a healthy disk does not give. What the guard itself does
//! with seccomp lies on top of that. A green run says that the guard bears the error, not that a disk would report it so.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use libc::{c_long, sock_filter, sock_fprog};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::setting::{Daemon, Setting};

/// A system call about to be made by the guard.
#[derive(Debug)]
pub struct Call {
    /// `libc::SYS_…`.
    pub number: c_long,
    /// Its arguments.
    pub arguments: [u64; 6],
    thread: u32,
}

impl Call {
    /// The text that an argument points to: a path.
    pub fn text(&self, argument: usize) -> String {
        let mut bytes = [0; 256];
        let memory = File::open(format!("/proc/{}/mem", self.thread));
        let length =
            memory.and_then(|memory| memory.read_at(&mut bytes, self.arguments[argument])).unwrap_or(0);
        let text = bytes[..length].split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }
}

/// Which calls fail, and how; `None` lets it be carried out.
type Rule = Box<dyn Fn(&Call) -> Option<Errno> + Send>;

/// The faults of one guard.
pub struct Faults {
    rule: Arc<Mutex<Rule>>,
    injected: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Where the guard gets the descriptor that tells of its calls; we take it from there.
const LISTENER: i32 = 250;

impl Faults {
    /// Starts the guard without waiting until it is ready; `calls` go through `rule`, which can be changed later.
    pub fn launch(
        setting: &Setting,
        calls: &[c_long],
        rule: impl Fn(&Call) -> Option<Errno> + Send + 'static,
    ) -> (Daemon, Faults) {
        let filter = filter(calls);
        let daemon = setting.launch(&[], &mut |command: &mut Command| {
            let filter = filter.clone();
            // SAFETY: between fork and exec only system calls are made, on memory that was allocated before.
            unsafe { command.pre_exec(move || install(&filter)) };
        });
        let listener = take_listener(daemon.pid().as_raw());
        let rule: Arc<Mutex<Rule>> = Arc::new(Mutex::new(Box::new(rule)));
        let injected = Arc::new(AtomicU64::new(0));
        let (shared, counts) = (rule.clone(), injected.clone());
        let thread = std::thread::spawn(move || answer(&listener, &shared, &counts));
        (daemon, Faults { rule, injected, thread: Some(thread) })
    }

    /// From now on these calls fail.
    pub fn set(&self, rule: impl Fn(&Call) -> Option<Errno> + Send + 'static) {
        *self.rule.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(rule);
    }

    /// From now on nothing fails.
    pub fn clear(&self) {
        self.set(|_| None);
    }

    /// How many calls have failed so.
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faults").field("injected", &self.injected()).finish_non_exhaustive()
    }
}

impl Drop for Faults {
    /// The guard must have ended by then: the thread ends with it.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            // It panicked, and has said so.
            let _ = thread.join();
        }
    }
}

/// `calls` go to the listener, everything else goes on.
fn filter(calls: &[c_long]) -> Vec<sock_filter> {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let ret = |action: u32| statement(libc::BPF_RET | libc::BPF_K, action);
    // The number is the first field of seccomp_data.
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for call in calls {
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        filter.push(sock_filter { code, jt: 0, jf: 1, k: *call as u32 });
        filter.push(ret(libc::SECCOMP_RET_USER_NOTIF));
    }
    filter.push(ret(libc::SECCOMP_RET_ALLOW));
    filter
}

/// Between fork and exec.
fn install(filter: &[sock_filter]) -> std::io::Result<()> {
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let (operation, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    // SAFETY: the program and what it points to outlive the call, which copies it and writes nothing.
    let listener = Errno::result(unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &program) })?;
    // SAFETY: takes numbers only. The copy is not closed by exec, unlike the first one.
    Errno::result(unsafe { libc::dup2(listener as i32, LISTENER) })?;
    Ok(())
}

fn take_listener(pid: i32) -> OwnedFd {
    // SAFETY: both take numbers only and give a descriptor that nobody else has, or an error.
    unsafe {
        let process = Errno::result(libc::syscall(libc::SYS_pidfd_open, pid, 0)).expect("the guard is there");
        let process = OwnedFd::from_raw_fd(process as i32);
        let listener = Errno::result(libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), LISTENER, 0));
        OwnedFd::from_raw_fd(listener.expect("the filter was installed") as i32)
    }
}

/// `SECCOMP_IOWR` of include/uapi/linux/seccomp.h.
const fn request(number: libc::c_ulong, size: usize) -> libc::c_ulong {
    3 << 30 | (size as libc::c_ulong) << 16 | (b'!' as libc::c_ulong) << 8 | number
}

fn answer(listener: &OwnedFd, rule: &Mutex<Rule>, injected: &AtomicU64) {
    const RECEIVE: libc::c_ulong = request(0, size_of::<libc::seccomp_notif>());
    const SEND: libc::c_ulong = request(1, size_of::<libc::seccomp_notif_resp>());
    loop {
        let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::NONE);
        if !fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN)) {
            // POLLHUP: nobody is left under the filter.
            return;
        }
        // SAFETY: the kernel wants it zeroed, and every bit pattern is a value of it.
        let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: RECEIVE writes one seccomp_notif, which is what the pointer leads to.
        if unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &mut notice) } < 0 {
            // Its thread was killed meanwhile.
            continue;
        }
        let call = Call { number: notice.data.nr.into(), arguments: notice.data.args, thread: notice.pid };
        let errno = rule.lock().unwrap_or_else(PoisonError::into_inner)(&call);
        injected.fetch_add(u64::from(errno.is_some()), Ordering::Relaxed);
        let response = match errno {
            Some(errno) => {
                libc::seccomp_notif_resp { id: notice.id, val: 0, error: -(errno as i32), flags: 0 }
            }
            None => libc::seccomp_notif_resp {
                id: notice.id,
                val: 0,
                error: 0,
                flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            },
        };
        // SAFETY: SEND reads one seccomp_notif_resp. An error means that nobody waits for it any more.
        unsafe { libc::ioctl(listener.as_raw_fd(), SEND, &response) };
    }
}
