//! Enters the guard's sandbox as the daemon does, then tries what it must not be able to do, and what it must.
//!
//! `sandbox_inside CONFIG OUTSIDE`: the configuration, and a directory that is none of it, with a file `victim`. Prints one
//! line of `name outcome` for each attempt; the outcome is `ok` or an errno.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, unshare};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::kill;
use nix::unistd::{Pid, UnlinkatFlags};

type Outcome = Result<(), Errno>;

fn io<T>(result: std::io::Result<T>) -> Outcome {
    match result {
        Ok(_) => Ok(()),
        Err(error) => Err(Errno::from_raw(error.raw_os_error().unwrap_or(0))),
    }
}

fn call(number: libc::c_long, arguments: [libc::c_long; 4]) -> Outcome {
    let [a, b, c, d] = arguments;
    // SAFETY: each call that is tried here takes numbers and null pointers only, or fails before it looks at them.
    Errno::result(unsafe { libc::syscall(number, a, b, c, d) }).map(drop)
}

#[expect(clippy::disallowed_methods, reason = "what the sandbox must allow")]
fn unlink(directory: &File, name: &str, flags: UnlinkatFlags) -> std::io::Result<()> {
    Ok(nix::unistd::unlinkat(directory, name, flags)?)
}

fn main() {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (config_path, outside) = (arguments.next().expect("CONFIG"), arguments.next().expect("OUTSIDE"));
    let config = guard::config::load(&config_path).unwrap().effective(None).unwrap();
    let directory = config.directories[0].path.clone();
    let log = config.audit.path.clone().unwrap();
    let metrics = config.metrics.listen.unwrap();
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let parent = nix::unistd::getppid();
    guard::sandbox::start_companions(&config);
    let sandbox = guard::sandbox::enter(&config, &config_path);
    for (layer, state) in sandbox.layers() {
        println!("layer:{} {state}", layer.as_str());
    }
    // A thread that starts later is as confined as the first.
    let attempts = std::thread::spawn(move || {
        let files = needed(&directory, &log, metrics, &config_path);
        [files, forbidden_files(&directory, &outside), forbidden_calls(parent, elsewhere)].concat()
    });
    for (name, outcome) in attempts.join().unwrap() {
        let outcome = outcome.map_or_else(|errno| format!("{errno:?}"), |()| "ok".to_owned());
        println!("{name} {outcome}");
    }
}

/// What the daemon does all the time.
fn needed(
    directory: &Path,
    log: &Path,
    metrics: std::net::SocketAddr,
    config: &Path,
) -> Vec<(&'static str, Outcome)> {
    let (checkpoint, private) = (directory.join("checkpoint"), directory.join("private"));
    let make = || -> std::io::Result<()> {
        fs::create_dir(&private)?;
        fs::write(&checkpoint, "memory")?;
        fs::read(&checkpoint)?;
        fs::rename(&checkpoint, private.join("aside"))?;
        // As the guard deletes: by descriptor and one component.
        let (within, above) = (File::open(&private)?, File::open(directory)?);
        unlink(&within, "aside", UnlinkatFlags::NoRemoveDir)?;
        unlink(&above, "private", UnlinkatFlags::RemoveDir)
    };
    let rotate = || {
        fs::write(log, "{}\n")?;
        let mut older = log.as_os_str().to_owned();
        older.push(".1");
        fs::rename(log, older)
    };
    vec![
        ("need:move-aside-and-delete", io(make())),
        ("need:write-and-rotate-the-log", io(rotate())),
        ("need:read-the-configuration", io(fs::read(config))),
        ("need:read-proc-and-sys", io(fs::read("/proc/self/stat").and_then(|_| fs::read_dir("/sys/kernel")))),
        ("need:listen", io(TcpListener::bind(metrics))),
        ("need:threads", io(std::thread::Builder::new().spawn(|| {}))),
    ]
}

