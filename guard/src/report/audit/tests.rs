use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;

struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Scratch {
        Scratch { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("log/audit.jsonl")
    }

    fn open(&self, max_size: u64) -> AuditLog {
        let settings = AuditSettings { path: self.path(), max_size: Bytes(max_size), keep: 3 };
        AuditLog::open(settings, || "2026-01-01T00:00:00Z".parse().unwrap())
    }

    fn ids(&self) -> Vec<u64> {
        read(&self.path()).unwrap().iter().map(Entry::id).collect()
    }
}

fn stop(log: &mut AuditLog) -> u64 {
    log.record(&Event::Stop { reason: "test" })
}

#[test]
fn a_line_is_private_and_says_what_the_design_says() {
    let scratch = Scratch::new();
    let mut log = scratch.open(1 << 20);
    let directories = ["/c".to_owned()];
    log.record(&Event::Pressure {
        directories: &directories,
        from: crate::model::Level::Normal,
        to: crate::model::Level::Hard,
        available_bytes: 5,
    });
    let line = fs::read_to_string(scratch.path()).unwrap();
    assert_eq!(
        line,
        format!(
            r#"{{"apiVersion":"checkpoint-guard/v1","id":1,"time":"2026-01-01T00:00:00Z","kind":"Pressure","directories":["/c"],"from":"normal","to":"hard","availableBytes":5,"prev":"{}"}}"#,
            "0".repeat(64)
        ) + "\n"
    );
    assert_eq!(fs::metadata(scratch.path()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(scratch.path().parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn case_18_a_log_that_others_could_read_is_made_private() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path().parent().unwrap()).unwrap();
    fs::write(scratch.path(), "").unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o644)).unwrap();
    scratch.open(1 << 20);
    assert_eq!(fs::metadata(scratch.path()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn ids_grow_and_the_chain_holds_across_restarts_and_rotation() {
    let scratch = Scratch::new();
    for _ in 0..10 {
        let mut log = scratch.open(1000);
        for _ in 0..3 {
            stop(&mut log);
        }
        assert!(log.flush(Duration::from_secs(10)));
        assert_eq!(log.failures(), 0);
    }
    let ids = scratch.ids();
    assert_eq!(ids.last(), Some(&30));
    assert!(ids.windows(2).all(|pair| pair[1] == pair[0] + 1), "{ids:?}");
    assert!(ids.len() < 30, "the oldest have been rotated away: {ids:?}");
    let files = fs::read_dir(scratch.path().parent().unwrap()).unwrap().count();
    assert_eq!(files, 4, "the current one and three older");
    assert_eq!(verify(&scratch.path()).unwrap(), (ids.len(), vec![]));
}

#[test]
fn two_guards_at_once_share_one_chain() {
    let scratch = Scratch::new();
    let mut logs = [scratch.open(3000), scratch.open(3000)];
    let ids: Vec<u64> = (0..20).map(|turn| stop(&mut logs[turn % 2])).collect();
    assert_eq!(ids, (1..=20).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for log in &mut logs {
            scope.spawn(|| (0..20).for_each(|_| _ = stop(log)));
        }
    });
    assert_eq!(scratch.ids().last(), Some(&60));
    assert_eq!(verify(&scratch.path()).unwrap().1, []);
    assert_eq!(logs[0].failures() + logs[1].failures(), 0);
}

#[test]
fn a_torn_last_line_is_cut_off_and_its_id_not_reused_by_halves() {
    let scratch = Scratch::new();
    let mut log = scratch.open(1 << 20);
    stop(&mut log);
    stop(&mut log);
    drop(log);
    let mut file = OpenOptions::new().append(true).open(scratch.path()).unwrap();
    file.write_all(br#"{"apiVersion":"checkpoint-guard/v1","id":3,"ti"#).unwrap();
    let mut log = scratch.open(1 << 20);
    assert_eq!(stop(&mut log), 3);
    assert_eq!(scratch.ids(), [1, 2, 3]);
    assert_eq!(verify(&scratch.path()).unwrap(), (3, vec![]));
}

#[test]
fn a_rotation_that_was_interrupted_anywhere_is_no_finding_and_is_ended_by_the_next_guard() {
    // What was renamed when it died: the current file is put aside first, then the oldest ones go.
    for renames in 1..=4 {
        let scratch = Scratch::new();
        let older = |number: u32| scratch.path().with_extension(format!("jsonl.{number}"));
        let mut log = scratch.open(500);
        while !older(3).exists() {
            stop(&mut log);
        }
        drop(log);
        fs::rename(scratch.path(), older(0)).unwrap();
        (0..3).rev().take(renames - 1).for_each(|n| fs::rename(older(n), older(n + 1)).unwrap());
        assert_eq!(verify(&scratch.path()).unwrap().1, [], "after {renames} renames");
        stop(&mut scratch.open(500));
        assert_eq!(verify(&scratch.path()).unwrap().1, [], "after {renames} renames and a start");
        let after = scratch.ids();
        assert!(!older(0).exists());
        assert!((1..=3).all(|number| older(number).exists()), "after {renames} renames");
        assert!(after.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{after:?}");
    }
}

#[test]
fn a_crash_between_rotation_and_the_next_line_loses_nothing() {
    let scratch = Scratch::new();
    let mut log = scratch.open(1 << 20);
    stop(&mut log);
    drop(log);
    fs::rename(scratch.path(), file::sibling(&scratch.path(), 1)).unwrap();
    assert_eq!(scratch.ids(), [1], "readable in between");
    let mut log = scratch.open(1 << 20);
    assert_eq!(stop(&mut log), 2);
    assert_eq!(verify(&scratch.path()).unwrap(), (2, vec![]));
}

#[test]
fn changed_missing_and_inserted_lines_are_found() {
    let scratch = Scratch::new();
    let mut log = scratch.open(1 << 20);
    (0..5).for_each(|_| _ = stop(&mut log));
    drop(log);
    let honest = fs::read_to_string(scratch.path()).unwrap();
    let check = |text: String, line: usize| {
        fs::write(scratch.path(), text).unwrap();
        let broken = verify(&scratch.path()).unwrap().1;
        assert_eq!(broken.first().map(|broken| broken.line), Some(line), "{broken:?}");
    };
    let lines: Vec<&str> = honest.split_inclusive('\n').collect();
    check(honest.replacen("\"id\":2", "\"id\":9", 1), 2);
    check([&lines[..2], &lines[3..]].concat().concat(), 3);
    check([&lines[..2], &["x\n"], &lines[2..]].concat().concat(), 3);
    fs::write(scratch.path(), honest).unwrap();
    assert_eq!(verify(&scratch.path()).unwrap(), (5, vec![]));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "somebody else deletes what is only a test's")]
fn a_file_that_was_taken_away_is_found() {
    let check = |number: u32, line: usize, what: &str| {
        let scratch = Scratch::new();
        let mut log = scratch.open(1000);
        (0..24).for_each(|_| _ = stop(&mut log));
        assert_eq!(verify(&scratch.path()).unwrap().1, []);
        let path = if number == 0 { scratch.path() } else { file::sibling(&scratch.path(), number) };
        fs::remove_file(&path).unwrap();
        if number == 0 {
            // The daemon goes on.
            stop(&mut log);
        }
        let broken = verify(&scratch.path()).unwrap().1;
        let told = broken.iter().any(|it| it.line == line && it.what.contains(what));
        assert!(told, "{number}: {broken:?}");
    };
    check(0, 1, "lines are missing");
    check(1, 0, "it is missing");
    check(2, 0, "it is missing");
}

#[test]
fn a_log_that_was_cut_or_made_to_fit_while_the_guard_runs_is_found() {
    let scratch = Scratch::new();
    let mut log = scratch.open(1 << 20);
    (0..5).for_each(|_| _ = stop(&mut log));
    let text = fs::read_to_string(scratch.path()).unwrap();
    let cut: String = text.split_inclusive('\n').take(3).collect();
    fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(scratch.path())
        .unwrap()
        .write_all(cut.as_bytes())
        .unwrap();
    stop(&mut log);
    let broken = verify(&scratch.path()).unwrap().1;
    assert_eq!(broken.first().map(|broken| broken.line), Some(4), "{broken:?}");
    // What was never written leaves a gap in the ids only.
    let (other, path) = (Scratch::new(), scratch.path());
    let mut log = other.open(1 << 20);
    stop(&mut log);
    let stopped = fs::File::open(other.path()).unwrap();
    stopped.lock().unwrap();
    stop(&mut log);
    stopped.unlock().unwrap();
    stop(&mut log);
    let broken = verify(&other.path()).unwrap().1;
    assert!(
        broken.len() == 1 && broken[0].line == 2 && broken[0].what.contains("ids are missing"),
        "{broken:?}"
    );
    assert_ne!(path, other.path());
}

#[test]
fn one_that_cannot_be_rotated_grows_and_loses_nothing() {
    let scratch = Scratch::new();
    let mut log = scratch.open(1000);
    (0..15).for_each(|_| _ = stop(&mut log));
    let older = |number| fs::read(file::sibling(&scratch.path(), number)).unwrap();
    let before = (older(1), older(2));
    // In the way of the oldest.
    let in_the_way = file::sibling(&scratch.path(), 3);
    fs::create_dir(&in_the_way).unwrap();
    fs::write(in_the_way.join("x"), "").unwrap();
    (0..20).for_each(|_| _ = stop(&mut log));
    assert_eq!((log.failures(), log.problem()), (0, None));
    assert_eq!(scratch.ids().last(), Some(&35));
    assert_eq!((older(1), older(2)), before);
    assert!(fs::metadata(scratch.path()).unwrap().len() > 2000);
}

#[test]
fn names_are_found_by_the_id_of_their_intent() {
    let scratch = Scratch::new();
    let mut log = scratch.open(1 << 20);
    stop(&mut log);
    let mut file = OpenOptions::new().append(true).open(scratch.path()).unwrap();
    for line in
        [r#"{"id":2,"phase":"outcome","name":"b"}"#, r#"{"id":2,"phase":"intent","name":"a"}"#, "no JSON"]
    {
        writeln!(file, "{line}").unwrap();
    }
    assert_eq!(log.name_of(2), Some("a".into()));
    assert_eq!((log.name_of(1), log.name_of(3)), (None, None));
}

#[test]
fn its_space_is_set_aside_beforehand() {
    let scratch = Scratch::new();
    let mut log = scratch.open(4 << 20);
    stop(&mut log);
    let metadata = fs::metadata(scratch.path()).unwrap();
    assert!(metadata.len() < 1000 && metadata.blocks() * 512 >= 4 << 20, "{metadata:?}");
}

#[test]
fn case_48_a_path_that_cannot_be_written_blocks_nothing() {
    let scratch = Scratch::new();
    fs::write(scratch.directory.path().join("log"), "a file where the directory should be").unwrap();
    let mut log = scratch.open(1 << 20);
    assert!(log.problem().unwrap().contains("log/audit.jsonl"), "{:?}", log.problem());
    assert_eq!((stop(&mut log), stop(&mut log)), (1, 2), "ids grow all the same");
    assert_eq!(log.failures(), 2);
    fs::rename(scratch.directory.path().join("log"), scratch.directory.path().join("away")).unwrap();
    assert_eq!(stop(&mut log), 3);
    assert_eq!((log.problem(), scratch.ids()), (None, vec![3]), "taken up again as soon as it can be");
}

#[test]
fn a_guard_that_is_stopped_while_it_writes_stops_no_other() {
    let scratch = Scratch::new();
    let mut log = scratch.open(1 << 20);
    stop(&mut log);
    let stopped = fs::File::open(scratch.path()).unwrap();
    stopped.lock().unwrap();
    assert_eq!(stop(&mut log), 2);
    assert_eq!(log.failures(), 1);
    stopped.unlock().unwrap();
    assert_eq!(stop(&mut log), 3);
    assert_eq!(scratch.ids(), [1, 3]);
}

#[test]
fn what_the_thread_writes_stands_in_order_and_its_ids_continue() {
    let scratch = Scratch::new();
    let settings = || AuditSettings { path: scratch.path(), max_size: Bytes(1 << 20), keep: 3 };
    let now = || "2026-01-01T00:00:00Z".parse().unwrap();
    stop(&mut scratch.open(1 << 20));
    for _ in 0..2 {
        let log = AuditWriter::open(settings(), now, || {});
        (0..50).for_each(|_| log.record(&Event::Stop { reason: "test" }));
        assert!(log.flush(Duration::from_secs(10)));
        assert_eq!((log.failures(), log.panics()), (0, 0));
    }
    assert_eq!(scratch.ids(), (1..=101).collect::<Vec<_>>());
    assert_eq!(verify(&scratch.path()).unwrap(), (101, vec![]));
}

#[test]
fn a_log_that_cannot_be_written_is_counted_by_the_thread_too() {
    let scratch = Scratch::new();
    fs::write(scratch.directory.path().join("log"), "a file where the directory should be").unwrap();
    let settings = AuditSettings { path: scratch.path(), max_size: Bytes(1 << 20), keep: 3 };
    let log = AuditWriter::open(settings, || "2026-01-01T00:00:00Z".parse().unwrap(), || {});
    (0..3).for_each(|_| log.record(&Event::Stop { reason: "test" }));
    assert!(log.flush(Duration::from_secs(10)));
    assert_eq!(log.failures(), 3);
}
