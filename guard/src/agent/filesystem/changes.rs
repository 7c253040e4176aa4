//! What events, the reader and the clock say of the entries, on its way into the catalog.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::errno::Errno;

use super::directories::Directory;
use super::{Closing, Filesystem};
use crate::agent::clock::{moment, monotonic, wall};
use crate::agent::probing::Watched;
use crate::config::Layout;
use crate::model::{Monotonic, States};
use crate::observe::catalog::Holds;
use crate::observe::inotify::{Detail, Event, Watcher};
use crate::report::metrics::LostEvents;

/// A full scan repairs what events did not tell. It costs 1.5 µs per entry, so with 10,000 checkpoints this is
/// 0.03 % of a core; with more, the scan's own duration stretches the interval.
const SCAN_EVERY: Duration = Duration::from_secs(60);
/// After one that failed, which leaves the guard with what it last knew, or with nothing at its start.
const SCAN_AGAIN: Duration = Duration::from_secs(5);
/// A scan may take at most this share of the time.
const SCAN_SHARE: u32 = 500;
/// How often to make sure that the paths still lead to the directories that are watched.
const PLACE_EVERY: Duration = Duration::from_secs(1);
/// From a look at an entry that is being written to the next one, and from that one twice as long.
const LOOK_AGAIN: Duration = Duration::from_millis(4);
/// Nobody takes longer between the two steps of closing ([`Filesystem::refresh`]), however busy the machine: who is in the kernel's
/// books then has the file open.
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(2);

impl Filesystem {
    /// Brings the catalog up to date with what events, the reader and the clock say.
    pub(in crate::agent) fn catch_up(&mut self) {
        let now = monotonic();
        self.catalog.set_now(moment());
        let mut rescan = now >= self.due.scan;
        let due: Vec<Closing> = self.closing.extract_if(.., |it| it.at <= now).collect();
        for Closing { directory, name, gap, .. } in due {
            self.refresh(directory, name, Some(gap));
        }
        let events = self.watcher.as_mut().map(Watcher::drain).unwrap_or_default();
        if !events.is_empty() {
            self.heard = now;
        }
        for event in events {
            match event {
                Event::Entry { directory, name, closed } => {
                    self.refresh(directory, name, closed.then_some(LOOK_AGAIN));
                }
                Event::Written => {}
                Event::DirectoryGone { .. } => self.due.place = now,
                Event::Overflow => {
                    self.shared.metrics.lost(LostEvents::InotifyQueue, 1);
                    tracing::warn!(
                        filesystem = self.label.as_str(),
                        "inotify events were lost; scanning everything"
                    );
                    rescan = true;
                }
            }
        }
        if now >= self.due.place {
            self.due.place = Monotonic(now.0 + PLACE_EVERY);
            self.check_places();
        }
        if rescan {
            self.retry_leftovers();
            let rests: Vec<_> = (0..self.directories.len()).map(|index| self.scan(index)).collect();
            self.scan_again_after(rests.into_iter().try_fold(SCAN_EVERY, |most, rest| Some(most.max(rest?))));
        }
        if self.catalog.lacks_leases() {
            let asked = |it: &Directory| it.detail == Detail::Entries && it.holds() == Some(Holds::Archives);
            let those: Vec<_> =
                (0..self.directories.len()).filter(|at| asked(&self.directories[*at])).collect();
            those.into_iter().for_each(|index| self.ask_for_closes(index));
        }
        if self.catalog.settles_at().is_some_and(|at| now >= at) {
            self.look_at_unsettled();
        }
        let directories = &self.directories;
        let fd = |index: u16| directories.get(usize::from(index))?.fd.clone();
        if self.reader.exchange(&mut self.catalog, fd) > 0 {
            self.heard = now;
            self.relief.catalog_changed();
        }
    }

    /// Looks at one entry again. The kernel tells that a writer has closed a file a moment before it takes the writer out
    /// of its books (`fsnotify_close` is the first step of `__fput`), and nothing tells the end of that moment: so
    /// another look is taken after `gap`, and one after twice that, up to [`LOOK_AGAIN_MAX`].
    pub(in crate::agent) fn refresh(&mut self, directory: u16, name: OsString, gap: Option<Duration>) {
        let Some(it) = self.directories.get(usize::from(directory)) else { return };
        if it.config.layout == Layout::Staging {
            self.shared.staging.poke();
        }
        if let (false, Some(holds)) = (it.gone, it.holds()) {
            let dir = self.dirs[usize::from(directory)].as_fd();
            let is_written = self.catalog.refresh(directory, dir, holds, &name);
            self.relief.catalog_changed();
            match (is_written, gap.filter(|gap| *gap <= LOOK_AGAIN_MAX)) {
                (true, Some(gap)) => self.look_after(gap, directory, name),
                (true, None) => self.await_close(directory, &name),
                (false, _) => self.watcher.iter_mut().for_each(|watcher| watcher.forget(directory, &name)),
            }
        }
    }

    fn look_after(&mut self, gap: Duration, directory: u16, name: OsString) {
        self.closing.retain(|it| (it.directory, &it.name) != (directory, &name));
        self.closing.push(Closing { directory, name, at: Monotonic(monotonic().0 + gap), gap: gap * 2 });
    }

