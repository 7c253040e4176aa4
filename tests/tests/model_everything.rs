//! Random sequences of everything that can happen, against the real directory, catalog, plan and executor; time is
//! simulated. After each step everything that must hold is checked from outside, by inode ([`tests::world`]).
//!
//! 12,000 steps here. More: `CHECKPOINT_GUARD_MODEL_STEPS=1000000`, or the ignored test that does as many. Each run prints its
//! seed; `CHECKPOINT_GUARD_MODEL_SEED=…` repeats it. What fails is shrunk to the shortest sequence that still does.
//!
//! A green run says nothing about the daemon's own loop, its threads and its wakes: those are `daemon_*`'s business.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use guard::act::checkpoint_dir::CheckpointDir;
use guard::act::executor::{Context, Ended, execute};
use guard::act::journal::{Intent, Journal, Outcome, Verdict};
use guard::config::{Config, ConfigFile};
use guard::decide::{self, Pressure, Request, protection};
use guard::model::{Bytes, Checkpoint, Level, Observation, Plan, States, Trigger};
use guard::observe::archive;
use guard::observe::catalog::{Answer, Catalog, Holds, ReadRequest, Reading, Version};
use guard::observe::filesystem::observe;
use guard::observe::inotify::{Detail, Event, Watcher};
use guard::observe::scan;
use guard::report::audit::{AuditLog, AuditSettings, verify};
use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use proptest::prelude::*;
use proptest::test_runner::{Config as Rules, RngAlgorithm, TestError, TestRng, TestRunner};
use tests::loopfs::{Filesystem, LoopMount};
use tests::world::{UNTOLD, World};

/// One thing that happens. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Op {
    Arrive { owner: usize, pages: u64 },
    Begin { owner: usize, pages: u64 },
    Finish(usize),
    Abandon(usize),
    Foreign(u8),
    Pin(usize),
    Unpin(usize),
    Reader(usize),
    Link(usize),
    Append(usize),
    Delete(usize),
    Replace(usize),
    Leave { percent: u64 },
    Wait { seconds: u64 },
    SetClock { seconds: i64 },
    Statfs(bool),
    Configure(usize),
    Cover,
    Uncover,
    Swap { anew: bool },
    Crash { at: Crash, down: u32 },
    Scan,
}

/// Where a deletion is cut off.
#[derive(Clone, Copy, Debug)]
enum Crash {
    Idle,
    Announced,
    Aside,
    WithTwin,
}

fn op() -> impl Strategy<Value = Op> {
    let number = 0usize..1000;
    prop_oneof![
        12 => (0usize..5, 0u64..60).prop_map(|(owner, pages)| Op::Arrive { owner, pages }),
        4 => (0usize..5, 0u64..60).prop_map(|(owner, pages)| Op::Begin { owner, pages }),
        4 => number.clone().prop_map(Op::Finish),
        1 => number.clone().prop_map(Op::Abandon),
        1 => (0u8..3).prop_map(Op::Foreign),
        2 => number.clone().prop_map(Op::Pin),
        2 => number.clone().prop_map(Op::Unpin),
        3 => number.clone().prop_map(Op::Reader),
        2 => number.clone().prop_map(Op::Link),
        1 => number.clone().prop_map(Op::Append),
        1 => number.clone().prop_map(Op::Delete),
        1 => number.prop_map(Op::Replace),
        6 => (0u64..60).prop_map(|percent| Op::Leave { percent }),
        4 => (1u64..400).prop_map(|seconds| Op::Wait { seconds }),
        1 => (-4000i64..100_000).prop_map(|seconds| Op::SetClock { seconds }),
        1 => any::<bool>().prop_map(Op::Statfs),
        1 => (0usize..CONFIGURATIONS.len()).prop_map(Op::Configure),
        1 => Just(Op::Cover),
        1 => Just(Op::Uncover),
        1 => any::<bool>().prop_map(|anew| Op::Swap { anew }),
        2 => (crash(), 0u32..3).prop_map(|(at, down)| Op::Crash { at, down }),
        2 => Just(Op::Scan),
    ]
}

