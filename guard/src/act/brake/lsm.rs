//! [`LsmBrake`]: the brake by BPF LSM. Engaging is one write to a map; the lease in it is renewed by a thread.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

use super::{Ability, BrakeError, IDLE, Key, LEASE, LINGER, LOOP_SILENCE_MAX, Refusals, Stance, add_writer};
use crate::model::Monotonic;
use crate::observe::probe::{ProbeError, Refusing};

/// How often leases are renewed; several times in each [`LEASE`], for a busy machine.
const RENEW_EVERY: Duration = Duration::from_millis(300);

/// Programs that could not be attached are tried again after this.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The brake by BPF LSM.
#[derive(Debug)]
pub struct LsmBrake {
    refusing: Refusing,
    clock: fn() -> Monotonic,
    state: Mutex<State>,
    /// Held while programs are attached or detached, which takes its time, so that one happens after the other; `state` is
    /// not held meanwhile, for every loop needs it.
    attachment: Mutex<()>,
    /// A stance has changed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    directories: BTreeMap<Key, Directory>,
    attached: bool,
    /// Why they are not, though they should be.
    unattached: Option<String>,
    /// When to try again.
    again: Monotonic,
    /// When any stance was not off last.
    needed: Monotonic,
}

#[derive(Debug)]
struct Directory {
    /// Keeps the dentry that the kernel compares with.
    _fd: OwnedFd,
    stance: Stance,
    /// When its loop said so last.
    said: Monotonic,
    refusals: Refusals,
    problem: Option<String>,
}

impl State {
    fn is_wanted(&self) -> bool {
        self.directories.values().any(|directory| directory.stance != Stance::Off)
    }

    /// Whether it is time to try.
    fn is_to_be_attached(&self, now: Monotonic) -> bool {
        !self.attached && (self.unattached.is_none() || now >= self.again)
    }

    /// Whether they have not been needed for a while. A loop that wants them and is silent needs them all the same: it may
    /// speak again at any time, and attaching is what takes long.
    fn is_to_be_detached(&mut self, now: Monotonic) -> bool {
        if self.is_wanted() {
            self.needed = now;
        }
        self.attached && now.since(self.needed) >= LINGER
    }

    /// What came of attaching.
    fn note(&mut self, attached: Result<(), ProbeError>, now: Monotonic) {
        self.again = Monotonic(now.0 + TRY_AGAIN);
        let problem = attached.err().map(|error| error.to_string());
        self.attached = problem.is_none();
        if let Some(problem) = problem.as_ref().filter(|problem| self.unattached.as_ref() != Some(problem)) {
            tracing::error!(problem, "the brake's programs cannot be attached; writers are not refused");
        }
        self.unattached = problem;
    }
}