fn forbidden_files(directory: &Path, outside: &Path) -> Vec<(&'static str, Outcome)> {
    let victim = outside.join("victim");
    let mut writing = OpenOptions::new();
    writing.write(true);
    let device = CString::new(directory.join("device").as_os_str().as_encoded_bytes()).unwrap();
    let path = CString::new(victim.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: both strings end with a NUL and outlive the calls.
    let (mknod, chown) = unsafe {
        (
            Errno::result(libc::mknod(device.as_ptr(), libc::S_IFCHR | 0o600, 0x0103)).map(drop),
            Errno::result(libc::chown(path.as_ptr(), 1, 1)).map(drop),
        )
    };
    #[expect(clippy::disallowed_methods, reason = "must be refused")]
    let delete = fs::remove_file(&victim);
    vec![
        ("file:read", io(File::open(&victim))),
        ("file:read-shadow", io(File::open("/etc/shadow"))),
        ("file:list", io(fs::read_dir(outside))),
        ("file:write", io(writing.open(&victim))),
        ("file:truncate", io(OpenOptions::new().write(true).truncate(true).open(&victim))),
        ("file:create", io(File::create(outside.join("new")))),
        ("file:delete", io(delete)),
        ("file:rename-out-of-reach", io(fs::rename(&victim, directory.join("stolen")))),
        ("file:link-into-reach", io(fs::hard_link(&victim, directory.join("linked")))),
        ("file:symlink", io(symlink(&victim, directory.join("symlink")))),
        ("file:device", mknod),
        ("file:chown", chown),
        ("file:write-proc", io(writing.open("/proc/sys/kernel/hostname"))),
        (
            "file:raw-device",
            io(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")),
        ),
        ("file:memory-of-others", io(File::open("/proc/1/mem"))),
        ("file:environment-of-others", io(fs::read("/proc/1/environ"))),
    ]
}

fn forbidden_calls(parent: Pid, elsewhere: TcpListener) -> Vec<(&'static str, Outcome)> {
    let page = std::num::NonZeroUsize::new(4096).unwrap();
    let (read, private) = (ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE);
    // SAFETY: fresh anonymous memory that nothing else knows of; it is never written to or run.
    let (code, made_code) = unsafe {
        let code = mmap_anonymous(None, page, read | ProtFlags::PROT_EXEC, private).map(drop);
        let data = mmap_anonymous(None, page, read, private).unwrap();
        (code, mprotect(data, 4096, read | ProtFlags::PROT_EXEC))
    };
    let child = std::process::Command::new("/bin/true").spawn();
    // SAFETY: in the child, should there be one, nothing runs but _exit.
    let fork = unsafe { nix::unistd::fork() }.map(|side| {
        if side.is_child() {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
    });
    // SAFETY: both take numbers only.
    let (netlink, raw) = unsafe {
        (
            Errno::result(libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, 0)).map(drop),
            Errno::result(libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)).map(drop),
        )
    };
    let trigger = elsewhere.as_raw_fd();
    const TIOCSTI: libc::c_ulong = 0x5412;
    // SAFETY: it reads one byte through the pointer.
    let tiocsti = Errno::result(unsafe { libc::ioctl(trigger, TIOCSTI, c"x".as_ptr()) }).map(drop);
    vec![
        ("call:connect", io(TcpStream::connect(elsewhere.local_addr().unwrap()))),
        ("call:listen-elsewhere", io(TcpListener::bind("127.0.0.1:0"))),
        ("call:unix-socket", io(std::os::unix::net::UnixStream::connect("/run/containerd/containerd.sock"))),
        ("call:netlink", netlink),
        ("call:packet", raw),
        ("call:exec", io(child)),
        ("call:fork", fork),
        ("call:kill", kill(parent, None)),
        ("call:ptrace", call(libc::SYS_ptrace, [libc::c_long::from(libc::PTRACE_ATTACH), 1, 0, 0])),
        ("call:mount", call(libc::SYS_mount, [0; 4])),
        ("call:unshare", unshare(CloneFlags::CLONE_NEWNS)),
        ("call:setuid", call(libc::SYS_setuid, [0; 4])),
        ("call:capset", call(libc::SYS_capset, [0; 4])),
        ("call:bpf-pin", call(libc::SYS_bpf, [6, 0, 0, 0])),
        ("call:perf", call(libc::SYS_perf_event_open, [0; 4])),
        ("call:module", call(libc::SYS_finit_module, [0; 4])),
        ("call:io-uring", call(libc::SYS_io_uring_setup, [0; 4])),
        ("call:keyring", call(libc::SYS_keyctl, [0; 4])),
        ("call:terminal", tiocsti),
        ("call:dumpable", prctl::set_dumpable(true)),
        ("call:core-dumps", setrlimit(Resource::RLIMIT_CORE, 1 << 20, 1 << 20)),
        ("call:executable-memory", code),
        ("call:memory-made-executable", made_code),
    ]
}
