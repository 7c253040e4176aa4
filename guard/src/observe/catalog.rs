//! [`Catalog`]: the inventory of one filesystem, kept up to date from scans and from single events.
//!
//! What an archive says inside is read once and remembered by device, inode, size and mtime: a rescan re-reads
//! nothing that has not changed. The reading itself happens elsewhere (it may take milliseconds): the catalog
//! hands out [`ReadRequest`]s and takes the answers back. Until its answer is there, a checkpoint counts as
//! *being written*: whether it is complete is not known, so it is neither a victim nor does it replace another.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::hash::BuildHasher as _;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use jiff::Timestamp;
use nix::errno::Errno;

use crate::model::{
    Bytes, Certainty, Checkpoint, Cluster, Fate, FileId, Inventory, Kind, Owner, PodName, States,
};
use crate::observe::archive::{self, CheckpointName, Contents, Interner};
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
    /// Somebody writes it, or it waits in the queue.
    Unread,
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
    unread: VecDeque<(u16, Box<OsStr>)>,
    strings: Interner,
    cluster: Arc<Cluster>,
    round: u32,
    /// Who gets into each directory, as of its last scan.
    reach: HashMap<u16, Reach>,
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

    /// Adds a directory; the result is its index.
    ///
    /// # Panics
    /// With more than 65,535 directories on one filesystem.
    pub fn add_directory(&mut self, path: PathBuf) -> u16 {
        self.inventory.directories.push(path);
        u16::try_from(self.inventory.directories.len() - 1).expect("nobody configures 65,536 directories")
    }

    /// Whether some content is not known yet although nobody writes it: decisions may change soon.
    pub fn has_unread(&self) -> bool {
        let is_asked = |content: Content| content == Content::Asked;
        !self.unread.is_empty()
            || self.notes.iter().any(|note| is_asked(note.content))
            || self.strangers.values().any(|stranger| is_asked(stranger.content))
    }

    /// Looks at everything in `dir`, the directory with this index.
    ///
    /// # Errors
    /// The directory cannot be read; what was known stays.
    pub fn scan(&mut self, directory: u16, dir: BorrowedFd<'_>, holds: Holds) -> Result<ScanSummary, Errno> {
        self.round = self.round.wrapping_add(1);
        self.reach.insert(directory, Reach::of(dir));
        let mut summary = ScanSummary::default();
        let mut pins: Vec<OsString> = Vec::new();
        let mut trees: Vec<OsString> = Vec::new();
        let mut foreign = 0;
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
                    _ => foreign += 1,
                }
            }
        })?;
        for name in trees {
            match self.see_tree(directory, dir, &name) {
                Some(changed) => summary.changed += usize::from(changed),
                None => foreign += 1,
            }
        }
        summary.gone = self.forget_unseen(directory);
        self.set_pins(directory, &pins);
        let strangers = self.strangers.keys().filter(|(place, _)| *place == directory).count();
        self.inventory.foreign = foreign + strangers;
        Ok(summary)
    }

    /// Looks at one entry of `dir` again, after an event. The result is whether somebody has it open for writing.
    pub fn refresh(&mut self, directory: u16, dir: BorrowedFd<'_>, holds: Holds, name: &OsStr) -> bool {
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
        let Some(place) = self.find(directory, name) else { return false };
        let is_pinned = is_pinned(dir, name);
        let states = &mut self.inventory.checkpoints[place].states;
        states.set(States::PINNED, is_pinned);
        states.contains(States::IN_USE | States::BEING_WRITTEN)
    }

    /// Takes a checkpoint out: it was deleted, or has gone.
    pub fn remove(&mut self, directory: u16, name: &OsStr) -> Option<Checkpoint> {
        let place = self.find(directory, name)?;
        Some(self.remove_at(place))
    }

    /// Remembers why a deletion was refused, so that the next plan leaves it alone. Scans look again.
    pub fn set_states(&mut self, directory: u16, name: &OsStr, states: States) {
        if let Some(place) = self.find(directory, name) {
            self.inventory.checkpoints[place].states.insert(states);
        }
    }

    /// Lets those be tried again whose deletion failed: the disk, or whoever had made them immutable, may have changed its
    /// mind, and nothing tells.
    pub fn forgive(&mut self) {
        for checkpoint in &mut self.inventory.checkpoints {
            checkpoint.states.remove(States::REFUSED);
        }
    }

    /// Looks again at those in `directory` that somebody had open: he may be done.
    pub fn look_again(&mut self, directory: u16, dir: BorrowedFd<'_>) {
        for place in 0..self.notes.len() {
            let checkpoint = &self.inventory.checkpoints[place];
            if checkpoint.directory == directory
                && checkpoint.kind == Kind::Archive
                && checkpoint.states.intersects(States::IN_USE | States::BEING_WRITTEN)
                && self.notes[place].content != Content::Asked
            {
                self.settle(place, dir);
            }
        }
    }

    /// Takes over what is known of the cluster: whose pod is gone, whose a pod checkpoint is and whether it is being restored.
    pub fn set_cluster(&mut self, cluster: Arc<Cluster>) {
        for checkpoint in &mut self.inventory.checkpoints {
            let was_restoring = self.cluster.declared(checkpoint).is_some_and(|it| it.restoring);
            if was_restoring {
                checkpoint.states.remove(States::IN_USE);
            }
            declare(checkpoint, &cluster);
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

    /// Takes out everything in a directory that is no longer watched.
    pub fn forget_directory(&mut self, directory: u16) {
        self.round = self.round.wrapping_add(1);
        self.forget_unseen(directory);
    }

    /// Up to `most` archives whose content is wanted. Each must be answered with [`Catalog::answer`].
    pub fn wanted(&mut self, most: usize) -> Vec<ReadRequest> {
        let mut requests = Vec::new();
        while requests.len() < most {
            let Some((directory, name)) = self.unread.pop_front() else { break };
            let version = if let Some(place) = self.find(directory, &name) {
                let note = &mut self.notes[place];
                if note.content != Content::Unread {
                    continue;
                }
                note.content = Content::Asked;
                version_of(&self.inventory.checkpoints[place])
            } else if let Some(stranger) = self.strangers.get_mut(&(directory, name.clone())) {
                if stranger.content != Content::Unread {
                    continue;
                }
                stranger.content = Content::Asked;
                Version::from(&stranger.stat)
            } else {
                continue;
            };
            requests.push(ReadRequest { directory, name: name.into(), version });
        }
        requests
    }

    /// Takes the answer to a request. One about a version that is no longer there is dropped; the newer version
    /// waits in the queue already.
    pub fn answer(&mut self, (request, reading): Answer) {
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
        self.inventory.foreign = self.inventory.foreign.saturating_sub(1);
        self.insert(checkpoint, Note { content: Content::Read, seen });
    }

    fn reach(&self, directory: u16) -> Reach {
        self.reach.get(&directory).copied().unwrap_or(Reach::EVERYBODY)
    }

    /// A request could not be answered because the file has changed: the next event or scan queues it again.
    fn ask_again(&mut self, directory: u16, name: OsString) {
        if let Some(place) = self.find(directory, &name) {
            self.notes[place].content = Content::Unread;
        } else if let Some(stranger) = self.strangers.get_mut(&(directory, name.into_boxed_os_str())) {
            stranger.content = Content::Unread;
        }
    }

    /// Notes a regular file; the result is whether anything about it is new.
    fn see_file(&mut self, directory: u16, dir: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> bool {
        let version = Version::from(stat);
        let reach = self.reach(directory);
        if let Some(place) = self.find(directory, name) {
            self.notes[place].seen = self.round;
            let checkpoint = &mut self.inventory.checkpoints[place];
            let unchanged = version_of(checkpoint) == version;
            let unsettled =
                checkpoint.states.intersects(States::BEING_WRITTEN | States::IN_USE | States::REFUSED);
            set_size(checkpoint, stat, reach);
            if unchanged && (!unsettled || self.notes[place].content == Content::Asked) {
                return false;
            }
            if !unchanged {
                let kept = checkpoint.states & States::PINNED;
                let fresh = blank(directory, Kind::Archive, name, version);
                *checkpoint = Checkpoint { allocated: checkpoint.allocated, states: kept, ..fresh };
                set_size(checkpoint, stat, reach);
                describe(checkpoint, None, &mut self.strings, &self.cluster);
                self.notes[place].content = Content::Unread;
            }
            self.settle(place, dir);
            return !unchanged;
        }
        if CheckpointName::parse(name, Kind::Archive).is_none() {
            return self.see_stranger(directory, name, stat);
        }
        let mut checkpoint = blank(directory, Kind::Archive, name, version);
        set_size(&mut checkpoint, stat, reach);
        describe(&mut checkpoint, None, &mut self.strings, &self.cluster);
        let place = self.insert(checkpoint, Note { content: Content::Unread, seen: self.round });
        self.settle(place, dir);
        true
    }

    /// Finds out whether somebody has the archive at `place` open, and asks for its content once nobody writes it.
    fn settle(&mut self, place: usize, dir: BorrowedFd<'_>) {
        let checkpoint = &mut self.inventory.checkpoints[place];
        let state = probe_open(dir, &checkpoint.name);
        checkpoint.states.remove(States::REFUSED);
        let is_restoring = self.cluster.declared(checkpoint).is_some_and(|it| it.restoring);
        let is_open = matches!(state, OpenState::Reading | OpenState::Writing);
        checkpoint.states.set(States::IN_USE, is_open || is_restoring);
        let note = self.notes[place];
        checkpoint
            .states
            .set(States::BEING_WRITTEN, state == OpenState::Writing || note.content != Content::Read);
        if state != OpenState::Writing && note.content == Content::Unread {
            self.unread.push_back((checkpoint.directory, checkpoint.name.clone()));
        }
    }

    /// Notes a regular file with a foreign name. Read once per version, and never listed unless it turns out to be
    /// a checkpoint.
    fn see_stranger(&mut self, directory: u16, name: &OsStr, stat: &Stat) -> bool {
        let seen = self.round;
        let key = (directory, name.into());
        match self.strangers.get_mut(&key) {
            Some(stranger) if same_version(&stranger.stat, stat) && stranger.content != Content::Unread => {
                stranger.seen = seen;
                return false;
            }
            _ => {}
        }
        self.strangers.insert(key.clone(), Stranger { stat: *stat, content: Content::Unread, seen });
        self.unread.push_back(key);
        true
    }

    /// Notes a subdirectory; `None` when it is no pod checkpoint, else whether anything about it is new.
    fn see_tree(&mut self, directory: u16, dir: BorrowedFd<'_>, name: &OsStr) -> Option<bool> {
        let is_declared = name.to_str().is_some_and(|name| self.cluster.declared.contains_key(name));
        if !is_declared {
            CheckpointName::parse(name, Kind::PodCheckpoint)?;
        }
        let top = Stat::at(dir, name).ok()?;
        let tree =
            scan::measure(dir, name, &mut |dir, name| probe_open(dir, name) == OpenState::Writing).ok()?;
        let version =
            Version { file: top.file, len: tree.len, modified: tree.modified.unwrap_or(top.modified) };
        let place = self.find(directory, name);
        let changed = place.is_none_or(|place| version_of(&self.inventory.checkpoints[place]) != version);
        let mut checkpoint = blank(directory, Kind::PodCheckpoint, name, version);
        describe(&mut checkpoint, None, &mut self.strings, &self.cluster);
        checkpoint.allocated = tree.allocated;
        checkpoint.inodes = tree.inodes;
        checkpoint.states.set(States::EXPOSED, self.reach(directory).exposes(top.mode, true));
        // What was not seen whole may still be growing.
        checkpoint.states.set(States::BEING_WRITTEN, tree.being_written || tree.partial);
        let note = Note { content: Content::Read, seen: self.round };
        match place {
            Some(place) => {
                checkpoint.states |= self.inventory.checkpoints[place].states & States::PINNED;
                self.inventory.checkpoints[place] = checkpoint;
                self.notes[place] = note;
            }
            None => {
                self.insert(checkpoint, note);
            }
        }
        Some(changed)
    }

    /// Takes out what the last scan of `directory` did not see.
    fn forget_unseen(&mut self, directory: u16) -> usize {
        let round = self.round;
        self.strangers.retain(|(place, _), stranger| *place != directory || stranger.seen == round);
        let before = self.notes.len();
        let mut place = 0;
        while place < self.notes.len() {
            if self.inventory.checkpoints[place].directory == directory && self.notes[place].seen != round {
                self.remove_at(place);
            } else {
                place += 1;
            }
        }
        before - self.notes.len()
    }

    fn set_pins(&mut self, directory: u16, pins: &[OsString]) {
        for checkpoint in &mut self.inventory.checkpoints {
            if checkpoint.directory == directory {
                checkpoint.states.remove(States::PINNED);
            }
        }
        for name in pins {
            if let Some(place) = self.find(directory, name) {
                self.inventory.checkpoints[place].states.insert(States::PINNED);
            }
        }
    }

    fn hash(hasher: &DefaultHashBuilder, directory: u16, name: &OsStr) -> u64 {
        hasher.hash_one((directory, name))
    }

    fn find(&self, directory: u16, name: &OsStr) -> Option<usize> {
        let checkpoints = &self.inventory.checkpoints;
        let is_it = |place: &u32| {
            let checkpoint = &checkpoints[*place as usize];
            checkpoint.directory == directory && *checkpoint.name == *name
        };
        self.index.find(Self::hash(&self.hasher, directory, name), is_it).map(|place| *place as usize)
    }

    fn insert(&mut self, checkpoint: Checkpoint, note: Note) -> usize {
        let place = self.notes.len();
        let hash = Self::hash(&self.hasher, checkpoint.directory, &checkpoint.name);
        self.inventory.checkpoints.push(checkpoint);
        self.notes.push(note);
        let (checkpoints, hasher) = (&self.inventory.checkpoints, &self.hasher);
        let number =
            u32::try_from(place).expect("a directory cannot hold four billion entries in this memory");
        self.index.insert_unique(hash, number, |place| {
            let checkpoint = &checkpoints[*place as usize];
            Self::hash(hasher, checkpoint.directory, &checkpoint.name)
        });
        place
    }

    /// Takes out one place; the last one moves into it.
    fn remove_at(&mut self, place: usize) -> Checkpoint {
        let last = self.notes.len() - 1;
        let gone = &self.inventory.checkpoints[place];
        let hash = Self::hash(&self.hasher, gone.directory, &gone.name);
        let entry = self.index.find_entry(hash, |number| *number as usize == place);
        let Ok(entry) = entry else { unreachable!("every checkpoint is indexed") };
        entry.remove();
        if place != last {
            let moved = &self.inventory.checkpoints[last];
            let hash = Self::hash(&self.hasher, moved.directory, &moved.name);
            let number = self.index.find_mut(hash, |number| *number as usize == last);
            *number.expect("every checkpoint is indexed") = place as u32;
        }
        self.notes.swap_remove(place);
        self.inventory.checkpoints.swap_remove(place)
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

fn same_version(one: &Stat, other: &Stat) -> bool {
    Version::from(one) == Version::from(other)
}

fn version_of(checkpoint: &Checkpoint) -> Version {
    Version { file: checkpoint.file, len: checkpoint.len, modified: checkpoint.modified }
}

fn blank(directory: u16, kind: Kind, name: &OsStr, version: Version) -> Checkpoint {
    Checkpoint {
        directory,
        kind,
        states: States::empty(),
        name: name.into(),
        file: version.file,
        created: version.modified,
        modified: version.modified,
        len: version.len,
        allocated: Bytes::ZERO,
        inodes: 1,
        identity: crate::model::Identity::default(),
    }
}

/// What deleting it frees, now; and who may read it.
fn set_size(checkpoint: &mut Checkpoint, stat: &Stat, reach: Reach) {
    let linked = stat.links > 1;
    checkpoint.states.set(States::LINKED, linked);
    checkpoint.states.set(States::EXPOSED, reach.exposes(stat.mode, false));
    checkpoint.allocated = if linked { Bytes::ZERO } else { stat.allocated };
    checkpoint.inodes = u32::from(!linked);
}

/// What the PodCheckpoint object of `checkpoint` says of it, where there is one: its status is the kubelet's to write. Where
/// the name says something else, nobody loses by it: the most protected reading counts.
fn declare(checkpoint: &mut Checkpoint, cluster: &Cluster) {
    let Some(declared) = cluster.declared(checkpoint) else { return };
    if declared.restoring {
        checkpoint.states.insert(States::IN_USE);
    }
    let identity = &mut checkpoint.identity;
    identity.pod_uid = declared.pod_uid.clone().or(identity.pod_uid.take());
    let owner =
        Owner { namespace: Some(declared.namespace.clone()), pod: declared.pod.clone(), container: None };
    if declared.pod.is_none() || identity.owner == owner && identity.certainty != Certainty::NameOnly {
        return;
    }
    let known: Vec<Owner> = identity.readings().filter(|it| it.namespace.is_some()).cloned().collect();
    let agrees = known.is_empty() || known.contains(&owner);
    identity.certainty = if agrees { Certainty::Exact } else { Certainty::Ambiguous };
    identity.alternatives = if agrees { Box::default() } else { known.into() };
    identity.owner = owner;
}

/// Whose it is and since when, from its name and, once read, its content.
fn describe(
    checkpoint: &mut Checkpoint,
    contents: Option<&Contents>,
    strings: &mut Interner,
    cluster: &Cluster,
) {
    let name = CheckpointName::parse(&checkpoint.name, checkpoint.kind);
    let (mut identity, created) = archive::identify(name.as_ref(), contents);
    strings.share(&mut identity);
    checkpoint.identity = identity;
    checkpoint.created = created.unwrap_or(checkpoint.modified);
    declare(checkpoint, cluster);
    checkpoint.states.set(States::ORPHAN, cluster.fate(checkpoint) == Fate::Gone);
    if let Some(contents) = contents {
        checkpoint.states.set(States::INCOMPLETE, contents.incomplete());
        checkpoint.states.set(States::HAS_PARENT, contents.has_parent);
        checkpoint.states.set(States::PRE_CHECKPOINT, contents.pre_checkpoint);
    }
}
