//! [`Contents`]: what lies inside an archive, read within bounds.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use jiff::Timestamp;

use super::dumps::{self, Config, Spec};
use super::input::{BLOCK, Input, Plain, Stop, Stream};
use super::sniff::Packing;
use super::walk::{Entry, Walk};
use super::{Limits, ReadError};
use crate::model::{Engine, Owner};

/// How the reading of an archive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At the end marker: the archive is complete.
    Marker,
    /// The file, or the stream, ends before the marker: what a failed checkpoint leaves behind.
    Early,
    /// No header lies where one must, or the stream is damaged: what a failed checkpoint leaves that was overwriting a
    /// longer one, or a crash before the blocks reached the disk. No engine restores from it.
    Broken,
    /// It is neither a tar nor a stream, from its first block on: encrypted perhaps, or a format to come.
    Unrecognised,
    /// A bound was reached first, the stream asks for more memory than allowed, or readers of tar would disagree
    /// about what follows: nobody knows.
    NotReached,
}

/// What an archive says about itself. Only validated names and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Who wrote it, by `spec.dump`.
    pub engine: Engine,
    /// The owner by that engine's own keys in `spec.dump`; for podman only a container, from `config.dump`.
    pub keys: Owner,
    /// The owner by `.name` in `config.dump`, when a CRI engine wrote it. No tenant can choose it.
    pub engine_name: Option<Owner>,
    /// The owner by the labels in containerd's `status.dump`.
    pub labels: Option<Owner>,
    /// The pod's UID; `None` also where two places contradict each other.
    pub pod_uid: Option<Arc<str>>,
    /// When the *container* was created.
    pub created: Option<Timestamp>,
    /// When the checkpoint was made; podman does not say.
    pub checkpointed: Option<Timestamp>,
    /// How the reading ended.
    pub end: End,
    /// A readable `config.dump` is there.
    pub has_config: bool,
    /// A readable `spec.dump` is there.
    pub has_spec: bool,
    /// criu's images are there: entries below `checkpoint/` or `pre-checkpoint/`.
    pub has_images: bool,
    /// Both dumps are there, whether they can be read or not: nothing is restored without them. Where they are not, the end
    /// marker may be two blocks of zeros that never reached the disk.
    pub has_dumps: bool,
    /// Useless without an earlier one: podman's `--with-previous`, `checkpoint/parent`.
    pub has_parent: bool,
    /// A pre-dump that later ones build on: podman's `--pre-checkpoint`.
    pub pre_checkpoint: bool,
    /// Bytes of the file that were read.
    pub bytes_read: u64,
    /// Tar headers that were read.
    pub headers: u32,
}

impl Contents {
    /// Whether it is known to be whole.
    pub fn complete(&self) -> bool {
        self.end == End::Marker
    }

    /// Whether it is known not to be whole: nothing can be restored from it. Only once nobody writes it any more
    /// does this make a checkpoint incomplete; while it grows it is simply not finished.
    pub fn incomplete(&self) -> bool {
        matches!(self.end, End::Early | End::Broken)
    }
}

/// Reads the `len` bytes of `file`.
pub(super) fn read(file: &File, len: u64, limits: &Limits) -> Result<Contents, ReadError> {
    let mut start = [0; BLOCK];
    let count = file.read_at(&mut start, 0).map_err(|source| ReadError::Io { offset: 0, source })?;
    let packing = Packing::of(&start[..count]);
    match Stream::new(file, len, packing, limits.bytes) {
        Some(stream) => Findings::collect(stream, len > packing.bounds().input, limits),
        None => Findings::collect(Plain::new(file, len, limits.bytes), false, limits),
    }
}

/// What the walk came across. A dump that stands in the archive twice counts as it stands last, like for
/// checkpointctl, which unpacks one over the other.
#[derive(Default)]
struct Findings {
    config: Option<Vec<u8>>,
    spec: Option<Vec<u8>>,
    status: Option<Vec<u8>>,
    images: bool,
    pre_images: bool,
    has_parent: bool,
    config_seen: bool,
    spec_seen: bool,
    entries: u32,
}

