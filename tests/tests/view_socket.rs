//! The socket of a real daemon: whose it is, who may ask, what becomes of it when a guard is killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use guard::model::Bytes;
use guard::report::socket::{Client, Reply, Request};
use nix::sys::signal::{Signal, kill};
use serde_json::Value;
use tests::archives::Archive;
use tests::scene::{directory_table, hour_of_2026};
use tests::setting::{Setting, binary};

/// A directory with one archive, and a guard for it.
fn scene() -> (tempfile::TempDir, Setting) {
    let scratch = tempfile::tempdir().unwrap();
    let archive = Archive::new("team", "web", "main", hour_of_2026(1), Bytes::mib(1).0);
    archive.write_in(scratch.path()).unwrap();
    let setting = Setting::new();
    // Thresholds that nothing reaches: what the machine's disk holds is not this test's business.
    let quiet = "[pressure]\nsoft = false\nhard = { available = \"1B\", inodes-free = false }\ncritical = false\nkubelet-config = \"off\"";
    setting.configure(&format!("{}\n{quiet}", directory_table(scratch.path())));
    (scratch, setting)
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// What is said to a line of text.
fn said(socket: &Path, line: &str) -> Value {
    let mut stream = UnixStream::connect(socket).unwrap();
    writeln!(stream, "{line}").unwrap();
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).unwrap();
    serde_json::from_str(&reply).unwrap_or_else(|error| panic!("{error}: {reply:?}"))
}

#[test]
fn a_line_of_json_gets_a_line_of_json() {
    let (_scratch, setting) = scene();
    let mut daemon = setting.start();
    let socket = setting.socket();
    assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o600, 0o700));
    let reply = said(&socket, r#"{"apiVersion":"checkpoint-guard/v1","request":"daemon"}"#);
    assert_eq!(reply["apiVersion"], "checkpoint-guard/v1");
    assert_eq!(reply["kind"], "Daemon");
    assert_eq!(reply["pid"], daemon.pid().as_raw());
    assert_eq!(reply["dryRun"], false);
    let mut reply = Value::Null;
    daemon.wait_until("shown", |_| {
        reply = said(&socket, r#"{"apiVersion":"checkpoint-guard/v1","request":"snapshot"}"#);
        assert_eq!(reply["kind"], "Snapshot");
        reply["filesystems"][0]["checkpoints"] == 1
    });
    assert_eq!(reply["filesystems"][0]["level"], "normal");
    assert_eq!(said(&socket, "dance")["kind"], "Error");
}

#[test]
fn after_a_kill_the_next_guard_takes_the_socket_and_a_second_one_leaves_it() {
    let (_scratch, setting) = scene();
    let mut daemon = setting.start();
    kill(daemon.pid(), Signal::SIGKILL).unwrap();
    daemon.wait();
    assert!(setting.socket().exists(), "nobody has removed it");
    assert!(Client::ask(&setting.socket(), &Request::Daemon).unwrap_err().is_not_running());
    let first = setting.start();
    // The same socket; metrics and audit log are the other's as well, and it starts nevertheless.
    let mut second = setting.launch(&[], &mut |_| {});
    second.wait_until("told that the socket is another's", |daemon| {
        daemon.log().contains("another checkpoint-guard serves")
    });
    match Client::ask(&setting.socket(), &Request::Daemon).unwrap() {
        Reply::Daemon { pid, .. } => assert_eq!(pid.cast_signed(), first.pid().as_raw()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn whoever_is_not_root_is_refused_even_when_somebody_has_opened_the_socket_to_all() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED view_socket: becoming somebody else needs root");
        return;
    }
    let (_scratch, setting) = scene();
    let daemon = setting.start();
    let socket = setting.socket();
    let ask_as_nobody = || {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(binary())
            .args(["top", "--once", "--socket"])
            .arg(&socket)
            .stdin(Stdio::null())
            .output()
            .expect("setpriv is part of util-linux");
        String::from_utf8_lossy(&[output.stderr, output.stdout].concat()).into_owned()
    };
    let said = ask_as_nobody();
    if said.contains("failed to execute") {
        println!("SKIPPED view_socket: user 65534 cannot reach {}", binary().display());
        return;
    }
    assert!(said.contains("only root may ask"), "{said}");
    let set =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    set(&socket, 0o666);
    for above in socket.ancestors().skip(1).take(2) {
        set(above, 0o755);
    }
    let said = ask_as_nobody();
    assert!(said.contains("only root and the daemon's own user may ask"), "{said}");
    assert!(daemon.log().contains("refused a client of the socket"), "{}", daemon.log());
}

#[test]
fn off_means_no_socket_and_top_says_so() {
    let (scratch, setting) = scene();
    let config = format!(
        "{}\n[pressure]\nkubelet-config = \"off\"\n[socket]\npath = \"off\"\n",
        directory_table(scratch.path())
    );
    std::fs::write(setting.config(), config).unwrap();
    let output = setting.run(&["top", "--once"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("[socket] path = \"off\""));
}