fn crash() -> impl Strategy<Value = Crash> {
    prop_oneof![Just(Crash::Idle), Just(Crash::Announced), Just(Crash::Aside), Just(Crash::WithTwin)]
}

/// Each has `forensics` at 100.
const CONFIGURATIONS: [&str; 5] = [
    "[eviction]\nmin-age = \"2m\"\nkeep-last = 1",
    "[eviction]\nmin-age = \"0s\"\nkeep-last = 0\norder = [\"largest\"]\n[[retention]]\nnamespace = \"*\"\nmax-count = { namespace = 4 }",
    "[eviction]\nmin-age = \"1m\"\nkeep-last = 2\norder = [\"incomplete\", \"least-protected\", \"smallest-loss\"]",
    "[eviction]\nmin-age = \"1m\"\nkeep-last = 1\n[[retention]]\nnamespace = \"*\"\nmax-count = { container = 1 }",
    "[eviction]\nmin-age = \"10m\"\nkeep-last = 1\nkeep-together = true\norder = [\"oldest\"]",
];

fn configuration(number: usize, directory: &Path) -> Config {
    let text = format!(
        "[[directory]]\npath = {directory:?}\n[pressure]\nsoft = {{ available = \"30%\", inodes-free = \"15%\", \
         grace-period = \"30s\" }}\nhard = {{ available = \"20%\", inodes-free = \"10%\" }}\ncritical = {{ available = \"8%\", \
         inodes-free = \"5%\" }}\nminimum-reclaim = {{ available = \"5%\", inodes-free = \"3%\" }}\ntransition-period = \"1m\"\n\
         kubelet-config = false\n[protection]\ndefault = 50\nnamespaces = {{ forensics = 100, ci = 5 }}\n{}",
        CONFIGURATIONS[number]
    );
    ConfigFile::parse(&text, Path::new("model.toml"))
        .and_then(|file| file.effective(None))
        .unwrap_or_else(|it| panic!("{it}"))
}

/// The guard's state, as its loop keeps it; made anew when the directory is another one and after a crash.
struct Guard {
    dir: CheckpointDir,
    catalog: Catalog,
    pressure: Pressure,
    watcher: Watcher,
}

/// The audit log, and the ids that it has given out.
struct Log {
    audit: AuditLog,
    last: u64,
}

