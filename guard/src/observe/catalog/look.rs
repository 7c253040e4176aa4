//! What is made of an entry that is looked at.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;

use nix::errno::Errno;

use super::describe::{blank, describe, set_size, version_of};
use super::settling::Shape;
use super::{Catalog, Content, Note, Stranger, Version};
use crate::model::{Checkpoint, FileId, Kind, States};
use crate::observe::archive::CheckpointName;
use crate::observe::holders::{OpenState, probe_open};
use crate::observe::scan::{self, Stat};

impl Catalog {
    /// Notes a regular file; the result is whether anything about it is new.
    pub(super) fn see_file(
        &mut self,
        directory: u16,
        dir: BorrowedFd<'_>,
        name: &OsStr,
        stat: &Stat,
    ) -> bool {
        let version = Version::from(stat);
        let reach = self.reach(directory);
        if let Some(place) = self.find(directory, name) {
            self.notes[place].seen = self.round;
            let checkpoint = &mut self.inventory.checkpoints[place];
            let unchanged = version_of(checkpoint) == version;
            let unsettled = checkpoint.states.intersects(States::BEING_WRITTEN | States::IN_USE);
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
                if self.notes[place].content != Content::Queued {
                    self.notes[place].content = Content::Unread;
                }
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
    pub(super) fn settle(&mut self, place: usize, dir: BorrowedFd<'_>) {
        let checkpoint = &mut self.inventory.checkpoints[place];
        let state = probe_open(dir, &checkpoint.name);
        self.lacks_leases |= state == OpenState::NoLeases;
        let is_restoring = self.cluster.declared(checkpoint).is_some_and(|it| it.restoring);
        let is_open = matches!(state, OpenState::Reading | OpenState::Writing);
        checkpoint.states.set(States::IN_USE, is_open || is_restoring);
        let note = self.notes[place];
        checkpoint
            .states
            .set(States::BEING_WRITTEN, state == OpenState::Writing || note.content != Content::Read);
        if state != OpenState::Writing && note.content == Content::Unread {
            self.queue(place);
        }
    }

    /// Notes a regular file with a foreign name. Read once per version, and never listed unless it turns out to be
    /// a checkpoint.
    fn see_stranger(&mut self, directory: u16, name: &OsStr, stat: &Stat) -> bool {
        let seen = self.round;
        let key = (directory, name.into());
        let mut is_queued = false;
        if let Some(stranger) = self.strangers.get_mut(&key) {
            if same_version(&stranger.stat, stat) && stranger.content != Content::Unread {
                stranger.seen = seen;
                return false;
            }
            is_queued = stranger.content == Content::Queued;
        }
        self.strangers.insert(key.clone(), Stranger { stat: *stat, content: Content::Queued, seen });
        if !is_queued {
            self.unread_strangers.push_back(key);
        }
        true
    }

    /// Notes a subdirectory; `None` when it is no pod checkpoint, else whether anything about it is new.
    pub(super) fn see_tree(&mut self, directory: u16, dir: BorrowedFd<'_>, name: &OsStr) -> Option<bool> {
        let is_declared = name.to_str().is_some_and(|name| self.cluster.declared.contains_key(name));
        if !is_declared {
            CheckpointName::parse(name, Kind::PodCheckpoint)?;
        }
        let top = Stat::at(dir, name).ok()?;
        let mut is_open = false;
        let mut is_written = |dir: BorrowedFd<'_>, name: &OsStr| {
            let state = probe_open(dir, name);
            is_open |= matches!(state, OpenState::Reading | OpenState::Writing);
            state == OpenState::Writing
        };
        let tree = scan::measure(dir, name, &mut is_written).ok()?;
        let version = Version { file: top.file, len: tree.len, modified: tree.modified };
        let place = self.find(directory, name);
        let changed = place.is_none_or(|place| version_of(&self.inventory.checkpoints[place]) != version);
        let is_first = !self.others.contains_key(&directory);
        let shape = self.settling.see(top.file, &tree, is_first, self.now);
        let mut checkpoint = blank(directory, Kind::PodCheckpoint, name, version);
        checkpoint.states.set(States::IN_USE, is_open);
        describe(&mut checkpoint, None, &mut self.strings, &self.cluster);
        checkpoint.allocated = tree.allocated;
        checkpoint.inodes = tree.inodes;
        checkpoint.states.set(States::EXPOSED, self.reach(directory).exposes(top.mode, true));
        checkpoint.states.set(States::BEING_WRITTEN, shape == Shape::BeingWritten);
        checkpoint.states.set(States::INCOMPLETE, shape == Shape::Empty);
        let note = Note { content: Content::Read, seen: self.round };
        match place {
            Some(place) => {
                let before = &self.inventory.checkpoints[place];
                if before.file != top.file {
                    self.settling.forget(before.file);
                }
                let stays = if changed { States::PINNED } else { States::PINNED | States::REFUSED };
                checkpoint.states |= before.states & stays;
                self.inventory.checkpoints[place] = checkpoint;
                self.notes[place] = note;
            }
            None => {
                self.insert(checkpoint, note);
            }
        }
        Some(changed)
    }

    /// Looks once more at the pod checkpoint `name`, of which no event may tell anything.
    pub(super) fn look_at_tree(&mut self, directory: u16, dir: BorrowedFd<'_>, name: &OsStr, file: FileId) {
        if self.see_tree(directory, dir, name).is_none() {
            match Stat::at(dir, name) {
                Err(Errno::ENOENT) => drop(self.remove(directory, name)),
                _ => self.settling.put_off(file, self.now),
            }
        }
    }

    /// Takes out what the last scan of `directory` did not see.
    pub(super) fn forget_unseen(&mut self, directory: u16) -> usize {
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

    pub(super) fn set_pins(&mut self, directory: u16, pins: &[OsString]) {
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
}

fn same_version(one: &Stat, other: &Stat) -> bool {
    Version::from(one) == Version::from(other)
}
