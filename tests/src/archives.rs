//! Container checkpoint archives of any size, laid out as CRI-O and containerd write them.
//!
//! The entries, their order and the keys in `config.dump`, `spec.dump` and `status.dump` are those of the real
//! archives in `tests/fixtures/archives`. In the middle lies one `checkpoint/pages-1.img` that makes up the size;
//! an entry of 8 GiB and more has its size in a PAX record, as Go's archive/tar writes it. A green run with these
//! says nothing about entries that only criu writes: the fixtures are for that.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::{Value, json};
use tar::{EntryType, Header};

/// The largest size that the twelve octal digits of a ustar header hold, plus one.
const USTAR_SIZE_END: u64 = 8 << 30;

/// The name that the kubelet gives an archive made at `at`, in a node whose time zone is UTC.
///
/// Kubelet: `CheckpointContainer`, pkg/kubelet/kubelet.go.
pub fn kubelet_name(namespace: &str, pod: &str, container: &str, at: Timestamp) -> String {
    format!("checkpoint-{pod}_{namespace}-{container}-{}.tar", at.strftime("%Y-%m-%dT%H:%M:%SZ"))
}

/// Whose layout and keys the archive has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// CRI-O.
    CriO,
    /// containerd's CRI plugin.
    Containerd,
}

/// An archive still to be written.
#[derive(Clone, Debug)]
pub struct Archive {
    /// Whose layout and keys.
    pub engine: Engine,
    /// The namespace that the engine's keys and `config.dump` say.
    pub namespace: String,
    /// The pod that they say.
    pub pod: String,
    /// The container that they say.
    pub container: String,
    /// The pod's UID that they say.
    pub uid: String,
    /// When the checkpoint was made; the container is a minute older.
    pub checkpointed: Timestamp,
    /// Length of the whole file in bytes, rounded up to whole blocks of 512; at least [`Archive::SMALLEST`].
    pub size: u64,
}

impl Archive {
    /// Enough for everything but memory pages.
    pub const SMALLEST: u64 = 32 << 10;

    /// A CRI-O archive of `size` bytes.
    pub fn new(namespace: &str, pod: &str, container: &str, checkpointed: Timestamp, size: u64) -> Archive {
        Archive {
            engine: Engine::CriO,
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: container.to_owned(),
            uid: "19799841-684a-43df-95e8-50ad687b8d68".to_owned(),
            checkpointed,
            size,
        }
    }

    /// The same as containerd writes it.
    pub fn containerd(mut self) -> Archive {
        self.engine = Engine::Containerd;
        self
    }

    /// The name that the kubelet gives it.
    pub fn kubelet_name(&self) -> String {
        kubelet_name(&self.namespace, &self.pod, &self.container, self.checkpointed)
    }

