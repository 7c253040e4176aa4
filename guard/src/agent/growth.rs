//! Who writes how much: a thread reads the kernel's ledger, the loops say whose checkpoints the files are.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::agent::clock::monotonic;
use crate::agent::priority;
use crate::agent::probing::Probing;
use crate::agent::staging::Staging;
use crate::agent::stumbles;
use crate::decide::growth::{Grown, GrowthTracker};
use crate::model::{Bytes, Checkpoint, FileId, Growth, Inventory, Kind, KnownBy, Monotonic, Owner, States};
use crate::observe::attribution::{Names, Resolver};
use crate::observe::probe::{LedgerEntry, Slot, Writer};
use crate::observe::scan;

/// What is known of growth, shared by all loops.
#[derive(Debug, Default)]
pub(super) struct Growths {
    tracker: Mutex<GrowthTracker>,
    /// By slot: what the loop has not yet said whose it is.
    mail: Mutex<HashMap<Slot, Vec<FileGrowth>>>,
    /// By slot: files that were written since the loop asked last.
    written: Mutex<HashMap<Slot, HashSet<FileId>>>,
    /// Directories of pod checkpoints, whose files are no entries of the inventory.
    trees: Mutex<Vec<(PathBuf, Arc<OwnedFd>)>>,
}

/// What one file grew by.
#[derive(Debug)]
struct FileGrowth {
    since: Monotonic,
    now: Monotonic,
    file: FileId,
    bytes: Bytes,
    writer: Writer,
    /// Whose it is if it is no checkpoint.
    otherwise: Owner,
    known_by: KnownBy,
}

/// The ledger is read this often while there are writes. Reading a full one takes 30 ms.
const READ_EVERY: Duration = Duration::from_secs(1);
/// How often, once nothing has been written for [`IDLE_AFTER`]: an idle node is to be left asleep.
const READ_EVERY_IDLE: Duration = Duration::from_secs(3);
const IDLE_AFTER: Duration = Duration::from_secs(10);
/// A file that is not known as a checkpoint after so long is none.
const UNKNOWN_FOR: Duration = Duration::from_secs(2);
/// A loop that does not take its mail hangs; then the newest is worth no more than the oldest.
const MAIL_MAX: usize = 50_000;
/// From here on the ledger, which holds twice as many, is swept: only ext4 tells of deletions, elsewhere files stay in it.
const SWEEP_ABOVE: usize = 8192;
/// A file that nobody has written to for so long needs no entry.
const SWEEP_IDLE: Duration = Duration::from_secs(300);
/// From here on it will be full in a few seconds if a thousand files a second come and stay; what no more than one reading
/// has seen unchanged must go for them.
const CROWDED_ABOVE: usize = 12_288;
const SWEEP_IDLE_CROWDED: Duration = Duration::from_secs(2);

impl Growths {
    /// Starts the thread that reads the ledger.
    pub(super) fn start(self: &Arc<Self>, probing: Arc<Probing>, staging: Arc<Staging>) {
        let mut reader = LedgerReader {
            growths: self.clone(),
            probing,
            staging,
            resolver: Resolver::default(),
            names: Names::default(),
            known: HashMap::new(),
            within: HashMap::new(),
            added: Bytes::ZERO,
            read: monotonic(),
        };
        let spawned = std::thread::Builder::new()
            .name("growth".to_owned())
            .spawn(move || stumbles::go_on("growth", || reader.run()));
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread to read the ledger: nobody knows who writes");
        }
    }

    /// From now on, files below a subdirectory of this one belong to that subdirectory.
    pub(super) fn add_tree(&self, path: &Path, fd: Arc<OwnedFd>) {
        let mut trees = lock(&self.trees);
        trees.retain(|(known, _)| known != path);
        trees.push((path.to_owned(), fd));
    }

    /// Ends that.
    pub(super) fn remove_tree(&self, path: &Path) {
        lock(&self.trees).retain(|(known, _)| known != path);
    }

    /// The directories and names of those archives of `inventory` that were written although it has them as complete. No
    /// event tells that an archive is opened once more: one that is asked of all files of a directory makes each write to
    /// them more expensive ([`crate::observe::inotify`]).
    pub(super) fn rewritten(&self, slot: Slot, inventory: &Inventory) -> Vec<(u16, OsString)> {
        let Some(files) = lock(&self.written).remove(&slot) else { return Vec::new() };
        let complete =
            |it: &&Checkpoint| it.kind == Kind::Archive && !it.states.contains(States::BEING_WRITTEN);
        let checkpoints = inventory.checkpoints.iter().filter(complete);
        let written = checkpoints.filter(|it| files.contains(&it.file));
        written.map(|it| (it.directory, OsString::from(&*it.name))).collect()
    }

    /// Takes in what was written for `slot`, whose checkpoints are those of `inventory`.
    pub(super) fn take(&self, slot: Slot, inventory: &Inventory) {
        let Some(mail) = lock(&self.mail).remove(&slot) else { return };
        let wanted: HashSet<FileId> = mail.iter().map(|it| it.file).collect();
        let checkpoints = inventory.checkpoints.iter().filter(|it| wanted.contains(&it.file));
        let owners: HashMap<_, _> = checkpoints.map(|it| (it.file, &it.identity.owner)).collect();
        // The kernel may know a new checkpoint a moment before the inventory does.
        let now = monotonic();
        let (mail, early): (Vec<_>, Vec<_>) = mail
            .into_iter()
            .partition(|it| owners.contains_key(&it.file) || now.since(it.now) >= UNKNOWN_FOR);
        if !early.is_empty() {
            lock(&self.mail).entry(slot).or_default().extend(early);
        }
        let (Some(since), Some(now)) =
            (mail.iter().map(|it| it.since).min(), mail.iter().map(|it| it.now).max())
        else {
            return;
        };
        let grown: Vec<_> = mail.into_iter().map(|it| it.identified(&owners)).collect();
        lock(&self.tracker).note(since, now, &grown);
    }

    /// How fast what grows.
    pub(super) fn now(&self) -> Growth {
        lock(&self.tracker).at(monotonic())
    }
}

