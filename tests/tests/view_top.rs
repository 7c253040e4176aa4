//! `top` against a real daemon: plainly, as JSON, and on a terminal that is resized and closed.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use guard::model::Bytes;
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use tests::scene::Scene;
use tests::setting::{Daemon, Setting, binary};
use tests::storm::{Method, Options, Storm, Until};

const UNHURRIED: &str = "[eviction]\nmin-age = \"0s\"";
const PATIENCE: Duration = Duration::from_secs(20);

/// `None`, loudly, without the right to mount.
fn scene() -> Option<Scene> {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED view_top: mounting a filesystem needs root");
        return None;
    }
    let scene = Scene::new();
    scene.configure(UNHURRIED);
    Some(scene)
}

fn storm(scene: &Scene) -> Storm {
    Storm::start(Options {
        directory: scene.directory(),
        writers: 2,
        size: (Bytes::mib(2), Bytes::mib(8)),
        namespaces: vec!["team-a".to_owned(), "team-b".to_owned()],
        pods: 1,
        method: Method::Write,
        first_age: Duration::from_secs(24 * 3600),
        until: Until::default(),
    })
}

#[test]
fn a_snapshot_under_a_storm_shows_who_writes_what_went_and_what_goes_next() {
    let Some(scene) = scene() else { return };
    let mut daemon = scene.setting.start();
    let storm = storm(&scene);
    daemon.wait_until("deleting", |daemon| daemon.deleted().len() > 3);
    // On a busy machine a loop may not come to answer within a snapshot's patience.
    let mut snapshot = serde_json::Value::Null;
    daemon.wait_until("known who writes", |_| {
        snapshot = scene.setting.json(&["top", "--once", "--interval", "1s"]);
        let it = &snapshot["filesystems"][0];
        let is_counted = snapshot["backend"] != "inotify";
        (!is_counted || it["growth"]["namespaces"][0].is_object()) && it["next"]["victims"][0].is_object()
    });
    let shown = scene.setting.run(&["top", "--once"]);
    storm.stop();
    assert_eq!(
        (&snapshot["apiVersion"], &snapshot["kind"]),
        (&"checkpoint-guard/v1".into(), &"Snapshot".into())
    );
    let it = &snapshot["filesystems"][0];
    assert_eq!(it["directories"][0], scene.directory().to_str().unwrap());
    assert!(it["fillBytesPerSecond"].as_u64().unwrap() > Bytes::mib(1).0, "{it:#}");
    let levels: Vec<_> = it["thresholds"].as_array().unwrap().iter().map(|it| it["level"].clone()).collect();
    assert_eq!(levels, ["hard", "critical"]);
    assert_eq!(it["thresholds"][0]["availableBytes"], Bytes::mib(64).0);
    assert!(!it["history"]["availableBytes"].as_array().unwrap().is_empty());
    let victims = it["next"]["victims"].as_array().unwrap();
    assert!(!victims.is_empty() && victims[0]["reason"].as_str().unwrap().contains("frees"), "{it:#}");
    let deletions = it["deletions"].as_array().unwrap();
    let audited = daemon.deleted();
    assert!(!deletions.is_empty());
    for deletion in deletions {
        assert!(audited.iter().any(|name| *name == deletion["name"]), "{deletion:#} is not in the audit log");
    }
    if snapshot["backend"] == "inotify" {
        println!("SKIPPED growth: this kernel grants no eBPF");
    } else {
        let known = ["team-a", "team-b"];
        let namespaces = it["growth"]["namespaces"].as_array().unwrap();
        assert!(namespaces.iter().any(|it| known.iter().any(|name| it["namespace"] == *name)), "{it:#}");
        let pids = it["growth"]["writers"].as_array().unwrap().iter().map(|it| it["pid"].as_u64().unwrap());
        assert!(pids.into_iter().any(|pid| pid == u64::from(std::process::id())), "{it:#}");
    }
    let text = String::from_utf8(shown.stdout).unwrap();
    for word in ["level", "headroom", "hard below 64.0 MiB", "next victims", "DELETED", "team-"] {
        assert!(text.contains(word), "no {word:?} in\n{text}");
    }
}

