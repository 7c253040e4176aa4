//! Archives that are on their way: what engines put into their work directories says how large the archive will be that
//! they write next.
//!
//! CRI-O and containerd first dump a container into a directory of their own (and containerd copies it once or twice), then
//! write the archive of about that size, then remove the dump. So what is new in a staging directory, less what has arrived
//! since, is still to come. [`Account`] keeps that book for one directory; [`need`] turns it into room to be made before.
//! In doubt it expects less: making room too late is what the thresholds are for, making it for nothing cannot be undone.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{
    Bytes, DeleteReason, FileId, Monotonic, Need, Observation, Owner, Plan, PressurePolicy, Signal,
};

/// When neither the directory nor any archive has grown for so long, nothing is on its way any more: the checkpoint has
/// failed, or it was none. What lies there from then on is old. An engine never pauses for so long between its steps.
const QUIET: Duration = Duration::from_secs(60);
/// An archive has headers and padding beyond what was dumped.
const OVERHEAD: Bytes = Bytes::mib(1);

/// The book of one staging directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// What lay there before, which no archive will be made of.
    old: HashMap<FileId, Bytes>,
    /// What has come since, as of the last look.
    new: Bytes,
    /// Of everything that ever arrived, so much has nothing to do with what is new here.
    mark: Bytes,
    /// The total of arrivals at the last look.
    arrived: Bytes,
    /// When it or the archives grew last.
    moved: Monotonic,
}

impl Account {
    /// Begins with what lies there now as old. `arrived` is the total of what archives have grown by, ever.
    pub fn new(files: &HashMap<FileId, Bytes>, arrived: Bytes, now: Monotonic) -> Account {
        Account { old: files.clone(), new: Bytes::ZERO, mark: arrived, arrived, moved: now }
    }

    /// Takes note of what lies there `now`, by file.
    pub fn look(&mut self, files: &HashMap<FileId, Bytes>, arrived: Bytes, now: Monotonic) {
        let before = self.credit(arrived);
        let new: Bytes = files.iter().map(|(file, bytes)| self.new_of(*file, *bytes)).sum();
        if new > self.new || (arrived > self.arrived && !self.new.is_zero()) {
            self.moved = now;
        }
        // What is removed has become an archive, as far as archives have arrived; the others lie here still.
        let removed = self.new.saturating_sub(new);
        self.mark += removed.min(before);
        self.new = new;
        self.arrived = arrived;
        if self.new.is_zero() || now.since(self.moved) >= QUIET {
            *self = Account::new(files, arrived, now);
        }
        // Beyond what lies here, what arrived was something else's.
        self.mark = self.mark.max(arrived.saturating_sub(self.new));
    }

    /// What is new there.
    pub fn staged(&self) -> Bytes {
        self.new
    }

    /// What is new of one file that takes `bytes`.
    pub fn new_of(&self, file: FileId, bytes: Bytes) -> Bytes {
        bytes.saturating_sub(self.old.get(&file).copied().unwrap_or_default())
    }

    /// What is new there and has not arrived yet.
    pub fn outstanding(&self, arrived: Bytes, now: Monotonic) -> Bytes {
        if now.since(self.moved) >= QUIET {
            return Bytes::ZERO;
        }
        self.new.saturating_sub(self.credit(arrived))
    }

    /// How much of what is new has arrived.
    fn credit(&self, arrived: Bytes) -> Bytes {
        arrived.saturating_sub(self.mark).min(self.new)
    }
}

/// What is on its way to a filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// So much.
    pub bytes: Bytes,
    /// The staging directory that says so.
    pub from: Arc<Path>,
    /// Whose checkpoint it will be, as far as a path tells.
    pub whose: Owner,
}

/// `12.0 GiB are on their way from /var/lib/containers/storage, for team/web/app`
impl fmt::Display for Announced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} are on their way from {}", self.bytes, self.from.display())?;
        if self.whose == Owner::default() { Ok(()) } else { write!(f, ", for {}", self.whose) }
    }
}

