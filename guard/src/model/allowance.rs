//! [`Allowance`]: so many at once, then one in so long.

use std::time::Duration;

use crate::model::Monotonic;

/// What has been used up of an allowance that comes back with time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    spent: u32,
    /// When `spent` was last brought up to date.
    at: Monotonic,
}

impl Allowance {
    /// Whether another one may go at `now`, when `burst` may at once and one comes back `every` so long.
    pub fn is_left(&mut self, now: Monotonic, every: Duration, burst: u32) -> bool {
        let regained = u32::try_from(now.since(self.at).as_millis() / every.as_millis()).unwrap_or(u32::MAX);
        if regained > 0 {
            self.spent = self.spent.saturating_sub(regained);
            self.at = now;
        }
        self.spent < burst
    }

    /// One has gone.
    pub fn spend(&mut self) {
        self.spent = self.spent.saturating_add(1);
    }
}
