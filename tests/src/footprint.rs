//! [`Footprint`]: what a process takes of its machine; and many small checkpoints to be guarded.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use guard::model::Bytes;
use jiff::{SignedDuration, Timestamp};

use crate::archives::kubelet_name;

/// What a process takes, at one moment; what only grows is counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// `VmRSS`: all of it, the mapped part of the program too.
    pub resident: Bytes,
    /// `RssAnon`: what it has allocated.
    pub anonymous: Bytes,
    /// Open descriptors.
    pub descriptors: u64,
    /// Threads.
    pub threads: u64,
    /// How often a thread of it began to wait, and so was woken. Of those that are still there.
    pub wakes: u64,
    /// Processor time of all threads.
    pub busy: Duration,
}

impl Footprint {
    /// That of the process `pid`.
    pub fn of(pid: i32) -> Result<Footprint> {
        let process = Path::new("/proc").join(pid.to_string());
        let status = fs::read_to_string(process.join("status")).context("the process has ended")?;
        let kib = |key: &str| Bytes(number(&status, key) << 10);
        let mut footprint = Footprint {
            resident: kib("VmRSS:"),
            anonymous: kib("RssAnon:"),
            descriptors: fs::read_dir(process.join("fd"))?.count() as u64,
            threads: number(&status, "Threads:"),
            ..Footprint::default()
        };
        for task in fs::read_dir(process.join("task"))?.flatten() {
            // One that ended meanwhile counts nothing.
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            footprint.wakes += number(&status, "voluntary_ctxt_switches:");
            let schedule = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let nanos = schedule.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0);
            footprint.busy += Duration::from_nanos(nanos);
        }
        Ok(footprint)
    }
}

/// The number after `key` at the beginning of a line.
fn number(status: &str, key: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// A whole archive as small as can be that says whose it is: 4 KiB, one block of most filesystems.
///
/// It has what a guard reads of one, and nothing of what it only seeks over.
fn small_archive(namespace: &str, pod: &str, container: &str, at: Timestamp) -> Vec<u8> {
    let config = serde_json::json!({"name": format!("k8s_{container}_{pod}_{namespace}_uid_0"), "checkpointedTime": at});
    let spec = serde_json::json!({"annotations": {
        "io.kubernetes.cri.container-name": container, "io.kubernetes.cri.sandbox-name": pod,
        "io.kubernetes.cri.sandbox-namespace": namespace,
    }});
    let mut bytes = Vec::with_capacity(4096);
    for (name, value) in [("config.dump", config), ("spec.dump", spec)] {
        let content = value.to_string();
        let mut header = tar::Header::new_ustar();
        header.set_path(name).expect("a short name");
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(content.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(4096, 0);
    bytes
}

/// Writes the `number`th small checkpoint of a node with a hundred namespaces and 5,000 containers; an hour old and more,
/// the higher numbers younger.
pub fn write_small(directory: &Path, number: u64) -> Result<()> {
    let namespace = format!("team-{}", number % 100);
    let pod = format!("web-{}", number / 100 % 50);
    let at: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let at = at + SignedDuration::from_secs(i64::try_from(number)?);
    let content = small_archive(&namespace, &pod, "app", at);
    let mut file = File::create_new(directory.join(kubelet_name(&namespace, &pod, "app", at)))?;
    file.write_all(&content)?;
    Ok(())
}
