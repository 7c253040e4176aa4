//! Checkpoints as files, and plans over them, for tests of the room that deletes. Nothing here ranks or scans: a
//! plan is whatever the test says.

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use guard::act::checkpoint_dir::CheckpointDir;
use guard::act::executor::{Context, Round, execute};
use guard::act::journal::{Intent, Journal, Outcome};
use guard::model::{
    Bytes, Checkpoint, DeleteReason, FileId, Identity, Inventory, Kind, Level, Monotonic, Need, Observation,
    Owner, Plan, Protection, Ranked, Standing, States, Trigger, Victim,
};
use guard::observe::filesystem::observe;
use guard::observe::scan;
use nix::errno::Errno;

/// Writes an archive of `len` incompressible-looking bytes and makes it durable, so that its blocks are allocated.
pub fn write_archive(path: &Path, len: Bytes) {
    use std::io::Write;
    let chunk: Vec<u8> = (0..1 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut file = fs::File::create(path).expect("create");
    let mut left = len.0 as usize;
    while left > 0 {
        let part = left.min(chunk.len());
        file.write_all(&chunk[..part]).expect("write");
        left -= part;
    }
    file.sync_all().expect("fsync");
}

/// The checkpoint that lies at `path` now, as a scan would describe it.
pub fn checkpoint_at(path: &Path) -> Checkpoint {
    let metadata = fs::symlink_metadata(path).expect("stat");
    let (name, parent) = (path.file_name().expect("a name"), path.parent().expect("a parent"));
    let (len, modified) = if metadata.is_dir() {
        let parent = fs::File::open(parent).expect("open");
        let tree = scan::measure(parent.as_fd(), name, &mut |_, _| false).expect("readdir");
        (tree.len, tree.modified)
    } else {
        let modified = jiff::Timestamp::new(metadata.mtime(), metadata.mtime_nsec() as i32);
        (Bytes(metadata.len()), modified.expect("mtime"))
    };
    let (allocated, inodes) = allocated_below(path);
    Checkpoint {
        directory: 0,
        kind: if metadata.is_dir() { Kind::PodCheckpoint } else { Kind::Archive },
        states: States::empty(),
        name: name.into(),
        file: FileId { dev: metadata.dev(), ino: metadata.ino() },
        created: modified,
        modified,
        len,
        allocated,
        inodes,
        identity: Identity { owner: Owner::new("team", "web", "app"), ..Identity::default() }.into(),
    }
}

fn allocated_below(path: &Path) -> (Bytes, u32) {
    let metadata = fs::symlink_metadata(path).expect("stat");
    let own = (Bytes(metadata.blocks() * 512), 1);
    if !metadata.is_dir() {
        return own;
    }
    fs::read_dir(path).expect("readdir").fold(own, |(bytes, inodes), entry| {
        let (more, others) = allocated_below(&entry.expect("entry").path());
        (bytes + more, inodes + others)
    })
}

/// An inventory of exactly these files of one directory, in this order.
pub fn inventory_of(directory: &Path, names: &[&str]) -> Inventory {
    Inventory {
        directories: vec![directory.to_owned()],
        checkpoints: names.iter().map(|name| checkpoint_at(&directory.join(name))).collect(),
        foreign: 0,
    }
}

/// A plan that deletes everything in the inventory, in its order, until `bytes` are freed.
pub fn plan_for(inventory: &Inventory, bytes: Bytes) -> Plan {
    plan_with(inventory, bytes, &Trigger::Pressure(Level::Hard))
}

/// The same for another trigger.
pub fn plan_with(inventory: &Inventory, bytes: Bytes, trigger: &Trigger) -> Plan {
    let victims = inventory.checkpoints.iter().zip(0..).map(|(checkpoint, index)| Victim {
        index,
        trigger: trigger.clone(),
        reason: DeleteReason::Ranked(Ranked {
            decided_by: None,
            weighed: None,
            spared_below: None,
            standing: Standing::Unranked,
            namespace: None,
            protection: Protection::default(),
            rule: None,
            age: Duration::from_secs(60),
            frees: checkpoint.allocated,
        }),
    });
    Plan { need: Need { bytes, inodes: 0 }, victims: victims.collect(), ..Plan::default() }
}

/// A journal in memory.
#[derive(Debug, Default)]
pub struct Recorder {
    /// The last id given out.
    pub last_id: u64,
    /// The labels of the outcomes, in order.
    pub outcomes: Vec<&'static str>,
}

impl Journal for Recorder {
    fn intent(&mut self, _: &Intent<'_>) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn outcome(&mut self, _: &Intent<'_>, outcome: &Outcome) {
        self.outcomes.push(outcome.label());
    }
}

/// Carries out a plan with the executor, everything beside it at its simplest.
pub struct Carrier<'a> {
    /// What is carried out.
    pub plan: &'a Plan,
    /// What the plan speaks of.
    pub inventory: &'a Inventory,
    /// Where.
    pub dir: CheckpointDir,
    /// Nothing is deleted.
    pub dry_run: bool,
    /// See [`Context::patience`].
    pub patience: Option<Duration>,
    /// See [`Context::hard`].
    pub hard: Bytes,
}

impl<'a> Carrier<'a> {
    /// Carries out `plan` in the inventory's first directory.
    pub fn new(plan: &'a Plan, inventory: &'a Inventory) -> Carrier<'a> {
        let dir = CheckpointDir::open(&inventory.directories[0]).expect("the directory");
        Carrier { plan, inventory, dir, dry_run: false, patience: None, hard: Bytes::ZERO }
    }

    /// Carries it out with the real filesystem and a journal in memory.
    pub fn run(self) -> Round {
        self.run_with(&mut Recorder::default(), &mut |_, _| {})
    }

    /// Carries it out, telling `after_each` of each outcome, with the flag that stops it.
    pub fn run_with(
        self,
        journal: &mut dyn Journal,
        after_each: &mut dyn FnMut(&Outcome, &AtomicBool),
    ) -> Round {
        let copy = CheckpointDir::open(self.dir.path()).expect("the directory");
        self.run_observing(journal, &mut || observe(&copy), after_each)
    }

    /// Carries it out, with what the filesystem shows made up by the test.
    pub fn run_observing(
        self,
        journal: &mut dyn Journal,
        observe: &mut dyn FnMut() -> Result<Observation, Errno>,
        after_each: &mut dyn FnMut(&Outcome, &AtomicBool),
    ) -> Round {
        let stop = AtomicBool::new(false);
        let mut context = Context {
            observe,
            journal,
            before: None,
            clock: &|| Monotonic(Duration::ZERO),
            protection: &|_| Protection::default(),
            stop: &stop,
            on_outcome: &mut |outcome| after_each(outcome, &stop),
            planned_at: None,
            hard: self.hard,
            requested_by: None,
            dry_run: self.dry_run,
            patience: self.patience,
            names_holders: true,
        };
        execute(self.plan, self.inventory, &[self.dir], &mut context)
    }
}
