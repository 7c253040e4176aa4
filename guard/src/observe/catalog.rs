//! [`Catalog`]: the inventory of one filesystem, kept up to date from scans and from single events.
//!
//! What an archive says inside is read once and remembered by device, inode, size and mtime: a rescan re-reads
//! nothing that has not changed. The reading itself happens elsewhere (it may take milliseconds): the catalog
//! hands out [`ReadRequest`]s and takes the answers back. Until its answer is there, a checkpoint counts as
//! *being written*: whether it is complete is not known, so it is neither a victim nor does it replace another.

mod describe;
mod index;
mod look;
mod settling;

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use jiff::Timestamp;
use nix::errno::Errno;

use self::describe::{blank, declare, describe, set_size, version_of};
pub use self::settling::SETTLES_AFTER;
use self::settling::Settling;
use crate::model::{
    Bytes, Checkpoint, Cluster, Fate, FileId, Inventory, Kind, Moment, Monotonic, PodName, States,
};
use crate::observe::archive::{self, Contents, Interner};
use crate::observe::holders::{OpenState, probe_open};
use crate::observe::reach::Reach;
use crate::observe::scan::{self, Sort, Stat};

/// What the marker of a pin is called, after the checkpoint it pins.
pub const PIN_SUFFIX: &str = ".keep";

/// What one directory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Archives, one file each.
    Archives,
    /// Pod checkpoints, one subdirectory each.
    PodCheckpoints,
}

/// An archive whose content should be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Index into [`Inventory::directories`].
    pub directory: u16,
    /// Its name there.
    pub name: OsString,
    /// The file that is meant: an answer about another one is worth nothing.
    pub version: Version,
}

/// One state of one file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Device and inode.
    pub file: FileId,
    /// `st_size`.
    pub len: Bytes,
    /// `st_mtim`.
    pub modified: Timestamp,
}

impl From<&Stat> for Version {
    fn from(stat: &Stat) -> Version {
        Version { file: stat.file, len: stat.len, modified: stat.modified }
    }
}

/// What reading an archive gave.
#[derive(Clone, Debug)]
pub enum Reading {
    /// What it says.
    Contents(Box<Contents>),
    /// It cannot be read; its name is all there is.
    Unreadable,
    /// It is another one by now, or gone.
    Stale,
}

/// A request and what reading gave.
pub type Answer = (ReadRequest, Reading);

/// How far the content of a checkpoint is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Somebody writes it.
    Unread,
    /// It waits in the queue, where it stands once however often it is looked at: beside writers at full speed, who make
    /// everything be looked at again and again, the queue would grow faster than it is read.
    Queued,
    /// A request is on its way.
    Asked,
    /// Known, for this version.
    Read,
}

/// What the catalog remembers beside each checkpoint.
#[derive(Clone, Copy, Debug)]
struct Note {
    content: Content,
    /// The scan that saw it last.
    seen: u32,
}

/// A regular file whose name is not a checkpoint's: its content decides, once.
#[derive(Clone, Copy, Debug)]
struct Stranger {
    stat: Stat,
    content: Content,
    seen: u32,
}

/// What a scan found out, for the log and the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanSummary {
    /// Entries looked at.
    pub entries: usize,
    /// Checkpoints that were not known before, or had changed.
    pub changed: usize,
    /// Checkpoints that were known and are gone.
    pub gone: usize,
    /// Entries that could not be looked at.
    pub unreadable: usize,
}

/// The inventory of one filesystem and what it takes to keep it right.
#[derive(Debug, Default)]
pub struct Catalog {
    inventory: Inventory,
    /// One for each checkpoint, at the same place.
    notes: Vec<Note>,
    /// From (directory, name) to the place.
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    strangers: HashMap<(u16, Box<OsStr>), Stranger>,
    /// Places whose content is [`Content::Queued`], each at least once; what else stands here has been moved or read since.
    /// With names in it, a first scan would leave a hole in the heap beside each name that stays.
    unread: VecDeque<u32>,
    unread_strangers: VecDeque<(u16, Box<OsStr>)>,
    strings: Interner,
    cluster: Arc<Cluster>,
    round: u32,
    /// Who gets into each directory, as of its last scan.
    reach: HashMap<u16, Reach>,
    /// What each directory holds that no checkpoint can be, as of its last scan: links, special files, other directories.
    others: HashMap<u16, usize>,
    revision: u64,
    lacks_leases: bool,
    /// When it is: what somebody writes without an event is finished when it has not changed for a while.
    now: Moment,
    settling: Settling,
}

