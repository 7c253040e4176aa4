//! One probe for all filesystems: who has which slot, and whom a wake is for.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;

use crate::agent::priority;
use crate::agent::stumbles;
use crate::config::ProbeMode;
use crate::model::{Bytes, Monotonic};
use crate::observe::probe::{
    Armed, Backend, Coverage, LedgerEntry, Lost, Probe, ProbeError, Slot, Wakes, Written,
};

/// The loaded probe.
pub(super) struct Probing {
    probe: Probe,
    latches: Mutex<Vec<Option<Arc<Latch>>>>,
    lost: Mutex<Lost>,
    /// What sees the writes to the directory that was added last.
    taken: Mutex<Backend>,
}

/// Where a wake waits for its loop.
#[derive(Debug)]
struct Latch {
    /// When the write happened that used the budget up, in ns; zero: none did.
    at: AtomicU64,
    bell: Arc<EventFd>,
}

/// How often the thread looks whether it should end. Nobody waits for that: it ends with the process.
const LOOK_EVERY: Duration = Duration::from_secs(30);

impl Probing {
    /// Loads the probe that `mode` asks for; `None` when that is none, or when none works here. Both are said.
    ///
    /// # Errors
    /// A backend that was asked for by name does not work.
    pub(super) fn start(mode: ProbeMode, stop: Arc<AtomicBool>) -> Result<Option<Arc<Probing>>, ProbeError> {
        if mode == ProbeMode::Off {
            tracing::info!(
                backend = Backend::Inotify.as_str(),
                "eBPF is switched off ([probe] mode = \"off\")"
            );
            return Ok(None);
        }
        let loaded = match mode {
            ProbeMode::Fexit => Probe::load_only(Backend::Fexit),
            ProbeMode::Kprobe => Probe::load_only(Backend::Kprobe),
            ProbeMode::RawTracepoint => Probe::load_only(Backend::RawTracepoint),
            ProbeMode::Auto | ProbeMode::Off => Probe::load(),
        };
        let (probe, mut wakes) = match loaded {
            Ok(loaded) => loaded,
            Err(error) if mode == ProbeMode::Auto => {
                tracing::warn!(%error, backend = Backend::Inotify.as_str(), "eBPF does not work here; going on without");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        tracing::info!(mode = mode.as_str(), "eBPF loaded");
        let latches = vec![const { None }; usize::from(Slot::MAX.0) + 1];
        let this = Arc::new(Probing {
            probe,
            latches: Mutex::new(latches),
            lost: Mutex::default(),
            taken: Mutex::new(Backend::Inotify),
        });
        let deliverer = this.clone();
        let spawned = std::thread::Builder::new()
            .name("wakes".to_owned())
            .spawn(move || stumbles::go_on("wakes", || deliverer.deliver(&mut wakes, &stop)));
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread to wait for wakes; the timer alone must do");
        }
        Ok(Some(this))
    }

    /// What sees the writes, inotify until a directory is watched.
    pub(super) fn backend(&self) -> Backend {
        *lock(&self.taken)
    }

    /// A slot for a filesystem, whose wakes will ring `bell`; `None` when all are taken.
    pub(super) fn slot(self: &Arc<Self>, bell: Arc<EventFd>) -> Option<Watched> {
        let mut latches = lock(&self.latches);
        let Some(free) = latches.iter().position(Option::is_none) else {
            tracing::warn!(
                slots = latches.len(),
                "too many filesystems for eBPF; the others are watched by the timer"
            );
            return None;
        };
        let latch = Arc::new(Latch { at: AtomicU64::new(0), bell });
        latches[free] = Some(latch.clone());
        let slot = Slot(u8::try_from(free).expect("there are no more slots than fit in a Slot"));
        let before = self.probe.written(slot).unwrap_or_default();
        Some(Watched { probing: self.clone(), slot, latch, before, exact: true, armed: Cell::new(None) })
    }

    /// What was counted for each file.
    pub(super) fn ledger(&self) -> Result<Vec<LedgerEntry>, ProbeError> {
        self.probe.ledger()
    }

    /// What was written for all slots together: when it has not changed, nor has the ledger.
    pub(super) fn added(&self) -> Bytes {
        (0..=Slot::MAX.0).filter_map(|slot| self.probe.written(Slot(slot)).ok()).map(|it| it.added).sum()
    }

    /// Makes room in the ledger.
    pub(super) fn sweep(&self, entries: &[LedgerEntry], idle_since: Monotonic) {
        match self.probe.sweep(entries, idle_since) {
            Ok(swept) => tracing::debug!(swept, "the ledger was getting full"),
            Err(error) => tracing::debug!(%error, "cannot make room in the ledger"),
        }
    }

    /// What was lost since the last call.
    pub(super) fn newly_lost(&self) -> Lost {
        let Ok(now) = self.probe.lost() else { return Lost::default() };
        let before = std::mem::replace(&mut *lock(&self.lost), now);
        Lost {
            ledger_full: now.ledger_full.saturating_sub(before.ledger_full),
            wakes_dropped: now.wakes_dropped.saturating_sub(before.wakes_dropped),
        }
    }

    /// Passes wakes on until told to stop.
    fn deliver(&self, wakes: &mut Wakes, stop: &AtomicBool) {
        priority::raise();
        while !stop.load(Ordering::Relaxed) {
            let mut fds = [PollFd::new(std::os::fd::AsFd::as_fd(wakes), PollFlags::POLLIN)];
            // EINTR is a look too many, no more.
            let _ = poll(&mut fds, PollTimeout::from(LOOK_EVERY.as_millis() as u16));
            for wake in wakes.drain() {
                let latches = lock(&self.latches);
                if let Some(Some(latch)) = latches.get(usize::from(wake.slot.0)) {
                    let at = u64::try_from(wake.at.0.as_nanos()).unwrap_or(u64::MAX);
                    // The first one counts: reaction is measured from it.
                    let _ = latch.at.compare_exchange(0, at.max(1), Ordering::AcqRel, Ordering::Relaxed);
                    let _ = latch.bell.write(1);
                }
            }
        }
    }
}

/// One filesystem's share of the probe. Dropping it gives the slot back.
pub(super) struct Watched {
    probing: Arc<Probing>,
    slot: Slot,
    latch: Arc<Latch>,
    /// What had been counted when somebody asked last.
    before: Written,
    /// Every block of every directory is counted.
    exact: bool,
    /// The budget in force, and since when.
    armed: Cell<Option<(Bytes, Monotonic)>>,
}

impl Watched {
    /// Counts what is written below `dir`.
    pub(super) fn add(&mut self, dir: BorrowedFd<'_>) -> Result<Coverage, ProbeError> {
        let coverage = self.probing.probe.watch(self.slot, dir).inspect_err(|_| self.exact = false)?;
        *lock(&self.probing.taken) = coverage.backend();
        self.exact &= coverage.is_exact();
        Ok(coverage)
    }

