//! How long nothing can go wrong unseen, and being told before.

use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Filesystem, SLEEP_MAX};
use crate::agent::clock::monotonic;
use crate::agent::probing::Watched;
use crate::config::Layout;
use crate::decide::forecast::next_look;
use crate::decide::staging::Announced;
use crate::decide::threshold;
use crate::model::{Bytes, Monotonic, Observation, Signal};
use crate::observe::inotify::Detail;
use crate::report::metrics::Wake;

/// How to sleep.
pub(super) struct Rest {
    pub(super) limit: Duration,
    /// Whether events in the directories end the sleep.
    pub(super) hears_directory: bool,
    /// For so long only what is urgent ends the sleep.
    pub(super) deaf: Duration,
}

/// Arrivals are added up this often while nothing is on its way. It takes 0.1 µs for each checkpoint.
const ARRIVALS_EVERY: Duration = Duration::from_millis(200);
/// The shortest: in this time the fastest writers measured write 12 MiB.
const SLEEP_MIN: Duration = Duration::from_millis(2);
/// What happens in the directories, and what the reader has read, is taken in this often at most: in a storm of small files
/// a look at all that came is cheaper than a look at each. A budget that is used up does not wait for it, and a decision
/// takes in what has happened until then.
const HEAR_APART: Duration = Duration::from_millis(50);
/// While the fastest writers need longer than this for the headroom, nobody need be told of each write.
const LISTEN_BELOW: Duration = Duration::from_millis(50);
/// So much more in a staging directory is worth a look at it.
const STAGING_STEP: Bytes = Bytes::mib(64);
/// The fastest writers into the page cache measured wrote 2.8 GB/s (KERNEL.md, section 5); two of them.
const FASTEST_WRITERS: Bytes = Bytes(6_000_000_000);

impl Filesystem {
    /// How far ahead of the hard threshold to act.
    pub(in crate::agent) fn lead(&self, seen: &Observation) -> Bytes {
        let steps = self.directories.iter().filter(|it| !it.gone).map(|it| it.step);
        self.lead.bytes(&self.thresholds, seen, steps.max().unwrap_or_default())
    }

    /// What is on its way here. To be asked after the filesystem was measured: what has arrived since then counts as arrived,
    /// so that no byte is both gone from `seen` and still to come.
    pub(in crate::agent) fn announced(&mut self, seen: &Observation) -> Option<Announced> {
        if self.shared.staging.staged().is_zero() || !self.is_destination() {
            if self.announced.take().is_some() {
                self.due.publish = monotonic();
            }
            return None;
        }
        self.measure_growing();
        let arrived = self.arrivals.total(self.catalog.inventory());
        let most = self.config.staging_ahead.as_ref().map_or(0, |amount| amount.resolve(seen.capacity.0));
        let announced = self.shared.staging.announced(&self.bell, arrived, Bytes(most));
        if announced.is_some() != self.announced.is_some() {
            self.due.publish = monotonic();
        }
        self.announced = announced.clone();
        announced
    }

    /// How much is on its way here, as of the last look.
    pub(in crate::agent) fn on_its_way(&self) -> Bytes {
        self.announced.as_ref().map_or(Bytes::ZERO, |announced| announced.bytes)
    }

    /// Tells what has arrived while nothing is known to be on its way: it may have come and gone between two looks.
    pub(super) fn account_arrivals(&mut self, now: Monotonic) {
        if now >= self.due.arrivals && !self.shared.staging.is_idle() && self.is_destination() {
            self.due.arrivals = Monotonic(now.0 + ARRIVALS_EVERY);
            let arrived = self.arrivals.total(self.catalog.inventory());
            self.shared.staging.arrived(&self.bell, arrived);
        }
    }

    /// Sets the budgets to what is left.
    ///
    /// Staging directories on the same filesystem have one of their own. Each has half, so that both together never use up
    /// more than all unseen. What is staged uses up the archive's room as well: the wake for that comes when half of what is
    /// not spoken for yet may be, but not for every few bytes.
    pub(super) fn arm(&self, seen: &Observation) {
        let left = self.headroom(seen).saturating_sub(self.lead(seen));
        let now = monotonic();
        if let Some(watched) = &self.watched {
            watched.arm(if self.staging.is_some() { Bytes(left.0 / 2) } else { left }, now);
        }
        if self.is_destination() {
            self.shared.staging.set_room(left.saturating_sub(self.on_its_way()));
        }
        if let Some(staging) = &self.staging {
            let step = Bytes(self.shared.staging.room().0 / 2).max(STAGING_STEP);
            staging.arm(step.min(Bytes(left.0 / 2)), now);
        }
    }

