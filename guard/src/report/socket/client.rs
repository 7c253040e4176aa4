//! Asking the daemon.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Line, Reply, Request};

/// Longer than the daemon takes to say that it is busy.
const PATIENCE: Duration = Duration::from_secs(15);
/// No reply is that long; one that is comes from somebody else.
const REPLY_MAX: u64 = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No socket, or nobody behind it.
    #[error(
        "no checkpoint-guard is running here: nobody serves {path:?} ({source}); start it, or see [socket] path"
    )]
    NotRunning {
        /// The socket.
        path: PathBuf,
        /// ENOENT or ECONNREFUSED.
        source: io::Error,
    },
    /// EACCES.
    #[error("only root may ask the daemon: {path:?}: {source}")]
    NotAllowed {
        /// The socket.
        path: PathBuf,
        /// What connect(2) said.
        source: io::Error,
    },
    /// It was asked and did not answer.
    #[error("the daemon at {path:?} does not answer: {source}")]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// What read(2) or write(2) said.
        source: io::Error,
    },
    /// It answered something else than a reply.
    #[error("the daemon at {path:?} speaks another version than this command: {problem}")]
    NotUnderstood {
        /// The socket.
        path: PathBuf,
        /// What is wrong with the answer.
        problem: String,
    },
    /// It answered with an error.
    #[error("the daemon says: {0}")]
    Refused(String),
}

impl ClientError {
    /// Whether there is no daemon, rather than one with a problem.
    pub fn is_not_running(&self) -> bool {
        matches!(self, ClientError::NotRunning { .. })
    }
}

/// A connection with its one request sent.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    replies: BufReader<UnixStream>,
}

impl Client {
    /// Sends `request` to the daemon at the socket `path`.
    ///
    /// # Errors
    /// [`ClientError`], whose message says whether there is a daemon at all.
    pub fn send(path: &Path, request: &Request) -> Result<Client, ClientError> {
        let no_answer = |source| ClientError::NoAnswer { path: path.to_owned(), source };
        let mut stream = UnixStream::connect(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ClientError::NotRunning { path: path.to_owned(), source }
            }
            io::ErrorKind::PermissionDenied => ClientError::NotAllowed { path: path.to_owned(), source },
            _ => no_answer(source),
        })?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(no_answer)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(no_answer)?;
        stream.write_all(Line::of(request).as_bytes()).map_err(no_answer)?;
        Ok(Client { path: path.to_owned(), replies: BufReader::new(stream) })
    }

    /// The next reply; `None` when there will be no more.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the daemon says why not; others when it says nothing, or nothing of sense.
    pub fn reply(&mut self) -> Result<Option<Reply>, ClientError> {
        let mut line = String::new();
        let read = self.replies.by_ref().take(REPLY_MAX).read_line(&mut line);
        read.map_err(|source| ClientError::NoAnswer { path: self.path.clone(), source })?;
        if line.is_empty() {
            return Ok(None);
        }
        match serde_json::from_str::<Line<Reply>>(&line) {
            Ok(Line { it: Reply::Error { message }, .. }) => Err(ClientError::Refused(message)),
            Ok(Line { it, .. }) => Ok(Some(it)),
            Err(error) => {
                Err(ClientError::NotUnderstood { path: self.path.clone(), problem: error.to_string() })
            }
        }
    }

    /// Sends `request` and takes its one reply.
    ///
    /// # Errors
    /// As [`Client::send`] and [`Client::reply`].
    pub fn ask(path: &Path, request: &Request) -> Result<Reply, ClientError> {
        let closed = || ClientError::NoAnswer {
            path: path.to_owned(),
            source: io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection"),
        };
        Client::send(path, request)?.reply()?.ok_or_else(closed)
    }
}