impl Log {
    fn open(path: &Path, last: u64) -> Log {
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

/// What one turn has done.
#[derive(Default)]
struct Turn {
    /// The worst level by whose rules was reclaimed.
    worst: Option<Level>,
    retained: bool,
    /// What each deletion under pressure was needed for: the level's state then.
    needed_by: Option<Pressure>,
    refused: usize,
    blind: bool,
    leftovers: bool,
    /// The loop ended because nothing more may go.
    hopeless: bool,
}

/// What has come about: a model in which nothing happens proves nothing.
#[derive(Debug, Default)]
struct Came {
    deleted: u64,
    reclaims: u64,
    hopeless: u64,
    retained: u64,
    leftovers: u64,
    refused: u64,
    blind: u64,
    spared: u64,
}

impl Came {
    fn note(&mut self, turn: &Turn, before: &Before, gone: usize) {
        self.deleted += gone as u64;
        self.reclaims += u64::from(turn.worst.is_some());
        self.hopeless += u64::from(turn.hopeless);
        self.retained += u64::from(turn.retained);
        self.leftovers += u64::from(turn.leftovers);
        self.refused += turn.refused as u64;
        self.blind += u64::from(turn.blind);
        self.spared += u64::from(
            turn.worst.is_some() && before.present.iter().any(|place| before.forbidden[*place].is_some()),
        );
    }

    fn add(&mut self, more: &Came) {
        self.deleted += more.deleted;
        self.reclaims += more.reclaims;
        self.hopeless += more.hopeless;
        self.retained += more.retained;
        self.leftovers += more.leftovers;
        self.refused += more.refused;
        self.blind += more.blind;
        self.spared += more.spared;
    }

    fn least(&self) -> u64 {
        let all = [
            self.deleted,
            self.reclaims,
            self.hopeless,
            self.retained,
            self.leftovers,
            self.refused,
            self.blind,
            self.spared,
        ];
        all.into_iter().min().unwrap_or_default()
    }
}

struct Model {
    came: Came,
    world: World,
    config: Config,
    guard: Option<Guard>,
    log: Log,
    audit: PathBuf,
    turns: u32,
    scan_due: bool,
    /// So many turns go by until the guard is started again.
    down: u32,
}

impl Model {
    fn new(root: &Path, audit: PathBuf) -> Model {
        let world = World::new(root);
        let config = configuration(0, &world.path());
        let log = Log::open(&audit, 0);
        Model {
            came: Came::default(),
            world,
            config,
            guard: None,
            log,
            audit,
            turns: 0,
            scan_due: false,
            down: 0,
        }
    }

    fn step(&mut self, op: &Op) {
        self.happen(op);
        let before = Before::of(&self.world, self.config.policy.eviction.keep_last);
        let turn = self.turn();
        let gone = self.check(&before, &turn);
        self.came.note(&turn, &before, gone);
        self.world.forget_gone();
    }

    fn happen(&mut self, op: &Op) {
        let world = &mut self.world;
        let picked = |world: &World, number: &usize| world.pick(*number);
        match op {
            Op::Arrive { owner, pages } => world.arrive(*owner, *pages),
            Op::Begin { owner, pages } => _ = world.begin(*owner, *pages),
            Op::Finish(number) => picked(world, number).into_iter().for_each(|place| world.finish(place)),
            Op::Abandon(number) => picked(world, number).into_iter().for_each(|place| world.abandon(place)),
            Op::Foreign(kind) => world.put_foreign(*kind),
            Op::Pin(number) => world.pick_hidden_too(*number).into_iter().for_each(|place| world.pin(place)),
            Op::Unpin(number) => picked(world, number).into_iter().for_each(|place| world.unpin(place)),
            Op::Reader(number) => {
                picked(world, number).into_iter().for_each(|place| world.toggle_reader(place))
            }
            Op::Link(number) => picked(world, number).into_iter().for_each(|place| world.toggle_link(place)),
            Op::Append(number) => picked(world, number).into_iter().for_each(|place| world.append(place)),
            Op::Delete(number) => picked(world, number).into_iter().for_each(|place| world.delete(place)),
            Op::Replace(number) => picked(world, number).into_iter().for_each(|place| world.replace(place)),
            Op::Leave { percent } => {
                if world.home().is_some() {
                    world.leave(Bytes(SIZE.0 / 100 * percent));
                }
            }
            Op::Wait { seconds } => world.wait(Duration::from_secs(*seconds)),
            Op::SetClock { seconds } => world.set_clock(*seconds),
            Op::Statfs(works) => world.statfs = (!works).then_some(Errno::EIO),
            Op::Configure(number) => self.config = configuration(*number, &world.path()),
            Op::Cover => world.cover(),
            Op::Uncover => world.uncover(),
            Op::Swap { anew } => world.swap(*anew),
            Op::Crash { at, down } => {
                self.crash(*at);
                self.down = *down;
            }
            Op::Scan => self.scan_due = true,
        }
    }

    /// The guard dies in the middle of deleting what it would have deleted next; nothing of its memory is left.
    fn crash(&mut self, at: Crash) {
        if let Some(guard) = &mut self.guard
            && guard.dir.is_still_at(&self.world.path())
        {
            guard.catch_up(false);
            let request = Request { need: need_of_one(), trigger: Trigger::Manual };
            let plan =
                decide::plan(guard.catalog.inventory(), &request, &self.config.policy, self.world.wall);
            if let Some(victim) = plan.victims.first() {
                let inventory = guard.catalog.inventory();
                let checkpoint = &inventory.checkpoints[victim.index as usize];
                // What the executor looks at before it takes a name away.
                let place = self
                    .world
                    .present()
                    .into_iter()
                    .find(|place| self.world.entries[*place].file == checkpoint.file);
                let may_go = place.is_some_and(|place| self.world.forbids(place).is_none());
                if may_go && !matches!(at, Crash::Idle) {
                    let intent = Intent {
                        checkpoint,
                        directory: inventory.directory_of(checkpoint),
                        protection: Default::default(),
                        trigger: &victim.trigger,
                        reason: victim.reason.to_string(),
                        requested_by: None,
                    };
                    let id = self.log.intent(&intent);
                    if !matches!(at, Crash::Announced) {
                        leave_aside(&self.world.path(), checkpoint, id, matches!(at, Crash::WithTwin));
                    }
                }
            }
        }
        self.guard = None;
        self.log = Log::open(&self.audit, self.log.last);
    }

    /// One turn of the loop: see [`guard::agent`].
    fn turn(&mut self) -> Turn {
        let mut turn = Turn::default();
        self.turns += 1;
        if self.guard.as_ref().is_some_and(|guard| !guard.dir.is_still_at(&self.world.path())) {
            self.guard = None;
        }
        if self.guard.is_none() {
            if self.down > 0 {
                self.down -= 1;
                return turn;
            }
            let Ok(dir) = CheckpointDir::open(&self.world.path()) else { return turn };
            let audit = &self.log.audit;
            let leftovers = dir.finish_leftovers(&|id| audit.name_of(id)).expect("a healthy directory");
            turn.leftovers = !leftovers.is_empty();
            leftovers
                .iter()
                .for_each(|leftover| self.log.audit.record_leftover(&self.world.path(), leftover));
            self.guard = Some(Guard::new(dir, &self.world.path()));
        }
        let guard = self.guard.as_mut().expect("made above");
        guard.catch_up(std::mem::take(&mut self.scan_due));
        let world = &self.world;
        let look = |dir: &CheckpointDir| match world.statfs {
            Some(errno) => Err(errno),
            None => observe(dir),
        };
        let Ok(mut seen) = look(&guard.dir) else {
            turn.blind = true;
            return turn;
        };
        let thresholds = self.config.policy.pressure.clone();
        guard.pressure.observe(&seen, &thresholds, world.monotonic);
        for _ in 0..32 {
            let need = guard.pressure.need(&seen, &thresholds);
            if need.is_met() {
                break;
            }
            let level = guard.pressure.need_level(&thresholds);
            turn.worst = turn.worst.max(Some(level));
            turn.needed_by = Some(guard.pressure.clone());
            let request = Request { need, trigger: Trigger::Pressure(level) };
            let plan = decide::plan(guard.catalog.inventory(), &request, &self.config.policy, world.wall);
            let round = guard.carry_out(&plan, Some(seen), &self.config, &mut self.log, world);
            turn.refused += round.1;
            let Some(after) = round.0 else { break };
            seen = after;
            guard.pressure.observe(&seen, &thresholds, world.monotonic);
            if plan.victims.is_empty() {
                turn.hopeless = true;
                break;
            }
            guard.catch_up(false);
        }
        let plan = decide::retention(guard.catalog.inventory(), &self.config.policy, world.wall);
        if !plan.victims.is_empty() {
            turn.retained = true;
            turn.refused += guard.carry_out(&plan, None, &self.config, &mut self.log, world).1;
        }
        guard.catch_up(false);
        turn
    }

    /// The result is how many were deleted.
    fn check(&self, before: &Before, turn: &Turn) -> usize {
        let world = &self.world;
        let gone: Vec<usize> =
            (0..world.entries.len()).filter(|place| !world.entries[*place].is_there()).collect();
        for &place in &gone {
            let entry = &world.entries[place];
            assert_eq!(before.forbidden[place], None, "deleted: {entry:?}");
            assert!(
                turn.worst.is_some() || turn.retained || turn.leftovers,
                "deleted without need: {entry:?}"
            );
            let spares =
                turn.worst.is_none_or(|level| level < Level::Critical) && !turn.retained && !turn.leftovers;
            if spares {
                let age = world.wall.duration_since(entry.created).as_secs();
                let min_age = self.config.policy.eviction.min_age.as_secs() as i64;
                assert!(age < 0 || age >= min_age, "deleted at {age} s: {entry:?}");
                assert!(!before.last[place], "the last of its container was deleted: {entry:?}");
            }
        }
        for &place in &before.present {
            let is_at_its_name = world.present().contains(&place);
            assert!(
                is_at_its_name || gone.contains(&place),
                "it has lost its name: {:?}",
                world.entries[place]
            );
        }
        self.check_enough(before, turn, &gone);
        // Reading everything anew takes longer than everything else.
        if self.turns.is_multiple_of(4) {
            self.check_catalog();
        }
        gone.len()
    }

    /// The target is reached or nothing more may go; and nothing went that was not needed.
    fn check_enough(&self, before: &Before, turn: &Turn, gone: &[usize]) {
        let (Some(guard), Some(pressure), false) = (&self.guard, &turn.needed_by, turn.blind) else { return };
        let thresholds = &self.config.policy.pressure;
        let seen = observe(&guard.dir).expect("a healthy filesystem");
        if !guard.pressure.need(&seen, thresholds).is_met() && !turn.retained {
            assert!(turn.hopeless, "it gave up too early");
            let request = Request {
                need: guard.pressure.need(&seen, thresholds),
                trigger: Trigger::Pressure(guard.pressure.need_level(thresholds)),
            };
            let fresh = fresh_catalog(&self.world.path(), guard.dir.as_fd());
            let plan = decide::plan(fresh.inventory(), &request, &self.config.policy, self.world.wall);
            let missed = |victim: &guard::model::Victim| {
                let checkpoint = &fresh.inventory().checkpoints[victim.index as usize];
                // What no event tells (a link that was taken away) is found by the next scan, and what was refused is left
                // alone until then.
                let known = find(guard.catalog.inventory(), checkpoint);
                known.is_none_or(|known| {
                    known.states.difference(UNTOLD) == checkpoint.states.difference(UNTOLD)
                        && !known.states.intersects(UNTOLD)
                })
            };
            let missed: Vec<_> = plan.victims.iter().filter(|victim| missed(victim)).collect();
            assert!(missed.is_empty(), "the target is missed, and these could go: {missed:?}");
        }
        // A new plan after a refusal may take one that makes an earlier one superfluous.
        if turn.refused > 0 || turn.retained || turn.leftovers {
            return;
        }
        for &place in gone {
            let without = Observation {
                available: Bytes(seen.available.0.saturating_sub(before.allocated[place].0)),
                inodes: seen.inodes.map(|it| guard::model::Inodes { free: it.free.saturating_sub(1), ..it }),
                ..seen
            };
            assert!(
                !pressure.need(&without, thresholds).is_met(),
                "not needed: {:?}",
                self.world.entries[place]
            );
        }
    }

    /// What the guard believes is what a fresh look at everything shows, but for what no event tells.
    fn check_catalog(&self) {
        let Some(guard) = self.guard.as_ref().filter(|guard| guard.dir.is_still_at(&self.world.path()))
        else {
            return;
        };
        let fresh = fresh_catalog(&self.world.path(), guard.dir.as_fd());
        let told = |catalog: &Catalog| {
            let all = catalog.inventory().checkpoints.iter();
            let mut told: Vec<Checkpoint> = all.filter(|it| !self.is_in_flux(it)).cloned().collect();
            told.iter_mut().for_each(|checkpoint| checkpoint.states.remove(UNTOLD));
            told.sort_by(|a, b| a.name.cmp(&b.name));
            told
        };
        let (known, true_ones) = (told(&guard.catalog), told(&fresh));
        assert_eq!(known, true_ones, "the catalog is not what lies there");
    }

    /// Whether something is done to it that no event tells: it is open, or it has another name or has lost one.
    fn is_in_flux(&self, checkpoint: &Checkpoint) -> bool {
        let entry = self.world.entries.iter().find(|entry| entry.file == checkpoint.file);
        entry.is_some_and(|entry| entry.is_open() || entry.link.is_some())
            || checkpoint.states.contains(States::LINKED)
            || self
                .guard
                .as_ref()
                .and_then(|guard| find(guard.catalog.inventory(), checkpoint))
                .is_some_and(|it| it.states.contains(States::LINKED))
    }
}

/// What must be known from before a turn in order to judge it.
struct Before {
    present: Vec<usize>,
    forbidden: Vec<Option<&'static str>>,
    last: Vec<bool>,
    allocated: Vec<Bytes>,
}

impl Before {
    fn of(world: &World, keep_last: u32) -> Before {
        let all = 0..world.entries.len();
        let newest = world.last_ones(keep_last as usize);
        Before {
            present: world.present(),
            forbidden: all.clone().map(|place| world.forbids(place)).collect(),
            last: all.clone().map(|place| newest.contains(&place)).collect(),
            allocated: all.map(|place| world.entries[place].allocated()).collect(),
        }
    }
}

impl Guard {
    fn new(dir: CheckpointDir, path: &Path) -> Guard {
        let mut watcher = Watcher::new().expect("an inotify instance");
        watcher.add(dir.as_fd(), 0, Detail::Entries).expect("a watch");
        let catalog = fresh_catalog(path, dir.as_fd());
        Guard { dir, catalog, pressure: Pressure::new(), watcher }
    }

    /// Takes in what events, the scan and the reader tell.
    fn catch_up(&mut self, mut rescan: bool) {
        for event in self.watcher.drain() {
            match event {
                Event::Entry { directory, name, .. } => {
                    self.catalog.refresh(directory, self.dir.as_fd(), Holds::Archives, &name);
                }
                Event::Overflow => rescan = true,
                Event::Written | Event::DirectoryGone { .. } => {}
            }
        }
        if rescan {
            self.catalog.scan(0, self.dir.as_fd(), Holds::Archives).expect("a healthy directory");
        }
        self.catalog.look_again(0, self.dir.as_fd());
        read_all(&mut self.catalog, &self.dir);
    }

    /// The last look, and how many were refused.
    fn carry_out(
        &mut self,
        plan: &Plan,
        planned_at: Option<Observation>,
        config: &Config,
        log: &mut Log,
        world: &World,
    ) -> (Option<Observation>, usize) {
        let policy = &config.policy.protection;
        let stop = AtomicBool::new(false);
        let dirs = std::slice::from_ref(&self.dir);
        let mut context = Context {
            observe: &mut || world.statfs.map_or_else(|| observe(&dirs[0]), Err),
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
        let round = execute(plan, self.catalog.inventory(), dirs, &mut context);
        let mut refused = 0;
        let tried: Vec<_> = round
            .outcomes
            .iter()
            .map(|outcome| {
                let name: OsString =
                    self.catalog.inventory().checkpoints[outcome.index as usize].name.clone().into();
                (outcome, name)
            })
            .collect();
        for (outcome, name) in tried {
            match &outcome.verdict {
                Verdict::Deleted(_) | Verdict::Gone => _ = self.catalog.remove(0, &name),
                Verdict::Refused(why) => {
                    refused += 1;
                    assert!(!why.is_failure(), "{name:?}: {why}");
                    self.catalog.set_states(0, &name, States::REFUSED);
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

fn need_of_one() -> guard::model::Need {
    guard::model::Need { bytes: Bytes(1), inodes: 0 }
}

/// The other one in `inventory` that is the same file of the same name.
fn find<'i>(inventory: &'i guard::model::Inventory, like: &Checkpoint) -> Option<&'i Checkpoint> {
    inventory.checkpoints.iter().find(|it| it.name == like.name && it.file == like.file)
}

fn fresh_catalog(path: &Path, dir: std::os::fd::BorrowedFd<'_>) -> Catalog {
    let mut catalog = Catalog::new(vec![path.to_owned()]);
    catalog.scan(0, dir, Holds::Archives).expect("a healthy directory");
    read_all(&mut catalog, dir);
    catalog
}

/// What the agent's reader does in its thread.
fn read_all(catalog: &mut Catalog, dir: impl AsFd) {
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

fn read(dir: impl AsFd, request: &ReadRequest) -> Reading {
    let Ok(file) = scan::open_file(dir.as_fd(), &request.name) else { return Reading::Stale };
    match scan::stat_of(&file) {
        Ok(stat) if Version::from(&stat) == request.version => {}
        _ => return Reading::Stale,
    }
    archive::read(&file, &archive::Limits::default())
        .map_or(Reading::Unreadable, |contents| Reading::Contents(Box::new(contents)))
}

/// What SIGKILL leaves between taking the name away and deleting.
fn leave_aside(directory: &Path, checkpoint: &Checkpoint, id: u64, with_twin: bool) {
    use std::os::unix::fs::DirBuilderExt;
    let private = directory.join(".evicting-guard");
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&private);
    let aside = private.join(format!(".evicting-{id}-{}", checkpoint.file.ino));
    let from = directory.join(&*checkpoint.name);
    // No inode left for the private place: then there is no crash in it either.
    let moved = renameat2(AT_FDCWD, &from, AT_FDCWD, &aside, RenameFlags::RENAME_NOREPLACE);
    if moved.is_ok() && with_twin {
        let _ =
            std::fs::hard_link(&aside, private.join(format!(".evicting-{id}-{}-twin", checkpoint.file.ino)));
    }
}

const SIZE: Bytes = Bytes::mib(4);
/// So many things happen in one sequence.
const LENGTH: std::ops::Range<usize> = 20..100;

/// Runs sequences until so many things have happened.
fn run(steps: u64) {
    let seed: u64 = std::env::var("CHECKPOINT_GUARD_MODEL_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(fresh_seed);
    println!("CHECKPOINT_GUARD_MODEL_SEED={seed}");
    let mount = LoopMount::with_options(Filesystem::Tmpfs, SIZE, &[], "nr_inodes=160").expect("a tmpfs");
    let audit = tempfile::tempdir().expect("a directory for the audit log");
    let taken = AtomicU64::new(0);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    // Far more than are run: the sequences end when enough has happened.
    let rules = Rules {
        cases: u32::MAX,
        max_shrink_iters: 4000,
        failure_persistence: None,
        max_global_rejects: 0,
        ..Rules::default()
    };
    let mut runner = TestRunner::new_with_rng(rules, rng);
    let case = AtomicU64::new(0);
    let came = std::sync::Mutex::new(Came::default());
    let result = runner.run(&prop::collection::vec(op(), LENGTH), |ops| {
        if taken.load(Ordering::Relaxed) >= steps {
            return Err(TestCaseError::reject(ENOUGH));
        }
        let log = audit.path().join(format!("audit-{}.jsonl", case.fetch_add(1, Ordering::Relaxed) % 2));
        let _ = std::fs::OpenOptions::new().write(true).truncate(true).open(&log);
        let mut model = Model::new(mount.path(), log.clone());
        for op in &ops {
            model.step(op);
            taken.fetch_add(1, Ordering::Relaxed);
        }
        came.lock().expect("nobody panics with it").add(&model.came);
        drop(model);
        prop_assert_eq!(
            verify(&log).map(|(_, broken)| broken.len()).unwrap_or(0),
            0,
            "the audit log is not whole"
        );
        Ok(())
    });
    match result {
        Ok(()) | Err(TestError::Abort(_)) => {
            let (taken, came) = (taken.into_inner(), came.into_inner().expect("nobody panics with it"));
            println!("{taken} steps: {came:?}");
            assert!(taken >= steps);
            assert!(steps < 10_000 || came.least() > 0, "too little happens: {came:?}");
        }
        Err(TestError::Fail(reason, ops)) => {
            panic!(
                "CHECKPOINT_GUARD_MODEL_SEED={seed}: {reason}\nthe shortest sequence that fails so: {ops:#?}"
            )
        }
    }
}

const ENOUGH: &str = "enough has happened";

/// Another one each time: what one run misses the next may find.
#[expect(clippy::disallowed_methods, reason = "a seed that nobody has chosen")]
fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64
}

fn steps(usually: u64) -> u64 {
    std::env::var("CHECKPOINT_GUARD_MODEL_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(usually)
}

#[test]
fn whatever_happens_nothing_wrong_is_deleted_and_the_target_is_met_with_no_more_than_needed() {
    run(steps(12_000));
}

/// `cargo xtask test --soak`, or `cargo test -p tests --test model_everything -- --ignored`.
#[test]
#[ignore = "a million steps take many minutes"]
fn whatever_happens_a_million_times() {
    run(steps(1_000_000));
}