impl Announced {
    /// Of several directories' announcements, what counts: the largest. They may be copies of one checkpoint (containerd
    /// makes two), and of two checkpoints the other one announces what is left of it when the first has arrived. At most
    /// `most`.
    pub fn of(all: impl IntoIterator<Item = Announced>, most: Bytes) -> Option<Announced> {
        let largest = all.into_iter().max_by_key(|announced| announced.bytes)?;
        let bytes = if largest.bytes.is_zero() { Bytes::ZERO } else { largest.bytes + OVERHEAD };
        let bytes = bytes.min(most);
        (!bytes.is_zero()).then_some(Announced { bytes, ..largest })
    }
}

/// What to reclaim so that `announced` can be written without crossing the hard threshold (where there is none, critical).
///
/// No minimum reclaim on top: a prediction deletes no more than it announces.
pub fn need(policy: &PressurePolicy, seen: &Observation, announced: Bytes) -> Need {
    let threshold = policy.hard.as_ref().or(policy.critical.as_ref());
    let value = threshold.and_then(|threshold| threshold.amount(Signal::Available));
    match value {
        Some(value) if !announced.is_zero() => {
            let wanted = Bytes(value.resolve(seen.capacity.0)) + announced;
            Need { bytes: wanted.min(seen.capacity).saturating_sub(seen.available), inodes: 0 }
        }
        _ => Need::default(),
    }
}

