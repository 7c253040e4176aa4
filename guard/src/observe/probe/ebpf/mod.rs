//! [`Probe`]: the eBPF program, loaded.

mod btf;
mod budget;
mod ledger;
mod object;
mod offsets;
mod refusing;
mod self_test;
mod trying;
mod wakes;
mod watched;
mod way;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use guard_ebpf::names;

use self::budget::Budgets;
use self::ledger::Ledger;
use self::object::{Array, Object, refused};
pub use self::refusing::{RefusedCalls, Refusing};
pub(super) use self::trying::attempts;
pub use self::wakes::Wakes;
use self::watched::Directories;
use super::{Armed, Backend, Coverage, LedgerEntry, Lost, ProbeError, SelfTest, Slot, Written};
use crate::model::{Bytes, FileId, Monotonic};

/// The loaded eBPF program; dropping it detaches everything.
///
/// Each part has a lock of its own, so that arming never waits for a directory being learnt or the ledger being read.
pub struct Probe {
    directories: Mutex<Directories>,
    budgets: Mutex<Budgets>,
    ledger: Mutex<Ledger>,
    lost: Array<guard_ebpf::Lost>,
}

impl Probe {
    /// Loads the program. Nothing is attached until a directory is watched.
    ///
    /// # Errors
    ///
    /// Says what the kernel refuses and what would change that: a capability, its type information, its age.
    pub fn load() -> Result<(Probe, Wakes), ProbeError> {
        Probe::new(None)
    }

    /// Loads the program to be used through one backend only.
    ///
    /// # Errors
    ///
    /// As [`Probe::load`], and [`ProbeError::NotThisOne`] when the kernel does not let that backend in.
    pub fn load_only(backend: Backend) -> Result<(Probe, Wakes), ProbeError> {
        let (probe, wakes) = Probe::new(Some(backend))?;
        let tried = lock(&probe.directories).try_backend(backend);
        match tried {
            Err(error) => Err(ProbeError::NotThisOne { backend, why: error.to_string() }),
            Ok(_) => Ok((probe, wakes)),
        }
    }

    fn new(only: Option<Backend>) -> Result<(Probe, Wakes), ProbeError> {
        let layout = offsets::of_kernel()?;
        let mut object = Object::load(&layout)?;
        let wakes = Wakes::new(&mut object)?;
        let probe = Probe {
            budgets: Mutex::new(Budgets::new(&mut object)?),
            ledger: Mutex::new(Ledger::new(&mut object)?),
            lost: object.map(names::LOST)?,
            directories: Mutex::new(Directories::new(object, layout, only)?),
        };
        Ok((probe, wakes))
    }

    /// Begins to count what is written below `directory`, at any depth up to 16, for the filesystem `slot`.
    ///
    /// Of the ways to count there, the best that the kernel lets in and that counts a probe file is taken, see
    /// [`Coverage::backend`]; those that were refused are logged. The kernel recognises the directory by its address,
    /// so the caller keeps the descriptor open for as long as it is watched: that keeps the address from being
    /// another's. A directory that was replaced must be unwatched by the old descriptor and watched by a new one.
    /// Watching a directory again only changes its slot.
    ///
    /// # Errors
    ///
    /// Why the last way that there was did not work either. Where there is none to begin with it is no error, but
    /// [`Coverage::Nothing`].
    pub fn watch(&self, slot: Slot, directory: BorrowedFd<'_>) -> Result<Coverage, ProbeError> {
        check(slot)?;
        let mut directories = lock(&self.directories);
        let found = trying::find_way(self, &mut directories, slot.0.into(), directory);
        directories.settle();
        found
    }

    /// Ends counting below `directory`; its totals and ledger entries stay.
    pub fn unwatch(&self, directory: BorrowedFd<'_>) -> Result<(), ProbeError> {
        lock(&self.directories).remove(directory)
    }

    /// Writes a nameless probe file into a watched `directory` and compares what was counted.
    ///
    /// # Errors
    ///
    /// [`ProbeError::DoesNotCount`]: then this probe is of no use there.
    pub fn self_test(&self, directory: BorrowedFd<'_>) -> Result<SelfTest, ProbeError> {
        let backend = lock(&self.directories).backend_of(directory)?;
        self.count_probe_file(backend, directory)
    }

    fn count_probe_file(&self, backend: Backend, directory: BorrowedFd<'_>) -> Result<SelfTest, ProbeError> {
        let (_open, file, written) = match self_test::write_probe_file(directory) {
            Ok(probe_file) => probe_file,
            Err(error) => return Ok(SelfTest::Untested(error)),
        };
        let entry = self.ledger()?.into_iter().find(|entry| entry.file == file);
        let counted = entry.map_or(Bytes::ZERO, |entry| entry.bytes);
        self.forget(file)?;
        if counted < written {
            Err(ProbeError::DoesNotCount { backend, written, counted })
        } else {
            Ok(SelfTest::Counts)
        }
    }

    /// Gives the filesystem `slot` a new budget from now on, replacing what remains of the old: one wake comes when
    /// `budget` bytes more are added than given back. More than 128 TiB is as good as 128 TiB.
    pub fn arm(&self, slot: Slot, budget: Bytes) -> Result<Armed, ProbeError> {
        check(slot)?;
        lock(&self.budgets).arm(slot, budget)
    }

    /// Takes the budget of `slot` away: no wake until it is armed again.
    pub fn disarm(&self, slot: Slot) -> Result<(), ProbeError> {
        check(slot)?;
        lock(&self.budgets).disarm(slot)
    }

    /// What was written for `slot` since the probe was loaded.
    pub fn written(&self, slot: Slot) -> Result<Written, ProbeError> {
        check(slot)?;
        let total = lock(&self.budgets).total(slot)?;
        Ok(Written { added: Bytes(total.added), freed: Bytes(total.freed) })
    }

    /// What was counted for each file, in order of [`FileId`].
    pub fn ledger(&self) -> Result<Vec<LedgerEntry>, ProbeError> {
        lock(&self.ledger).entries()
    }

    /// Makes room in the ledger: `file` is gone, or no longer of interest. Later writes to it begin at zero.
    pub fn forget(&self, file: FileId) -> Result<(), ProbeError> {
        lock(&self.ledger).forget(file)
    }

    /// Makes room in the ledger: drops those of `entries` that nobody has written to since `idle_since`. The result is how
    /// many.
    pub fn sweep(&self, entries: &[LedgerEntry], idle_since: Monotonic) -> Result<usize, ProbeError> {
        lock(&self.ledger).sweep(entries, idle_since)
    }

    /// What could not be recorded.
    pub fn lost(&self) -> Result<Lost, ProbeError> {
        let lost = self.lost.get(&0, 0).map_err(|error| refused("to read what was lost", &error))?;
        Ok(Lost { ledger_full: lost.ledger_full, wakes_dropped: lost.wakes_dropped })
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").finish_non_exhaustive()
    }
}

fn check(slot: Slot) -> Result<(), ProbeError> {
    if slot > Slot::MAX { Err(ProbeError::NoSuchSlot { slot: slot.0 }) } else { Ok(()) }
}

/// A thread that panicked while it held the lock left nothing half done: each part changes in one map operation.
fn lock<T>(part: &Mutex<T>) -> MutexGuard<'_, T> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}
