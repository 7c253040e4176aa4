//! [`Sampler`]: how much space was available, every millisecond, whatever else the machine did.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use guard::model::Bytes;
use guard::observe::filesystem::observe;
use nix::sys::statvfs::fstatvfs;

/// Available space at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Since the sampler started.
    pub at: Duration,
    /// `f_bavail × f_frsize`.
    pub available: Bytes,
}

/// What a sampler saw.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// In order of time. Samples equal to the one before and to the one after are left out.
    pub samples: Vec<Sample>,
    /// The least available.
    pub lowest: Option<Sample>,
    /// The longest time between two looks: what happened in between was not seen.
    pub longest_gap: Duration,
    /// Looks taken.
    pub looks: u64,
    /// Whether the thread ran with a real-time priority.
    pub realtime: bool,
    /// The least available since the last [`Sampler::take_low`].
    pub recent_low: Option<Bytes>,
}

impl Samples {
    fn add(&mut self, sample: Sample, last_look: &mut Option<Duration>) {
        self.looks += 1;
        if let Some(last) = last_look.replace(sample.at) {
            self.longest_gap = self.longest_gap.max(sample.at.saturating_sub(last));
        }
        self.recent_low = Some(self.recent_low.map_or(sample.available, |low| low.min(sample.available)));
        if self.lowest.is_none_or(|lowest| sample.available < lowest.available) {
            self.lowest = Some(sample);
        }
        if let [.., before, last] = self.samples.as_mut_slice()
            && before.available == last.available
            && last.available == sample.available
        {
            *last = sample;
            return;
        }
        self.samples.push(sample);
    }
}

/// Looks at a filesystem with statvfs from a thread of its own until it is stopped.
///
/// The thread asks for SCHED_FIFO, since CPU hogs would otherwise hide what happens during their time slices.
#[derive(Debug)]
pub struct Sampler {
    seen: Arc<Mutex<Samples>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Starts looking at the filesystem of `directory` every `interval`.
    pub fn start(directory: &Path, interval: Duration) -> Result<Sampler> {
        Sampler::start_with(directory, interval, |file| {
            let stat = fstatvfs(file).ok()?;
            Some(Bytes(stat.blocks_available() * stat.fragment_size()))
        })
    }

    /// The same with what btrfs owes to writers counted as gone, which statvfs shows only later: what is really left.
    pub fn start_strict(directory: &Path, interval: Duration) -> Result<Sampler> {
        Sampler::start_with(directory, interval, |file| Some(observe(file).ok()?.available))
    }

    #[expect(clippy::disallowed_methods, reason = "measuring time is what this is for")]
    fn start_with(
        directory: &Path,
        interval: Duration,
        available: fn(&File) -> Option<Bytes>,
    ) -> Result<Sampler> {
        let file = File::open(directory).with_context(|| format!("cannot open {}", directory.display()))?;
        let seen = Arc::new(Mutex::new(Samples::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stopped, began) = (seen.clone(), stop.clone(), Instant::now());
        let look = move || {
            let realtime = request_realtime();
            lock(&shared).realtime = realtime;
            let mut last_look = None;
            while !stopped.load(Ordering::Relaxed) {
                // None: the filesystem was unmounted beneath us; there is nothing more to see.
                let Some(available) = available(&file) else { break };
                lock(&shared).add(Sample { at: began.elapsed(), available }, &mut last_look);
                std::thread::sleep(interval);
            }
        };
        let thread = std::thread::Builder::new().name("sampler".to_owned()).spawn(look)?;
        Ok(Sampler { seen, stop, thread: Some(thread) })
    }

    /// The last look.
    pub fn latest(&self) -> Option<Sample> {
        lock(&self.seen).samples.last().copied()
    }

    /// The least available since the last call, or since the start; `None` without a look in between.
    pub fn take_low(&self) -> Option<Bytes> {
        lock(&self.seen).recent_low.take()
    }

    /// Ends it.
    pub fn stop(mut self) -> Samples {
        self.end();
        std::mem::take(&mut lock(&self.seen))
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Err: it panicked, and has said so on stderr.
            let _ = thread.join();
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.end();
    }
}

/// Each use is short, and a panic between two of them leaves the samples whole.
fn lock(seen: &Mutex<Samples>) -> MutexGuard<'_, Samples> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the calling thread a real-time priority; false where that is not allowed (no CAP_SYS_NICE).
pub fn request_realtime() -> bool {
    // The lowest real-time priority is above every ordinary thread already.
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: sched_setscheduler(2) reads one `sched_param` behind the pointer, which lives until it returns; the
    // pid 0 means the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &lowest) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(available: &[u64]) -> Samples {
        let mut samples = Samples::default();
        let mut last_look = None;
        for (at, available) in available.iter().enumerate() {
            let at = Duration::from_millis(at as u64);
            samples.add(Sample { at, available: Bytes(*available) }, &mut last_look);
        }
        samples
    }

    #[test]
    fn the_lowest_is_kept_and_level_stretches_are_two_samples() {
        let seen = seen(&[9, 9, 9, 9, 3, 5, 5, 5]);
        assert_eq!(seen.lowest.unwrap().available, Bytes(3));
        let kept: Vec<_> = seen.samples.iter().map(|s| (s.at.as_millis(), s.available.0)).collect();
        assert_eq!(kept, [(0, 9), (3, 9), (4, 3), (5, 5), (7, 5)]);
        assert_eq!((seen.looks, seen.longest_gap), (8, Duration::from_millis(1)));
    }

    #[test]
    fn a_file_that_appears_is_seen_as_less_space() {
        let directory = tempfile::tempdir().unwrap();
        let sampler = Sampler::start(directory.path(), Duration::from_millis(1)).unwrap();
        while sampler.latest().is_none() {
            std::thread::yield_now();
        }
        let before = sampler.latest().unwrap().available;
        let mut file = File::create(directory.path().join("file")).unwrap();
        std::io::Write::write_all(&mut file, &vec![1; 64 << 20]).unwrap();
        file.sync_all().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let samples = sampler.stop();
        let lowest = samples.lowest.unwrap().available;
        assert!(before.saturating_sub(lowest) >= Bytes::mib(48), "{before} → {lowest}");
    }
}
