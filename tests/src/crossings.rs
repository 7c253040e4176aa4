//! One crossing of the hard threshold after the other, each timed from outside.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::archives::Archive;
use crate::sampler::request_realtime;
use anyhow::{Context, Result, ensure};
use guard::model::Bytes;
use jiff::{SignedDuration, Timestamp};
use nix::sys::statvfs::statvfs;

const ARCHIVE: Bytes = Bytes::mib(16);
/// What is left above hard before the writes that cross: more than the smallest budget that the guard arms (1 MiB).
const BRINK: Bytes = Bytes::mib(2);
/// So much goes on being written below hard: old kernels (5.10, 6.1) give back some of what a write has reserved, and a look after
/// that shows more than hard again.
const BEYOND: Bytes = Bytes::mib(6);
/// At the brink everybody comes to rest.
const REST: Duration = Duration::from_millis(60);
/// Space that has not changed for so long has all come back.
const SETTLED: Duration = Duration::from_millis(40);
const PIECE: usize = 64 << 10;
/// Between two pieces: from 400 MB/s on the guard acts ahead of hard, and then no outsider can tell which write it was.
const PACE: Duration = Duration::from_micros(300);
/// Between two looks from outside.
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// A directory that is kept at the brink.
#[derive(Debug)]
pub struct Crossings {
    /// The checkpoint directory.
    directory: PathBuf,
    hard: Bytes,
    /// Oldest first.
    archives: VecDeque<PathBuf>,
    began: Timestamp,
    number: i64,
}

impl Crossings {
    /// Fills the filesystem with archives of one container until another one would cross.
    #[expect(clippy::disallowed_methods, reason = "archives are dated, and one too many is taken back")]
    pub fn prepare(directory: &Path, hard: Bytes) -> Result<Crossings> {
        let began = Timestamp::now() - SignedDuration::from_hours(1500);
        let mut this =
            Crossings { directory: directory.to_owned(), hard, archives: VecDeque::new(), began, number: 0 };
        while this.available()? >= hard + ARCHIVE + BRINK {
            let path = this.archive(ARCHIVE).write_in(directory)?;
            this.archives.push_back(path);
        }
        // The first crossing needs room for itself.
        while this.available()? < hard + BRINK + BRINK {
            let oldest = this.archives.pop_front().context("the filesystem is too small")?;
            std::fs::remove_file(oldest)?;
        }
        Ok(this)
    }

    /// `f_bavail × f_frsize`, what the kubelet compares.
    fn available(&self) -> io::Result<Bytes> {
        let stat = statvfs(&self.directory)?;
        Ok(Bytes(stat.blocks_available() * stat.fragment_size()))
    }

    fn archive(&mut self, size: Bytes) -> Archive {
        self.number += 1;
        // Further apart than `age-bucket`, so that the guard too takes the oldest first.
        let at = self.began + SignedDuration::from_hours(self.number * 2);
        Archive::new("team", "web-0", "main", at, size.0)
    }

    /// The next crossing: from before the write(2) that crosses until the oldest archive's name is gone.
    pub fn next(&mut self, limit: Duration) -> Result<Duration> {
        self.next_against(limit, || Ok(()))
    }

    /// The same with somebody who `starts` right before and ends with it.
    pub fn next_against<T>(
        &mut self,
        limit: Duration,
        starts: impl FnOnce() -> Result<T>,
    ) -> Result<Duration> {
        let hard = self.hard;
        let mut archive = self.go_to_brink()?;
        let victim = self.archives.front().context("no archive is left")?.clone();
        let opponent = starts()?;
        ensure!(victim.exists(), "{} went before the threshold was crossed", victim.display());
        let watch = Watch::start(&victim, limit)?;
        let (mut crossed_at, mut last) = (None, None);
        while watch.gone_at.get().is_none() && !archive.is_whole() {
            let before = now();
            last = Some(before);
            archive.write(PIECE)?;
            // More than before: the guard was faster than this thread came back to look. That is the same write, for
            // nothing is deleted before a look has shown less than hard.
            let seen = self.available()?;
            if seen < hard || seen > hard + BRINK + BRINK {
                crossed_at.get_or_insert(before);
            }
            // Writing goes on: what the filesystem takes for itself no budget knows, so that it may be used up later.
            std::thread::sleep(PACE);
        }
        // Space comes back in steps: some of it may be there at the look, and not enough to tell.
        let crossed_at = crossed_at.or(last.filter(|_| watch.gone_at.get().is_some()));
        let crossed_at = crossed_at.context("the archive ended before the threshold")?;
        let gone_at = watch.wait()?;
        drop(opponent);
        archive.write(usize::MAX)?;
        drop(archive.file);
        self.archives.pop_front();
        self.archives.push_back(archive.path);
        self.wait_for_space()?;
        gone_at
            .checked_duration_since(crossed_at)
            .context("the archive went before the threshold was crossed")
    }

