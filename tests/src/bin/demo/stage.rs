//! The play: a disk, a guard, a storm, and what became of it.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use guard::model::Bytes;
use jiff::Timestamp;
use tests::daemon::Daemon;
use tests::loopfs::{Filesystem, LoopMount};
use tests::sampler::Sampler;
use tests::storm::{self, Method, Storm, Until};

use crate::audit::{AuditLog, Deleted};
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
    // What the build has left dirty on the disk below is not part of what is shown.
    nix::unistd::sync();
    let disk = LoopMount::with_options(filesystem, DISK, &[], "")?;
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
    let guard = match options.without_guard {
        true => None,
        false => Some(Daemon::start(&directory, &scene::settings())?),
    };
    Act { options, directory: &directory, keepsakes }.perform(guard)
}

struct Act<'a> {
    options: &'a Options,
    directory: &'a Path,
    keepsakes: Vec<Keepsake>,
}

impl Act<'_> {
    fn perform(self, mut guard: Option<Daemon>) -> Result<Summary> {
        let capacity = capacity(self.directory)?;
        let sampler = Sampler::start(self.directory, Duration::from_millis(1))?;
        let storm = Storm::start(self.storm());
        let mut audit = guard.as_ref().map(|guard| AuditLog::follow(&guard.audit_log()));
        let mut picture = Picture::new(capacity, Duration::from_secs(self.options.seconds));
        let mut deletions: Vec<Deleted> = Vec::new();
        loop {
            let last = storm.is_over() || INTERRUPTED.load(Ordering::Relaxed);
            let fresh = match &mut audit {
                Some(audit) => audit.deletions().context("cannot follow the audit log")?,
                None => Vec::new(),
            };
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
        let ended = now();
        if guard.is_some() {
            std::thread::sleep(AFTERMATH);
        }
        let samples = sampler.stop();
        let survivors = scene::census(self.directory)?;
        let guarded = match (guard, audit) {
            (Some(mut guard), Some(mut audit)) => {
                let metrics = guard.metrics_after(ended)?;
                let ended_in = guard.terminate()?;
                deletions.extend(audit.deletions().context("cannot follow the audit log")?);
                Some(Guarded { deletions, metrics, log: guard.log(), ended_in })
            }
            _ => None,
        };
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

#[expect(clippy::disallowed_methods, reason = "archives are dated, and the guard's last look is waited for")]
fn now() -> Timestamp {
    Timestamp::now()
}