    /// Whether nothing is written unseen.
    fn is_exact(&self) -> bool {
        let has_staging = self.directories.iter().any(|it| !it.gone && it.config.layout == Layout::Staging);
        self.watched.as_ref().is_some_and(Watched::is_exact)
            && (!has_staging || self.staging.as_ref().is_some_and(Watched::is_exact))
    }

    /// Bytes until the next threshold.
    pub(super) fn headroom(&self, seen: &Observation) -> Bytes {
        Bytes(threshold::headroom(&self.thresholds, Signal::Available, seen).unwrap_or(seen.available.0))
    }

    /// How long nothing can go wrong unseen.
    pub(super) fn rest(&self, seen: &Observation, now: Monotonic) -> Rest {
        let deadlines = [
            self.pressure.next_deadline(&self.thresholds),
            self.relief.deadline(),
            self.brake.deadline(self),
            Some(self.due.place),
        ];
        let limit = deadlines.into_iter().flatten().map(|deadline| deadline.since(now)).min();
        // While a need waits for something to change, every change counts.
        let deaf = if self.relief.is_stuck() {
            Duration::ZERO
        } else {
            HEAR_APART.saturating_sub(now.since(self.heard))
        };
        let look = self.closing.iter().map(|it| it.at.since(now).max(deaf)).min();
        let limit = limit.into_iter().chain(look).min().unwrap_or(SLEEP_MAX).clamp(SLEEP_MIN, SLEEP_MAX);
        if self.is_exact() || self.relief.is_stuck() {
            return Rest { limit, hears_directory: true, deaf };
        }
        let safe = next_look(self.headroom(seen), FASTEST_WRITERS, SLEEP_MIN..=SLEEP_MAX);
        // Where inotify tells of each write there is no hurry once it is listened to; until then, no need to listen.
        let is_rung = self.directories.iter().any(|it| it.detail == Detail::Writes && !it.gone)
            && self.watcher.is_some();
        match is_rung {
            true if safe > LISTEN_BELOW => Rest { limit: limit.min(safe), hears_directory: false, deaf },
            // Here an event is what a wake is elsewhere.
            true => Rest { limit, hears_directory: true, deaf: Duration::ZERO },
            false => Rest { limit: limit.min(safe), hears_directory: true, deaf },
        }
    }

    /// Sleeps until something happens; says what.
    pub(super) fn wait(&self, rest: Rest) -> Wake {
        let bell = || PollFd::new(self.bell.as_fd(), PollFlags::POLLIN);
        let deaf = rest.deaf.min(rest.limit);
        if !deaf.is_zero() && has_rung(&mut [bell()], deaf)[0] {
            return Wake::Request;
        }
        let left = rest.limit - deaf;
        if left.is_zero() {
            return Wake::Timer;
        }
        let mut fds = vec![bell(), PollFd::new(self.answers.as_fd(), PollFlags::POLLIN)];
        if let Some(watcher) = self.watcher.as_ref().filter(|_| rest.hears_directory) {
            fds.push(PollFd::new(watcher.as_fd(), PollFlags::POLLIN));
        }
        match has_rung(&mut fds, left)[..] {
            [false, false, true] => Wake::Directory,
            [false, false, ..] => Wake::Timer,
            _ => Wake::Request,
        }
    }
}

/// Sleeps until one of `fds` is readable, for `limit` at most; the result is which are. EINTR is a turn too many, no more.
fn has_rung(fds: &mut [PollFd<'_>], limit: Duration) -> Vec<bool> {
    // Rounded up: whoever wakes a moment before a deadline wakes a second time for it.
    let millis = u16::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(u16::MAX).max(1);
    let _ = poll(fds, PollTimeout::from(millis));
    fds.iter().map(|fd| fd.any().unwrap_or(false)).collect()
}