/// Says in every reason of `plan` for what the room is made.
pub fn explain(plan: &mut Plan, announced: &Announced) {
    let why: Arc<str> = announced.to_string().into();
    plan.reword(|reason| DeleteReason::Announced { why: why.clone(), reason });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::fixture::{observed, pressure_policy};

    fn at(seconds: u64) -> Monotonic {
        Monotonic(Duration::from_secs(seconds))
    }

    fn files(files: &[(u64, u64)]) -> HashMap<FileId, Bytes> {
        files.iter().map(|(ino, mib)| (FileId { dev: 1, ino: *ino }, Bytes::mib(*mib))).collect()
    }

    /// One file of 500 MiB lies there from the beginning; each step is second, files (inode, MiB) beside it, MiB that have
    /// arrived in all, and MiB that are then outstanding.
    type Step<'a> = (u64, &'a [(u64, u64)], u64, u64);

    #[track_caller]
    fn check(steps: &[Step<'_>]) {
        let old = (99, 500);
        let mut account = Account::new(&files(&[old]), Bytes::mib(7), at(0));
        for (second, beside, arrived, expect) in steps {
            let arrived = Bytes::mib(7 + arrived);
            account.look(&files(&[&[old], *beside].concat()), arrived, at(*second));
            let outstanding = account.outstanding(arrived, at(*second));
            assert_eq!(outstanding, Bytes::mib(*expect), "after {second} s of {steps:?}: {account:?}");
        }
    }

    #[test]
    fn a_checkpoint_is_announced_and_arrives_and_is_cleared_away() {
        check(&[
            (1, &[], 0, 0),
            (2, &[(1, 100)], 0, 100),
            (3, &[(1, 300), (2, 50)], 0, 350),
            (4, &[(1, 300), (2, 50)], 150, 200),
            (5, &[(1, 300), (2, 50)], 350, 0),
            (6, &[(2, 50)], 350, 0),
            (7, &[], 350, 0),
        ]);
    }

    #[test]
    fn one_that_fails_releases_what_it_announced() {
        check(&[(1, &[(1, 300)], 0, 300), (2, &[], 0, 0), (3, &[(3, 40)], 0, 40)]);
    }

    #[test]
    fn one_that_stands_still_is_given_up_after_a_minute_and_old_from_then_on() {
        check(&[
            (1, &[(1, 300)], 0, 300),
            (60, &[(1, 300)], 0, 300),
            (61, &[(1, 300)], 0, 0),
            (70, &[(1, 300), (2, 20)], 0, 20),
            (71, &[(1, 310), (2, 20)], 0, 30),
        ]);
        // As long as the archive grows, the rest of it is still to come.
        check(&[(1, &[(1, 300)], 0, 300), (50, &[(1, 300)], 100, 200), (105, &[(1, 300)], 150, 150)]);
    }

    #[test]
    fn what_nobody_looked_at_between_two_looks_is_not_announced_when_it_has_arrived() {
        check(&[(1, &[], 0, 0), (2, &[(1, 100)], 100, 0), (3, &[], 100, 0), (4, &[(2, 60)], 100, 60)]);
    }

    #[test]
    fn of_two_at_once_the_second_is_still_to_come_when_the_first_is_cleared_away() {
        check(&[
            (1, &[(1, 100), (2, 200)], 0, 300),
            (2, &[(1, 100), (2, 200)], 100, 200),
            (3, &[(2, 200)], 100, 200),
            (4, &[(2, 200)], 300, 0),
        ]);
    }

    #[test]
    fn archives_from_elsewhere_are_no_credit_for_later() {
        check(&[
            (1, &[], 900, 0),
            (2, &[(1, 100)], 900, 100),
            (3, &[(1, 100)], 1900, 0),
            (4, &[(1, 150)], 1900, 50),
        ]);
    }

    #[test]
    fn old_files_that_go_change_nothing() {
        let mut account = Account::new(&files(&[(1, 500), (2, 500)]), Bytes::ZERO, at(0));
        account.look(&files(&[(1, 500), (2, 500), (3, 100)]), Bytes::ZERO, at(1));
        account.look(&files(&[(3, 100)]), Bytes::ZERO, at(2));
        assert_eq!(account.outstanding(Bytes::ZERO, at(2)), Bytes::mib(100));
    }

    fn announced(mib: u64, from: &str) -> Announced {
        Announced { bytes: Bytes::mib(mib), from: Path::new(from).into(), whose: Owner::default() }
    }

    #[test]
    fn of_copies_in_several_directories_one_counts_and_never_more_than_the_cap() {
        let of = |most| Announced::of([announced(100, "/a"), announced(300, "/b")], Bytes::mib(most));
        assert_eq!(
            of(1000).map(|it| (it.bytes, it.from.display().to_string())),
            Some((Bytes::mib(301), "/b".into()))
        );
        assert_eq!(of(50).map(|it| it.bytes), Some(Bytes::mib(50)));
        assert_eq!(of(0), None);
        assert_eq!(Announced::of([announced(0, "/a")], Bytes::gib(1)), None);
    }

    #[test]
    fn room_is_made_up_to_hard_and_what_is_announced_and_no_further() {
        let need =
            |available, mib| super::need(&pressure_policy(), &observed(available), Bytes::mib(mib)).bytes;
        assert_eq!(need("50GiB", 10 << 10), Bytes::ZERO);
        assert_eq!(need("20GiB", 10 << 10), Bytes::gib(5));
        assert_eq!(need("14GiB", 10 << 10), Bytes::gib(11));
        assert_eq!(need("14GiB", 0), Bytes::ZERO, "without an announcement it is the thresholds' business");
        let mut policy = pressure_policy();
        policy.hard = None;
        assert_eq!(super::need(&policy, &observed("12GiB"), Bytes::gib(2)).bytes, Bytes::gib(1));
        policy.critical = None;
        assert_eq!(super::need(&policy, &observed("1GiB"), Bytes::gib(2)), Need::default());
    }

    #[test]
    fn it_says_what_comes_from_where_and_for_whom() {
        let mut one = announced(12 << 10, "/var/lib/containers");
        assert_eq!(one.to_string(), "12.0 GiB are on their way from /var/lib/containers");
        one.whose = Owner::new("team", "web", "app");
        assert_eq!(one.to_string(), "12.0 GiB are on their way from /var/lib/containers, for team/web/app");
    }
}
