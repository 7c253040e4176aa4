//! A filesystem whose brake engages, and what is the same to test whichever means holds it.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guard::model::Bytes;
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use crate::loopfs::LoopMount;
use crate::sampler::Sampler;
use crate::scene::Scene;
use crate::setting::Daemon;
use crate::storm::{Method, Options, Storm, Totals, Until};

/// Longer than a lease, a deadman and a busy machine together.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Below critical, with one checkpoint that is pinned, and another file that lies there; the configuration says
/// `[brake] mode`.
pub fn helpless(mount: LoopMount, mode: &str) -> Scene {
    let scene = Scene::on(mount);
    let name = scene.archive("web", 1, Bytes::mib(8));
    File::create(scene.directory().join(format!("{name}.keep"))).expect("there is room");
    std::fs::write(scene.directory().join("readable"), "content").expect("there is room");
    scene.configure(&settings(mode));
    scene.leave(Bytes::mib(10));
    scene
}

/// The tables beside `[pressure]`.
pub fn settings(mode: &str) -> String {
    format!("[eviction]\nmin-age = \"0s\"\n[brake]\nmode = \"{mode}\"")
}

/// Opens a file below the directory for writing, making it if need be.
pub fn create(scene: &Scene, name: &str) -> std::io::Result<File> {
    File::options().write(true).create(true).truncate(false).open(scene.directory().join(name))
}

/// Whether this failed as the brake lets it fail; panics when it failed otherwise.
#[track_caller]
pub fn is_refused<T>(result: std::io::Result<T>, refusal: Errno) -> bool {
    match result {
        Ok(_) => false,
        Err(error) if error.raw_os_error() == Some(refusal as i32) => true,
        Err(error) => panic!("neither allowed nor refused by {refusal}: {error}"),
    }
}

/// Waits until creating a file is refused. Each time another one: by BPF LSM whoever opens one that is there is let through.
#[track_caller]
pub fn wait_for_brake(scene: &Scene, daemon: &mut Daemon, refusal: Errno) {
    static ATTEMPTS: AtomicU64 = AtomicU64::new(0);
    daemon.wait_until("braking", |_| {
        let number = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
        is_refused(create(scene, &format!("attempt-{number}.tar")), refusal)
    });
}

/// Now, to measure how long others wait.
#[expect(clippy::disallowed_methods, reason = "measures how long others wait")]
pub fn now() -> Instant {
    Instant::now()
}

