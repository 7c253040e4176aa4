//! `scan`: finding out what lies in a directory: at the start, again, and after a change; beside find(1).

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use guard::model::Bytes;
use guard::observe::archive::{Limits, read};
use guard::observe::catalog::{Catalog, Holds, Reading};
use guard::observe::scan::open_file;
use tests::footprint::write_small;

use crate::Options;
use crate::document::Section;
use crate::scene::Scene;
use crate::table::Table;
use tests::statistics::{Times, ratio};

pub(crate) fn run(options: &Options) -> Result<Section> {
    let counts: &[u64] = if options.quick { &[1_000, 10_000] } else { &[1_000, 10_000, 100_000] };
    let mut table =
        Table::new(["archives", "find -printf", "guard: entries", "ratio", "and what each says", "ratio"]);
    let mut worst_cold: f64 = 0.0;
    for &count in counts {
        eprintln!("{count} archives");
        let inodes = u32::try_from(count)? + 10_000;
        let disk = Bytes::mib(256) + Bytes(count * (16 << 10));
        let scene = Scene::with_inodes(disk, inodes, Bytes::mib(16), Bytes::mib(1))?;
        let directory = scene.directory();
        for number in 0..count {
            write_small(&directory, number)?;
        }
        nix::unistd::sync();
        let times = options.times(if count > 10_000 { 5 } else { 11 }, 3);
        let (mut find, mut entries, mut contents) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..times {
            forget()?;
            find.push(time(|| find_all(&directory))?);
            forget()?;
            let (scanned, read) = cold(&directory, count)?;
            entries.push(scanned);
            contents.push(scanned + read);
        }
        let [find, entries, contents] = [find, entries, contents].map(Times::new);
        if let (Some(ours), Some(theirs)) = (entries.median(), find.median()) {
            worst_cold = worst_cold.max(ours.as_secs_f64() / theirs.as_secs_f64());
        }
        row(&mut table, format!("{count}, cold"), &find, &entries, Some(&contents));
        let (mut find, mut again, mut changed) = (Vec::new(), Vec::new(), Vec::new());
        let mut catalog = filled(&directory)?;
        for turn in 0..times as u64 {
            find.push(time(|| find_all(&directory))?);
            let file = File::open(&directory)?;
            again.push(time(|| scanned(&mut catalog, &file, 0))?);
            touch(&directory, turn % count)?;
            changed.push(time(|| {
                scanned(&mut catalog, &file, 1)?;
                ensure!(read_wanted(&mut catalog, &file)? == 1, "one has changed, so one is read");
                Ok(())
            })?);
        }
        let [find, again, changed] = [find, again, changed].map(Times::new);
        row(&mut table, format!("{count}, again"), &find, &again, None);
        row(&mut table, format!("{count}, one changed"), &find, &changed, Some(&changed));
    }
    let mut section = Section::new("Scan: what lies in a directory");
    section.say(
        "ext4 on a loop device, small archives of CRI-O's kind. Cold: the kernel's caches were dropped before. The guard lists the \
         entries (name, inode, sizes, times, whether anybody has one open), and then reads what each says of itself, which is \
         remembered by inode, size and mtime. find prints path, size, mtime and blocks to /dev/null.",
    );
    section.show(&table);
    section.say(format!(
        "Goal: entries cold in at most 2 × find; here {worst_cold:.2} × at most: {}.",
        if worst_cold <= 2.0 { "met" } else { "not met" }
    ));
    Ok(section)
}

fn row(table: &mut Table, what: String, find: &Times, entries: &Times, contents: Option<&Times>) {
    table.row([
        what,
        find.tell(),
        entries.tell(),
        ratio(entries.median(), find.median()),
        contents.map_or("nothing to read".to_owned(), Times::tell),
        contents.map_or("-".to_owned(), |contents| ratio(contents.median(), find.median())),
    ]);
}

#[expect(clippy::disallowed_methods, reason = "measuring time is what this is for")]
fn time(what: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    what()?;
    Ok(began.elapsed())
}

/// drop_caches in proc_sys_vm(5): pages, names and inodes.
fn forget() -> Result<()> {
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the caches")
}

fn find_all(directory: &Path) -> Result<()> {
    let mut find = Command::new("find");
    find.arg(directory).args(["-printf", "%p %s %T@ %b\\n"]).stdout(Stdio::null());
    ensure!(find.status().context("find does not start")?.success(), "find failed");
    Ok(())
}

/// Listing, and reading all.
fn cold(directory: &Path, count: u64) -> Result<(Duration, Duration)> {
    let mut catalog = Catalog::new(vec![directory.to_owned()]);
    let file = File::open(directory)?;
    let listed = time(|| scanned(&mut catalog, &file, count))?;
    let read = time(|| {
        let read = read_wanted(&mut catalog, &file)?;
        ensure!(read == count, "{read} of {count} were read");
        Ok(())
    })?;
    Ok((listed, read))
}

fn filled(directory: &Path) -> Result<Catalog> {
    let mut catalog = Catalog::new(vec![directory.to_owned()]);
    let file = File::open(directory)?;
    catalog.scan(0, file.as_fd(), Holds::Archives)?;
    read_wanted(&mut catalog, &file)?;
    Ok(catalog)
}

fn scanned(catalog: &mut Catalog, directory: &File, expect: u64) -> Result<()> {
    let changed = catalog.scan(0, directory.as_fd(), Holds::Archives)?.changed as u64;
    ensure!(changed == expect, "{changed} had changed, not {expect}");
    Ok(())
}

/// How many were read.
fn read_wanted(catalog: &mut Catalog, directory: &File) -> Result<u64> {
    let mut count = 0;
    loop {
        let wanted = catalog.wanted(64);
        if wanted.is_empty() {
            return Ok(count);
        }
        for request in wanted {
            let file = open_file(directory.as_fd(), &request.name)?;
            let contents = read(&file, &Limits::default())?;
            catalog.answer((request, Reading::Contents(Box::new(contents))));
            count += 1;
        }
    }
}

/// Makes one archive longer by the zeros that a tar may end in.
fn touch(directory: &Path, number: u64) -> Result<()> {
    let entry = std::fs::read_dir(directory)?.nth(usize::try_from(number)?).context("there are more")??;
    OpenOptions::new().append(true).open(entry.path())?.write_all(&[0; 512])?;
    Ok(())
}
