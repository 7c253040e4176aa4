//! [`Budgets`]: arming, and the totals they are measured by.

use aya::maps::MapError;
use guard_ebpf::{Crossing, Limit, SLOTS, Total, names};

use super::super::{Armed, ProbeError, Slot};
use super::object::{Array, HashMap, Object, refused};
use crate::model::Bytes;

/// Insert, but do not replace (linux/bpf.h).
const BPF_NOEXIST: u64 = 1;

/// The budgets of all slots.
pub(super) struct Budgets {
    totals: Array<Total>,
    limits: Array<Limit>,
    crossed: HashMap<Crossing, u8>,
    /// Of the limits in force. 0 is none.
    epochs: [u16; SLOTS],
}

impl Budgets {
    pub(super) fn new(object: &mut Object) -> Result<Budgets, ProbeError> {
        Ok(Budgets {
            totals: object.map(names::TOTALS)?,
            limits: object.map(names::LIMITS)?,
            crossed: object.map(names::CROSSED)?,
            epochs: [0; SLOTS],
        })
    }

    pub(super) fn total(&self, slot: Slot) -> Result<Total, ProbeError> {
        self.totals.get(&slot.0.into(), 0).map_err(|error| refused("to read the totals", &error))
    }

    /// Replaces the budget of `slot`.
    ///
    /// Writers go on meanwhile. Whoever adds after the limit is written sees it; what was added before, between
    /// reading the total and writing the limit, may have used it up unseen. So the total is read once more, and if
    /// it is beyond the limit, this and a writer compete for telling it like two writers do.
    pub(super) fn arm(&mut self, slot: Slot, budget: Bytes) -> Result<Armed, ProbeError> {
        let old = self.epochs[usize::from(slot.0)];
        let epoch = epoch_after(old, self.total(slot)?.told);
        // Left over from when the epochs last wrapped, if at all.
        self.forget_crossing(slot, epoch)?;
        let limit = Limit::new(epoch, used(self.total(slot)?), budget.0);
        self.write(slot, limit)?;
        self.epochs[usize::from(slot.0)] = epoch;
        self.forget_crossing(slot, old)?;
        if limit.remaining(used(self.total(slot)?)) > 0 || !self.claim(slot, epoch)? {
            return Ok(Armed::Waiting);
        }
        Ok(Armed::UsedUp)
    }

    /// Takes the budget away: no wake until it is armed again.
    pub(super) fn disarm(&mut self, slot: Slot) -> Result<(), ProbeError> {
        self.write(slot, Limit::DISARMED)
    }

    fn write(&mut self, slot: Slot, limit: Limit) -> Result<(), ProbeError> {
        self.limits.set(slot.0.into(), limit, 0).map_err(|error| refused("to arm a budget", &error))
    }

    /// Whether nobody has told of this crossing yet; then it is ours to tell.
    fn claim(&mut self, slot: Slot, epoch: u16) -> Result<bool, ProbeError> {
        let crossing = Crossing { slot: slot.0.into(), epoch: epoch.into() };
        match self.crossed.insert(crossing, 0, BPF_NOEXIST) {
            Ok(()) => Ok(true),
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::EEXIST) => {
                Ok(false)
            }
            Err(error) => Err(refused("to claim a crossing", &error)),
        }
    }

    fn forget_crossing(&mut self, slot: Slot, epoch: u16) -> Result<(), ProbeError> {
        match self.crossed.remove(&Crossing { slot: slot.0.into(), epoch: epoch.into() }) {
            Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => {
                Ok(())
            }
            Err(error) => Err(refused("to forget a crossing", &error)),
        }
    }
}

/// The epoch of the next limit, after `old`; never 0, nor that whose crossing was `told` last: the kernel takes a crossing of
/// it for told, which after 65535 armings without a wake would be an old one.
fn epoch_after(old: u16, told: u64) -> u16 {
    let next = |epoch: u16| epoch.checked_add(1).unwrap_or(1);
    let epoch = next(old);
    if u64::from(epoch) == told { next(epoch) } else { epoch }
}

fn used(total: Total) -> u64 {
    total.added.wrapping_sub(total.freed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(old: u16, told: u64, expect: u16) {
        assert_eq!(epoch_after(old, told), expect);
    }

    #[test]
    fn no_arming_has_the_epoch_whose_crossing_was_told() {
        check(0, 0, 1);
        check(7, 7, 8);
        check(u16::MAX, u16::MAX.into(), 1);
        // 65535 armings later, and none was used up.
        check(6, 7, 8);
        check(u16::MAX, 1, 2);
        check(u16::MAX - 1, u16::MAX.into(), 1);
    }
}
