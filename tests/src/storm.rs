//! [`Storm`]: checkpoint archives of several namespaces, written as fast as the disk takes them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use guard::model::Bytes;
use jiff::{SignedDuration, Timestamp};
use nix::errno::Errno;
use nix::fcntl::FallocateFlags;

use crate::archives::Archive;

/// After a write that failed, so that a full disk is not asked ten thousand times a second.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// How the bytes get into the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// write(2) of 1 MiB at a time.
    #[default]
    Write,
    /// The whole archive is made in memory first and goes over with sendfile(2).
    Sendfile,
    /// The whole size is allocated with fallocate(2) before the first write: the space is gone at once.
    Fallocate,
}

/// What to write.
#[derive(Clone, Debug)]
pub struct Options {
    /// Into this directory.
    pub directory: PathBuf,
    /// So many threads.
    pub writers: u32,
    /// Each archive is of a size between these two, ends included.
    pub size: (Bytes, Bytes),
    /// One archive for each of these in turn.
    pub namespaces: Vec<String>,
    /// In each namespace so many pods of one container, in turn.
    pub pods: u32,
    /// Written like this.
    pub method: Method,
    /// What the first archive says of its age. Each one is a second younger than the one before: the kubelet's
    /// names have whole seconds, and one container has no two archives of the same second.
    pub first_age: Duration,
    /// When to stop.
    pub until: Until,
}

/// When to stop; whatever comes first. None of them: never, except by [`Storm::stop`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Until {
    /// After so many archives.
    pub archives: Option<u64>,
    /// After so many bytes; the archive under way is finished.
    pub bytes: Option<Bytes>,
    /// After so long; the archive under way is finished.
    pub time: Option<Duration>,
    /// After the first write that got ENOSPC, in each writer.
    pub full: bool,
}

/// One archive that was written, or not.
#[derive(Clone, Debug)]
pub struct Written {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// What got into the file.
    pub bytes: Bytes,
    /// From open to close.
    pub took: Duration,
    /// What went wrong. The truncated archive stays, as the engines leave it.
    pub error: Option<Errno>,
}

/// What was written in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Whole archives.
    pub archives: u64,
    /// Bytes, those of truncated archives included.
    pub bytes: Bytes,
    /// Archives truncated because the disk was full.
    pub out_of_space: u64,
    /// Archives that failed in another way.
    pub failures: u64,
    /// From the first open to the last close.
    pub took: Duration,
}

/// A storm under way.
#[derive(Debug)]
pub struct Storm {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    results: mpsc::Receiver<Written>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    began: Instant,
    began_at: Timestamp,
    next: AtomicU64,
    bytes: AtomicU64,
    archives: AtomicU64,
    out_of_space: AtomicU64,
    failures: AtomicU64,
    stop: AtomicBool,
}

