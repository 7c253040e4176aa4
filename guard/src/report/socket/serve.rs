//! Serving the socket, with everything bounded.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::geteuid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Line, Reply, Request, parse_request};

/// So many are served at a time; more wait in the backlog.
const CONNECTIONS_MAX: usize = 8;
/// So many of them may go on watching: the others stay free for requests that end.
const WATCHERS_MAX: usize = 4;
/// How often a watcher may be told.
const INTERVAL: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);
/// A request has a name and a few numbers.
const REQUEST_MAX: usize = 4 << 10;
/// A request that is not there by then ends the connection: clients write it at once.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(2);
/// An answer that is not made by then is an error.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// A reply that is not taken by then ends the connection: the socket's buffer holds most of them whole.
const WRITE_TIME_MAX: Duration = Duration::from_secs(2);
/// After a failed accept (out of file descriptors), rather than spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who asks, as the kernel says (`SO_PEERCRED`, unix(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user it was when it connected.
    pub uid: u32,
    /// Its process, in our pid namespace; `None` when it is not in ours.
    pub pid: Option<i32>,
}

impl Peer {
    /// Root and the daemon's own user may ask. The mode of the socket says so already, unless somebody changed it.
    fn is_allowed(self) -> bool {
        self.uid == 0 || self.uid == geteuid().as_raw()
    }
}

/// An answer in the making.
pub type Answer = Pin<Box<dyn Future<Output = Reply> + Send>>;
/// Who answers. Must not block: it runs on the thread that serves everybody.
pub type Answers = Arc<dyn Fn(Request, Peer) -> Answer + Send + Sync>;

/// Serves until `shutdown` is ready; whoever is connected then is cut off. `panicked` is told when a connection has.
pub async fn serve(
    listener: &UnixListener,
    answers: Answers,
    panicked: impl Fn(),
    shutdown: impl Future<Output = ()>,
) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let watchers = Arc::new(Semaphore::new(WATCHERS_MAX));
    // Dropping it ends all connections.
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
            (slot, listener.accept().await)
        };
        tokio::select! {
            () = &mut shutdown => return,
            Some(ended) = connections.join_next() => if ended.is_err() {
                tracing::error!("a bug: a connection of the socket panicked");
                panicked();
            },
            (slot, accepted) = next => match accepted {
                Ok((stream, _)) => {
                    let (answers, watchers) = (answers.clone(), watchers.clone());
                    connections.spawn(async move {
                        if let Err(error) = serve_one(stream, answers, &watchers).await {
                            tracing::debug!(%error, "a client of the socket went away");
                        }
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection on the socket");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

/// One connection, one request.
async fn serve_one(mut stream: UnixStream, answers: Answers, watchers: &Semaphore) -> std::io::Result<()> {
    let credentials = stream.peer_cred()?;
    let peer = Peer { uid: credentials.uid(), pid: credentials.pid().filter(|pid| *pid > 0) };
    // Read also from whoever is refused: closing on what he is still writing would kill him before he reads why.
    let line = timeout(REQUEST_TIME_MAX, read_line(&mut stream)).await;
    if !peer.is_allowed() {
        tracing::warn!(uid = peer.uid, pid = peer.pid, "refused a client of the socket: it is not root");
        return write(&mut stream, Reply::error("only root and the daemon's own user may ask")).await;
    }
    let request = match line {
        Ok(line) => parse_request(&line?),
        Err(_) => Err(format!("no request within {REQUEST_TIME_MAX:?}")),
    };
    match request {
        Ok(request @ Request::Watch { interval_milliseconds }) => match watchers.try_acquire() {
            Ok(_place) => {
                let interval =
                    Duration::from_millis(interval_milliseconds).clamp(*INTERVAL.start(), *INTERVAL.end());
                watch(stream, || answers(request.clone(), peer), interval).await
            }
            Err(_) => write(&mut stream, Reply::error(format!("{WATCHERS_MAX} others watch already"))).await,
        },
        Ok(request) => {
            let reply = answered(answers(request, peer)).await;
            write(&mut stream, reply).await
        }
        Err(message) => write(&mut stream, Reply::Error { message }).await,
    }
}

/// Tells again and again, until the client hangs up or does not keep up.
async fn watch(
    mut stream: UnixStream,
    answer: impl Fn() -> Answer,
    interval: Duration,
) -> std::io::Result<()> {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut ignored = [0; 64];
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let reply = answered(answer()).await;
                write(&mut stream, reply).await?;
            }
            // Whatever it still says is ignored; that it has closed its end is not.
            read = stream.read(&mut ignored) => if read? == 0 { return Ok(()) },
        }
    }
}

async fn answered(answer: Answer) -> Reply {
    let late =
        || Reply::error(format!("no answer within {ANSWER_TIME_MAX:?}; the daemon is busy, ask again"));
    timeout(ANSWER_TIME_MAX, answer).await.unwrap_or_else(|_| late())
}

/// What comes until the end of the line, or of the connection, or the limit.
async fn read_line(stream: &mut UnixStream) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut part = [0; 512];
    loop {
        let count = stream.read(&mut part).await?;
        line.extend_from_slice(&part[..count]);
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
            return Ok(line);
        }
        if count == 0 {
            return Ok(line);
        }
        if line.len() > REQUEST_MAX {
            return Err(std::io::Error::other("a request longer than any"));
        }
    }
}

async fn write(stream: &mut UnixStream, reply: Reply) -> std::io::Result<()> {
    let line = Line::of(reply);
    match timeout(WRITE_TIME_MAX, stream.write_all(line.as_bytes())).await {
        Ok(result) => result,
        Err(_) => Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "it does not read its reply")),
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
