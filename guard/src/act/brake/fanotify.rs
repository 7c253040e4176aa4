//! [`Fanotify`]: the guard's side of the brake by permission events. It never waits for the helper, but for a moment when the
//! brake is released, to hear whom it has refused; whoever engages it by hand asks until it is in force.

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
    /// The number of the last beat.
    beats: u64,
    /// The helper has more to tell than fits into a report.
    has_more: bool,
    /// Why there is no helper, though there should be.
    problem: Option<String>,
}

#[derive(Debug)]
struct Directory {
    fd: OwnedFd,
    nested: bool,
    stance: Stance,
    /// When its loop said so last.
    said: Monotonic,
    refusals: Refusals,
    /// The first beat that told of this stance.
    told: u64,
    /// What the helper does since it heard that beat; `None` until it has said so.
    reported: Option<Stance>,
    ability: Option<Ability>,
    /// What the helper could not do, until it can.
    problem: Option<String>,
}

/// What [`Fanotify::look`] sees.
struct Seen {
    stance: Stance,
    reported: Option<Stance>,
    problem: Option<String>,
}

/// What to do when there is no helper to be had.
fn start_hint(errno: Errno) -> &'static str {
    match errno {
        // Its parent ended it; or there never was one.
        Errno::EPIPE | Errno::ECONNRESET | Errno::ESRCH => {
            "; the process that starts it (brake-starter) is gone, and within its sandbox the guard cannot start another: \
             restart checkpoint-guard"
        }
        Errno::EAGAIN | Errno::ENOMEM => "; is there a limit on processes or memory (pids.max, memory.max)?",
        Errno::EMFILE | Errno::ENFILE => "; raise the limit on descriptors (LimitNOFILE)",
        Errno::ETIMEDOUT => "; is the node out of processor time?",
        Errno::ENOENT | Errno::EACCES => "; is /proc mounted, and on a filesystem without noexec?",
        _ => "",
    }
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
            told: 0,
            reported: None,
            ability: None,
            problem: None,
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
        if directory.stance != stance {
            state.take_stance(key, stance);
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

    /// See [`super::Backend::is_in_force`].
    pub fn is_in_force(&self, key: Key) -> bool {
        match self.look(key) {
            Some(it) => it.reported == Some(it.stance) && it.problem.is_none(),
            // Without a helper everybody passes.
            None => self.lock().directories.get(&key).is_none_or(|it| it.stance == Stance::Off),
        }
    }

    /// See [`super::Backend::is_refusing`].
    pub fn is_refusing(&self, key: Key) -> bool {
        self.look(key).is_some_and(|it| it.reported == Some(Stance::Refusing))
    }

    /// The directory as the helper sees it; `None` while there is no helper.
    fn look(&self, key: Key) -> Option<Seen> {
        let mut state = self.lock();
        // Err: whoever tends us hears the same, and replaces it.
        let is_heard = state.hear((self.clock)()).is_ok();
        let Directory { stance, reported, problem, .. } = state.directories.get(&key)?;
        let seen = Seen { stance: *stance, reported: *reported, problem: problem.clone() };
        (is_heard && state.helper.is_some()).then_some(seen)
    }

    /// See [`super::Backend::problem`].
    pub fn problem(&self, key: Key) -> Option<String> {
        let state = self.lock();
        state.problem.clone().or_else(|| state.directories.get(&key)?.problem.clone())
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
                    Err(errno) => {
                        self.lock().lose_helper(format!("cannot be started: {errno}{}", start_hint(errno)));
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
                    tracing::debug!(again_in = ?retry, "the brake's helper will be replaced");
                    let helper = self.lock().lose_helper(format!("is gone: {why}"));
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
            let keys: Vec<Key> = state.directories.keys().copied().collect();
            keys.iter().for_each(|key| state.take_stance(*key, Stance::Off));
            state.beat((self.clock)());
            keys
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

    /// From the next beat on.
    fn take_stance(&mut self, key: Key, stance: Stance) {
        let told = self.beats + 1;
        if let Some(directory) = self.directories.get_mut(&key).filter(|it| it.stance != stance) {
            (directory.stance, directory.told, directory.reported) = (stance, told, None);
        }
    }

    /// There is no helper, for this reason, which is said unless it was. Gives the old one.
    fn lose_helper(&mut self, why: String) -> Option<Helper> {
        let problem = format!("the brake's helper {why}; writers are not refused");
        if self.problem.as_ref() != Some(&problem) {
            tracing::error!("{problem}");
            self.problem = Some(problem);
        }
        self.directories.values_mut().for_each(|directory| directory.reported = None);
        self.helper.take()
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
        self.beats += 1;
        let order = Order::Beat { number: self.beats, stances: stances.collect() };
        // EAGAIN: it has not read the last one yet; the next beat says the same.
        let _ = send(helper.socket.as_fd(), &order, None);
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
                    self.problem = None;
                    self.has_more = report.has_more;
                    report.directories.into_iter().for_each(|it| self.take(it, report.number));
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
        if self.helper.is_none() || self.hear(now).is_err() {
            return true;
        }
        if std::mem::take(&mut self.has_more) {
            self.beat(now);
            return false;
        }
        self.directories.get(&key).is_none_or(|directory| directory.reported == Some(directory.stance))
    }

    /// Takes in what the helper tells of a directory, after the beat of this number.
    fn take(&mut self, report: DirectoryReport, number: u64) {
        let Some(directory) = self.directories.get_mut(&report.key) else { return };
        if let Some(problem) = report.problem.as_ref().filter(|it| directory.problem.as_ref() != Some(*it)) {
            tracing::error!(problem, "the brake does not hold everywhere");
        }
        directory.problem = report.problem;
        let room = CREATED_MAX.saturating_sub(directory.refusals.created.len());
        let created = report.created.into_iter().take(room);
        directory.refusals.add(Refusals {
            writers: report.writers,
            created: created
                .map(|(name, dev, ino)| Created { name: OsString::from_vec(name), file: FileId { dev, ino } })
                .collect(),
        });
        if number >= directory.told {
            directory.reported = Some(report.stance);
        }
        if report.stance != Stance::Off {
            let DirectoryReport { stops_writes, says_no_space, .. } = report;
            directory.ability = Some(Ability { stops_writes, says_no_space });
        }
    }
}

impl Helper {
    /// Ends it, whatever it is doing.
    fn end(self) {
        starter::end_helper(self.pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(stance: Stance, problem: Option<&str>) -> DirectoryReport {
        DirectoryReport {
            key: Key(0),
            stance,
            writers: Vec::new(),
            created: Vec::new(),
            stops_writes: true,
            says_no_space: true,
            problem: problem.map(str::to_owned),
        }
    }

    /// A directory in this stance, and a helper that never speaks by itself.
    fn fanotify(stance: Stance) -> (Fanotify, OwnedFd) {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let brake = Fanotify { clock: Monotonic::default, bell, state: Mutex::default() };
        let directory = std::fs::File::open("/").unwrap();
        let key = brake.watch(directory.as_fd(), false).unwrap();
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let helper = Helper { pid: 0, socket: ours, heard: Monotonic::default() };
        brake.lock().introduce(helper, Monotonic::default());
        brake.set(key, stance);
        (brake, theirs)
    }

    fn say(helper: &OwnedFd, number: u64, directory: DirectoryReport) {
        let report = Report { number, has_more: false, directories: vec![directory] };
        send(helper.as_fd(), &report, None).unwrap();
    }

    #[test]
    fn a_stance_is_in_force_when_the_helper_says_so_of_a_beat_that_told_of_it() {
        let (brake, helper) = fanotify(Stance::Refusing);
        let told = brake.lock().beats;
        assert!(!brake.is_in_force(Key(0)), "nobody has said so");
        say(&helper, told - 1, report(Stance::Refusing, None));
        assert!(!brake.is_in_force(Key(0)), "that is of an earlier engagement");
        say(&helper, told, report(Stance::Refusing, None));
        assert!(brake.is_in_force(Key(0)) && brake.is_refusing(Key(0)));
        brake.set(Key(0), Stance::Off);
        assert!(!brake.is_in_force(Key(0)), "it has not heard of it");
    }

    #[test]
    fn a_problem_lasts_until_the_helper_has_none_any_more() {
        let (brake, helper) = fanotify(Stance::Refusing);
        let told = brake.lock().beats;
        say(&helper, told, report(Stance::Refusing, Some("not everywhere")));
        assert!(!brake.is_in_force(Key(0)), "not everywhere");
        assert!(brake.is_refusing(Key(0)), "but somewhere");
        assert_eq!(brake.problem(Key(0)).as_deref(), Some("not everywhere"));
        say(&helper, told + 1, report(Stance::Refusing, None));
        assert!(brake.is_in_force(Key(0)));
        assert_eq!(brake.problem(Key(0)), None);
    }

    #[test]
    fn without_a_helper_nobody_is_said_to_be_refused() {
        let (brake, helper) = fanotify(Stance::Refusing);
        say(&helper, brake.lock().beats, report(Stance::Refusing, None));
        assert!(brake.is_refusing(Key(0)));
        let why = format!("cannot be started: {}{}", Errno::EPIPE, start_hint(Errno::EPIPE));
        drop(brake.lock().lose_helper(why));
        assert!(!brake.is_refusing(Key(0)) && !brake.is_in_force(Key(0)));
        let problem = brake.problem(Key(0)).unwrap();
        assert!(problem.contains("restart checkpoint-guard"), "{problem}");
        assert!(brake.ability(Key(0)).unwrap().stops_writes, "what it can do is known all the same");
        brake.set(Key(0), Stance::Off);
        assert!(brake.is_in_force(Key(0)), "letting everybody pass takes no helper");
    }
}
