//! The daemon's socket: how commands ask the one that is running.
//!
//! A unix stream socket for root and the daemon's own user. The client sends one line of JSON, a [`Request`], and gets
//! one line, a [`Reply`]; for [`Request::Watch`] one after the other until either side has enough. Then the connection
//! is closed: one connection, one request. Every line carries `"apiVersion": "checkpoint-guard/v1"`. docs/OPERATIONS.md
//! shows it with `socat`.
//!
//! What a client does cannot hold up the daemon: lines, connections and waiting are bounded, and everything here runs
//! on the thread that serves metrics, never on one that protects a filesystem.
//!
//! A further request is a variant of [`Request`], a variant of [`Reply`], and an arm in `agent/answers.rs`.

mod client;
mod listen;
mod serve;

use serde::{Deserialize, Serialize};

pub use client::{Client, ClientError};
pub use listen::{SocketError, listen};
pub use serve::{Answer, Answers, Peer, serve};

use crate::report::record::{API_VERSION, BrakeRecord};
use crate::report::snapshot::Snapshot;

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Request {
    /// Who is there. Answered by [`Reply::Daemon`].
    Daemon,
    /// Whether writers are refused, on all filesystems or on one. Answered by [`Reply::Brake`], like the next two.
    BrakeStatus {
        /// One of its watched directories.
        filesystem: Option<String>,
    },
    /// Refuse them from now on.
    BrakeEngage {
        /// As above.
        filesystem: Option<String>,
        /// For so long; `null`: until it is released.
        seconds: Option<u64>,
    },
    /// Let them write.
    BrakeRelease {
        /// As above.
        filesystem: Option<String>,
        /// For so long the brake does not engage by itself.
        inhibit_seconds: u64,
    },
    /// What it knows right now. Answered by [`Reply::Snapshot`].
    Snapshot,
    /// The same again and again, until the client closes the connection.
    Watch {
        /// From one to the next; at least a tenth of a second, at most a minute.
        interval_milliseconds: u64,
    },
}

impl Request {
    /// Every word of `request`, for messages.
    const WORDS: &str = "daemon, snapshot, watch, brake-status, brake-engage, brake-release";
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all_fields = "camelCase")]
pub enum Reply {
    /// The daemon itself.
    Daemon {
        /// Its version.
        version: String,
        /// Its process id, in its own pid namespace.
        pid: u32,
        /// The pool whose settings apply.
        pool: Option<String>,
        /// It deletes nothing.
        dry_run: bool,
        /// What sees the writes.
        backend: String,
    },
    /// The brake, of each filesystem that was asked for.
    Brake {
        /// `lsm` or `fanotify`.
        mode: String,
        /// The filesystems.
        items: Vec<BrakeRecord>,
    },
    /// What it knows.
    Snapshot(Box<Snapshot>),
    /// It could not be done, or was not understood.
    Error {
        /// Why, and what is accepted.
        message: String,
    },
}

impl Reply {
    fn error(message: impl std::fmt::Display) -> Reply {
        Reply::Error { message: message.to_string() }
    }
}

/// What every line is, in either direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line<T> {
    api_version: std::borrow::Cow<'static, str>,
    #[serde(flatten)]
    it: T,
}

impl<T: Serialize> Line<T> {
    /// `it` as a line.
    fn of(it: T) -> String {
        let line = Line { api_version: API_VERSION.into(), it };
        let mut text = serde_json::to_string(&line).expect("these types have nothing that JSON cannot say");
        text.push('\n');
        text
    }
}

/// Reads a request, or says what is wrong with it.
fn parse_request(line: &[u8]) -> Result<Request, String> {
    let value: serde_json::Value = serde_json::from_slice(line)
        .map_err(|error| format!("not a line of JSON: {error}; write for example {}", example()))?;
    match value.get("apiVersion").and_then(serde_json::Value::as_str) {
        Some(API_VERSION) => {}
        other => {
            let other = other.map_or("no apiVersion".to_owned(), |other| format!("apiVersion {other:?}"));
            return Err(format!(
                "{other}: this daemon speaks {API_VERSION:?}; write for example {}",
                example()
            ));
        }
    }
    serde_json::from_value(value)
        .map_err(|error| format!("{error}; requests of this version: {}", Request::WORDS))
}

fn example() -> String {
    Line::of(Request::Daemon).trim_end().to_owned()
}

/// For fuzzing. A line from a client is a request that survives being written, or gets a reply of one line.
pub(crate) fn fuzz(bytes: &[u8]) {
    match parse_request(bytes) {
        Ok(request) => {
            let line = Line::of(request.clone());
            assert_eq!(parse_request(line.as_bytes()), Ok(request), "{line}");
        }
        Err(message) => {
            let line = Line::of(Reply::error(message));
            assert_eq!(line.matches('\n').count(), 1, "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_versioned_json() {
        assert_eq!(
            Line::of(Request::Daemon),
            "{\"apiVersion\":\"checkpoint-guard/v1\",\"request\":\"daemon\"}\n"
        );
    }

    #[track_caller]
    fn check_refused(line: &str, says: &str) {
        let message = parse_request(line.as_bytes()).unwrap_err();
        assert!(message.contains(says), "{line}: {message}");
    }

    #[test]
    fn what_is_wrong_with_a_request_is_said_with_what_is_accepted() {
        assert_eq!(parse_request(Line::of(Request::Daemon).as_bytes()), Ok(Request::Daemon));
        check_refused("", "write for example {\"apiVersion\"");
        check_refused("\u{0}\u{1}", "not a line of JSON");
        check_refused("{\"request\":\"daemon\"}", "no apiVersion");
        check_refused("{\"apiVersion\":\"checkpoint-guard/v9\",\"request\":\"daemon\"}", "speaks");
        check_refused(
            "{\"apiVersion\":\"checkpoint-guard/v1\",\"request\":\"dance\"}",
            "requests of this version: daemon",
        );
        check_refused("[]", "no apiVersion");
    }
}
