//! [`Fuse`]: a filesystem with an empty directory whose server can stop answering, like one behind a dead network.
//!
//! It speaks the kernel's protocol (fuse(4), include/uapi/linux/fuse.h) as far as a guard needs it: attributes, statfs, an
//! empty listing. Everything else is answered with ENOSYS.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The mounted filesystem; taken away on drop.
#[derive(Debug)]
pub struct Fuse {
    mount_point: PathBuf,
    hangs: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
    connection: PathBuf,
    _scratch: tempfile::TempDir,
}

impl Fuse {
    /// Mounts one. Root only.
    pub fn mount() -> Result<Fuse> {
        use std::os::linux::fs::MetadataExt;
        let scratch = tempfile::Builder::new().prefix("checkpoint-guard-fuse-").tempdir()?;
        let mount_point = scratch.path().join("mnt");
        std::fs::create_dir(&mount_point)?;
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").context("no /dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        mount(Some("stuck"), &mount_point, Some("fuse"), MsFlags::empty(), Some(options.as_str()))
            .context("cannot mount fuse")?;
        let (hangs, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (stop, end) = (hangs.clone(), ends.clone());
        let server = std::thread::spawn(move || serve(device, &stop, &end));
        // Answered by the server: from here on it is known to work.
        let dev = std::fs::metadata(&mount_point)?.st_dev();
        let connection = Path::new("/sys/fs/fuse/connections").join((dev & 0xff).to_string());
        Ok(Fuse { mount_point, hangs, ends, server: Some(server), connection, _scratch: scratch })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// From now on nobody gets an answer, as when the server is stopped. (From one that has read a request and never answers,
    /// not even SIGKILL frees whoever waits.)
    pub fn hang(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // Whoever waits gets ECONNABORTED, and the server's read ends. Without fusectl the unmount does the same.
        let _ = std::fs::write(self.connection.join("abort"), "1");
        self.ends.store(true, Ordering::SeqCst);
        let _ = umount2(&self.mount_point, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const BATCH_FORGET: u32 = 42;

fn serve(mut device: File, hangs: &AtomicBool, ends: &AtomicBool) {
    let mut request = vec![0; 1 << 17];
    loop {
        let mut fds = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
        let is_asked = poll(&mut fds, PollTimeout::from(20u16)) == Ok(1);
        if ends.load(Ordering::SeqCst) {
            return;
        }
        if hangs.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        if !is_asked {
            continue;
        }
        let length = match device.read(&mut request) {
            Ok(0) => return,
            Ok(length) => length,
            // A request was interrupted before it was read.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            // ENODEV: unmounted.
            Err(_) => return,
        };
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
        let (opcode, unique) = (number(4), request[8..16].to_vec());
        let body = match opcode {
            FORGET | BATCH_FORGET => continue,
            INIT => Ok(init(number(40), number(44))),
            GETATTR => Ok([&[0; 16], &attributes()[..]].concat()),
            STATFS => Ok(statfs()),
            OPENDIR => Ok(vec![0; 16]),
            READDIR | RELEASEDIR => Ok(Vec::new()),
            LOOKUP => Err(libc::ENOENT),
            _ => Err(libc::ENOSYS),
        };
        debug_assert!(length >= 40, "every request has a header");
        let (error, body) = match body {
            Ok(body) => (0, body),
            Err(errno) => (-errno, Vec::new()),
        };
        let mut answer = Vec::new();
        answer.extend(((16 + body.len()) as u32).to_ne_bytes());
        answer.extend(error.to_ne_bytes());
        answer.extend(unique);
        answer.extend(body);
        // ENOENT: whoever asked does not wait any more.
        let _ = device.write(&answer);
    }
}

/// `struct fuse_init_out` of the protocol's version 7.31, without any feature.
fn init(major: u32, minor: u32) -> Vec<u8> {
    let mut out = vec![0; 64];
    out[0..4].copy_from_slice(&major.to_ne_bytes());
    out[4..8].copy_from_slice(&minor.min(31).to_ne_bytes());
    // The largest write, and the granularity of times.
    out[20..24].copy_from_slice(&(1u32 << 16).to_ne_bytes());
    out[24..28].copy_from_slice(&1u32.to_ne_bytes());
    out
}

/// `struct fuse_attr` of a directory, to be asked for again each time.
fn attributes() -> Vec<u8> {
    let mut attributes = vec![0; 88];
    attributes[0..8].copy_from_slice(&1u64.to_ne_bytes());
    attributes[60..64].copy_from_slice(&(libc::S_IFDIR | 0o755).to_ne_bytes());
    attributes[64..68].copy_from_slice(&2u32.to_ne_bytes());
    attributes
}

/// `struct fuse_kstatfs`: 1 GiB, all of it free.
fn statfs() -> Vec<u8> {
    let mut out = vec![0; 80];
    for at in [0, 8, 16] {
        out[at..at + 8].copy_from_slice(&(1u64 << 18).to_ne_bytes());
    }
    for (at, value) in [(40, 4096u32), (44, 255), (48, 4096)] {
        out[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    out
}
