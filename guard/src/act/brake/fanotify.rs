//! [`Fanotify`]: the guard's side of the brake by permission events. It never waits for the helper, but for a moment when the
//! brake is released, to hear whom it has refused.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::helper::CREATED_MAX;
use super::protocol::{DirectoryReport, Order, Report, receive, send};
use super::starter;
use super::{
    Ability, BrakeError, Created, DIRECTORIES_MAX, IDLE, Key, LEASE, LINGER, LOOP_SILENCE_MAX, Refusals,
    Stance,
};
use crate::model::{FileId, Monotonic};

/// The command that makes this program the helper; hidden, for nobody else.
pub const HELPER_COMMAND: &str = "brake-helper";

/// How often the guard says to the helper that it is alive, and asks what was refused.
const BEAT: Duration = Duration::from_millis(100);
/// How often to look, when the brake is released, for what the helper refused last; it answers within a millisecond or two.
const HEAR_OUT_LOOKS: u32 = 50;
/// How long to wait between two looks.
const HEAR_OUT_LOOK: Duration = Duration::from_millis(1);
/// A helper that has not answered for so long is ended. More than its own [`super::helper::DEADMAN`].
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// A helper that dies is started again after this, then after twice as long, and so on.
const RETRY: Duration = Duration::from_secs(1);
/// Up to this.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Permission events, answered by a helper that is started when there is pressure.
#[derive(Debug)]
pub struct Fanotify {
    clock: fn() -> Monotonic,
    bell: EventFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u32,
    directories: BTreeMap<Key, Directory>,
    helper: Option<Helper>,
}

#[derive(Debug)]
struct Directory {
    fd: OwnedFd,
    nested: bool,
    stance: Stance,
    /// When its loop said so last.
    said: Monotonic,
    refusals: Refusals,
    /// What the helper did when it reported last.
    reported: Stance,
    ability: Option<Ability>,
}

#[derive(Debug)]
struct Helper {
    pid: u32,
    socket: OwnedFd,
    /// When it answered last.
    heard: Monotonic,
}

impl Fanotify {
    /// Has the [`starter`] try whether the kernel grants permission events; nothing is marked, and no helper is started.
    ///
    /// `clock` is `CLOCK_MONOTONIC`. [`Fanotify::tend`] must run.
    pub fn new(clock: fn() -> Monotonic) -> Result<Fanotify, BrakeError> {
        starter::try_events().map_err(BrakeError::Fanotify)?;
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let bell = bell.map_err(BrakeError::Fanotify)?;
        Ok(Fanotify { clock, bell, state: Mutex::default() })
    }

    /// See [`super::Backend::watch`].
    pub fn watch(&self, directory: BorrowedFd<'_>, nested: bool) -> Result<Key, BrakeError> {
        let fd = directory.try_clone_to_owned().map_err(|error| {
            BrakeError::Directory(Errno::from_raw(error.raw_os_error().unwrap_or_default()))
        })?;
        let mut state = self.lock();
        if state.directories.len() >= DIRECTORIES_MAX {
            return Err(BrakeError::TooMany);
        }
        let key = Key(state.next);
        state.next += 1;
        let directory = Directory {
            fd,
            nested,
            stance: Stance::Off,
            said: (self.clock)(),
            refusals: Refusals::default(),
            reported: Stance::Off,
            ability: None,
        };
        if let Some(helper) = &state.helper {
            // Err: it is gone, and the next one is told from the start.
            let _ = send(helper.socket.as_fd(), &Order::Watch { key, nested }, Some(directory.fd.as_fd()));
        }
        state.directories.insert(key, directory);
        Ok(key)
    }

    /// See [`super::Backend::forget`].
    pub fn forget(&self, key: Key) {
        let mut state = self.lock();
        state.directories.remove(&key);
        if let Some(helper) = &state.helper {
            let _ = send(helper.socket.as_fd(), &Order::Forget { key }, None);
        }
    }

