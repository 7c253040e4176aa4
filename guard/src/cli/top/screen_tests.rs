//! The screen at the sizes that people have, against pictures in `screens/`. BLESS=1 draws the pictures anew.

use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::report::snapshot::*;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// 100 GiB below soft, two writers at work, a plan, and what went before.
fn busy() -> FilesystemSnapshot {
    let threshold = |level, percent: u64, seconds_until| ThresholdSnapshot {
        level,
        available_bytes: Some(percent * GIB),
        inodes_free: Some(percent * 10_000),
        seconds_until,
    };
    FilesystemSnapshot {
        filesystem: "/var/lib/kubelet/checkpoints".to_owned(),
        directories: vec![
            "/var/lib/kubelet/checkpoints".to_owned(),
            "/var/lib/kubelet/pod-checkpoints".to_owned(),
        ],
        observed_at: "2026-06-01T12:00:00Z".parse().unwrap(),
        level: Level::Soft,
        size_bytes: 100 * GIB,
        available_bytes: 18 * GIB,
        inodes: Some(InodesSnapshot { total: 1_000_000, free: 931_000 }),
        thresholds: vec![
            threshold(Level::Soft, 20, Some(0.0)),
            threshold(Level::Hard, 15, Some(12.4)),
            threshold(Level::Critical, 11, Some(3_000.0)),
        ],
        headroom_bytes: Some(3 * GIB),
        fill_bytes_per_second: 248 * MIB,
        unreclaimable_bytes: 0,
        checkpoints: 42,
        checkpoint_bytes: 61 * GIB,
        history: HistorySnapshot {
            step_seconds: 1,
            available_bytes: (0..300).map(|step| (60 - step / 7) * GIB).collect(),
        },
        growth: Some(growth()),
        next: Some(next()),
        deletions: vec![deletion(1, false), deletion(2, true)],
        brake: None,
    }
}

fn subject(namespace: &str, pod: &str, container: &str) -> Subject {
    Subject {
        directory: "/var/lib/kubelet/checkpoints".to_owned(),
        name: format!("checkpoint-{pod}_{namespace}-{container}-2026-06-01T11:00:00Z.tar"),
        namespace: Some(namespace.to_owned()),
        pod: Some(pod.to_owned()),
        container: Some(container.to_owned()),
    }
}

fn growth() -> Growth {
    let namespace = |namespace: Option<&str>, mib| NamespaceGrowth {
        namespace: namespace.map(str::to_owned),
        bytes_per_second: mib * MIB,
        bytes: mib * GIB,
    };
    let writer = |comm: &str, of: Option<Subject>, mib| WriterGrowth {
        pid: 4711,
        comm: comm.to_owned(),
        namespace: of.as_ref().and_then(|of| of.namespace.clone()),
        pod: of.as_ref().and_then(|of| of.pod.clone()),
        known_by: if of.is_some() { "checkpoint" } else { "nothing" }.to_owned(),
        container: of.and_then(|of| of.container),
        bytes_per_second: mib * MIB,
        bytes: mib * GIB,
    };
    Growth {
        namespaces: vec![namespace(Some("ci-nightly"), 200), namespace(None, 48)],
        writers: vec![
            writer("containerd", Some(subject("ci-nightly", "build-7f9c", "runner")), 200),
            writer("evil\u{1b}[2J", None, 48),
        ],
    }
}

fn next() -> NextVictims {
    let victim = |rank, is_reserve, of, mib| VictimSnapshot {
        rank,
        is_reserve,
        of,
        age_seconds: 3600 * rank,
        size_bytes: mib * MIB,
        reason: "superseded by a newer one of the same container; namespace ci-nightly has protection 5"
            .to_owned(),
    };
    NextVictims {
        level: Level::Hard,
        is_forecast: true,
        need_bytes: 5 * GIB,
        frees_bytes: 6 * GIB,
        shortfall_bytes: 0,
        count: 2,
        victims: vec![
            victim(1, false, subject("ci-nightly", "build-7f9c", "runner"), 4096),
            victim(2, false, subject("ci-nightly", "build-7f9c", "runner"), 2048),
            victim(3, true, subject("payments", "ledger-0", "db"), 8192),
        ],
    }
}