impl Catalog {
    /// An empty catalog of `directories`.
    pub fn new(directories: Vec<PathBuf>) -> Catalog {
        Catalog { inventory: Inventory { directories, ..Inventory::default() }, ..Catalog::default() }
    }

    /// What is known now.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Says when it is. To be said before anything is looked at.
    pub fn set_now(&mut self, now: Moment) {
        self.now = now;
    }

    /// When some pod checkpoint should be looked at again to find out whether it is finished; `None`: all are.
    pub fn settles_at(&self) -> Option<Monotonic> {
        self.settling.due()
    }

    /// Looks at those pod checkpoints in `directory` of which it is time to find that out.
    pub fn look_at_unsettled(&mut self, directory: u16, dir: BorrowedFd<'_>) {
        self.look_at_trees(directory, dir, |this, checkpoint| {
            this.settling.is_due(checkpoint.file, this.now)
        });
        self.settling.have_looked();
    }

    fn look_at_trees(
        &mut self,
        directory: u16,
        dir: BorrowedFd<'_>,
        is_meant: impl Fn(&Catalog, &Checkpoint) -> bool,
    ) {
        let here = |it: &&Checkpoint| it.directory == directory && it.kind == Kind::PodCheckpoint;
        let meant = self.inventory.checkpoints.iter().filter(here).filter(|it| is_meant(self, it));
        let meant: Vec<_> = meant.map(|it| (it.name.clone(), it.file)).collect();
        self.revision += u64::from(!meant.is_empty());
        for (name, file) in meant {
            self.look_at_tree(directory, dir, &name, file);
        }
    }

    /// Another number after whatever may have changed the inventory: what was made of it at the same number still holds.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Adds a directory; the result is its index.
    ///
    /// # Panics
    /// With more than 65,535 directories on one filesystem.
    pub fn add_directory(&mut self, path: PathBuf) -> u16 {
        self.revision += 1;
        self.inventory.directories.push(path);
        u16::try_from(self.inventory.directories.len() - 1).expect("nobody configures 65,536 directories")
    }

    /// Whether some content is not known yet although nobody writes it: decisions may change soon.
    pub fn has_unread(&self) -> bool {
        let is_asked = |content: Content| content == Content::Asked;
        let is_unread = |note: &Note| matches!(note.content, Content::Queued | Content::Asked);
        !self.unread_strangers.is_empty()
            || self.notes.iter().any(is_unread)
            || self.strangers.values().any(|stranger| is_asked(stranger.content))
    }

    /// Looks at everything in `dir`, the directory with this index.
    ///
    /// # Errors
    /// The directory cannot be read; what was known stays.
    pub fn scan(&mut self, directory: u16, dir: BorrowedFd<'_>, holds: Holds) -> Result<ScanSummary, Errno> {
        self.revision += 1;
        self.round = self.round.wrapping_add(1);
        self.reach.insert(directory, Reach::of(dir));
        let mut summary = ScanSummary::default();
        let mut pins: Vec<OsString> = Vec::new();
        let mut trees: Vec<OsString> = Vec::new();
        let mut others = 0;
        summary.unreadable = scan::scan(dir, |name, stat| {
            summary.entries += 1;
            if let Some(pinned) = pinned_name(name) {
                pins.push(pinned.to_owned());
            } else if is_ours(name) {
                // A deletion that has not finished; the executor's business.
            } else {
                match (holds, stat.sort) {
                    (Holds::Archives, Sort::File) => {
                        summary.changed += usize::from(self.see_file(directory, dir, name, &stat));
                    }
                    (Holds::PodCheckpoints, Sort::Directory) => trees.push(name.to_owned()),
                    _ => others += 1,
                }
            }
        })?;
        for name in trees {
            match self.see_tree(directory, dir, &name) {
                Some(changed) => summary.changed += usize::from(changed),
                None => others += 1,
            }
        }
        summary.gone = self.forget_unseen(directory);
        self.forgive_in(Some(directory));
        self.set_pins(directory, &pins);
        self.forget_unused();
        self.others.insert(directory, others);
        self.count_foreign();
        Ok(summary)
    }

