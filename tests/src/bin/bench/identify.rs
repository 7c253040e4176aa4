//! `identify`: whose checkpoint is it? From the headers of the archive, beside what checkpointctl takes.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use guard::model::{Bytes, Owner};
use guard::observe::archive::{Limits, identify, read};
use jiff::Timestamp;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::time::{ClockId, clock_gettime};
use tests::archives::Archive;

use crate::Options;
use crate::document::Section;
use crate::table::Table;
use tests::statistics::{Times, middle, ratio, show};

pub(crate) fn run(options: &Options) -> Result<Section> {
    let scratch = tempfile::Builder::new().prefix("checkpoint-guard-identify-").tempdir()?;
    let checkpointctl = Checkpointctl::find();
    let (warm_times, cold_times) = (options.times(201, 51), options.times(51, 21));
    let mut table = Table::new(["archive", "bytes read", "warm", "cold", "checkpointctl, warm", "ratio"]);
    let mut met = None;
    for (name, archive, packing) in archives() {
        eprintln!("{name}");
        let path = write(scratch.path(), &archive, packing)?;
        let mut cold = Vec::new();
        let mut warm = Vec::new();
        let mut bytes = Vec::new();
        for number in 0..warm_times.max(cold_times) {
            if number < cold_times {
                forget(&path)?;
                cold.push(look(&path)?.0);
            }
            let (took, read) = look(&path)?;
            warm.push(took);
            bytes.push(read);
        }
        let (warm, cold) = (Times::new(warm), Times::new(cold));
        let theirs = match &checkpointctl {
            Some(it) => it.measure(&path, options.times(5, 3))?,
            None => Times::default(),
        };
        let bytes = middle(bytes).unwrap_or_default();
        if archive.size == 5 << 30 {
            let in_time =
                |times: &Times| times.median().is_some_and(|median| median <= Duration::from_millis(2));
            let is_met = in_time(&warm) && in_time(&cold) && bytes <= 128 << 10;
            met = Some(met.unwrap_or(true) && is_met);
        }
        table.row([
            name.to_owned(),
            Bytes(bytes).to_string(),
            warm.tell(),
            cold.tell(),
            show(theirs.median()),
            ratio(theirs.median(), warm.median()),
        ]);
    }
    let mut section = Section::new("Identify: whose checkpoint an archive is");
    section.say(
        "Opened, read, identified, and checked against what was written. Plain archives have a hole where the memory \
         pages are; those are never read. Of a packed one, at most 256 KiB are unpacked: podman, which alone packs, has \
         its names in front. Cold: the file's pages were dropped from the cache before \
         (`posix_fadvise(2)`), directory and inode were not.",
    );
    section.show(&table);
    section.say(match &checkpointctl {
        Some(it) => format!("Beside it: {}, `checkpointctl show`.", it.version),
        None => "checkpointctl is not installed here, so its column is empty.".to_owned(),
    });
    let verdict = if met == Some(true) { "met" } else { "missed" };
    section.say(format!("Goal for 5 GiB: at most 2 ms, warm and cold, and 128 KiB read: {verdict}."));
    hostile(options, &mut section)?;
    Ok(section)
}

/// What archives cost that were made to cost much.
fn hostile(options: &Options, section: &mut Section) -> Result<()> {
    const GOAL: Duration = Duration::from_millis(50);
    let mut table = Table::new(["hostile archive", "size", "bytes read", "CPU time"]);
    let mut worst = Duration::ZERO;
    for hostile in tests::hostile::all() {
        let mut file = tempfile::tempfile()?;
        file.write_all(&hostile.bytes)?;
        let mut times = Vec::new();
        let mut bytes = 0;
        for _ in 0..options.times(21, 5) {
            let began: Duration = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into();
            bytes = read(&file, &Limits::DEFAULT)?.bytes_read;
            let ended: Duration = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into();
            times.push(ended - began);
        }
        worst = worst.max(times.iter().copied().min().unwrap_or_default());
        table.row([
            hostile.what.to_owned(),
            Bytes(hostile.bytes.len() as u64).to_string(),
            Bytes(bytes).to_string(),
            Times::new(times).tell(),
        ]);
    }
    section.say(
        "Archives made to cost as much as they can. CPU time of the thread that reads: it waits for nobody.",
    );
    section.show(&table);
    let verdict = if worst <= GOAL { "met" } else { "missed" };
    section.say(format!(
        "Goal for each: at most 50 ms: {verdict}. A test measures their memory: at most 16 MiB."
    ));
    Ok(())
}

/// What is put around the tar.
#[derive(Clone, Copy, Debug)]
enum Packing {
    Plain,
    Zstd,
}

fn archives() -> [(&'static str, Archive, Packing); 5] {
    let at: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let of = |size| Archive::new("team", "web-0", "main", at, size);
    [
        ("128 KiB, zstd", of(128 << 10), Packing::Zstd),
        ("1 MiB, plain", of(1 << 20), Packing::Plain),
        ("1 GiB, plain", of(1 << 30), Packing::Plain),
        ("5 GiB, plain, CRI-O", of(5 << 30), Packing::Plain),
        ("5 GiB, plain, containerd", of(5 << 30).containerd(), Packing::Plain),
    ]
}

fn write(directory: &Path, archive: &Archive, packing: Packing) -> Result<PathBuf> {
    let path = directory.join(format!("{:?}-{}-{packing:?}.tar", archive.engine, archive.size));
    let mut file = File::create(&path)?;
    match packing {
        Packing::Plain => drop(archive.write_sparse(&file)?),
        Packing::Zstd => {
            let mut content = Vec::new();
            archive.write_to(&mut content)?;
            file.write_all(&zstd::encode_all(content.as_slice(), 3)?)?;
        }
    }
    // Only clean pages can be dropped.
    file.sync_all()?;
    Ok(path)
}

fn forget(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    posix_fadvise(file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
        .context("cannot drop the cache")
}

/// Time and bytes.
#[expect(clippy::disallowed_methods, reason = "measuring time is what this is for")]
fn look(path: &Path) -> Result<(Duration, u64)> {
    let began = Instant::now();
    let file = File::open(path)?;
    let contents = read(&file, &Limits::DEFAULT)?;
    let (identity, _) = identify(None, Some(&contents));
    let took = began.elapsed();
    ensure!(identity.owner == Owner::new("team", "web-0", "main"), "{}: {identity:?}", path.display());
    Ok((took, contents.bytes_read))
}

/// The tool that people use for this by hand.
struct Checkpointctl {
    version: String,
}

impl Checkpointctl {
    fn find() -> Option<Checkpointctl> {
        let output = Command::new("checkpointctl").arg("--version").output().ok()?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Some(Checkpointctl { version })
    }

    #[expect(clippy::disallowed_methods, reason = "measuring time is what this is for")]
    fn measure(&self, path: &Path, times: usize) -> Result<Times> {
        let run = |_| {
            let began = Instant::now();
            let status = Command::new("checkpointctl")
                .arg("show")
                .arg(path)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .context("checkpointctl does not start")?;
            ensure!(status.success(), "checkpointctl show {} ended with {status}", path.display());
            Ok(began.elapsed())
        };
        Ok(Times::new((0..times).map(run).collect::<Result<_>>()?))
    }
}
