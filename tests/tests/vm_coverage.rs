//! What each backend counts of each way of writing, on each filesystem: the truth behind the table of docs/KERNEL.md.
//! Root only. `UPDATE_DOCS=1` takes what this kernel shows, `cargo xtask vm-test --bless` what the others do.

use std::rc::Rc;

use guard::model::Bytes;
use guard::observe::probe::{Backend, Coverage, survey_of};
use tests::coverage::{Row, TRIALS, directory, series};
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
                rows.push(Row::find_out(backend.as_str(), filesystem.as_str(), &watching));
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
        Ok(expect) => assert_eq!(text, expect, "columns: {:?}", TRIALS.map(|(name, _)| name)),
        Err(error) => println!(
            "SKIPPED comparing: nobody has looked at kernel {release} yet ({}: {error}); UPDATE_DOCS=1, or \
             `cargo xtask vm-test --bless`, records what was found",
            file.display()
        ),
    }
}
