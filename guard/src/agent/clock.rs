//! The only clocks. Decisions get their readings as arguments.

use std::time::Duration;

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

use crate::model::{Moment, Monotonic};

/// `CLOCK_MONOTONIC`: what the kernel's `bpf_ktime_get_ns` counts, so its events can be compared with it. Does not
/// jump when somebody sets the time; stands still while the machine sleeps.
pub fn monotonic() -> Monotonic {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC exists on every Linux");
    Monotonic(Duration::from(now))
}

/// The wall clock: for ages of checkpoints and for people, never for grace periods.
#[expect(clippy::disallowed_methods, reason = "this is where the clock is asked")]
pub fn wall() -> Timestamp {
    Timestamp::now()
}

/// `CLOCK_BOOTTIME`: how long the machine has been up, asleep or not. Nobody can set it.
pub fn up() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).expect("CLOCK_BOOTTIME exists since Linux 2.6.39").into()
}

/// By both.
pub fn moment() -> Moment {
    Moment { monotonic: monotonic(), wall: wall() }
}
