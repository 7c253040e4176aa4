//! Pod checkpoints: directories with files in them, in a directory of their own beside that of the archives.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use guard::model::{Bytes, FileId, Monotonic};
use guard::observe::catalog::SETTLES_AFTER;
use jiff::SignedDuration;
use nix::fcntl::{FallocateFlags, fallocate};

use super::{Entry, OWNERS, Whose, World, remove};

/// What lies in a pod checkpoint, as whoever wrote it knows.
#[derive(Debug)]
pub struct Pod {
    /// The files, below its top.
    files: Vec<(PathBuf, FileId)>,
    /// When something in it was written last.
    touched: Monotonic,
}

/// What a whole one has; the first is what is being written for long.
const FILES: [&str; 3] = ["app/checkpoint.tar", "pod.json", "sidecar/checkpoint.tar"];

impl World {
    /// Where the pod checkpoints lie.
    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// Somebody begins to write a pod checkpoint; `None` when there is no room for a part of it.
    pub fn begin_pod(&mut self, owner: usize, pages: u64) -> Option<usize> {
        let Whose { namespace, .. } = OWNERS[owner % OWNERS.len()];
        self.serial += 1;
        let created = self.wall - SignedDuration::from_secs(i64::from(self.serial % 50));
        let time = created.strftime("%Y-%m-%dT%H:%M:%SZ");
        let name = format!("checkpoint-web-{}_{namespace}-{time}", self.serial);
        fs::create_dir(self.pods().join(&name)).ok()?;
        self.adopt(&self.pods(), name, Some(Whose { namespace, container: "" }), created, None);
        let place = self.entries.len() - 1;
        self.entries[place].pod = Some(Pod { files: Vec::new(), touched: self.monotonic });
        self.entries[place].writer = self.add_file(place, FILES[0], Bytes(pages << 12));
        Some(place)
    }

    /// Whoever writes it adds the rest and is done.
    pub(super) fn finish_pod(&mut self, place: usize) {
        if self.entries[place].writer.take().is_none() {
            return;
        }
        let is_whole = FILES[1..].iter().all(|file| self.add_file(place, file, Bytes(100)).is_some());
        self.entries[place].complete = is_whole;
    }

    /// A file more in it, or more in one that is there; nobody has it open afterwards but by what is returned.
    fn add_file(&mut self, place: usize, file: &str, len: Bytes) -> Option<File> {
        let path = self.pods().join(&self.entries[place].name).join(file);
        let monotonic = self.monotonic;
        let pod = self.entries[place].pod.as_mut()?;
        pod.touched = monotonic;
        fs::create_dir_all(path.parent()?).ok()?;
        let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(&path).ok()?;
        let metadata = opened.metadata().ok()?;
        if !pod.files.iter().any(|(known, _)| known == Path::new(file)) {
            let id = FileId { dev: metadata.dev(), ino: metadata.ino() };
            pod.files.push((file.into(), id));
        }
        // What does not fit is not written, and a byte may be.
        let _ = fallocate(&opened, FallocateFlags::empty(), metadata.len() as i64, len.0.max(1) as i64);
        let _ = (&opened).write_all(b"x");
        self.stamp(&opened);
        Some(opened)
    }

    /// Somebody writes more into it; `number` chooses the file, which may be new.
    pub(super) fn append_pod(&mut self, place: usize, number: usize) {
        if self.entries[place].writer.is_none() {
            let file = if number.is_multiple_of(2) { FILES[0].to_owned() } else { format!("late-{number}") };
            self.add_file(place, &file, Bytes(100));
        }
    }

    pub(super) fn open_in_pod(&self, place: usize) -> Option<File> {
        let entry = &self.entries[place];
        let (file, _) = entry.pod.as_ref()?.files.first()?;
        File::open(self.pods().join(&entry.name).join(file)).ok()
    }

    /// Whether something was written in it so lately that nobody can know that it is finished.
    pub(super) fn is_fresh(&self, pod: &Pod) -> bool {
        self.monotonic.since(pod.touched) < SETTLES_AFTER
    }

    /// Those files of a pod checkpoint which are not where they were put, while it has its name.
    pub fn missing_in_pod(&self, place: usize) -> Vec<&Path> {
        let entry = &self.entries[place];
        let top = self.pods().join(&entry.name);
        let is_there = |(file, id): &&(PathBuf, FileId)| {
            fs::symlink_metadata(top.join(file)).is_ok_and(|it| (it.dev(), it.ino()) == (id.dev, id.ino))
        };
        let files = entry.pod.iter().flat_map(|pod| &pod.files);
        files.filter(|file| !is_there(file)).map(|(file, _)| file.as_path()).collect()
    }

    /// What deleting it frees, itself included.
    pub(super) fn pod_holds(&self, entry: &Entry) -> (Bytes, u64) {
        below(&self.pods().join(&entry.name))
    }

    /// What a guard that is killed while it empties one has done by then: about a half, the deepest first.
    pub fn empty_half(&self, top: &Path) {
        FILES.iter().rev().take(2).for_each(|file| {
            let path = top.join(file);
            remove(&path);
            // Its directory, too, where that is empty now.
            path.parent().filter(|parent| *parent != top).into_iter().for_each(remove);
        });
    }
}

fn below(path: &Path) -> (Bytes, u64) {
    let Ok(metadata) = fs::symlink_metadata(path) else { return (Bytes::ZERO, 0) };
    let children = fs::read_dir(path).into_iter().flatten().flatten().map(|child| below(&child.path()));
    children.fold((Bytes(metadata.blocks() * 512), 1), |(bytes, inodes), (more, others)| {
        (bytes + more, inodes + others)
    })
}
