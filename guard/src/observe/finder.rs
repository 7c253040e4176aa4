//! A process of its own that looks through `/proc` for who has checkpoints open.
//!
//! Looking into the processes of others takes CAP_SYS_PTRACE, which is as good as being root, and no Landlock, which
//! forbids it to whoever it confines. So the guard, which reads archives and listens, has neither, and asks this process:
//! it gets inodes and gives back pids, and reads nothing else from anybody. It ends when the guard does.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use nix::sys::socket::SockType;
use serde::{Deserialize, Serialize};

use super::holders::{self, Scan};
use crate::companion::{self, CompanionError};
use crate::model::{FileId, Holder};

/// The one of this process.
static FINDER: OnceLock<Mutex<Option<UnixStream>>> = OnceLock::new();

/// A walk through /proc takes 150 ms with 400 processes. Who it is, is for people: a deletion does not wait longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Nobody asks for so many at once.
const MESSAGE_MAX: usize = 16 << 20;

#[derive(Deserialize, Serialize)]
struct Question(Vec<[u64; 2]>);

/// Device and inode, and the pids and names of those who have it open.
type Held = ([u64; 2], Vec<(i32, String)>);

#[derive(Default, Deserialize, Serialize)]
struct Answer {
    complete: bool,
    holders: Vec<Held>,
}

/// Starts it; `confine` is called in it before it is asked anything. Does nothing when there is one.
///
/// # Errors
/// To be called while the calling thread is the only one.
pub fn start(confine: impl FnOnce()) -> Result<(), CompanionError> {
    if FINDER.get().is_some() {
        return Ok(());
    }
    let ours = companion::start(c"who-has-it-open", SockType::Stream, |its, guard| {
        confine();
        serve(UnixStream::from(its), guard.as_raw());
    })?;
    let ours = UnixStream::from(ours);
    ours.set_read_timeout(Some(PATIENCE))?;
    ours.set_write_timeout(Some(PATIENCE))?;
    let _ = FINDER.set(Mutex::new(Some(ours)));
    Ok(())
}

/// Answers until nobody is left to ask.
fn serve(mut stream: UnixStream, guard: i32) {
    while let Ok(Question(files)) = receive(&mut stream) {
        let files: Vec<FileId> = files.into_iter().map(|[dev, ino]| FileId { dev, ino }).collect();
        let scan = holders::look(&files, &[guard, std::process::id() as i32]);
        let holders = scan.holders.into_iter().map(|(file, holders)| {
            ([file.dev, file.ino], holders.into_iter().map(|holder| (holder.pid, holder.comm)).collect())
        });
        if send(&mut stream, &Answer { complete: scan.complete, holders: holders.collect() }).is_err() {
            return;
        }
    }
}

/// What it says; `None` when there is none, or it does not answer.
pub(super) fn ask(files: &[FileId]) -> Option<Scan> {
    let mut slot = FINDER.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    let question = Question(files.iter().map(|file| [file.dev, file.ino]).collect());
    let stream = slot.as_mut()?;
    match send(stream, &question).and_then(|()| receive::<Answer>(stream)) {
        Ok(answer) => {
            let holders: HashMap<FileId, Vec<Holder>> = answer
                .holders
                .into_iter()
                .map(|([dev, ino], holders)| {
                    let holders = holders.into_iter().map(|(pid, comm)| Holder { pid, comm });
                    (FileId { dev, ino }, holders.collect())
                })
                .collect();
            Some(Scan { holders, complete: answer.complete })
        }
        Err(error) => {
            tracing::warn!(%error, "the process that finds out who has checkpoints open does not answer; they are no longer named");
            // An answer that comes late would be taken for that to the next question.
            *slot = None;
            None
        }
    }
}

/// Its length, then JSON.
fn send(stream: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&length.to_le_bytes(), body.as_slice()].concat())
}

fn receive<T: for<'de> Deserialize<'de>>(stream: &mut UnixStream) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}