impl Storm {
    /// Begins.
    ///
    /// # Panics
    /// Without a namespace, a pod or a writer, or with a size below [`Archive::SMALLEST`].
    #[expect(clippy::disallowed_methods, reason = "archives are dated and timed here")]
    pub fn start(options: Options) -> Storm {
        assert!(!options.namespaces.is_empty() && options.pods > 0 && options.writers > 0);
        assert!(options.size.0.0 >= Archive::SMALLEST && options.size.0 <= options.size.1);
        let writers = options.writers;
        let shared = Arc::new(Shared {
            options,
            began: Instant::now(),
            began_at: Timestamp::now(),
            next: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            archives: AtomicU64::new(0),
            out_of_space: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let (sender, results) = mpsc::channel();
        let write = |number| {
            let (shared, sender) = (shared.clone(), sender.clone());
            std::thread::Builder::new()
                .name(format!("storm-{number}"))
                .spawn(move || shared.write_archives(&sender))
                .expect("a thread can be had")
        };
        Storm { threads: (0..writers).map(write).collect(), results, shared }
    }

    /// The next archive that is done; `None` once all are.
    pub fn next(&self) -> Option<Written> {
        self.results.recv().ok()
    }

    /// Whether every writer has ended.
    pub fn is_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// So far; bytes count as they are written.
    pub fn totals(&self) -> Totals {
        let shared = &self.shared;
        Totals {
            archives: shared.archives.load(Ordering::Relaxed),
            bytes: Bytes(shared.bytes.load(Ordering::Relaxed)),
            out_of_space: shared.out_of_space.load(Ordering::Relaxed),
            failures: shared.failures.load(Ordering::Relaxed),
            took: shared.began.elapsed(),
        }
    }

    /// Lets every writer finish the archive in hand and no other.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for the end.
    pub fn join(mut self) -> Totals {
        for thread in self.threads.drain(..) {
            // Err: it panicked, and has said so on stderr.
            let _ = thread.join();
        }
        self.totals()
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            // Err: it panicked, and has said so on stderr.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn write_archives(&self, results: &mpsc::Sender<Written>) {
        while let Some(number) = self.take_number() {
            let written = self.write_archive(number);
            let counter = match written.error {
                None => &self.archives,
                Some(Errno::ENOSPC) => &self.out_of_space,
                Some(_) => &self.failures,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            let error = written.error;
            // Err: nobody listens any more, which is no reason to stop writing.
            let _ = results.send(written);
            if error.is_some() {
                if error == Some(Errno::ENOSPC) && self.options.until.full {
                    return;
                }
                std::thread::sleep(PAUSE_AFTER_FAILURE);
            }
        }
    }

    /// The number of the next archive; `None` when it is enough.
    fn take_number(&self) -> Option<u64> {
        let until = &self.options.until;
        let over = self.stop.load(Ordering::Relaxed)
            || until.bytes.is_some_and(|bytes| self.bytes.load(Ordering::Relaxed) >= bytes.0)
            || until.time.is_some_and(|time| self.began.elapsed() >= time);
        if over {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        until.archives.is_none_or(|archives| number < archives).then_some(number)
    }

    #[expect(clippy::disallowed_methods, reason = "archives are timed here")]
    fn write_archive(&self, number: u64) -> Written {
        let archive = self.archive(number);
        let began = Instant::now();
        let mut counted = 0;
        let error = self.write_file(&archive, &mut counted).err();
        let errno = |error: io::Error| error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
        Written {
            name: archive.kubelet_name(),
            namespace: archive.namespace,
            bytes: Bytes(counted),
            took: began.elapsed(),
            error: error.map(errno),
        }
    }

    fn archive(&self, number: u64) -> Archive {
        let options = &self.options;
        let namespaces = options.namespaces.len() as u64;
        let namespace = &options.namespaces[(number % namespaces) as usize];
        let pod = format!("worker-{}", number / namespaces % u64::from(options.pods));
        let age = SignedDuration::try_from(options.first_age).unwrap_or(SignedDuration::MAX);
        let created = self.began_at.saturating_sub(age).unwrap_or(Timestamp::UNIX_EPOCH);
        let created =
            created.saturating_add(SignedDuration::from_secs(number as i64)).unwrap_or(self.began_at);
        Archive::new(namespace, &pod, "main", created, self.size(number))
    }

    /// Sizes are spread evenly and the same in every run: a multiplicative hash of the number.
    fn size(&self, number: u64) -> u64 {
        let (smallest, largest) = self.options.size;
        let spread = largest.0 - smallest.0 + 1;
        let hash = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        smallest.0 + ((u128::from(hash) * u128::from(spread)) >> 64) as u64
    }

    /// In place under its final name like the engines: mode 0600, no O_TRUNC, no fsync.
    fn write_file(&self, archive: &Archive, counted: &mut u64) -> io::Result<()> {
        let path = self.options.directory.join(archive.kubelet_name());
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut out = Counting { file: &file, all: &self.bytes, one: counted };
        match self.options.method {
            Method::Write => archive.write_to(&mut out).map(drop),
            Method::Fallocate => {
                nix::fcntl::fallocate(&file, FallocateFlags::empty(), 0, archive.size as i64)?;
                archive.write_to(&mut out).map(drop)
            }
            Method::Sendfile => {
                let mut memory = Vec::with_capacity(archive.size as usize);
                archive.write_to(&mut memory)?;
                out.send(memory)
            }
        }
    }
}

/// Counts what gets into a file.
struct Counting<'a> {
    file: &'a File,
    all: &'a AtomicU64,
    one: &'a mut u64,
}

impl Counting<'_> {
    fn count(&mut self, bytes: usize) {
        self.all.fetch_add(bytes as u64, Ordering::Relaxed);
        *self.one += bytes as u64;
    }

    fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        let mut left = bytes.len();
        let memory = memfd(&bytes)?;
        while left > 0 {
            let sent = nix::sys::sendfile::sendfile(self.file, &memory, None, left)?;
            self.count(sent);
            left -= sent;
        }
        Ok(())
    }
}

impl Write for Counting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.count(written);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file in memory that holds `bytes`, read position at the start.
fn memfd(bytes: &[u8]) -> io::Result<File> {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let file = File::from(memfd_create(c"storm", MFdFlags::MFD_CLOEXEC)?);
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn options(directory: &std::path::Path, method: Method) -> Options {
        Options {
            directory: directory.to_owned(),
            writers: 2,
            size: (Bytes(64 << 10), Bytes(256 << 10)),
            namespaces: vec!["team".to_owned(), "team-prod".to_owned()],
            pods: 3,
            method,
            first_age: Duration::from_secs(3600),
            until: Until { archives: Some(20), ..Until::default() },
        }
    }

    #[track_caller]
    fn check(method: Method) {
        let directory = tempfile::tempdir().unwrap();
        let storm = Storm::start(options(directory.path(), method));
        let written: Vec<_> = std::iter::from_fn(|| storm.next()).take(20).collect();
        let totals = storm.join();
        let names: BTreeSet<_> = written.iter().map(|written| &written.name).collect();
        assert_eq!((totals.archives, names.len()), (20, 20), "no archive overwrites another");
        let mut on_disk = 0;
        for entry in std::fs::read_dir(directory.path()).unwrap() {
            let file = File::open(entry.unwrap().path()).unwrap();
            on_disk += file.metadata().unwrap().len();
            let mut tar = tar::Archive::new(file);
            assert!(tar.entries().unwrap().map(Result::unwrap).count() > 5, "a whole archive");
        }
        assert_eq!(totals.bytes, Bytes(on_disk));
    }

    #[test]
    fn every_method_writes_whole_archives_and_counts_their_bytes() {
        check(Method::Write);
        check(Method::Sendfile);
        check(Method::Fallocate);
    }

    #[test]
    fn sizes_stay_within_their_bounds() {
        let directory = tempfile::tempdir().unwrap();
        let storm = Storm::start(Options { writers: 1, ..options(directory.path(), Method::Write) });
        while let Some(written) = storm.next() {
            let size = written.bytes.0;
            assert!((64 << 10..=256 << 10).contains(&(size - size % 512)), "{size}");
        }
    }
}