impl Findings {
    /// Walks to the end. A plain tar costs one read a header, so it is always walked to its marker. A stream too
    /// long to reach its end is left as soon as it has said whose it is.
    fn collect(input: impl Input, too_long: bool, limits: &Limits) -> Result<Contents, ReadError> {
        let mut walk = Walk::new(input, limits.headers);
        let mut findings = Findings::default();
        let end = loop {
            if too_long && findings.config.is_some() && findings.spec.is_some() {
                break End::NotReached;
            }
            match findings.step(&mut walk, limits) {
                Ok(true) => {}
                // Zeros from the start are a file whose blocks never reached the disk.
                Ok(false) if findings.entries == 0 => break End::Broken,
                Ok(false) => break End::Marker,
                Err(Stop::Early) => break End::Early,
                Err(Stop::Broken) if walk.headers() == 1 => break End::Unrecognised,
                Err(Stop::Broken) => break End::Broken,
                Err(Stop::Limit | Stop::Disputed) => break End::NotReached,
                Err(Stop::Io { offset, source }) => return Err(ReadError::Io { offset, source }),
            }
        };
        Ok(findings.conclude(end, walk.bytes_read(), walk.headers()))
    }

    /// Takes the next entry; false at the end marker.
    fn step(&mut self, walk: &mut Walk<impl Input>, limits: &Limits) -> Result<bool, Stop> {
        let Some(entry) = walk.next()? else { return Ok(false) };
        self.entries += 1;
        self.config_seen |= entry.name == b"config.dump";
        self.spec_seen |= entry.name == b"spec.dump";
        let dump = match entry.name.as_slice() {
            b"config.dump" => &mut self.config,
            b"spec.dump" => &mut self.spec,
            b"status.dump" => &mut self.status,
            _ => {
                self.note_images(&entry);
                return Ok(true);
            }
        };
        // The one before no longer counts, even when this one cannot be read.
        *dump = None;
        if entry.regular {
            *dump = walk.data(&entry, limits.dump)?;
        }
        Ok(true)
    }

    fn note_images(&mut self, entry: &Entry) {
        self.images |= entry.name.starts_with(b"checkpoint/");
        self.pre_images |= entry.name.starts_with(b"pre-checkpoint/");
        self.has_parent |= entry.name == b"checkpoint/parent";
    }

    fn conclude(self, end: End, bytes_read: u64, headers: u32) -> Contents {
        let config = self.config.as_deref().and_then(Config::parse);
        let spec = self.spec.as_deref().and_then(Spec::parse);
        let (has_config, has_spec) = (config.is_some(), spec.is_some());
        let (config, mut spec) = (config.unwrap_or_default(), spec.unwrap_or_default());
        if spec.engine == Engine::Podman {
            spec.owner.container = config.podman_container();
        }
        // podman's users name their containers as they like, and podman never writes when it made a checkpoint.
        let by_cri_engine =
            config.checkpointed.is_some() || matches!(spec.engine, Engine::CriO | Engine::Containerd);
        let engine_name = by_cri_engine.then(|| config.engine_name()).flatten();
        let pod_uid = match (&spec.pod_uid, engine_name.as_ref().map(|name| &name.pod_uid)) {
            (Some(one), Some(other)) if one != other => None,
            (one, other) => one.as_ref().or(other).cloned(),
        };
        Contents {
            engine: spec.engine,
            keys: spec.owner,
            engine_name: engine_name.map(|name| name.owner),
            labels: self.status.as_deref().and_then(dumps::status_owner),
            pod_uid,
            created: config.created,
            checkpointed: config.checkpointed,
            end,
            has_config,
            has_spec,
            has_images: self.images || self.pre_images,
            has_dumps: self.config_seen && self.spec_seen,
            has_parent: self.has_parent,
            pre_checkpoint: self.pre_images && !self.images,
            bytes_read: bytes_read + BLOCK as u64,
            headers,
        }
    }
}