    /// Looks at one entry of `dir` again, after an event. The result is whether somebody has it open for writing, or is about to.
    pub fn refresh(&mut self, directory: u16, dir: BorrowedFd<'_>, holds: Holds, name: &OsStr) -> bool {
        self.revision += 1;
        let is_open = self.look_at(directory, dir, holds, name);
        self.count_foreign();
        is_open
    }

    fn look_at(&mut self, directory: u16, dir: BorrowedFd<'_>, holds: Holds, name: &OsStr) -> bool {
        if let Some(pinned) = pinned_name(name) {
            let pinned = pinned.to_owned();
            if let Some(place) = self.find(directory, &pinned) {
                let is_pinned = is_pinned(dir, &pinned);
                self.inventory.checkpoints[place].states.set(States::PINNED, is_pinned);
            }
            return false;
        }
        if is_ours(name) {
            return false;
        }
        match (Stat::at(dir, name), holds) {
            (Ok(stat), Holds::Archives) if stat.sort == Sort::File => {
                self.see_file(directory, dir, name, &stat);
            }
            (Ok(stat), Holds::PodCheckpoints) if stat.sort == Sort::Directory => {
                self.see_tree(directory, dir, name);
            }
            // Gone, replaced by something that is no checkpoint, or unreadable: nothing that may be deleted.
            _ => {
                self.remove(directory, name);
                self.strangers.remove(&(directory, name.into()));
            }
        }
        let Some(place) = self.find(directory, name) else {
            let Some(stranger) = self.strangers.get(&(directory, name.into())) else { return false };
            let is_unread = stranger.content != Content::Read;
            return is_unread && stranger.stat.len.is_zero() || probe_open(dir, name) == OpenState::Writing;
        };
        let is_pinned = is_pinned(dir, name);
        let checkpoint = &mut self.inventory.checkpoints[place];
        checkpoint.states.set(States::PINNED, is_pinned);
        // The kernel tells of a file a moment before whoever makes it has it open (`fsnotify_create` comes before `vfs_open`): one
        // that is empty and that nobody has open is about to be written.
        let is_new = checkpoint.kind == Kind::Archive
            && checkpoint.len.is_zero()
            && checkpoint.states.contains(States::BEING_WRITTEN);
        is_new || checkpoint.states.contains(States::IN_USE | States::BEING_WRITTEN)
    }

    /// The names of those in this directory that somebody has open for writing, as of the last look; of what is no checkpoint
    /// by its name, only what has not been read yet, as of now.
    pub fn written_in(&self, directory: u16, dir: BorrowedFd<'_>) -> Vec<OsString> {
        let those = self.inventory.checkpoints.iter().filter(|it| it.directory == directory);
        let written = those.filter(|it| it.states.contains(States::IN_USE | States::BEING_WRITTEN));
        let strangers = self.strangers.iter().filter(|((place, name), stranger)| {
            *place == directory
                && stranger.content != Content::Read
                && probe_open(dir, name) == OpenState::Writing
        });
        let names = written.map(|it| OsString::from(&*it.name));
        names.chain(strangers.map(|((_, name), _)| name.into())).collect()
    }

    /// Whether files turned out to be on a filesystem without leases, so that nothing tells who has them open.
    pub fn lacks_leases(&self) -> bool {
        self.lacks_leases
    }

    /// Takes a checkpoint out: it was deleted, or has gone.
    pub fn remove(&mut self, directory: u16, name: &OsStr) -> Option<Checkpoint> {
        let place = self.find(directory, name)?;
        self.revision += 1;
        Some(self.remove_at(place))
    }

    /// Remembers why a deletion was refused, so that the next plan leaves it alone, until it becomes another one or the next
    /// scan. An event alone does not end it: a deletion that fails half-way makes events itself, and would be tried again
    /// because of them for ever.
    pub fn set_states(&mut self, directory: u16, name: &OsStr, states: States) {
        self.revision += 1;
        if let Some(place) = self.find(directory, name) {
            self.inventory.checkpoints[place].states.insert(states);
        }
    }

