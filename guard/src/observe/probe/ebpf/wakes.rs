//! [`Wakes`]: the ring buffer through which the kernel wakes us.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use guard_ebpf::{WakeRecord, names};

use super::super::{ProbeError, Slot, Wake};
use super::object::{Object, RingBuf};
use crate::model::Monotonic;

/// The wakes, for the one thread that waits for them: its descriptor is readable while there are some.
pub struct Wakes {
    ring: RingBuf,
}

impl Wakes {
    pub(super) fn new(object: &mut Object) -> Result<Wakes, ProbeError> {
        Ok(Wakes { ring: object.map(names::WAKES)? })
    }

    /// Those that have come; does not wait.
    pub fn drain(&mut self) -> impl Iterator<Item = Wake> {
        std::iter::from_fn(|| self.next())
    }

    fn next(&mut self) -> Option<Wake> {
        loop {
            let record = self.ring.next()?;
            if record.len() == size_of::<WakeRecord>() {
                // SAFETY: it is as long as a `WakeRecord`, which is made of integers only; unaligned, to assume
                // nothing of the ring buffer.
                let record = unsafe { record.as_ptr().cast::<WakeRecord>().read_unaligned() };
                return Some(Wake {
                    slot: Slot(record.slot as u8),
                    at: Monotonic(Duration::from_nanos(record.at_ns)),
                    pid: record.pid,
                });
            }
        }
    }
}

impl AsFd for Wakes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl fmt::Debug for Wakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakes").finish_non_exhaustive()
    }
}
