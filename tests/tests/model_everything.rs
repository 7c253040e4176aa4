//! Random sequences of everything that can happen, against the real directory, catalog, plan and executor; time is
//! simulated. After each step everything that must hold is checked from outside, by inode ([`tests::world`]).
//!
//! 12,000 steps here. More: `CHECKPOINT_GUARD_MODEL_STEPS=1000000`, or the ignored test that does as many. Each run prints its
//! seed; `CHECKPOINT_GUARD_MODEL_SEED=…` repeats it. What fails is shrunk to the shortest sequence that still does.
//!
//! A green run says nothing about the daemon's own loop, its threads and its wakes: those are `daemon_*`'s business.

#[path = "model_everything/guarding.rs"]
mod guarding;
#[path = "model_everything/happenings.rs"]
mod happenings;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use guard::act::checkpoint_dir::CheckpointDir;
use guard::act::journal::{Intent, Journal};
use guard::config::Config;
use guard::decide::{self, Pressure, Request};
use guard::model::{Bytes, Checkpoint, Kind, Level, Need, Observation, States, Trigger, Victim};
use guard::observe::catalog::Catalog;
use guard::observe::filesystem::observe;
use guard::report::audit::verify;
use nix::errno::Errno;
use proptest::prelude::*;
use proptest::test_runner::{Config as Rules, RngAlgorithm, TestError, TestRng, TestRunner};
use tests::loopfs::{Filesystem, LoopMount};
use tests::world::{UNTOLD, World};

use self::guarding::{Guard, Log, find, fresh_catalog, leave_aside};
use self::happenings::{Crash, Op, configuration, op};

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
    /// Pod checkpoints among the deleted.
    pods: u64,
    /// Pod checkpoints that a crash left half empty.
    halves: u64,
}