    /// Begins an archive that is going to cross, and writes of it what can be written without.
    ///
    /// Space that comes back late (ext4 of Linux 5.10 gives up reserved blocks at writeback) may make it too short, and space
    /// that goes unasked may have a guard act before: then it is as good as any other, and the next one follows.
    #[expect(clippy::disallowed_methods, reason = "makes room as whoever needs some")]
    fn go_to_brink(&mut self) -> Result<Unfinished> {
        loop {
            let room = self.available()?.saturating_sub(self.hard);
            if room <= BRINK + BRINK {
                let oldest = self.archives.pop_front().context("no archive is left")?;
                std::fs::remove_file(oldest)?;
                self.wait_for_space()?;
                continue;
            }
            let archive = self.archive(room + BEYOND);
            let mut archive = Unfinished::create(&archive, &self.directory)?;
            while self.available()? > self.hard + BRINK && !archive.is_whole() {
                archive.write(1 << 19)?;
                // Slowly enough for nobody to act ahead.
                std::thread::sleep(Duration::from_millis(3));
            }
            std::thread::sleep(REST);
            let is_there = |path: &PathBuf| path.symlink_metadata().is_ok();
            if !archive.is_whole() && self.archives.front().is_some_and(is_there) {
                return Ok(archive);
            }
            archive.write(usize::MAX)?;
            self.archives.push_back(archive.path);
            self.archives.retain(is_there);
            self.wait_for_space()?;
        }
    }

    /// The name goes first, its blocks after it.
    fn wait_for_space(&self) -> Result<()> {
        let began = now();
        while self.available()? < self.hard + BRINK + BRINK {
            ensure!(began.elapsed() < Duration::from_secs(5), "space does not come back");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut before = Bytes::ZERO;
        while std::mem::replace(&mut before, self.available()?) != before {
            std::thread::sleep(SETTLED);
        }
        Ok(())
    }
}

/// An archive that is being written.
#[derive(Debug)]
struct Unfinished {
    path: PathBuf,
    file: File,
    content: Vec<u8>,
    written: usize,
}

impl Unfinished {
    fn create(archive: &Archive, directory: &Path) -> Result<Unfinished> {
        let mut content = Vec::with_capacity(archive.size as usize);
        archive.write_to(&mut content)?;
        let path = directory.join(archive.kubelet_name());
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok(Unfinished { path, file, content, written: 0 })
    }

    fn is_whole(&self) -> bool {
        self.written == self.content.len()
    }

    /// Writes so many bytes more, or what is left.
    fn write(&mut self, bytes: usize) -> io::Result<()> {
        let rest = &self.content[self.written..];
        let now = &rest[..rest.len().min(bytes)];
        self.file.write_all(now)?;
        self.written += now.len();
        Ok(())
    }
}

/// A thread that looks for a name until it is gone.
struct Watch {
    gone_at: Arc<OnceLock<Instant>>,
    thread: JoinHandle<()>,
    victim: PathBuf,
}

impl Watch {
    fn start(victim: &Path, limit: Duration) -> Result<Watch> {
        let victim = victim.to_owned();
        let gone_at = Arc::new(OnceLock::new());
        let (path, tell, began) = (victim.clone(), gone_at.clone(), now());
        let look = move || {
            // Whoever is busy on this machine must not delay the look. Not allowed: then it may be late.
            request_realtime();
            while path.symlink_metadata().is_ok() {
                if began.elapsed() > limit {
                    return;
                }
                std::thread::sleep(LOOK_EVERY);
            }
            tell.get_or_init(now);
        };
        let thread = std::thread::Builder::new().name("watch".to_owned()).spawn(look)?;
        Ok(Watch { gone_at, thread, victim })
    }

    fn wait(self) -> Result<Instant> {
        ensure!(self.thread.join().is_ok(), "the thread that looks panicked");
        self.gone_at.get().copied().with_context(|| format!("{} is still there", self.victim.display()))
    }
}

/// `CLOCK_MONOTONIC`, as the kernel's `bpf_ktime_get_ns`.
#[expect(clippy::disallowed_methods, reason = "measuring time is what this is for")]
fn now() -> Instant {
    Instant::now()
}