impl LsmBrake {
    /// Loads the programs. `clock` is `CLOCK_MONOTONIC`. [`LsmBrake::tend`] must run.
    ///
    /// # Errors
    /// Says what the kernel lacks.
    pub fn load(clock: fn() -> Monotonic) -> Result<LsmBrake, ProbeError> {
        Ok(LsmBrake {
            refusing: Refusing::load()?,
            clock,
            state: Mutex::default(),
            attachment: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// See [`super::Backend::watch`]. At any depth up to 16.
    pub fn watch(&self, directory: BorrowedFd<'_>) -> Result<Key, BrakeError> {
        let fd = directory.try_clone_to_owned().map_err(|error| {
            BrakeError::Directory(Errno::from_raw(error.raw_os_error().unwrap_or_default()))
        })?;
        let key = Key(self.refusing.add(directory)?);
        let directory = Directory {
            _fd: fd,
            stance: Stance::Off,
            said: (self.clock)(),
            refusals: Refusals::default(),
            problem: None,
        };
        self.lock().directories.insert(key, directory);
        Ok(key)
    }

    /// See [`super::Backend::forget`].
    pub fn forget(&self, key: Key) {
        let mut state = self.lock();
        if let Err(error) = self.refusing.remove(key.0) {
            tracing::warn!(%error, "cannot let go of a directory; its lease runs out");
        }
        state.directories.remove(&key);
    }

    /// See [`super::Backend::set`].
    pub fn set(&self, key: Key, stance: Stance) {
        let now = (self.clock)();
        // The kernel takes its time to attach programs: while nobody is to be refused yet, the thread that tends us waits for
        // it, and no loop does.
        if stance == Stance::Refusing {
            self.attach(now);
        }
        let mut state = self.lock();
        if stance != Stance::Off {
            state.needed = now;
        }
        let Some(directory) = state.directories.get_mut(&key) else { return };
        directory.said = now;
        if std::mem::replace(&mut directory.stance, stance) != stance {
            self.lease(key, directory, now);
            self.changed.notify_all();
        }
    }

    /// See [`super::Backend::take_refusals`].
    pub fn take_refusals(&self, key: Key) -> Refusals {
        let mut state = self.lock();
        for refused in self.refusing.take_refused() {
            if let Some(directory) = state.directories.get_mut(&Key(refused.place)) {
                add_writer(&mut directory.refusals.writers, &refused.comm, refused.calls, refused.bytes);
            }
        }
        state.directories.get_mut(&key).map(|it| std::mem::take(&mut it.refusals)).unwrap_or_default()
    }

    /// See [`super::Backend::ability`].
    pub fn ability(&self, key: Key) -> Option<Ability> {
        let is_held = self.lock().directories.contains_key(&key);
        is_held.then_some(Ability { stops_writes: true, says_no_space: true })
    }

    /// See [`super::Backend::problem`].
    pub fn problem(&self, key: Key) -> Option<String> {
        let state = self.lock();
        state.directories.get(&key)?.problem.clone().or(state.unattached.clone())
    }

    /// See [`super::Backend::is_refusing`].
    pub fn is_refusing(&self, key: Key) -> bool {
        let state = self.lock();
        let is_refusing = |it: &Directory| it.stance == Stance::Refusing && it.problem.is_none();
        state.attached && state.directories.get(&key).is_some_and(is_refusing)
    }

    /// See [`super::Backend::is_in_force`].
    pub fn is_in_force(&self, key: Key) -> bool {
        let stance = self.lock().directories.get(&key).map(|directory| directory.stance);
        stance != Some(Stance::Refusing) || self.is_refusing(key)
    }

    /// Renews the leases, as long as the loops speak. Returns when `stop` is set, and then nothing is engaged any more. To
    /// be run by a thread of its own.
    pub fn tend(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let is_wanted = self.sleep().is_wanted();
            if is_wanted {
                self.attach((self.clock)());
            }
            self.renew((self.clock)());
            self.detach_idle((self.clock)());
        }
        for key in self.lock().directories.keys() {
            // Err: the map is gone, and with it the lease.
            let _ = self.refusing.lease(key.0, 0);
        }
    }

    /// Attaches the programs, unless they are or it is too early to try again.
    fn attach(&self, now: Monotonic) {
        if !self.lock().is_to_be_attached(now) {
            return;
        }
        let _turn = self.attachment.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have done it meanwhile.
        if self.lock().is_to_be_attached(now) {
            let attached = self.refusing.attach();
            self.lock().note(attached, now);
        }
    }

    fn renew(&self, now: Monotonic) {
        for (key, directory) in &mut self.lock().directories {
            if directory.stance == Stance::Refusing {
                self.lease(*key, directory, now);
            }
        }
    }

    /// Detaches the programs when they have not been needed for a while. Whoever needs them meanwhile waits until that is
    /// done, and attaches them again.
    fn detach_idle(&self, now: Monotonic) {
        if !self.lock().is_to_be_detached(now) {
            return;
        }
        let _turn = self.attachment.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut state = self.lock();
            if !state.is_to_be_detached(now) {
                return;
            }
            state.attached = false;
        }
        if let Err(error) = self.refusing.detach() {
            tracing::warn!(%error, "the brake's programs stay attached; they refuse nobody");
        }
    }

    /// Until leases are to be renewed, if there are any; sooner when a stance changes.
    fn sleep(&self) -> MutexGuard<'_, State> {
        let state = self.lock();
        let is_busy = state.attached || state.is_wanted();
        let time = if is_busy { RENEW_EVERY } else { IDLE };
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Writes the lease that its stance calls for.
    fn lease(&self, key: Key, directory: &mut Directory, now: Monotonic) {
        let is_silent = now.since(directory.said) > LOOP_SILENCE_MAX;
        let until =
            if directory.stance == Stance::Refusing && !is_silent { now.0 + LEASE } else { Duration::ZERO };
        let result = self.refusing.lease(key.0, u64::try_from(until.as_nanos()).unwrap_or(u64::MAX));
        let problem = result.err().map(|error| error.to_string());
        if let Some(problem) = problem.as_ref().filter(|problem| directory.problem.as_ref() != Some(problem))
        {
            tracing::error!(problem, "the brake does not hold");
        }
        directory.problem = problem;
    }

    /// What is kept here is whole between any two statements.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic(Duration::from_secs(seconds))
    }

    /// Attached, for one directory in this stance whose loop has spoken at zero and never again.
    fn silent_since_zero(stance: Stance) -> State {
        let fd = std::fs::File::open("/").unwrap().into();
        let refusals = Refusals::default();
        let directory = Directory { _fd: fd, stance, said: at(0), refusals, problem: None };
        State { directories: [(Key(0), directory)].into(), attached: true, ..State::default() }
    }

    #[test]
    fn a_loop_that_is_silent_does_not_have_the_programs_attached_and_detached_in_turn() {
        for stance in [Stance::Ready, Stance::Refusing] {
            let mut state = silent_since_zero(stance);
            assert!((0..1000).all(|second| !state.is_to_be_detached(at(second))), "{stance:?}");
        }
    }

    #[test]
    fn programs_that_nobody_has_wanted_for_a_while_are_detached() {
        let mut state = silent_since_zero(Stance::Off);
        state.needed = at(100);
        assert!(!state.is_to_be_detached(at(129)));
        assert!(state.is_to_be_detached(at(130)));
        state.attached = false;
        assert!(!state.is_to_be_detached(at(131)));
    }
}
