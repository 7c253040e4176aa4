//! [`Forged`]: small archives that say about themselves whatever an attacker wants them to.

use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::{Value, json};
use tar::{EntryType, Header};

use crate::archives::kubelet_name;

/// An archive of a real owner, with lies in the places where somebody could put them.
#[derive(Clone, Debug)]
pub struct Forged {
    /// Whose it is: namespace, pod, container. In `config.dump`, which the engine alone writes.
    pub owner: [String; 3],
    /// When it was made.
    pub at: Timestamp,
    /// `spec.dump`'s annotations.
    pub annotations: Value,
    /// `status.dump`'s labels, if there are any.
    pub labels: Option<Value>,
    /// Its file name, where that is not the kubelet's.
    pub name: Option<String>,
    /// Bytes of memory pages.
    pub pages: Vec<u8>,
    /// So many empty images come first: processes, threads.
    pub images: u32,
}

impl Forged {
    /// As containerd writes it, with nothing forged.
    pub fn honest(owner: [&str; 3], at: Timestamp) -> Forged {
        let [namespace, pod, container] = owner;
        Forged {
            owner: owner.map(str::to_owned),
            at,
            annotations: json!({
                "io.kubernetes.cri.sandbox-namespace": namespace,
                "io.kubernetes.cri.sandbox-name": pod,
                "io.kubernetes.cri.container-name": container,
            }),
            labels: None,
            name: None,
            pages: vec![0x5a; 64 << 10],
            images: 0,
        }
    }

    /// The same with more annotations; equal keys are replaced.
    pub fn planting(mut self, annotations: Value) -> Forged {
        if let (Value::Object(mine), Value::Object(planted)) = (&mut self.annotations, annotations) {
            mine.extend(planted);
        }
        self
    }

    /// Writes it into `directory`.
    pub fn write_in(&self, directory: &Path) -> io::Result<PathBuf> {
        let [namespace, pod, container] = &self.owner;
        let name = self.name.clone().unwrap_or_else(|| kubelet_name(namespace, pod, container, self.at));
        let path = directory.join(name);
        std::fs::write(&path, self.bytes())?;
        Ok(path)
    }

    /// The tar.
    pub fn bytes(&self) -> Vec<u8> {
        let [namespace, pod, container] = &self.owner;
        let engine_name = format!("{container}_{pod}_{namespace}_19799841-684a-43df-95e8-50ad687b8d68_0");
        let config = json!({"name": engine_name, "checkpointedTime": self.at.to_string()});
        let mut tar = Vec::new();
        for number in 0..self.images {
            entry(&mut tar, &format!("checkpoint/core-{number}.img"), EntryType::Regular, &[]);
        }
        entry(&mut tar, "checkpoint/pages-1.img", EntryType::Regular, &self.pages);
        entry(&mut tar, "config.dump", EntryType::Regular, config.to_string().as_bytes());
        let spec = json!({"annotations": self.annotations});
        entry(&mut tar, "spec.dump", EntryType::Regular, spec.to_string().as_bytes());
        if let Some(labels) = &self.labels {
            let status = json!({"labels": labels});
            entry(&mut tar, "status.dump", EntryType::Regular, status.to_string().as_bytes());
        }
        tar.resize(tar.len() + 1024, 0);
        tar
    }
}

/// Appends an entry, whatever its name and type.
pub fn entry(tar: &mut Vec<u8>, name: &str, kind: EntryType, data: &[u8]) {
    let mut header = Header::new_ustar();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(data.len() as u64);
    header.set_mode(0o600);
    header.set_cksum();
    tar.extend_from_slice(header.as_bytes());
    tar.extend_from_slice(data);
    tar.resize(tar.len().next_multiple_of(512), 0);
}
