//! Who has checkpoints open, told a little later: a walk through `/proc` takes 50 to 150 ms, and no deletion may wait
//! for it. That somebody has one open is known at once, from a lease; who, is for people.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::agent::shared::Shared;
use crate::agent::stumbles;
use crate::model::FileId;
use crate::observe::holders;
use crate::report::audit::Event;

/// A checkpoint that somebody has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// Where it lies.
    pub(super) directory: PathBuf,
    /// Its name there.
    pub(super) name: OsString,
    /// The file that is open: the archive itself, or one below a pod checkpoint.
    pub(super) file: FileId,
}

/// So many are named at a time. Whoever has more than these open is found by them.
const HELD_MAX: usize = 64;

/// What is to be found out, and whether a thread is at it.
#[derive(Debug, Default)]
struct State {
    asked: Vec<Held>,
    at_work: bool,
}

/// Finds out who, in a thread that lives as long as there is something to find out.
#[derive(Clone, Debug, Default)]
pub(super) struct Naming(Arc<Mutex<State>>);

impl Naming {
    /// Has the holders of `held` logged and recorded. Does not wait.
    pub(super) fn ask(&self, shared: &Arc<Shared>, held: Vec<Held>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for one in held {
            if state.asked.len() < HELD_MAX && !state.asked.contains(&one) {
                state.asked.push(one);
            }
        }
        if state.asked.is_empty() || state.at_work {
            return;
        }
        let (this, shared) = (self.clone(), shared.clone());
        let spawned = std::thread::Builder::new().name("who".to_owned()).spawn(move || {
            super::priority::be_ordinary();
            while let Some(held) = this.take() {
                // Whoever is named next is named all the same.
                stumbles::survives("who", || tell(&shared, &held));
            }
        });
        match spawned {
            Ok(_) => state.at_work = true,
            Err(error) => {
                tracing::warn!(%error, "no thread to find out who has checkpoints open");
                state.asked.clear();
            }
        }
    }

    /// What is to be found out next; when nothing is, the work is over.
    fn take(&self) -> Option<Vec<Held>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.at_work = !state.asked.is_empty();
        state.at_work.then(|| std::mem::take(&mut state.asked))
    }
}

fn tell(shared: &Shared, held: &[Held]) {
    let files: Vec<FileId> = held.iter().map(|held| held.file).collect();
    let scan = holders::find(&files);
    for held in held {
        let checkpoint = held.directory.join(&held.name);
        let checkpoint = checkpoint.display();
        let Some(holders) = scan.holders.get(&held.file) else {
            // Closed meanwhile, in a process that we cannot see, or open in the kernel itself.
            let complete = scan.complete;
            tracing::debug!(%checkpoint, complete, "no process has it open that we can see");
            continue;
        };
        let named: Vec<_> =
            holders.iter().map(|holder| format!("{} (pid {})", holder.comm, holder.pid)).collect();
        let reason = format!("in use: {}", named.join(", "));
        tracing::warn!(%checkpoint, %reason, "somebody has it open; it stays until he closes it");
        let directory = held.directory.display().to_string();
        let name = held.name.to_string_lossy();
        shared.record(&Event::InUse { directory: &directory, name: &name, holders, reason: &reason });
    }
}