    /// Lets those be tried again whose deletion failed: the disk, or whoever had made them immutable, may have changed its
    /// mind, and nothing tells.
    pub fn forgive(&mut self) {
        self.forgive_in(None);
    }

    /// The same of one directory, or of all.
    fn forgive_in(&mut self, directory: Option<u16>) {
        self.revision += 1;
        for checkpoint in &mut self.inventory.checkpoints {
            if directory.is_none_or(|directory| checkpoint.directory == directory) {
                checkpoint.states.remove(States::REFUSED);
            }
        }
    }

    /// Looks again at those in `directory` that somebody had open: he may be done. And at those with another name, of whose end
    /// no event tells.
    pub fn look_again(&mut self, directory: u16, dir: BorrowedFd<'_>) {
        self.revision += 1;
        let reach = self.reach(directory);
        for place in 0..self.notes.len() {
            let checkpoint = &mut self.inventory.checkpoints[place];
            if checkpoint.directory == directory
                && checkpoint.states.contains(States::LINKED)
                && let Ok(stat) = Stat::at(dir, &checkpoint.name)
                && Version::from(&stat) == version_of(checkpoint)
            {
                set_size(checkpoint, &stat, reach);
            }
            if checkpoint.directory == directory
                && checkpoint.kind == Kind::Archive
                && checkpoint.states.intersects(States::IN_USE | States::BEING_WRITTEN)
                && self.notes[place].content != Content::Asked
            {
                self.settle(place, dir);
            }
        }
        self.look_at_trees(directory, dir, |_, checkpoint| {
            checkpoint.states.intersects(States::IN_USE | States::BEING_WRITTEN)
        });
    }

    /// Takes over what is known of the cluster: whose pod is gone, whose a pod checkpoint is and whether it is being restored.
    pub fn set_cluster(&mut self, cluster: Arc<Cluster>) {
        self.revision += 1;
        for checkpoint in &mut self.inventory.checkpoints {
            let was_restoring = self.cluster.declared(checkpoint).is_some_and(|it| it.restoring);
            if was_restoring {
                checkpoint.states.remove(States::IN_USE);
            }
            declare(checkpoint, &mut self.strings, &cluster);
            checkpoint.states.set(States::ORPHAN, cluster.fate(checkpoint) == Fate::Gone);
        }
        self.cluster = cluster;
    }

    /// What is known of the cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The pods, each once and at most `most`, that should be looked up at `now`.
    pub fn pods_to_look_up(&self, now: Timestamp, most: usize) -> Vec<PodName> {
        let mut pods = std::collections::BTreeSet::new();
        for checkpoint in &self.inventory.checkpoints {
            let fate = self.cluster.fate(checkpoint);
            let readings = checkpoint.identity.readings();
            let named =
                readings.filter(|owner| self.cluster.should_look(owner, fate, now)).filter_map(|owner| {
                    Some(PodName { namespace: owner.namespace.clone()?, pod: owner.pod.clone()? })
                });
            pods.extend(named);
            if pods.len() >= most {
                break;
            }
        }
        pods.into_iter().take(most).collect()
    }

    /// Forgets names that no checkpoint has any more: those of pods whose last one has gone, and what archives were taken for
    /// before they were read.
    pub fn forget_unused(&mut self) {
        self.strings.forget_unused();
    }

    /// Takes out everything in a directory that is no longer watched.
    pub fn forget_directory(&mut self, directory: u16) {
        self.revision += 1;
        self.round = self.round.wrapping_add(1);
        self.forget_unseen(directory);
        self.others.remove(&directory);
        self.count_foreign();
    }

    /// Up to `most` archives whose content is wanted. Each must be answered with [`Catalog::answer`].
    pub fn wanted(&mut self, most: usize) -> Vec<ReadRequest> {
        let mut requests = Vec::new();
        while requests.len() < most
            && let Some(place) = self.unread.pop_front()
        {
            let place = place as usize;
            let Some(note) = self.notes.get_mut(place).filter(|note| note.content == Content::Queued) else {
                continue;
            };
            note.content = Content::Asked;
            let checkpoint = &self.inventory.checkpoints[place];
            let (directory, name) = (checkpoint.directory, OsString::from(&*checkpoint.name));
            requests.push(ReadRequest { directory, name, version: version_of(checkpoint) });
        }
        while requests.len() < most
            && let Some((directory, name)) = self.unread_strangers.pop_front()
        {
            let stranger = self.strangers.get_mut(&(directory, name.clone()));
            let Some(stranger) = stranger.filter(|stranger| stranger.content == Content::Queued) else {
                continue;
            };
            stranger.content = Content::Asked;
            let version = Version::from(&stranger.stat);
            requests.push(ReadRequest { directory, name: name.into(), version });
        }
        if self.unread.is_empty() {
            self.unread.shrink_to_fit();
        }
        requests
    }