fn deletion(minute: u32, dry_run: bool) -> DeletionSnapshot {
    DeletionSnapshot {
        time: format!("2026-06-01T11:{minute:02}:00Z").parse().unwrap(),
        of: subject("team", "web-1", "app"),
        freed_bytes: 512 * MIB,
        trigger: "retention:retention[0]".to_owned(),
        reason: "its pod has 31 checkpoints and may have 30".to_owned(),
        dry_run,
    }
}

fn screen(filesystems: Vec<FilesystemSnapshot>) -> Screen {
    let snapshot = Snapshot {
        time: "2026-06-01T12:00:01Z".parse().unwrap(),
        version: "0.1.0".to_owned(),
        pool: Some("gpu".to_owned()),
        dry_run: false,
        backend: "raw-tracepoint".to_owned(),
        filesystems,
    };
    Screen { snapshot: Some(snapshot), ..Screen::default() }
}

fn drawn(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, screen)).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| format!("{}\n", row(y).trim_end())).collect()
}

#[track_caller]
fn check(name: &str, screen: &Screen, width: u16, height: u16) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/top/screens").join(format!("{name}.txt"));
    let now = drawn(screen, width, height);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(now == expected, "{} is another picture now (BLESS=1 takes it up):\n{now}", path.display());
}

#[test]
fn the_screen_fits_every_common_size() {
    let busy = screen(vec![busy(), busy()]);
    check("busy-80x24", &busy, 80, 24);
    check("busy-40x12", &busy, 40, 12);
    check("busy-200x60", &busy, 200, 60);
}

#[test]
fn a_screen_in_trouble_says_so_first() {
    let mut critical = busy();
    critical.level = Level::Critical;
    critical.available_bytes = 5 * GIB;
    critical.headroom_bytes = None;
    critical.thresholds.iter_mut().for_each(|threshold| threshold.seconds_until = Some(0.0));
    critical.observed_at = "2026-06-01T11:59:00Z".parse().unwrap();
    critical.growth = None;
    critical.deletions.clear();
    critical.next = Some(NextVictims {
        victims: Vec::new(),
        count: 0,
        frees_bytes: 0,
        shortfall_bytes: 8 * GIB,
        is_forecast: false,
        ..next()
    });
    critical.brake = Some(BrakeSnapshot { mechanism: "lsm".to_owned(), is_engaged: true });
    let mut screen = screen(vec![critical]);
    screen.is_paused = true;
    screen.problem = Some("the daemon at \"/run/x\" does not answer: it closed the connection".to_owned());
    check("trouble-80x24", &screen, 80, 24);
}

#[test]
fn nothing_yet_is_said_as_such() {
    check("asking-80x24", &Screen::default(), 80, 24);
    check("nothing-80x24", &screen(Vec::new()), 80, 24);
}

#[test]
fn no_size_and_no_number_is_too_small_or_too_large() {
    let mut wild = busy();
    (wild.size_bytes, wild.available_bytes, wild.headroom_bytes) = (0, u64::MAX, Some(u64::MAX));
    wild.thresholds[0].available_bytes = Some(u64::MAX);
    wild.thresholds[1].seconds_until = Some(f64::INFINITY);
    wild.history.available_bytes = vec![u64::MAX, 0];
    for screen in [screen(vec![busy()]), screen(vec![wild]), Screen::default()] {
        for (width, height) in (0..50).flat_map(|width| (0..30).map(move |height| (width * 3, height))) {
            drawn(&screen, width, height);
        }
    }
}

#[test]
fn a_name_cannot_command_the_terminal() {
    for (width, height) in [(80, 24), (40, 12), (200, 60)] {
        assert!(!drawn(&screen(vec![busy()]), width, height).contains('\u{1b}'));
    }
}

#[test]
fn the_arrows_go_round_and_filesystems_may_vanish() {
    let mut it = screen(vec![busy(), busy(), busy()]);
    it.go(-1);
    assert_eq!(it.selected, 2);
    it.go(1);
    assert_eq!(it.selected, 0);
    it.selected = 2;
    it.snapshot.as_mut().unwrap().filesystems.truncate(1);
    assert!(it.filesystem().is_some());
    it.go(1);
    assert_eq!(it.selected, 0);
}
