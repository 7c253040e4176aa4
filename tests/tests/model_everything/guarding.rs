//! The guard as its loop drives it, with time and statfs from the model.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use guard::act::checkpoint_dir::CheckpointDir;
use guard::act::executor::{Context, Ended, execute};
use guard::act::journal::{Intent, Journal, Outcome, Verdict};
use guard::config::Config;
use guard::decide::{Pressure, protection};
use guard::model::{Bytes, Checkpoint, Inventory, Kind, Moment, Observation, Plan, States};
use guard::observe::archive;
use guard::observe::catalog::{Answer, Catalog, Holds, ReadRequest, Reading, Version};
use guard::observe::filesystem::observe;
use guard::observe::inotify::{Detail, Event, Watcher};
use guard::observe::scan;
use guard::report::audit::{AuditLog, AuditSettings};
use jiff::Timestamp;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use tests::world::World;

use super::happenings::Crash;

/// The guard's state, as its loop keeps it; made anew when the directory is another one and after a crash.
pub struct Guard {
    /// That of the archives, and that of the pod checkpoints unless another filesystem than theirs lies over the other one.
    pub dirs: Vec<CheckpointDir>,
    pub catalog: Catalog,
    pub pressure: Pressure,
    watcher: Watcher,
    /// What the ledger would tell: written although they were complete.
    pub rewritten: Vec<OsString>,
}

/// The audit log, and the ids that it has given out.
pub struct Log {
    pub audit: AuditLog,
    pub last: u64,
}

impl Log {
    pub fn open(path: &Path, last: u64) -> Log {
        let settings = AuditSettings { path: path.to_owned(), max_size: Bytes(64 << 10), keep: 2 };
        Log { audit: AuditLog::open(settings, || Timestamp::UNIX_EPOCH), last }
    }
}

impl Journal for Log {
    fn intent(&mut self, intent: &Intent<'_>) -> u64 {
        let id = self.audit.intent(intent);
        assert!(id > self.last, "audit id {id} after {}", self.last);
        self.last = id;
        id
    }

    fn outcome(&mut self, intent: &Intent<'_>, outcome: &Outcome) {
        self.audit.outcome(intent, outcome);
    }
}

impl Guard {
    pub fn new(dirs: Vec<CheckpointDir>, world: &World) -> Guard {
        let mut watcher = Watcher::new().expect("an inotify instance");
        for (dir, place) in dirs.iter().zip(0..) {
            watcher.add(dir.as_fd(), place, Detail::Entries).expect("a watch");
        }
        let catalog = fresh_catalog(world, &dirs);
        let mut this = Guard { dirs, catalog, pressure: Pressure::new(), watcher, rewritten: Vec::new() };
        this.await_writers();
        this
    }

    /// Looks at one entry, and awaits its writer if it has one.
    fn look(&mut self, directory: u16, name: &OsStr) {
        if let (1, Some(pods)) = (directory, self.dirs.get(1)) {
            self.catalog.refresh(1, pods.as_fd(), Holds::PodCheckpoints, name);
            return;
        }
        let mut look = || self.catalog.refresh(directory, self.dirs[0].as_fd(), Holds::Archives, name);
        let is_awaited = look() && self.watcher.await_close(self.dirs[0].as_fd(), directory, name).is_ok();
        if !is_awaited || !look() {
            self.watcher.forget(directory, name);
        }
    }

    fn await_writers(&mut self) {
        let written = self.catalog.written_in(0, self.dirs[0].as_fd());
        written.iter().for_each(|name| self.look(0, name));
    }

    /// Takes in what events, the scan and the reader tell.
    pub fn catch_up(&mut self, mut rescan: bool, world: &World) {
        self.catalog.set_now(now(world));
        for event in self.watcher.drain() {
            match event {
                Event::Entry { directory, name, .. } => self.look(directory, &name),
                Event::Overflow => rescan = true,
                Event::Written | Event::DirectoryGone { .. } => {}
            }
        }
        std::mem::take(&mut self.rewritten).iter().for_each(|name| self.look(0, name));
        if rescan {
            self.catalog.scan(0, self.dirs[0].as_fd(), Holds::Archives).expect("a healthy directory");
            self.await_writers();
            if let Some(pods) = self.dirs.get(1) {
                self.catalog.scan(1, pods.as_fd(), Holds::PodCheckpoints).expect("a healthy directory");
            }
        }
        self.catalog.look_again(0, self.dirs[0].as_fd());
        if let Some(pods) = self.dirs.get(1) {
            self.catalog.look_again(1, pods.as_fd());
            if self.catalog.settles_at().is_some_and(|at| world.monotonic >= at) {
                self.catalog.look_at_unsettled(1, pods.as_fd());
            }
        }
        read_all(&mut self.catalog, &self.dirs[0]);
    }