/// How long it takes until a file can be made, whatever was refused before; and the longest single wait.
#[track_caller]
pub fn until_open(scene: &Scene, daemon: &Daemon) -> (Duration, Duration) {
    let (began, mut longest) = (now(), Duration::ZERO);
    loop {
        let asked = now();
        let opened = create(scene, "after.tar");
        longest = longest.max(asked.elapsed());
        if opened.is_ok() {
            return (began.elapsed(), longest);
        }
        assert!(began.elapsed() < PATIENCE, "still refused after {PATIENCE:?}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Thresholds for a filesystem of 1 GiB, critical at [`STORM_CRITICAL`].
const STORM_PRESSURE: &str = "[pressure]\nsoft = { available = \"400MiB\", grace-period = \"0s\" }\n\
     hard = { available = \"192MiB\" }\ncritical = { available = \"128MiB\" }\n\
     minimum-reclaim = { available = \"16MiB\" }\ntransition-period = \"1s\"\nkubelet-config = \"off\"";
/// The critical threshold of [`storm`].
pub const STORM_CRITICAL: Bytes = Bytes::mib(128);

/// A storm into a directory in which everything is pinned, on a filesystem of 1 GiB, beside somebody who writes into
/// another directory of it: the critical reserve stays to within 32 MiB, nobody else is refused, and checkpoints work
/// again when something may be deleted. Gives the lowest that was available.
pub fn storm(mount: LoopMount, mode: &str, refusal: Errno, time: Duration) -> Bytes {
    let scene = Scene::on(mount);
    let mut pins = Vec::new();
    for hour in 1..=8 {
        let name = scene.archive("web", hour, Bytes::mib(64));
        pins.push(scene.directory().join(format!("{name}.keep")));
        File::create(&pins[hour as usize - 1]).expect("there is room");
    }
    // Also what the storm leaves behind must not go.
    let protected = "[protection]\ndefault = 100";
    scene.configure_fully(&format!("{STORM_PRESSURE}\n{protected}\n{}", settings(mode)));
    scene.leave(Bytes::mib(390));
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_secs(1));
    let sampler = Sampler::start(scene.mount.path(), Duration::from_millis(1)).expect("a thread can be had");
    let (totals, beside) = rage(&scene, time);
    let lowest = sampler.stop().lowest.expect("it looked").available;
    println!("lowest {lowest} of {STORM_CRITICAL}; {totals:?}; {beside} files beside");
    assert!(totals.out_of_space > 10, "{totals:?}\n{}", daemon.log());
    assert_eq!(totals.failures, 0, "{totals:?}");
    assert!(beside > 50);
    assert!(lowest + Bytes::mib(32) >= STORM_CRITICAL, "lowest {lowest}\n{}", daemon.log());
    assert!(is_refused(create(&scene, "attempt.tar"), refusal));
    assert!(daemon.deleted().is_empty(), "everything is protected");

    // Somebody lets go of a few: they go, and with them the brake.
    scene.configure_fully(&format!("{STORM_PRESSURE}\n{}", settings(mode)));
    for pin in &pins[..4] {
        #[expect(clippy::disallowed_methods, reason = "an operator who unpins, and not through the guard")]
        std::fs::remove_file(pin).expect("it is there");
    }
    daemon.wait_until("released", |_| create(&scene, "again.tar").is_ok());
    scene.archive("again", 1, Bytes::mib(4));
    let is_release = |line: &serde_json::Value| line["kind"] == "Brake" && line["engaged"] == false;
    // Writers pass first; whom it refused is asked then.
    daemon.wait_until("saying so", |daemon| daemon.audit().iter().any(is_release));
    let released = daemon.audit().into_iter().find(is_release).expect("it is there");
    assert!(released["refusedCalls"].as_u64().is_some_and(|calls| calls > 10), "{released}");
    assert!(
        released["writers"][0]["comm"].as_str().is_some_and(|comm| comm.starts_with("storm")),
        "{released}"
    );
    assert!(released["refusedBytes"].as_u64().is_some_and(|bytes| bytes > 0), "{released}");
    lowest
}

/// The storm, and how many files could be written beside it.
fn rage(scene: &Scene, time: Duration) -> (Totals, u64) {
    let storm = Storm::start(Options {
        directory: scene.directory(),
        writers: 3,
        size: (Bytes::mib(8), Bytes::mib(64)),
        namespaces: vec!["team".to_owned(), "ci".to_owned()],
        pods: 3,
        method: Method::Write,
        first_age: Duration::from_secs(3600),
        until: Until { time: Some(time), ..Until::default() },
    });
    let path = scene.mount.path().join("beside");
    let mut beside = 0;
    while !storm.is_over() {
        std::fs::write(&path, vec![1; 64 << 10]).expect("nobody refuses this");
        beside += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    (storm.join(), beside)
}

/// What names its file to a [`Writer`].
const WRITER: &str = "CHECKPOINT_GUARD_TEST_WRITER";

/// Bytes of each of its writes.
const WRITTEN_AT_ONCE: usize = 4096;

/// Another process that writes over the same 4 KiB of a file again and again, until it is refused.
#[derive(Debug)]
pub struct Writer {
    child: Child,
    says: BufReader<ChildStdout>,
}

/// When a [`Writer`] was stopped, by `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    /// The beginning of its last write that was done.
    pub last_began: Duration,
    /// The end of the first that was refused.
    pub refused: Duration,
}

impl Writer {
    /// Starts one, and waits until it has its file open and writes. The calling test program must have a test of the name
    /// `writer` that calls [`be_writer`].
    #[track_caller]
    pub fn start(path: &Path) -> Writer {
        let program = std::env::current_exe().expect("/proc is there");
        let mut command = Command::new(program);
        command.args(["--exact", "writer", "--nocapture", "--quiet"]).env(WRITER, path);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a test program starts");
        let says = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut writer = Writer { child, says };
        writer.line("writes");
        writer
    }

    /// What it says once it is refused.
    #[track_caller]
    pub fn stopped(mut self) -> Stopped {
        let line = self.line("stopped");
        let mut words = line.split_whitespace().skip(1).map(|word| word.parse().map(Duration::from_nanos));
        let mut next = || words.next().expect("two of them").expect("numbers");
        let stopped = Stopped { last_began: next(), refused: next() };
        assert!(self.child.wait().is_ok_and(|status| status.success()));
        stopped
    }

    #[track_caller]
    fn line(&mut self, begin: &str) -> String {
        let mut line = String::new();
        while !line.starts_with(begin) {
            line.clear();
            assert!(self.says.read_line(&mut line).expect("a pipe") > 0, "it ended without {begin:?}");
        }
        line
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Err: it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The body of the test `writer`: nothing, unless the process is a [`Writer`].
pub fn be_writer(refusal: Errno) {
    let Some(path) = std::env::var_os(WRITER) else { return };
    let file = File::options().write(true).create(true).truncate(false).open(path).expect("not refused yet");
    let block = [7; WRITTEN_AT_ONCE];
    file.write_all_at(&block, 0).expect("not refused yet");
    let mut output = std::io::stdout();
    writeln!(output, "\nwrites").and_then(|()| output.flush()).expect("somebody reads");
    let mut last_began = Duration::ZERO;
    loop {
        let began = monotonic();
        if is_refused(file.write_all_at(&block, 0), refusal) {
            break;
        }
        last_began = began;
    }
    let refused = monotonic();
    let (last_began, refused) = (last_began.as_nanos(), refused.as_nanos());
    writeln!(output, "\nstopped {last_began} {refused}")
        .and_then(|()| output.flush())
        .expect("somebody reads");
}

/// `CLOCK_MONOTONIC`, which all processes share.
pub fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every kernel has it").into()
}

/// The one in the middle.
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