    /// See [`super::Backend::set`].
    pub fn set(&self, key: Key, stance: Stance) {
        let now = (self.clock)();
        let mut state = self.lock();
        let Some(directory) = state.directories.get_mut(&key) else { return };
        directory.said = now;
        if std::mem::replace(&mut directory.stance, stance) != stance {
            state.beat(now);
            let _ = self.bell.write(1);
        }
    }

    /// See [`super::Backend::take_refusals`].
    pub fn take_refusals(&self, key: Key) -> Refusals {
        let mut state = self.lock();
        state.directories.get_mut(&key).map(|it| std::mem::take(&mut it.refusals)).unwrap_or_default()
    }

    /// See [`super::Backend::hear_out`].
    pub fn hear_out(&self, key: Key) {
        for _ in 0..HEAR_OUT_LOOKS {
            if self.lock().has_heard_out(key, (self.clock)()) {
                return;
            }
            std::thread::sleep(HEAR_OUT_LOOK);
        }
    }

    /// See [`super::Backend::ability`].
    pub fn ability(&self, key: Key) -> Option<Ability> {
        self.lock().directories.get(&key)?.ability.clone()
    }

    /// The helper's process id, while there is one.
    pub fn helper(&self) -> Option<u32> {
        self.lock().helper.as_ref().map(|helper| helper.pid)
    }

    /// Keeps the helper: starts it when it is needed, says that we are alive, hears what was refused, replaces it when it
    /// is gone. Returns when `stop` is set, and then nothing is engaged any more. To be run by a thread of its own.
    pub fn tend(&self, stop: &AtomicBool) {
        let mut retry = RETRY;
        let mut not_before = Monotonic::default();
        let mut needed = Monotonic::default();
        while !stop.load(Ordering::Relaxed) {
            self.sleep();
            let now = (self.clock)();
            let is_needed = self.lock().is_needed();
            if is_needed {
                needed = now;
            }
            let has_helper = self.lock().helper.is_some();
            if is_needed && !has_helper && now >= not_before {
                match self.start_helper() {
                    Ok(helper) => self.lock().introduce(helper, (self.clock)()),
                    Err(error) => {
                        tracing::error!(%error, "the brake's helper cannot be started; writers are not refused");
                        not_before = Monotonic(now.0 + retry);
                        retry = (retry * 2).min(RETRY_MAX);
                    }
                }
            }
            // Bound first: a guard of the lock in the scrutinee would live as long as the arms.
            let exchanged = self.lock().exchange((self.clock)());
            match exchanged {
                Ok(true) => retry = RETRY,
                Ok(false) => {}
                Err(why) => {
                    tracing::error!(why, again_in = ?retry, "the brake's helper is gone; writers are not refused");
                    let helper = self.lock().helper.take();
                    helper.into_iter().for_each(Helper::end);
                    not_before = Monotonic((self.clock)().0 + retry);
                    retry = (retry * 2).min(RETRY_MAX);
                }
            }
            if now.since(needed) >= LINGER {
                let helper = self.lock().helper.take();
                helper.into_iter().for_each(Helper::end);
            }
        }
        self.stand_down();
        let helper = self.lock().helper.take();
        helper.into_iter().for_each(Helper::end);
    }

    /// Lets everybody pass, and hears whom the helper has refused.
    fn stand_down(&self) {
        let keys: Vec<Key> = {
            let mut state = self.lock();
            state.directories.values_mut().for_each(|directory| directory.stance = Stance::Off);
            state.beat((self.clock)());
            state.directories.keys().copied().collect()
        };
        keys.into_iter().for_each(|key| self.hear_out(key));
    }

    /// Until somebody rings, or the next beat is due, if there is anybody to hear it.
    fn sleep(&self) {
        let time = {
            let state = self.lock();
            if state.is_needed() || state.helper.is_some() { BEAT } else { IDLE }
        };
        let mut fds = [PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::from(time.as_millis() as u16));
        // Only resets the counter: EAGAIN means that nobody rang.
        let _ = self.bell.read();
    }

