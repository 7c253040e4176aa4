//! The play: a disk, a guard, a storm, and what became of it.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use guard::model::Bytes;
use jiff::Timestamp;
use tests::http::free_address;
use tests::loopfs::{Filesystem, LoopMount};
use tests::sampler::Sampler;
use tests::storm::{self, Method, Storm, Until};

use crate::audit::{AuditLog, Deleted};
use crate::guard_process::GuardProcess;
use crate::picture::{Frame, Picture};
use crate::scene::{self, Keepsake};
use crate::summary::{Guarded, Summary};
use crate::{DISK, INTERRUPTED, Options};

/// Ten pictures a second are as many as an eye follows.
const FRAME: Duration = Duration::from_millis(100);

/// After the last write the guard may still be on its way to the target.
const AFTERMATH: Duration = Duration::from_millis(1500);

/// Performs the demo, showing it as it goes. Everything it made is gone when this returns.
pub(crate) fn play(options: &Options) -> Result<Summary> {
    let filesystem = Filesystem::from(options.filesystem);
    let disk = LoopMount::with_options(filesystem, DISK, &[], "")?;
    let scratch = tempfile::Builder::new().prefix("checkpoint-guard-demo-").tempdir()?;
    let directory = disk.path().join("checkpoints");
    std::fs::create_dir(&directory)?;
    let keepsakes = scene::keepsakes(&directory, now())?;
    let _in_use = scene::hold_open(&keepsakes)?;
    println!(
        "{} of {DISK} at {}; {} s of {} writers{}; {}",
        filesystem.as_str(),
        directory.display(),
        options.seconds,
        options.writers,
        if options.without_guard { ", and nobody guards it" } else { "" },
        machine()
    );
    let guard =
        if options.without_guard { None } else { Some(start_guard(options, &directory, scratch.path())?) };
    let act = Act { options, directory: &directory, keepsakes, audit: scratch.path().join("audit.jsonl") };
    act.perform(guard)
}

fn start_guard(options: &Options, directory: &Path, scratch: &Path) -> Result<GuardProcess> {
    let binary = match &options.guard {
        Some(binary) => binary.clone(),
        None => std::env::current_exe()?.with_file_name("checkpoint-guard"),
    };
    let http = free_address()?;
    let config = scratch.join("guard.toml");
    std::fs::write(&config, scene::configuration(directory, &scratch.join("audit.jsonl"), http))?;
    GuardProcess::start(&binary, &config, http, &scratch.join("guard.log"))
}

struct Act<'a> {
    options: &'a Options,
    directory: &'a Path,
    keepsakes: Vec<Keepsake>,
    audit: PathBuf,
}

impl Act<'_> {
    fn perform(self, mut guard: Option<GuardProcess>) -> Result<Summary> {
        let capacity = capacity(self.directory)?;
        let sampler = Sampler::start(self.directory, Duration::from_millis(1))?;
        let storm = Storm::start(self.storm());
        let mut audit = AuditLog::follow(&self.audit);
        let mut picture = Picture::new(capacity, Duration::from_secs(self.options.seconds));
        let mut deletions: Vec<Deleted> = Vec::new();
        loop {
            let last = storm.is_over() || INTERRUPTED.load(Ordering::Relaxed);
            let fresh = audit.deletions().context("cannot follow the audit log")?;
            deletions.extend(fresh.iter().cloned());
            let low = sampler.take_low();
            let frame = Frame { low, totals: storm.totals(), fresh: &fresh, deletions: deletions.len() };
            picture.show(&frame, last);
            if last {
                break;
            }
            if let Some(guard) = &mut guard {
                guard.check_running()?;
            }
            std::thread::sleep(FRAME);
        }
        storm.stop();
        let totals = storm.join();
        if guard.is_some() {
            std::thread::sleep(AFTERMATH);
        }
        let samples = sampler.stop();
        let survivors = scene::census(self.directory)?;
        let guarded = guard
            .map(|guard| -> Result<Guarded> {
                let (metrics, log) = (guard.metrics()?, guard.log_text());
                let ended_in = guard.stop()?;
                deletions.extend(audit.deletions().context("cannot follow the audit log")?);
                Ok(Guarded { deletions, metrics, log, ended_in })
            })
            .transpose()?;
        let lost = self.keepsakes.iter().filter(|keepsake| !keepsake.survived());
        Ok(Summary {
            capacity,
            samples,
            totals,
            survivors,
            kept: self.keepsakes.len(),
            lost: lost.map(|keepsake| keepsake.why).collect(),
            guarded,
        })
    }

    fn storm(&self) -> storm::Options {
        storm::Options {
            directory: self.directory.to_owned(),
            writers: self.options.writers,
            size: (Bytes::mib(16), Bytes::mib(64)),
            namespaces: scene::STORM_NAMESPACES.iter().map(|(name, _)| (*name).to_owned()).collect(),
            pods: 2,
            method: Method::Write,
            first_age: Duration::from_secs(3 * 3600),
            until: Until {
                time: Some(Duration::from_secs(self.options.seconds)),
                // Without a guard there is nothing to wait for once the disk is full.
                full: self.options.without_guard,
                ..Until::default()
            },
        }
    }
}

/// What the numbers were measured on.
fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("{cpus} CPUs with a load of {} beforehand", load.split(' ').next().unwrap_or("?"))
}

fn capacity(directory: &Path) -> Result<Bytes> {
    let stat = nix::sys::statvfs::statvfs(directory)?;
    Ok(Bytes(stat.blocks() * stat.fragment_size()))
}

#[expect(clippy::disallowed_methods, reason = "the archives that lie there beforehand are dated")]
fn now() -> Timestamp {
    Timestamp::now()
}
