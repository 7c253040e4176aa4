//! Staging directories: one thread looks at all of them, and the loop of the filesystem that archives go to is told what is
//! on its way.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::agent::clock::monotonic;
use crate::agent::priority;
use crate::agent::stumbles;
use crate::decide::staging::{Account, Announced};
use crate::model::{Bytes, FileId, Inventory, Monotonic};
use crate::observe::attribution::{Names, Workload};
use crate::observe::staging::{self, Look};

/// The book of all staging directories, shared by all loops.
#[derive(Debug, Default)]
pub(super) struct Staging {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    directories: Vec<Directory>,
    /// Wakes the thread; there once there is something to look at.
    bell: Option<Arc<EventFd>>,
    /// The bell of the loop whose filesystem archives go to.
    destination: Option<Arc<EventFd>>,
    /// What archives there have grown by, in all.
    arrived: Bytes,
    /// What that loop has left until its next threshold.
    room: Bytes,
}

#[derive(Debug)]
struct Directory {
    path: Arc<Path>,
    fd: Arc<OwnedFd>,
    /// `None` until the first look.
    account: Option<Account>,
    look: Look,
    names: Names,
}

/// While something is on its way, or was a moment ago, it is looked at this often when nobody tells of a write.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same while nothing is.
const LOOK_EVERY_IDLE: Duration = Duration::from_secs(10);
/// Looking takes at most this share of the time, whatever lies there.
const LOOK_SHARE: u32 = 10;
/// Nobody needs to know more often.
const LOOK_APART: Duration = Duration::from_millis(50);

impl Staging {
    /// Begins to look at a directory.
    pub(super) fn add(self: &Arc<Self>, path: &Path, fd: OwnedFd) {
        let mut inner = lock(&self.inner);
        inner.directories.retain(|known| &*known.path != path);
        let (path, fd) = (path.into(), Arc::new(fd));
        let (look, names) = (Look::default(), Names::default());
        inner.directories.push(Directory { path, fd, account: None, look, names });
        if inner.bell.is_none() {
            inner.bell = self.start();
        }
        inner.poke();
    }

    /// Ends that; what it announced is forgotten.
    pub(super) fn remove(&self, path: &Path) {
        lock(&self.inner).directories.retain(|known| &*known.path != path);
    }

    /// Has somebody look: there are writes.
    pub(super) fn poke(&self) {
        lock(&self.inner).poke();
    }

    /// Whether there is nothing to look at.
    pub(super) fn is_idle(&self) -> bool {
        lock(&self.inner).directories.is_empty()
    }

    /// What is on its way, `most` at most, for the loop with this `bell` to which archives go; `arrived` is what archives
    /// there have grown by in all.
    pub(super) fn announced(&self, bell: &Arc<EventFd>, arrived: Bytes, most: Bytes) -> Option<Announced> {
        self.arrived(bell, arrived);
        let mut inner = lock(&self.inner);
        let now = monotonic();
        let all = inner.directories.iter_mut().filter_map(|directory| directory.announced(arrived, now));
        Announced::of(all, most)
    }

    /// Takes note of the total of what archives have grown by.
    pub(super) fn arrived(&self, bell: &Arc<EventFd>, arrived: Bytes) {
        let mut inner = lock(&self.inner);
        if !inner.destination.as_ref().is_some_and(|known| Arc::ptr_eq(known, bell)) {
            inner.destination = Some(bell.clone());
        }
        inner.arrived = arrived;
    }

    /// What is new in all of them.
    pub(super) fn staged(&self) -> Bytes {
        let inner = lock(&self.inner);
        inner.directories.iter().filter_map(|it| it.account.as_ref()).map(Account::staged).sum()
    }

    /// Whose a staged file is.
    pub(super) fn workload_of(&self, file: FileId) -> Option<Workload> {
        let inner = lock(&self.inner);
        inner.directories.iter().find_map(|it| it.look.workloads.get(&file)).cloned()
    }

    /// Tells how much more can be written where archives go before the next threshold.
    pub(super) fn set_room(&self, room: Bytes) {
        lock(&self.inner).room = room;
    }

    /// That.
    pub(super) fn room(&self) -> Bytes {
        lock(&self.inner).room
    }