    /// The last look, and how many were refused.
    pub fn carry_out(
        &mut self,
        plan: &Plan,
        planned_at: Option<Observation>,
        config: &Config,
        log: &mut Log,
        world: &World,
    ) -> (Option<Observation>, usize) {
        let policy = &config.policy.protection;
        let stop = AtomicBool::new(false);
        let mut context = Context {
            observe: &mut || world.statfs.map_or_else(|| observe(&self.dirs[0]), Err),
            journal: log,
            before: None,
            clock: &|| world.monotonic,
            protection: &|checkpoint| {
                protection::of_readings(policy, checkpoint.identity.readings()).protection
            },
            stop: &stop,
            on_outcome: &mut |_| {},
            planned_at,
            hard: Bytes::ZERO,
            requested_by: None,
            dry_run: false,
            patience: None,
            names_holders: false,
        };
        let round = execute(plan, self.catalog.inventory(), &self.dirs, &mut context);
        let mut refused = 0;
        let tried: Vec<_> = round
            .outcomes
            .iter()
            .map(|outcome| {
                let checkpoint = &self.catalog.inventory().checkpoints[outcome.index as usize];
                (outcome, checkpoint.directory, OsString::from(&*checkpoint.name))
            })
            .collect();
        for (outcome, directory, name) in tried {
            match &outcome.verdict {
                Verdict::Deleted(_) | Verdict::Gone => _ = self.catalog.remove(directory, &name),
                Verdict::Refused(why) => {
                    refused += 1;
                    assert!(!why.is_failure(), "{name:?}: {why}");
                    self.catalog.set_states(directory, &name, States::REFUSED);
                }
                Verdict::WouldBeDeleted => unreachable!("this is no dry run"),
            }
        }
        match round.ended {
            Ended::Unmeasurable(_) => (None, refused),
            _ => (round.seen, refused),
        }
    }
}

/// The other one in `inventory` that is the same file of the same name.
pub fn find<'i>(inventory: &'i Inventory, like: &Checkpoint) -> Option<&'i Checkpoint> {
    inventory.checkpoints.iter().find(|it| it.name == like.name && it.file == like.file)
}

fn now(world: &World) -> Moment {
    Moment { monotonic: world.monotonic, wall: world.wall }
}

pub fn fresh_catalog(world: &World, dirs: &[CheckpointDir]) -> Catalog {
    let mut catalog = Catalog::new([world.path(), world.pods()][..dirs.len()].to_vec());
    catalog.set_now(now(world));
    let holds = [Holds::Archives, Holds::PodCheckpoints];
    for ((dir, holds), place) in dirs.iter().zip(holds).zip(0..) {
        catalog.scan(place, dir.as_fd(), holds).expect("a healthy directory");
    }
    read_all(&mut catalog, &dirs[0]);
    catalog
}

/// What the agent's reader does in its thread.
pub fn read_all(catalog: &mut Catalog, dir: impl AsFd) {
    loop {
        let wanted = catalog.wanted(16);
        if wanted.is_empty() {
            return;
        }
        for request in wanted {
            let reading = read(&dir, &request);
            catalog.answer(Answer::from((request, reading)));
        }
    }
}

pub fn read(dir: impl AsFd, request: &ReadRequest) -> Reading {
    let Ok(file) = scan::open_file(dir.as_fd(), &request.name) else { return Reading::Stale };
    match scan::stat_of(&file) {
        Ok(stat) if Version::from(&stat) == request.version => {}
        _ => return Reading::Stale,
    }
    archive::read(&file, &archive::Limits::default())
        .map_or(Reading::Unreadable, |contents| Reading::Contents(Box::new(contents)))
}

/// What SIGKILL leaves between taking the name away and deleting, or while a pod checkpoint is emptied.
pub fn leave_aside(world: &World, checkpoint: &Checkpoint, id: u64, at: Crash) {
    use std::os::unix::fs::DirBuilderExt;
    let is_pod = checkpoint.kind == Kind::PodCheckpoint;
    let directory = if is_pod { world.pods() } else { world.path() };
    let private = directory.join(".evicting-guard");
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&private);
    let aside = private.join(format!(".evicting-{id}-{}", checkpoint.file.ino));
    let from = directory.join(&*checkpoint.name);
    // No inode left for the private place: then there is no crash in it either.
    let moved = renameat2(AT_FDCWD, &from, AT_FDCWD, &aside, RenameFlags::RENAME_NOREPLACE);
    if moved.is_err() {
        return;
    }
    match at {
        Crash::WithTwin => {
            let twin = private.join(format!(".evicting-{id}-{}-twin", checkpoint.file.ino));
            let _ = std::fs::hard_link(&aside, twin);
        }
        Crash::HalfEmpty => world.empty_half(&aside),
        _ => {}
    }
}