    /// Writes it as fast as `out` takes it, in pieces of 1 MiB; gives the number of bytes.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<u64> {
        let layout = self.layout();
        out.write_all(&layout.before)?;
        let piece = pages();
        let mut left = layout.pages;
        while left > 0 {
            let now = left.min(piece.len() as u64) as usize;
            out.write_all(&piece[..now])?;
            left -= now as u64;
        }
        out.write_all(&layout.after)?;
        Ok(layout.len())
    }

    /// Writes it into `directory` under the kubelet's name, in place like the engines (mode 0600, no O_TRUNC).
    pub fn write_in(&self, directory: &Path) -> io::Result<PathBuf> {
        let path = directory.join(self.kubelet_name());
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        self.write_to(&mut file)?;
        Ok(path)
    }

    /// Gives `file` the same content with a hole instead of memory pages: any size for the price of a few blocks.
    pub fn write_sparse(&self, file: &File) -> io::Result<u64> {
        let layout = self.layout();
        file.set_len(layout.len())?;
        file.write_all_at(&layout.before, 0)?;
        file.write_all_at(&layout.after, layout.before.len() as u64 + layout.pages)?;
        Ok(layout.len())
    }

    fn layout(&self) -> Layout {
        let last_image = Blocks::default().entry("checkpoint/pstree.img", &[7; 36]);
        let (front, back) = match self.engine {
            Engine::CriO => (Blocks::crio_front(), self.crio_back(last_image)),
            Engine::Containerd => (Blocks::default(), self.containerd_back(last_image)),
        };
        let mut before = front.criu_images_before_pages();
        let after = back.marked_end();

        let size = self.size.next_multiple_of(512);
        let rest = |headers: u64| {
            size.checked_sub(before.0.len() as u64 + after.len() as u64 + headers)
                .expect("size is at least Archive::SMALLEST")
        };
        let pages = if rest(512) < USTAR_SIZE_END { rest(512) } else { rest(3 * 512) };
        before = before.header("checkpoint/pages-1.img", EntryType::Regular, pages);
        Layout { before: before.0, pages, after }
    }

    fn crio_back(&self, blocks: Blocks) -> Blocks {
        let engine_name = format!("k8s_{}_{}_{}_{}_0", self.container, self.pod, self.namespace, self.uid);
        let labels = self.labels();
        let mut annotations = json!({
            "io.container.manager": "cri-o",
            "io.kubernetes.cri-o.Created": self.container_created().to_string(),
            "io.kubernetes.cri-o.Labels": labels.to_string(),
            "io.kubernetes.cri-o.Metadata": json!({"name": self.container}).to_string(),
            "io.kubernetes.cri-o.Name": engine_name,
        });
        merge(&mut annotations, labels);
        blocks
            .json("config.dump", &self.config(&engine_name))
            .json("spec.dump", &self.spec(annotations))
            .entry("bind.mounts", b"[]")
            .entry("rootfs-diff.tar", &[0; 1536])
            .entry("io.kubernetes.cri-o.LogPath", b"")
    }

    fn containerd_back(&self, blocks: Blocks) -> Blocks {
        let engine_name = format!("{}_{}_{}_{}_0", self.container, self.pod, self.namespace, self.uid);
        let annotations = json!({
            "io.kubernetes.cri.container-name": self.container,
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.sandbox-name": self.pod,
            "io.kubernetes.cri.sandbox-namespace": self.namespace,
            "io.kubernetes.cri.sandbox-uid": self.uid,
        });
        blocks
            .json("config.dump", &self.config(&engine_name))
            .entry("container.log", b"")
            .entry("dump.log", &[b'.'; 4096])
            .entry("rootfs-diff.tar", &[0x1f; 163])
            .json("spec.dump", &self.spec(annotations))
            .entry("stats-dump", &[1; 47])
            .json("status", &json!({"Version": "v1", "Pid": 1434, "ExitCode": 0}))
            .json("status.dump", &json!({"metadata": {"name": self.container}, "labels": self.labels()}))
    }

    fn container_created(&self) -> Timestamp {
        self.checkpointed - jiff::SignedDuration::from_secs(60)
    }

    fn labels(&self) -> Value {
        json!({
            "io.kubernetes.container.name": self.container,
            "io.kubernetes.pod.name": self.pod,
            "io.kubernetes.pod.namespace": self.namespace,
            "io.kubernetes.pod.uid": self.uid,
        })
    }

    fn config(&self, engine_name: &str) -> Value {
        json!({
            "id": "2540fdaa9dd148c3096a1f4c1a07eb2cbdd6a22aaed07a589d538a4dc1b7c4f3",
            "name": engine_name,
            "rootfsImageName": "localhost/counter:v1",
            "createdTime": self.container_created().to_string(),
            "checkpointedTime": self.checkpointed.to_string(),
            "restoredTime": "0001-01-01T00:00:00Z",
            "restored": false,
        })
    }

    fn spec(&self, annotations: Value) -> Value {
        json!({
            "ociVersion": "1.2.0",
            "process": {"args": ["/bin/sh"], "env": ["PATH=/usr/bin:/bin"], "cwd": "/"},
            "root": {"path": "rootfs"},
            "annotations": annotations,
            "linux": {"resources": {}},
        })
    }
}

/// The bytes around the memory pages, and how many of these there are.
struct Layout {
    before: Vec<u8>,
    pages: u64,
    after: Vec<u8>,
}