    fn start(self: &Arc<Self>) -> Option<Arc<EventFd>> {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).map(Arc::new);
        let bell = bell
            .inspect_err(|errno| tracing::error!(%errno, "staging directories are not looked at"))
            .ok()?;
        let (this, rung) = (self.clone(), bell.clone());
        let spawned = std::thread::Builder::new()
            .name("staging".to_owned())
            .spawn(move || stumbles::go_on("staging", || this.run(&rung)));
        if let Err(error) = spawned {
            tracing::error!(%error, "staging directories are not looked at");
            return None;
        }
        Some(bell)
    }

    fn run(&self, bell: &EventFd) {
        priority::prefer();
        let mut active = Monotonic::default();
        loop {
            let began = monotonic();
            if self.look() {
                active = began;
            }
            let took = monotonic().since(began);
            std::thread::sleep(LOOK_APART.max(took * LOOK_SHARE));
            let is_active = monotonic().since(active) < LOOK_EVERY_IDLE;
            let every = if is_active { LOOK_EVERY } else { LOOK_EVERY_IDLE };
            let mut fds = [PollFd::new(bell.as_fd(), PollFlags::POLLIN)];
            // EINTR is a look too many, no more.
            let _ = poll(&mut fds, PollTimeout::from(every.as_millis() as u16));
            let _ = bell.read();
        }
    }

    /// Looks at all of them. The result is whether something is on its way.
    fn look(&self) -> bool {
        let open: Vec<_> =
            lock(&self.inner).directories.iter().map(|it| (it.path.clone(), it.fd.clone())).collect();
        let mut has_grown = false;
        for (path, fd) in open {
            let look = match staging::look(fd.as_fd()) {
                Ok(look) => look,
                // The loop that opened it notices when it is gone.
                Err(errno) => {
                    tracing::debug!(directory = %path.display(), %errno, "cannot look");
                    Look::default()
                }
            };
            let mut inner = lock(&self.inner);
            let (arrived, now) = (inner.arrived, monotonic());
            // Unless it was let go, or opened anew, meanwhile.
            let known = inner.directories.iter_mut().find(|it| it.path == path && Arc::ptr_eq(&it.fd, &fd));
            has_grown |= known.is_some_and(|known| known.take(look, arrived, now));
        }
        let inner = lock(&self.inner);
        if has_grown && let Some(destination) = &inner.destination {
            let _ = destination.write(1);
        }
        inner
            .directories
            .iter()
            .any(|it| it.account.as_ref().is_some_and(|account| !account.staged().is_zero()))
    }
}

impl Inner {
    fn poke(&self) {
        if let Some(bell) = &self.bell {
            let _ = bell.write(1);
        }
    }
}

impl Directory {
    /// Takes note of a look; tells whether more is new than before.
    fn take(&mut self, look: Look, arrived: Bytes, now: Monotonic) -> bool {
        if look.is_partial && !self.look.is_partial {
            tracing::warn!(directory = %self.path.display(),
                "not everything in this staging directory can be looked at; name one that checkpoints alone pass through");
        }
        let before = self.account.as_ref().map_or(Bytes::ZERO, Account::staged);
        match &mut self.account {
            Some(account) => account.look(&look.files, arrived, now),
            None => self.account = Some(Account::new(&look.files, arrived, now)),
        }
        self.look = look;
        self.account.as_ref().is_some_and(|account| account.staged() > before)
    }

    fn announced(&mut self, arrived: Bytes, now: Monotonic) -> Option<Announced> {
        let bytes = self.account.as_ref()?.outstanding(arrived, now);
        if bytes.is_zero() {
            return None;
        }
        let whose = self.largest().map(|workload| self.names.owner(&workload, now)).unwrap_or_default();
        Some(Announced { bytes, from: self.path.clone(), whose })
    }

    /// The container that holds most of it, as far as paths tell.
    fn largest(&self) -> Option<Workload> {
        let mut sums: BTreeMap<&str, (Bytes, &Workload)> = BTreeMap::new();
        for (file, workload) in &self.look.workloads {
            let container = workload.container.as_deref().unwrap_or_default();
            let sum = sums.entry(container).or_insert((Bytes::ZERO, workload));
            sum.0 +=
                self.account.as_ref()?.new_of(*file, self.look.files.get(file).copied().unwrap_or_default());
        }
        sums.into_values().max_by_key(|(bytes, _)| *bytes).map(|(_, workload)| workload.clone())
    }
}

/// What archives grow by: each checkpoint's size against what it was.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    sizes: Option<HashMap<FileId, Bytes>>,
    total: Bytes,
}

impl Arrivals {
    /// What all have grown by since the first call, which gives zero.
    pub(super) fn total(&mut self, inventory: &Inventory) -> Bytes {
        let checkpoints = inventory.checkpoints.iter();
        let sizes: HashMap<_, _> =
            checkpoints.map(|checkpoint| (checkpoint.file, checkpoint.allocated)).collect();
        if let Some(before) = self.sizes.replace(sizes) {
            for (file, size) in self.sizes.iter().flatten() {
                self.total += size.saturating_sub(before.get(file).copied().unwrap_or_default());
            }
        }
        self.total
    }
}

/// Nothing that is kept here can be left half-changed by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