    /// Has itself told when a writer closes an archive.
    fn await_close(&mut self, directory: u16, name: &OsStr) {
        let index = usize::from(directory);
        let (it, dir) = (&mut self.directories[index], self.dirs[index].as_fd());
        let (Some(watcher), Detail::Entries, Some(holds)) = (&mut self.watcher, it.detail, it.holds()) else {
            return;
        };
        match watcher.await_close(dir, directory, name) {
            Ok(false) | Err(Errno::ENOENT) => {}
            // The writer may have closed it a moment before, or be about to have closed it.
            Ok(true) => match self.catalog.refresh(directory, dir, holds, name) {
                true => self.look_after(LOOK_AGAIN, directory, name.to_owned()),
                false => watcher.forget(directory, name),
            },
            Err(errno) => {
                tracing::warn!(directory = %it.config.path.display(), %errno,
                    "no inotify watch for a file that is being written (fs.inotify.max_user_watches?); asking of the whole \
                     directory instead, which makes each write there a little more expensive");
                self.ask_for_closes(index);
                self.look_after(LOOK_AGAIN, directory, name.to_owned());
            }
        }
    }

    /// Has itself told of every file of a directory that a writer closes.
    fn ask_for_closes(&mut self, index: usize) {
        let (it, dir) = (&mut self.directories[index], self.dirs[index].as_fd());
        it.detail = Detail::Closes;
        if let Some(watcher) = &mut self.watcher
            && let Err(errno) = watcher.add(dir, index as u16, it.detail)
        {
            tracing::warn!(directory = %it.config.path.display(), %errno, "inotify refused");
        }
    }

    pub(super) fn scan_again_after(&mut self, rest: Option<Duration>) {
        self.due.scan = Monotonic(monotonic().0 + rest.unwrap_or(SCAN_AGAIN));
    }

    /// Reads a directory in full. How long that is enough for; `None`: it failed.
    pub(super) fn scan(&mut self, index: usize) -> Option<Duration> {
        let it = &self.directories[index];
        let (false, Some(holds)) = (it.gone, it.holds()) else { return Some(SCAN_EVERY) };
        let began = monotonic();
        let result = self.catalog.scan(index as u16, self.dirs[index].as_fd(), holds);
        let took = monotonic().since(began);
        if holds == Holds::Archives && it.detail == Detail::Entries {
            let written = self.catalog.written_in(index as u16, self.dirs[index].as_fd());
            written.iter().for_each(|name| self.await_close(index as u16, name));
        }
        let it = &self.directories[index];
        match result {
            Ok(summary) => {
                self.shared.health.scanned(&it.config.path);
                tracing::debug!(directory = %it.config.path.display(), ?summary, ?took, "scanned");
                self.shared.metrics.filesystem(&self.label).scanned(wall(), took);
                self.relief.catalog_changed();
                Some(SCAN_EVERY.max(took * SCAN_SHARE))
            }
            Err(errno) => {
                tracing::error!(directory = %it.config.path.display(), %errno, "cannot read the directory");
                self.shared.metrics.filesystem(&self.label).scan_failed();
                None
            }
        }
    }

    /// Takes up again deletions that could not be finished. No round is under way where this is called.
    fn retry_leftovers(&self) {
        for (it, dir) in self.directories.iter().zip(&self.dirs).filter(|(it, _)| !it.gone) {
            for leftover in dir.retry_leftovers() {
                self.shared.record_leftover(&it.config.path, &leftover);
            }
        }
    }

    /// Looks at pod checkpoints that may be finished by now.
    fn look_at_unsettled(&mut self) {
        for (index, (it, dir)) in self.directories.iter().zip(&self.dirs).enumerate() {
            if !it.gone {
                self.catalog.look_at_unsettled(index as u16, dir.as_fd());
            }
        }
        self.relief.catalog_changed();
    }

    /// Looks again at what was in use or had another name: while a need cannot be met, it matters when that ends.
    pub(in crate::agent) fn look_again(&mut self) {
        self.catalog.set_now(moment());
        for (index, (it, dir)) in self.directories.iter().zip(&self.dirs).enumerate() {
            if !it.gone {
                self.catalog.look_again(index as u16, dir.as_fd());
            }
        }
    }

    /// Takes away second names that a failing disk has left, and looks again at whose they were.
    pub(in crate::agent) fn drop_second_names(&mut self) {
        for (index, (it, dir)) in self.directories.iter().zip(&self.dirs).enumerate() {
            if !it.gone && dir.has_second_names() && dir.drop_second_names() {
                self.catalog.look_again(index as u16, dir.as_fd());
            }
        }
    }

    /// Looks at the sizes of what is being written: nothing else tells them before it is closed.
    pub(super) fn measure_growing(&mut self) {
        let checkpoints = self.catalog.inventory().checkpoints.iter();
        let growing: Vec<_> = checkpoints
            .filter(|checkpoint| checkpoint.states.contains(States::BEING_WRITTEN))
            .map(|checkpoint| (checkpoint.directory, checkpoint.name.clone()))
            .collect();
        for (directory, name) in growing {
            let it = &self.directories[usize::from(directory)];
            if let (false, Some(holds)) = (it.gone, it.holds()) {
                self.catalog.refresh(directory, self.dirs[usize::from(directory)].as_fd(), holds, &name);
            }
        }
    }

    /// Says whose checkpoints have grown, and looks again at those that were thought to be complete.
    pub(super) fn take_growth(&mut self) {
        for watched in [&self.watched, &self.staging].into_iter().flatten() {
            self.shared.growths.take(watched.slot(), self.catalog.inventory());
        }
        let slot = self.watched.as_ref().map(Watched::slot);
        let rewritten = slot.map(|slot| self.shared.growths.rewritten(slot, self.catalog.inventory()));
        for (directory, name) in rewritten.unwrap_or_default() {
            self.refresh(directory, name, None);
        }
    }
}