impl Layout {
    fn len(&self) -> u64 {
        self.before.len() as u64 + self.pages + self.after.len() as u64
    }
}

/// Tar entries as bytes.
#[derive(Default)]
struct Blocks(Vec<u8>);

impl Blocks {
    fn header(mut self, name: &str, kind: EntryType, size: u64) -> Blocks {
        let mut ustar_size = size;
        if size >= USTAR_SIZE_END {
            let record = format!("20 size={size:011}\n");
            self = self.header("PaxHeaders.0/entry", EntryType::XHeader, record.len() as u64);
            self.0.extend_from_slice(record.as_bytes());
            self = self.pad();
            ustar_size = 0;
        }
        let mut header = Header::new_ustar();
        header.set_path(name).expect("the names here are short");
        header.set_entry_type(kind);
        header.set_size(ustar_size);
        header.set_mode(0o600);
        header.set_mtime(1_796_024_787);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self
    }

    fn entry(mut self, name: &str, data: &[u8]) -> Blocks {
        self = self.header(name, EntryType::Regular, data.len() as u64);
        self.0.extend_from_slice(data);
        self.pad()
    }

    fn json(self, name: &str, value: &Value) -> Blocks {
        self.entry(name, value.to_string().as_bytes())
    }

    fn crio_front() -> Blocks {
        Blocks::default().entry("stats-dump", &[1; 47]).entry("dump.log", &[b'.'; 4096])
    }

    fn criu_images_before_pages(self) -> Blocks {
        self.header("checkpoint/", EntryType::Directory, 0)
            .entry("checkpoint/cgroup.img", &[2; 5098])
            .entry("checkpoint/core-1.img", &[3; 1837])
            .entry("checkpoint/mm-1.img", &[4; 535])
            .entry("checkpoint/pagemap-1.img", &[5; 125])
    }

    fn pad(mut self) -> Blocks {
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn marked_end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}

/// 1 MiB that no filesystem compresses away or shares: a xorshift sequence.
fn pages() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    std::iter::repeat_with(|| next().to_le_bytes()).take((1 << 20) / 8).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(archive: &Archive, config_at_least: u64) {
        let mut bytes = Vec::new();
        assert_eq!(archive.write_to(&mut bytes).unwrap(), archive.size);
        assert_eq!(bytes.len() as u64, archive.size);
        let mut tar = tar::Archive::new(bytes.as_slice());
        let config = tar
            .entries()
            .unwrap()
            .map(Result::unwrap)
            .find(|entry| entry.path_bytes().as_ref() == b"config.dump")
            .expect("config.dump is there");
        assert!(config.raw_file_position() >= config_at_least, "config.dump lies behind the pages");
    }

    #[test]
    fn archives_have_the_asked_size_and_another_reader_understands_them() {
        let at: Timestamp = "2026-11-30T07:46:32.109597393Z".parse().unwrap();
        let archive = Archive::new("team", "web-0", "main", at, 3 << 20);
        assert_eq!(archive.kubelet_name(), "checkpoint-web-0_team-main-2026-11-30T07:46:32Z.tar");
        check(&archive, 2 << 20);
        check(&archive.containerd(), 2 << 20);
        check(&Archive::new("team", "web-0", "main", at, Archive::SMALLEST), 0);
    }

    #[test]
    fn a_size_beyond_ustar_goes_into_a_pax_record() {
        let file = tempfile::tempfile().unwrap();
        let at: Timestamp = "2026-11-30T07:46:32Z".parse().unwrap();
        let archive = Archive::new("team", "web-0", "main", at, 9 << 30);
        assert_eq!(archive.write_sparse(&file).unwrap(), 9 << 30);
        let mut tar = tar::Archive::new(&file);
        let names: Vec<_> =
            tar.entries_with_seek().unwrap().map(|entry| entry.unwrap().path_bytes().into_owned()).collect();
        assert!(names.iter().any(|name| name == b"spec.dump"), "the pages' PAX size was understood");
    }
}
