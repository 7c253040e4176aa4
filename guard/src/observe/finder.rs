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
static FINDER: OnceLock<Mutex<Option<Finder>>> = OnceLock::new();

/// Our end of the line to it.
struct Finder {
    stream: UnixStream,
    /// What has come of an answer.
    come: Vec<u8>,
    /// A question was given up: its answer comes before any other.
    owes: bool,
}

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
    let ours = companion::start(c"who-has-it-open", SockType::Stream, confine, |its, guard| {
        serve(UnixStream::from(its), guard.as_raw());
    })?;
    let ours = UnixStream::from(ours);
    ours.set_read_timeout(Some(PATIENCE))?;
    ours.set_write_timeout(Some(PATIENCE))?;
    let _ = FINDER.set(Mutex::new(Some(Finder { stream: ours, come: Vec::new(), owes: false })));
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

/// What it says; `None` when there is none, or it does not answer. One that hangs is asked again once it has answered.
pub(super) fn ask(files: &[FileId]) -> Option<Scan> {
    let mut slot = FINDER.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    let question = Question(files.iter().map(|file| [file.dev, file.ino]).collect());
    match slot.as_mut()?.ask(&question) {
        Ok(Some(answer)) => {
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
        Ok(None) => {
            tracing::warn!(
                "the process that finds out who has checkpoints open does not answer; they are not named"
            );
            None
        }
        Err(error) => {
            tracing::warn!(%error, "the process that finds out who has checkpoints open is gone; they are no longer named");
            *slot = None;
            None
        }
    }
}

impl Finder {
    /// `None`: there is no answer in time.
    fn ask(&mut self, question: &Question) -> io::Result<Option<Answer>> {
        // A question more would fill the line to one that hangs.
        if self.owes && self.answer()?.is_none() {
            return Ok(None);
        }
        send(&mut self.stream, question)?;
        self.owes = true;
        self.answer()
    }

    /// The next answer; `None` when nothing more of it comes for a while. What has come is kept.
    fn answer(&mut self) -> io::Result<Option<Answer>> {
        let mut part = [0; 1 << 14];
        loop {
            if let Some((length, rest)) = self.come.split_first_chunk::<4>() {
                let length = u32::from_le_bytes(*length) as usize;
                if length > MESSAGE_MAX {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                if let Some(body) = rest.get(..length) {
                    let answer = serde_json::from_slice(body)?;
                    self.come.drain(..4 + length);
                    self.owes = false;
                    return Ok(Some(answer));
                }
            }
            match self.stream.read(&mut part) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.come.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_comes_late_is_not_taken_for_that_to_the_next_question() {
        let (ours, mut its) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut finder = Finder { stream: ours, come: Vec::new(), owes: false };
        let question = |ino| Question(vec![[1, ino]]);
        let answer = |ino| Answer { complete: true, holders: vec![([1, ino], Vec::new())] };
        assert!(finder.ask(&question(1)).unwrap().is_none());
        // Half of it comes, and the next question waits for the rest.
        let late = serde_json::to_vec(&answer(1)).unwrap();
        its.write_all(&[&(late.len() as u32).to_le_bytes(), &late[..5]].concat()).unwrap();
        assert!(finder.ask(&question(2)).unwrap().is_none());
        its.write_all(&late[5..]).unwrap();
        send(&mut its, &answer(3)).unwrap();
        let told = finder.ask(&question(3)).unwrap().unwrap();
        assert_eq!(told.holders[0].0, [1, 3]);
        let asked: Vec<_> = (0..2).map(|_| receive::<Question>(&mut its).unwrap().0[0][1]).collect();
        assert_eq!(asked, [1, 3], "one that hangs is not asked more");
        drop(its);
        assert!(finder.ask(&question(4)).is_err());
    }
}