impl Came {
    fn note(&mut self, turn: &Turn, before: &Before, (gone, pods): (usize, usize)) {
        self.deleted += gone as u64;
        self.pods += pods as u64;
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
        self.pods += more.pods;
        self.halves += more.halves;
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
            self.pods,
            self.halves,
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
    /// A start has left something that a crash had left: nobody knows its name any more.
    unfinished: bool,
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
            unfinished: false,
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
            Op::ArrivePod { owner, pages } => {
                world.begin_pod(*owner, *pages).into_iter().for_each(|place| world.finish(place));
            }
            Op::BeginPod { owner, pages } => _ = world.begin_pod(*owner, *pages),
            Op::Finish(number) => picked(world, number).into_iter().for_each(|place| world.finish(place)),
            Op::Abandon(number) => picked(world, number).into_iter().for_each(|place| world.abandon(place)),
            Op::Foreign(kind) => world.put_foreign(*kind),
            Op::Pin(number) => world.pick_hidden_too(*number).into_iter().for_each(|place| world.pin(place)),
            Op::Unpin(number) => picked(world, number).into_iter().for_each(|place| world.unpin(place)),
            Op::Reader(number) => {
                picked(world, number).into_iter().for_each(|place| world.toggle_reader(place))
            }
            Op::Link(number) => picked(world, number).into_iter().for_each(|place| world.toggle_link(place)),
            Op::Append(number) => {
                if let Some(place) = picked(world, number) {
                    world.append(place, *number);
                    let is_archive = world.entries[place].pod.is_none();
                    self.guard
                        .as_mut()
                        .filter(|_| is_archive)
                        .into_iter()
                        .for_each(|guard| guard.rewritten.push(world.entries[place].name.clone().into()));
                }
            }
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
            && guard.dirs[0].is_still_at(&self.world.path())
        {
            guard.catch_up(false, &self.world);
            // Some pod checkpoint among all that may go when it is critical, else what goes first.
            let (bytes, trigger) = match at {
                Crash::HalfEmpty => (SIZE, Trigger::Pressure(Level::Critical)),
                _ => (Bytes(1), Trigger::Manual),
            };
            let request = Request { need: Need { bytes, inodes: 0 }, trigger };
            let plan =
                decide::plan(guard.catalog.inventory(), &request, &self.config.policy, self.world.wall);
            let inventory = guard.catalog.inventory();
            let is_pod =
                |victim: &&Victim| inventory.checkpoints[victim.index as usize].kind == Kind::PodCheckpoint;
            let next = match at {
                Crash::HalfEmpty => plan.victims.iter().find(is_pod),
                _ => plan.victims.first(),
            };
            if let Some(victim) = next {
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
                        leave_aside(&self.world, checkpoint, id, at);
                        self.came.halves += u64::from(matches!(at, Crash::HalfEmpty));
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
        if self.guard.as_ref().is_some_and(|guard| !guard.dirs[0].is_still_at(&self.world.path())) {
            self.guard = None;
        }
        if self.guard.is_none() {
            if self.down > 0 {
                self.down -= 1;
                return turn;
            }
            let Ok(dir) = CheckpointDir::open(&self.world.path()) else { return turn };
            let pods = CheckpointDir::open(&self.world.pods()).expect("nobody takes it away");
            // Each filesystem has a loop of its own, and this one is that of the archives.
            let pods = Some(pods).filter(|pods| pods.id().dev == dir.id().dev);
            let dirs: Vec<_> = std::iter::once(dir).chain(pods).collect();
            for dir in &dirs {
                let audit = &self.log.audit;
                let leftovers = dir.finish_leftovers(&|id| audit.name_of(id)).expect("a healthy directory");
                turn.leftovers |= !leftovers.is_empty();
                self.unfinished |= leftovers.iter().any(|leftover| leftover.outcome.is_err());
                leftovers.iter().for_each(|it| self.log.audit.record_leftover(dir.path(), it));
            }
            self.guard = Some(Guard::new(dirs, &self.world));
        }
        let guard = self.guard.as_mut().expect("made above");
        let world = &self.world;
        guard.catch_up(std::mem::take(&mut self.scan_due), world);
        let look = |dir: &CheckpointDir| match world.statfs {
            Some(errno) => Err(errno),
            None => observe(dir),
        };
        let Ok(mut seen) = look(&guard.dirs[0]) else {
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
            guard.catch_up(false, world);
        }
        let plan = decide::retention(guard.catalog.inventory(), &self.config.policy, world.wall);
        if !plan.victims.is_empty() {
            turn.retained = true;
            turn.refused += guard.carry_out(&plan, None, &self.config, &mut self.log, world).1;
        }
        guard.catch_up(false, world);
        turn
    }

    /// The result is how many were deleted, and how many of them were pod checkpoints.
    fn check(&self, before: &Before, turn: &Turn) -> (usize, usize) {
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
        let present = world.present();
        for &place in &before.present {
            let is_at_its_name = present.contains(&place);
            assert!(
                is_at_its_name || gone.contains(&place),
                "it has lost its name: {:?}",
                world.entries[place]
            );
        }
        self.check_pods(&present);
        self.check_enough(before, turn, &gone);
        // Reading everything anew takes longer than everything else.
        if self.turns.is_multiple_of(4) {
            self.check_catalog();
        }
        (gone.len(), gone.iter().filter(|place| world.entries[**place].pod.is_some()).count())
    }

    /// A pod checkpoint is there whole, or out of sight; and once a guard is there, not even that.
    fn check_pods(&self, present: &[usize]) {
        let world = &self.world;
        let guard = self.guard.as_ref().filter(|guard| guard.dirs.len() > 1);
        let pods = (0..world.entries.len()).filter(|place| world.entries[*place].pod.is_some());
        for place in pods.filter(|place| world.entries[*place].is_there()) {
            let entry = &world.entries[place];
            if !present.contains(&place) {
                assert!(guard.is_none() || self.unfinished, "half deleted, and it stays so: {entry:?}");
                continue;
            }
            assert_eq!(world.missing_in_pod(place), [] as [&Path; 0], "half deleted: {entry:?}");
        }
        let offered = guard.into_iter().flat_map(|guard| &guard.catalog.inventory().checkpoints);
        for checkpoint in offered.filter(|it| it.kind == Kind::PodCheckpoint) {
            let is_it = |place: &usize| world.entries[*place].file == checkpoint.file;
            assert!(present.iter().any(is_it), "offered, and not there: {checkpoint:?}");
        }
    }

    /// The target is reached or nothing more may go; and nothing went that was not needed.
    fn check_enough(&self, before: &Before, turn: &Turn, gone: &[usize]) {
        let (Some(guard), Some(pressure), false) = (&self.guard, &turn.needed_by, turn.blind) else { return };
        let thresholds = &self.config.policy.pressure;
        let seen = observe(&guard.dirs[0]).expect("a healthy filesystem");
        if !guard.pressure.need(&seen, thresholds).is_met() && !turn.retained {
            assert!(turn.hopeless, "it gave up too early");
            let request = Request {
                need: guard.pressure.need(&seen, thresholds),
                trigger: Trigger::Pressure(guard.pressure.need_level(thresholds)),
            };
            let fresh = fresh_catalog(&self.world, &guard.dirs);
            let plan = decide::plan(fresh.inventory(), &request, &self.config.policy, self.world.wall);
            let missed = |victim: &Victim| {
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
                available: Bytes(seen.available.0.saturating_sub(before.holds[place].0.0)),
                inodes: seen.inodes.map(|it| guard::model::Inodes {
                    free: it.free.saturating_sub(before.holds[place].1),
                    ..it
                }),
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
        let Some(guard) = self.guard.as_ref().filter(|guard| guard.dirs[0].is_still_at(&self.world.path()))
        else {
            return;
        };
        let fresh = fresh_catalog(&self.world, &guard.dirs);
        let told = |catalog: &Catalog| {
            let all = catalog.inventory().checkpoints.iter();
            let mut told: Vec<Checkpoint> = all.filter(|it| !self.is_in_flux(it)).cloned().collect();
            told.iter_mut().for_each(|checkpoint| checkpoint.states.remove(UNTOLD));
            // Of what is written in a pod checkpoint no event tells, and whether it is finished takes time to find out.
            for pod in told.iter_mut().filter(|it| it.kind == Kind::PodCheckpoint) {
                pod.states.remove(States::BEING_WRITTEN | States::INCOMPLETE);
                (pod.len, pod.allocated, pod.inodes, pod.modified) = Default::default();
            }
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
    holds: Vec<(Bytes, u64)>,
}

impl Before {
    fn of(world: &World, keep_last: u32) -> Before {
        let all = 0..world.entries.len();
        let newest = world.last_ones(keep_last as usize);
        Before {
            present: world.present(),
            forbidden: all.clone().map(|place| world.forbids(place)).collect(),
            last: all.clone().map(|place| newest.contains(&place)).collect(),
            holds: all.map(|place| world.holds(place)).collect(),
        }
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
    let mount = LoopMount::with_options(Filesystem::Tmpfs, SIZE, &[], "nr_inodes=200").expect("a tmpfs");
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
