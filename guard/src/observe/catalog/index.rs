//! Where in the inventory a checkpoint stands, found by its directory and name.

use std::ffi::OsStr;
use std::hash::BuildHasher as _;

use hashbrown::DefaultHashBuilder;

use super::{Catalog, Content, Note};
use crate::model::Checkpoint;

impl Catalog {
    fn hash(hasher: &DefaultHashBuilder, directory: u16, name: &OsStr) -> u64 {
        hasher.hash_one((directory, name))
    }

    pub(super) fn find(&self, directory: u16, name: &OsStr) -> Option<usize> {
        let checkpoints = &self.inventory.checkpoints;
        let is_it = |place: &u32| {
            let checkpoint = &checkpoints[*place as usize];
            checkpoint.directory == directory && *checkpoint.name == *name
        };
        self.index.find(Self::hash(&self.hasher, directory, name), is_it).map(|place| *place as usize)
    }

    pub(super) fn insert(&mut self, checkpoint: Checkpoint, note: Note) -> usize {
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
    pub(super) fn remove_at(&mut self, place: usize) -> Checkpoint {
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
        let gone = self.inventory.checkpoints.swap_remove(place);
        self.settling.forget(gone.file);
        if self.notes.get(place).is_some_and(|moved| moved.content == Content::Queued) {
            self.queue(place);
        }
        gone
    }

    /// Has the content of the checkpoint at `place` read when its turn comes.
    pub(super) fn queue(&mut self, place: usize) {
        self.notes[place].content = Content::Queued;
        self.unread.push_back(place as u32);
    }
}
