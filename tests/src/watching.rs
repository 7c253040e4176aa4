//! [`Watching`]: a probe that watches one directory of a filesystem of its own.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::rc::Rc;

use guard::model::{Bytes, FileId};
use guard::observe::probe::{Backend, Coverage, LedgerEntry, Probe, Slot, Wakes};

use crate::loopfs::LoopMount;

/// A probe, and a new directory of a mounted filesystem that it watches for [`Watching::SLOT`].
#[derive(Debug)]
pub struct Watching {
    /// The probe.
    pub probe: Probe,
    /// Its wakes.
    pub wakes: Wakes,
    /// What it said of the filesystem.
    pub coverage: Coverage,
    directory: File,
    path: PathBuf,
    // Last: unmounted when nothing of it is open any more.
    mount: Rc<LoopMount>,
}

impl Watching {
    /// The slot of the filesystem.
    pub const SLOT: Slot = Slot(0);

    /// Watches a new directory on `mount`. Root only.
    #[track_caller]
    pub fn new(mount: impl Into<Rc<LoopMount>>) -> Watching {
        Watching::with(Probe::load().unwrap_or_else(|error| panic!("no probe: {error}")), mount.into())
    }

    /// The same through one backend only; `None`, having said why, when this kernel refuses it.
    #[track_caller]
    pub fn through(backend: Backend, mount: impl Into<Rc<LoopMount>>) -> Option<Watching> {
        match Probe::load_only(backend) {
            Ok(loaded) => Some(Watching::with(loaded, mount.into())),
            Err(error) => {
                println!("not through {backend}: {error}");
                None
            }
        }
    }

    #[track_caller]
    fn with((probe, wakes): (Probe, Wakes), mount: Rc<LoopMount>) -> Watching {
        // Several may share the filesystem, one after the other.
        let mut names = (1..).map(|number| mount.path().join(format!("checkpoints-{number}")));
        let path = names.find(|path| !path.exists()).expect("there is a number that is not taken");
        std::fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let directory = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let coverage = probe
            .watch(Watching::SLOT, directory.as_fd())
            .unwrap_or_else(|error| panic!("cannot watch {}: {error}", path.display()));
        Watching { probe, wakes, coverage, directory, path, mount }
    }

    /// The watched directory's descriptor.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// The watched directory.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// The filesystem.
    pub fn mount(&self) -> &LoopMount {
        &self.mount
    }

    /// The ledger's entry of a file.
    #[track_caller]
    pub fn entry(&self, file: &File) -> Option<LedgerEntry> {
        let id = file_id(file);
        let ledger = self.probe.ledger().unwrap_or_else(|error| panic!("no ledger: {error}"));
        ledger.into_iter().find(|entry| entry.file == id)
    }

    /// What was counted for a file, zero when nothing.
    #[track_caller]
    pub fn counted(&self, file: &File) -> Bytes {
        self.entry(file).map_or(Bytes::ZERO, |entry| entry.bytes)
    }
}

/// What `stat` says that `file` is.
#[track_caller]
pub fn file_id(file: &File) -> FileId {
    let metadata = file.metadata().unwrap_or_else(|error| panic!("no metadata: {error}"));
    FileId { dev: metadata.dev(), ino: metadata.ino() }
}

/// What `file` takes of its filesystem, as `stat` says.
#[track_caller]
pub fn allocated(file: &File) -> Bytes {
    Bytes(file.metadata().unwrap_or_else(|error| panic!("no metadata: {error}")).blocks() * 512)
}
