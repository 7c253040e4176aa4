//! What each backend counts of each way of writing, on each filesystem: the truth behind the table of docs/KERNEL.md.
//! Root only. `UPDATE_DOCS=1` takes what this kernel shows, `cargo xtask vm-test --bless` what the others do.

use std::rc::Rc;

use guard::model::Bytes;
use guard::observe::probe::{Backend, Coverage, Writing, Writings, survey_of};
use tests::coverage::{Row, Seen, TRIALS, directory, series};
use tests::loopfs::{Filesystem, LoopMount};
use tests::watching::Watching;

fn rows() -> Vec<Row> {
    let filesystems =
        [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs, Filesystem::Tmpfs, Filesystem::Overlay];
    let mut rows = Vec::new();
    for filesystem in filesystems.into_iter().filter(|it| it.is_known()) {
        let mount = Rc::new(LoopMount::new(filesystem, Bytes::mib(320)));
        for backend in [Backend::Fexit, Backend::Kprobe, Backend::RawTracepoint] {
            let Some(watching) = Watching::through(backend, mount.clone()) else { continue };
            if watching.coverage != Coverage::Nothing {
                let row = Row::find_out(backend.as_str(), filesystem.as_str(), &watching);
                says_what_it_does_not_see(filesystem, &row, watching.coverage);
                rows.push(row);
                continue;
            }
            // Not in the table, so that somebody looks why.
            let attempts = survey_of(watching.directory());
            let attempt = attempts.iter().find(|attempt| attempt.backend == backend);
            println!("nothing on {} through {backend}: {attempt:?}", filesystem.as_str());
        }
    }
    rows
}

/// Which trial shows whether this way of writing is seen; libaio has none.
fn trial(writing: Writing) -> Option<&'static str> {
    Some(match writing {
        Writing::Vector => "writev",
        Writing::Splice => "splice",
        Writing::Allocation => "fallocate",
        Writing::Mapping => "mmap",
        Writing::Direct => "O_DIRECT",
        Writing::IoUring => "io_uring",
        Writing::Aio => return None,
    })
}

/// What the guard says of its own blindness is what was found.
fn says_what_it_does_not_see(filesystem: Filesystem, row: &Row, coverage: Coverage) {
    assert_eq!(coverage.lacking(), Writings::NONE, "this kernel has all hooks: {row}, {coverage}");
    for writing in Writing::ALL {
        let Some(trial) = trial(writing) else { continue };
        let column = TRIALS.iter().position(|(name, _)| *name == trial).expect("it is a trial");
        if row.seen[column] != Seen::Impossible {
            let is_unseen = row.seen[column] == Seen::NotAtAll;
            assert_eq!(
                coverage.unseen().contains(writing),
                is_unseen,
                "{trial} on {filesystem:?}: {row}, {coverage}"
            );
        }
    }
}

/// The rows as a file has them, where what was found does not contradict `record`: how many pages one fault on a mapping makes
/// writable is the kernel's to choose (large folios), so that what was once counted inexactly may look exact.
fn as_recorded(rows: &[Row], record: &str) -> String {
    let mmap = TRIALS.iter().position(|(name, _)| *name == "mmap").expect("it is a trial");
    let recorded: Vec<Row> = record.lines().filter_map(Row::parse).collect();
    let row = |row: &Row| {
        let mut row = row.clone();
        let same = |it: &&Row| (&it.backend, &it.filesystem) == (&row.backend, &row.filesystem);
        let before = recorded.iter().find(same).map(|it| it.seen[mmap]);
        if (before, row.seen[mmap]) == (Some(Seen::Inexactly), Seen::Exactly) {
            row.seen[mmap] = Seen::Inexactly;
        }
        format!("{row}\n")
    };
    rows.iter().map(row).collect()
}

#[test]
fn the_table_of_coverage_is_true_of_this_kernel() {
    let release = nix::sys::utsname::uname().unwrap().release().to_string_lossy().into_owned();
    let file = directory().join(format!("{}.tsv", series(&release)));
    let rows = rows();
    for row in &rows {
        println!("COVERAGE\t{row}");
    }
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(directory()).unwrap();
        std::fs::write(&file, &text).unwrap();
    }
    // Whatever the kernel: a write of whole pages is what everything counts exactly.
    assert_eq!(TRIALS[0].0, "write");
    for row in &rows {
        assert_eq!(row.seen[0].as_str(), "exact", "{row}");
    }
    match std::fs::read_to_string(&file) {
        Ok(expect) => {
            assert_eq!(as_recorded(&rows, &expect), expect, "columns: {:?}", TRIALS.map(|(name, _)| name))
        }
        Err(error) => println!(
            "SKIPPED comparing: nobody has looked at kernel {release} yet ({}: {error}); UPDATE_DOCS=1, or \
             `cargo xtask vm-test --bless`, records what was found",
            file.display()
        ),
    }
}
