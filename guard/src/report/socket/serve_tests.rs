//! Clients of every kind against the real server.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream as Stream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;

use super::super::{Client, listen};
use super::*;
use crate::report::snapshot::Snapshot;

/// A server on a thread of its own, ended on drop.
struct Served {
    path: PathBuf,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    panics: Arc<AtomicU64>,
    _scratch: tempfile::TempDir,
}

impl Served {
    fn start() -> Served {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("guard.sock");
        let listener = listen(&path).unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let panics = Arc::new(AtomicU64::new(0));
        let counted = panics.clone();
        let answers: Answers = Arc::new(|request, peer| {
            Box::pin(async move {
                assert_eq!(peer.pid, Some(std::process::id() as i32), "SO_PEERCRED names this test");
                match request {
                    Request::Daemon => Reply::Daemon {
                        version: "v".repeat(1 << 20),
                        pid: 1,
                        pool: None,
                        dry_run: false,
                        backend: "inotify".to_owned(),
                    },
                    Request::Snapshot | Request::Watch { .. } => Reply::Snapshot(Box::new(Snapshot {
                        time: Timestamp::UNIX_EPOCH,
                        version: "1".to_owned(),
                        pool: None,
                        dry_run: false,
                        backend: "inotify".to_owned(),
                        filesystems: Vec::new(),
                    })),
                    other => panic!("nobody asked this here: {other:?}"),
                }
            })
        });
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let until = async {
                let _ = stopped.await;
            };
            runtime.block_on(async {
                let listener = UnixListener::from_std(listener).unwrap();
                let count = || {
                    counted.fetch_add(1, Ordering::Relaxed);
                };
                serve(&listener, answers, count, until).await;
            });
        });
        Served { path, stop: Some(stop), thread: Some(thread), panics, _scratch: scratch }
    }

    fn is_well(&self) {
        let reply = Client::ask(&self.path, &Request::Daemon).unwrap();
        assert!(matches!(reply, Reply::Daemon { version, .. } if version.len() == 1 << 20));
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn said(path: &Path, bytes: &[u8]) -> String {
    let mut stream = Stream::connect(path).unwrap();
    // Err: it has hung up already.
    let _ = stream.write_all(bytes);
    let mut line = String::new();
    let _ = BufReader::new(stream).read_line(&mut line);
    line
}

#[test]
fn a_request_gets_its_reply_and_nonsense_gets_an_explanation() {
    let served = Served::start();
    served.is_well();
    assert!(said(&served.path, b"GET / HTTP/1.1\n").contains("\"kind\":\"Error\""));
    assert!(
        said(&served.path, b"{\"apiVersion\":\"checkpoint-guard/v1\",\"request\":\"x\"}\n")
            .contains("requests of")
    );
    assert_eq!(said(&served.path, &vec![b'x'; 1 << 20]), "", "longer than any request");
    assert!(said(&served.path, b"\xff\xfe\n").contains("not a line of JSON"));
    served.is_well();
}

#[test]
fn an_answer_that_panics_is_counted_and_the_others_get_theirs() {
    let served = Served::start();
    for count in 1..=CONNECTIONS_MAX as u64 + 1 {
        let reply = Client::ask(&served.path, &Request::BrakeStatus { filesystem: None });
        assert!(reply.is_err(), "{reply:?}");
        served.is_well();
        let is_counted = || served.panics.load(Ordering::Relaxed) == count;
        let told = (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            is_counted()
        });
        assert!(told, "{count}");
    }
}

#[test]
fn clients_that_say_nothing_or_read_nothing_keep_their_places_for_a_moment_only() {
    let served = Served::start();
    let silent: Vec<_> = (0..CONNECTIONS_MAX).map(|_| Stream::connect(&served.path).unwrap()).collect();
    let deaf: Vec<_> = (0..CONNECTIONS_MAX)
        .map(|_| {
            let mut stream = Stream::connect(&served.path).unwrap();
            // A reply of a megabyte fits in no buffer.
            stream.write_all(b"{\"apiVersion\":\"checkpoint-guard/v1\",\"request\":\"daemon\"}\n").unwrap();
            stream
        })
        .collect();
    // All places are taken, and more wait; all are still connected when somebody else is served.
    served.is_well();
    drop((silent, deaf));
}

#[test]
fn who_hangs_up_in_the_middle_harms_nobody() {
    let served = Served::start();
    for cut in 0..40 {
        let request = b"{\"apiVersion\":\"checkpoint-guard/v1\",\"request\":\"daemon\"}\n";
        let mut stream = Stream::connect(&served.path).unwrap();
        stream.write_all(&request[..cut]).unwrap();
    }
    served.is_well();
}

#[test]
fn who_watches_is_told_again_and_again_and_leaves_room_for_others() {
    let served = Served::start();
    let watch = || Client::send(&served.path, &Request::Watch { interval_milliseconds: 0 }).unwrap();
    let mut watchers: Vec<_> = (0..WATCHERS_MAX).map(|_| watch()).collect();
    for watcher in &mut watchers {
        for _ in 0..3 {
            assert!(matches!(watcher.reply().unwrap(), Some(Reply::Snapshot(_))));
        }
    }
    let refused = watch().reply().unwrap_err().to_string();
    assert!(refused.contains("watch already"), "{refused}");
    served.is_well();
    // Whoever leaves makes room, as soon as that is noticed.
    watchers.pop();
    while watch().reply().is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn without_a_daemon_the_client_says_so() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("guard.sock");
    let error = Client::ask(&path, &Request::Daemon).unwrap_err();
    assert!(
        error.is_not_running() && error.to_string().contains("no checkpoint-guard is running"),
        "{error}"
    );
    drop(listen(&path).unwrap());
    assert!(Client::ask(&path, &Request::Daemon).unwrap_err().is_not_running(), "a dead socket");
}