#[test]
fn without_a_daemon_or_a_terminal_it_says_what_to_do() {
    let setting = Setting::new();
    setting.configure("[[directory]]\npath = \"/nowhere\"\noptional = true");
    let output = setting.run(&["top", "--once"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no checkpoint-guard is running here"), "{said}");
    let output = setting.run(&["top"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--once prints plainly"));
    let output = setting.run(&["top", "--interval", "5ms"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--interval"));
}

/// `top` on a terminal of its own.
struct Screen {
    child: Child,
    /// Both ends: the slave tells what mode the terminal is left in.
    pty: OpenptyResult,
    /// Everything that was drawn.
    drawn: Arc<Mutex<Vec<u8>>>,
}

impl Screen {
    fn open(setting: &Setting) -> Screen {
        let pty = openpty(&size(80, 24), None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        // setsid(1) makes the pty the controlling terminal, as a shell's is: resizing it signals the program.
        let child = Command::new("setsid")
            .arg("--ctty")
            .arg(binary())
            .args(["top", "--interval", "200ms", "--config"])
            .arg(setting.config())
            .env("TERM", "xterm-256color")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("setsid is part of util-linux");
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let (mut from, to) = (File::from(pty.master.try_clone().unwrap()), drawn.clone());
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            // Err: EIO, the other end is closed.
            while let Ok(count @ 1..) = from.read(&mut part) {
                to.lock().unwrap().extend_from_slice(&part[..count]);
            }
        });
        Screen { child, pty, drawn }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.drawn.lock().unwrap()).into_owned()
    }

    fn type_in(&self, keys: &str) {
        File::from(self.pty.master.try_clone().unwrap()).write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = size(columns, rows);
        // SAFETY: TIOCSWINSZ reads a winsize through the pointer, which points to one that outlives the call.
        let result =
            unsafe { nix::libc::ioctl(self.pty.master.as_raw_fd(), nix::libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(result, 0);
    }

    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "waits for another process, so it measures time")]
    fn wait_until(&mut self, what: &str, mut is_so: impl FnMut(&mut Screen) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < PATIENCE, "not {what}:\n{:?}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for its end, and looks at the state of the terminal.
    #[track_caller]
    fn ended_well(mut self) {
        let mut code = None;
        self.wait_until("ended", |it| {
            code = it.child.try_wait().unwrap().map(|status| status.code());
            code.is_some()
        });
        assert_eq!(code, Some(Some(0)), "{:?}", self.text());
        self.wait_until("back on the first screen", |it| it.text().contains("\u{1b}[?1049l"));
        let modes = tcgetattr(self.pty.slave.as_fd()).unwrap().local_flags;
        assert!(modes.contains(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG), "{modes:?}");
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Err: it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// The largest row and column that the cursor was sent to, counted from 1.
fn extent(text: &str) -> (u16, u16) {
    let places = text.split("\u{1b}[").filter_map(|part| {
        let (row, rest) = part.split_once(';')?;
        let (column, _) = rest.split_once('H')?;
        Some((row.parse::<u16>().ok()?, column.parse::<u16>().ok()?))
    });
    places.fold((0, 0), |(rows, columns), (row, column)| (rows.max(row), columns.max(column)))
}

fn watched() -> (tempfile::TempDir, Setting, Daemon) {
    let scratch = tempfile::tempdir().unwrap();
    let setting = Setting::new();
    let quiet = "[pressure]\nsoft = false\nhard = { available = \"1B\", inodes-free = false }\ncritical = false\nkubelet-config = \"off\"";
    setting.configure(&format!("{}\n{quiet}", tests::scene::directory_table(scratch.path())));
    let daemon = setting.start();
    (scratch, setting, daemon)
}

#[test]
fn the_screen_follows_the_size_of_the_terminal_and_q_leaves_it_as_it_was() {
    let (_scratch, setting, _daemon) = watched();
    let mut screen = Screen::open(&setting);
    screen.wait_until("drawn", |it| it.text().contains("q quit"));
    assert_eq!(extent(&screen.text()).0, 24);
    let raw = tcgetattr(screen.pty.slave.as_fd()).unwrap().local_flags;
    assert!(!raw.contains(LocalFlags::ICANON), "keys are taken one by one");
    screen.resize(40, 12);
    // Everything is cleared, and drawn anew.
    let anew = |it: &Screen| {
        it.text().rsplit_once("\u{1b}[2J").map(|(_, drawn)| drawn.to_owned()).unwrap_or_default()
    };
    screen.wait_until("drawn anew", |it| {
        let drawn = anew(it);
        drawn.contains("q quit") && extent(&drawn).0 == 12
    });
    let (_, columns) = extent(&anew(&screen));
    assert!(columns <= 40, "drawn to column {columns}:\n{:?}", screen.text());
    screen.type_in("p");
    screen.wait_until("paused", |it| it.text().contains("PAUSED"));
    screen.type_in("q");
    screen.ended_well();
}

#[test]
fn signals_leave_the_terminal_as_it_was() {
    let (_scratch, setting, _daemon) = watched();
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let mut screen = Screen::open(&setting);
        screen.wait_until("drawn", |it| it.text().contains("q quit"));
        kill(Pid::from_raw(screen.child.id().cast_signed()), signal).unwrap();
        screen.ended_well();
    }
}

#[test]
fn when_the_daemon_ends_the_screen_says_so_and_finds_the_next_one() {
    let (_scratch, setting, daemon) = watched();
    let mut screen = Screen::open(&setting);
    screen.wait_until("drawn", |it| it.text().contains("q quit"));
    daemon.stop();
    // Only cells that change are drawn, so what is new is not in one piece until everything is drawn anew.
    std::thread::sleep(Duration::from_secs(3));
    screen.resize(100, 24);
    screen.wait_until("told", |it| it.text().contains("no checkpoint-guard is running"));
    screen.drawn.lock().unwrap().clear();
    let _next = setting.start();
    screen.wait_until("watching again", |it| it.text().contains("q quit"));
    screen.type_in("\u{3}");
    screen.ended_well();
}