    /// Takes the answer to a request. One about a version that is no longer there is dropped; the newer version
    /// waits in the queue already.
    pub fn answer(&mut self, (request, reading): Answer) {
        self.revision += 1;
        let ReadRequest { directory, name, version } = request;
        let contents = match reading {
            Reading::Contents(contents) => Some(contents),
            Reading::Unreadable => None,
            Reading::Stale => return self.ask_again(directory, name),
        };
        if let Some(place) = self.find(directory, &name) {
            let checkpoint = &mut self.inventory.checkpoints[place];
            if version_of(checkpoint) == version && self.notes[place].content == Content::Asked {
                self.notes[place].content = Content::Read;
                describe(checkpoint, contents.as_deref(), &mut self.strings, &self.cluster);
                // One that cannot be read at all stays with what its name says, and may go (operator#109).
                checkpoint.states.remove(States::BEING_WRITTEN);
                let has_dumps = contents.is_some_and(|contents| contents.has_dumps);
                let is_incomplete = checkpoint.states.contains(States::INCOMPLETE);
                checkpoint.states.set(States::UNPROVEN, !has_dumps && !is_incomplete);
            }
            return;
        }
        let key = (directory, name.into_boxed_os_str());
        let Some(stranger) = self.strangers.get_mut(&key) else { return };
        if Version::from(&stranger.stat) != version || stranger.content != Content::Asked {
            return;
        }
        stranger.content = Content::Read;
        // Its name says nothing; only an archive that says itself whose it is counts as a checkpoint.
        let Some(contents) = contents.filter(|contents| archive::is_checkpoint(None, Some(contents))) else {
            return;
        };
        let Stranger { stat, seen, .. } = *stranger;
        let mut checkpoint = blank(directory, Kind::Archive, &key.1, version);
        set_size(&mut checkpoint, &stat, self.reach(directory));
        describe(&mut checkpoint, Some(&contents), &mut self.strings, &self.cluster);
        self.strangers.remove(&key);
        self.count_foreign();
        self.insert(checkpoint, Note { content: Content::Read, seen });
    }

    fn count_foreign(&mut self) {
        self.inventory.foreign = self.others.values().sum::<usize>() + self.strangers.len();
    }

    fn reach(&self, directory: u16) -> Reach {
        self.reach.get(&directory).copied().unwrap_or(Reach::EVERYBODY)
    }

    /// A request could not be answered because the file has changed: the next event or scan queues it again.
    fn ask_again(&mut self, directory: u16, name: OsString) {
        let content = if let Some(place) = self.find(directory, &name) {
            &mut self.notes[place].content
        } else if let Some(stranger) = self.strangers.get_mut(&(directory, name.into_boxed_os_str())) {
            &mut stranger.content
        } else {
            return;
        };
        // Unless that has happened already.
        if *content == Content::Asked {
            *content = Content::Unread;
        }
    }
}

/// `x` when `name` is `x.keep`.
fn pinned_name(name: &OsStr) -> Option<&OsStr> {
    let pinned = name.as_bytes().strip_suffix(PIN_SUFFIX.as_bytes())?;
    (!pinned.is_empty()).then(|| OsStr::from_bytes(pinned))
}

/// Whether `name` is one that the executor gives while it deletes.
fn is_ours(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".evicting-")
}

/// Whether a marker lies beside `name`. In doubt, yes.
fn is_pinned(dir: BorrowedFd<'_>, name: &OsStr) -> bool {
    let mut marker = name.to_owned();
    marker.push(PIN_SUFFIX);
    // A name so long that the marker's would not fit cannot have one.
    !matches!(Stat::at(dir, &marker), Err(Errno::ENOENT | Errno::ENAMETOOLONG))
}

#[cfg(test)]
mod tests;