    fn start_helper(&self) -> Result<Helper, Errno> {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let pid = starter::start_helper(&theirs)?;
        tracing::debug!(pid, "the brake's helper is started");
        Ok(Helper { pid, socket: ours, heard: (self.clock)() })
    }

    /// What is kept here is whole between any two statements.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_needed(&self) -> bool {
        self.directories.values().any(|directory| directory.stance != Stance::Off)
    }

    /// Tells a new helper everything.
    fn introduce(&mut self, helper: Helper, now: Monotonic) {
        for (key, directory) in &self.directories {
            let order = Order::Watch { key: *key, nested: directory.nested };
            let _ = send(helper.socket.as_fd(), &order, Some(directory.fd.as_fd()));
        }
        self.helper = Some(helper);
        self.beat(now);
    }

    /// Says what is to happen.
    fn beat(&mut self, now: Monotonic) {
        let Some(helper) = &self.helper else { return };
        let until = u64::try_from((now.0 + LEASE).as_nanos()).unwrap_or(u64::MAX);
        let stances = self.directories.iter().map(|(key, directory)| {
            let is_silent = now.since(directory.said) > LOOP_SILENCE_MAX;
            (*key, if is_silent { Stance::Off } else { directory.stance }, until)
        });
        // EAGAIN: it has not read the last one yet; the next beat says the same.
        let _ = send(helper.socket.as_fd(), &Order::Beat { stances: stances.collect() }, None);
    }

    /// Says that we are alive and hears what the helper has to say; false when that is nothing.
    ///
    /// # Errors
    /// It is gone, or as good as gone.
    fn exchange(&mut self, now: Monotonic) -> Result<bool, &'static str> {
        let heard = self.hear(now)?;
        self.beat(now);
        Ok(heard)
    }

    /// Hears what the helper has to say; false when that is nothing.
    fn hear(&mut self, now: Monotonic) -> Result<bool, &'static str> {
        let mut heard = false;
        while let Some(helper) = &mut self.helper {
            match receive::<Report>(helper.socket.as_fd()) {
                Ok(Some((report, _))) => {
                    helper.heard = now;
                    heard = true;
                    report.directories.into_iter().for_each(|report| self.take(report));
                }
                Ok(None) if now.since(helper.heard) > SILENCE_MAX => return Err("it does not answer"),
                Ok(None) => break,
                Err(_) => return Err("it has ended"),
            }
        }
        Ok(heard)
    }

    /// Whether the helper has told what it refused up to when it heard of the stance that holds now; or never will.
    fn has_heard_out(&mut self, key: Key, now: Monotonic) -> bool {
        self.helper.is_none()
            || self.hear(now).is_err()
            || self.directories.get(&key).is_none_or(|directory| directory.reported == directory.stance)
    }

    fn take(&mut self, report: DirectoryReport) {
        let Some(directory) = self.directories.get_mut(&report.key) else { return };
        if let Some(problem) = &report.problem {
            tracing::error!(problem, "the brake does not hold everywhere");
        }
        let room = CREATED_MAX.saturating_sub(directory.refusals.created.len());
        let created = report.created.into_iter().take(room);
        directory.refusals.add(Refusals {
            writers: report.writers,
            created: created
                .map(|(name, dev, ino)| Created { name: OsString::from_vec(name), file: FileId { dev, ino } })
                .collect(),
        });
        directory.reported = report.stance;
        if report.stance != Stance::Off || report.problem.is_some() {
            directory.ability = Some(Ability {
                stops_writes: report.stops_writes,
                says_no_space: report.says_no_space,
                problem: report.problem,
            });
        }
    }
}

impl Helper {
    /// Ends it, whatever it is doing.
    fn end(self) {
        starter::end_helper(self.pid);
    }
}