impl FileGrowth {
    /// A checkpoint's own identity says more than anything about its writer.
    fn identified(self, owners: &HashMap<FileId, &Owner>) -> Grown {
        let (owner, known_by) = match owners.get(&self.file) {
            Some(owner) if owner.namespace.is_some() => ((*owner).clone(), KnownBy::Checkpoint),
            _ => (self.otherwise, self.known_by),
        };
        Grown { bytes: self.bytes, owner, known_by, pid: self.writer.pid, comm: self.writer.comm.into() }
    }
}

struct LedgerReader {
    growths: Arc<Growths>,
    probing: Arc<Probing>,
    staging: Arc<Staging>,
    resolver: Resolver,
    names: Names,
    /// What the ledger said of each file, and when it was written last.
    known: HashMap<FileId, (Bytes, Monotonic)>,
    /// Which pod checkpoint a file belongs to; a file that belongs to none to itself.
    within: HashMap<FileId, FileId>,
    /// What had been written in all at the last reading.
    added: Bytes,
    read: Monotonic,
}

impl LedgerReader {
    fn run(&mut self) {
        priority::prefer();
        let mut changed = monotonic();
        loop {
            let is_idle = monotonic().since(changed) >= IDLE_AFTER;
            std::thread::sleep(if is_idle { READ_EVERY_IDLE } else { READ_EVERY });
            let (added, now) = (self.probing.added(), monotonic());
            if added != self.added {
                (self.added, changed) = (added, now);
                self.read(now);
            }
            self.read = now;
        }
    }

    fn read(&mut self, now: Monotonic) {
        let entries = match self.probing.ledger() {
            Ok(entries) => entries,
            Err(error) => {
                tracing::debug!(%error, "the ledger cannot be read");
                return;
            }
        };
        let idle = if entries.len() > CROWDED_ABOVE { SWEEP_IDLE_CROWDED } else { SWEEP_IDLE };
        let idle_since = (entries.len() > SWEEP_ABOVE).then(|| Monotonic(now.0.saturating_sub(idle)));
        if let Some(idle_since) = idle_since {
            self.probing.sweep(&entries, idle_since);
        }
        self.find_trees(&entries);
        let mut known = HashMap::with_capacity(entries.len());
        for entry in &entries {
            let (before, last) = self.known.get(&entry.file).copied().unwrap_or_default();
            // Of what is written within one tick of the kernel's clock only the bytes differ.
            if (entry.bytes, entry.last) != (before, last) {
                let mut written = lock(&self.growths.written);
                let written = written.entry(entry.slot).or_default();
                if written.len() < MAIL_MAX {
                    written.insert(entry.file);
                }
            }
            // Whoever writes to one that was swept is counted from zero.
            if idle_since.is_none_or(|idle_since| entry.last >= idle_since) {
                known.insert(entry.file, (entry.bytes, entry.last));
            }
            let bytes = entry.bytes.saturating_sub(before);
            if !bytes.is_zero() {
                self.post(entry, bytes, now);
            }
        }
        self.known = known;
    }

    /// Finds out which of new files are part of a pod checkpoint.
    fn find_trees(&mut self, entries: &[LedgerEntry]) {
        let trees = lock(&self.growths.trees).clone();
        self.within.retain(|file, _| self.known.contains_key(file));
        let has_new = entries.iter().any(|entry| !self.within.contains_key(&entry.file));
        if trees.is_empty() || !has_new {
            return;
        }
        let mut found = HashMap::new();
        for (path, fd) in trees {
            match scan::files_by_subdirectory(fd.as_fd()) {
                Ok(files) => found.extend(files),
                Err(errno) => tracing::debug!(directory = %path.display(), %errno, "cannot look"),
            }
        }
        let belongs =
            |entry: &LedgerEntry| (entry.file, found.get(&entry.file).copied().unwrap_or(entry.file));
        self.within = entries.iter().map(belongs).collect();
    }

    fn post(&mut self, entry: &LedgerEntry, bytes: Bytes, now: Monotonic) {
        let by_path = self.staging.workload_of(entry.file);
        let (workload, known_by) = match by_path {
            Some(workload) => (workload, KnownBy::Path),
            None => (self.resolver.workload(&entry.writer, now), KnownBy::Cgroup),
        };
        let otherwise = self.names.owner(&workload, now);
        let known_by = if otherwise == Owner::default() { KnownBy::Nothing } else { known_by };
        let growth = FileGrowth {
            since: self.read,
            now,
            file: self.within.get(&entry.file).copied().unwrap_or(entry.file),
            bytes,
            writer: entry.writer.clone(),
            otherwise,
            known_by,
        };
        let mut mail = lock(&self.growths.mail);
        let mail = mail.entry(entry.slot).or_default();
        if mail.len() < MAIL_MAX {
            mail.push(growth);
        }
    }
}

/// Nothing that is kept here can be left half-changed by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