    /// Counts nothing below `dir` any more.
    pub(super) fn remove(&self, dir: BorrowedFd<'_>) {
        if let Err(error) = self.probing.probe.unwatch(dir) {
            tracing::debug!(%error, "unwatching failed");
        }
    }

    /// The write that used the budget up, if one did since the last call.
    pub(super) fn take_wake(&self) -> Option<Woken> {
        let at = self.latch.at.swap(0, Ordering::AcqRel);
        let at = (at != 0).then(|| Monotonic(Duration::from_nanos(at)))?;
        let rate = self.armed.take().map_or(0.0, |(budget, since)| {
            budget.0 as f64 / at.since(since).as_secs_f64().max(RATE_OVER_MIN.as_secs_f64())
        });
        Some(Woken { at, rate })
    }

    /// Sets the budget to `headroom`, or to half of it where the count may fall short of what the filesystem takes.
    pub(super) fn arm(&self, headroom: Bytes, now: Monotonic) {
        // A threshold is met by less than its value: at the headroom's end there is nothing to do yet, one byte on there is.
        let budget = if self.exact { headroom + Bytes(1) } else { Bytes(headroom.0 / 2) }.max(BUDGET_MIN);
        self.armed.set(Some((budget, now)));
        match self.probing.probe.arm(self.slot, budget) {
            Ok(Armed::Waiting) => {}
            // The loop's next turn is due at once.
            Ok(Armed::UsedUp) => {
                let _ = self.latch.bell.write(1);
            }
            Err(error) => tracing::warn!(%error, "cannot arm the budget; the timer alone must do"),
        }
    }

    /// Its slot.
    pub(super) fn slot(&self) -> Slot {
        self.slot
    }

    /// Whether nothing is written unseen.
    pub(super) fn is_exact(&self) -> bool {
        self.exact
    }

    /// What was written since the last call.
    pub(super) fn newly_written(&mut self) -> Bytes {
        let Ok(now) = self.probing.probe.written(self.slot) else { return Bytes::ZERO };
        let before = std::mem::replace(&mut self.before, now);
        now.added.saturating_sub(before.added)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.probing.probe.disarm(self.slot);
        lock(&self.probing.latches)[usize::from(self.slot.0)] = None;
    }
}

/// A budget that was used up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Woken {
    /// By a write at this time.
    pub(super) at: Monotonic,
    /// By so many bytes a second.
    pub(super) rate: f64,
}

/// A rate over less time than this says nothing.
const RATE_OVER_MIN: Duration = Duration::from_millis(2);
/// Less is not worth a wake: a write of this size and the next come before the loop has turned.
const BUDGET_MIN: Bytes = Bytes::mib(1);

/// Nothing that is kept here can be left half-changed by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
