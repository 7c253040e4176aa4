//! [`Health`]: whether the loop runs and the guard protects already, as told to the kubelet's probes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::metrics::FilesystemLabel;
use crate::model::Monotonic;

/// Shared between the loop, which beats, and the HTTP server, which is asked.
#[derive(Debug)]
pub struct Health {
    stale_after: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    configured: bool,
    beats: BTreeMap<FilesystemLabel, Monotonic>,
    unscanned: BTreeSet<PathBuf>,
}

impl Health {
    /// A loop that has not beaten for `stale_after` counts as hung: longer than its longest sleep plus the longest
    /// deletion or scan that is still healthy.
    pub fn new(stale_after: Duration) -> Health {
        Health { stale_after, state: Mutex::default() }
    }

    /// A valid configuration is in force.
    pub fn configured(&self) {
        self.state().configured = true;
    }

    /// A directory whose first scan readiness waits for: every one that is not optional.
    pub fn expect_scan(&self, directory: &Path) {
        self.state().unscanned.insert(directory.to_owned());
    }

    /// A directory was read, or is no longer configured.
    pub fn scanned(&self, directory: &Path) {
        self.state().unscanned.remove(directory);
    }

    /// The loop has turned for this filesystem; the first beat registers it.
    pub fn beat(&self, filesystem: &FilesystemLabel, now: Monotonic) {
        self.state().beats.insert(filesystem.clone(), now);
    }

    /// The filesystem is no longer watched.
    pub fn forget(&self, filesystem: &FilesystemLabel) {
        self.state().beats.remove(filesystem);
    }

    /// What speaks against being alive, one sentence each; nothing when alive.
    ///
    /// It is alive while any loop turns: a restart would help none that hangs in the kernel, and the others would go
    /// unprotected meanwhile. A guard without any filesystem yet (all directories optional and absent) is alive: it waits.
    pub fn dead(&self, now: Monotonic) -> Vec<String> {
        let hung = self.hung(now);
        if hung.len() < self.state().beats.len() { Vec::new() } else { hung }
    }

    /// The loops that hang, one sentence each.
    pub fn hung(&self, now: Monotonic) -> Vec<String> {
        let state = self.state();
        let stale = state.beats.iter().filter(|(_, beat)| now.since(**beat) > self.stale_after);
        stale
            .map(|(filesystem, beat)| {
                let silent = now.since(*beat).as_secs();
                format!(
                    "the loop has not looked at {} for {silent} s; does statfs hang?",
                    filesystem.as_str()
                )
            })
            .collect()
    }

    /// What is missing to being ready, one sentence each; nothing when ready.
    pub fn missing(&self) -> Vec<String> {
        let state = self.state();
        let configuration = (!state.configured).then(|| "no valid configuration is loaded yet".to_owned());
        let scans = state
            .unscanned
            .iter()
            .map(|directory| format!("directory {} has not been scanned yet", directory.display()));
        configuration.into_iter().chain(scans).collect()
    }

    /// Each change is a single insert or remove, so a panic elsewhere leaves the state whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic(Duration::from_secs(seconds))
    }

    fn label(path: &str) -> FilesystemLabel {
        FilesystemLabel::new(Path::new(path))
    }

    #[test]
    fn a_guard_is_alive_while_one_of_its_loops_turns_and_those_that_hang_are_named() {
        let health = Health::new(Duration::from_secs(30));
        assert!(health.hung(at(1000)).is_empty(), "nothing to watch yet");
        health.beat(&label("/a"), at(1000));
        health.beat(&label("/b"), at(1000));
        assert!(health.hung(at(1030)).is_empty());
        health.beat(&label("/a"), at(1030));
        let hung = health.hung(at(1031));
        assert_eq!(hung, ["the loop has not looked at /b for 31 s; does statfs hang?"]);
        assert!(health.dead(at(1031)).is_empty());
        assert_eq!(health.dead(at(1061)).len(), 2);
        health.forget(&label("/a"));
        assert_eq!(health.dead(at(1031)), hung, "it is the only one");
        health.beat(&label("/a"), at(1031));
        health.forget(&label("/b"));
        assert!(health.hung(at(1031)).is_empty());
    }

    #[test]
    fn ready_is_configured_and_every_directory_scanned_once() {
        let health = Health::new(Duration::from_secs(30));
        health.expect_scan(Path::new("/a"));
        assert_eq!(health.missing().len(), 2);
        health.configured();
        assert_eq!(health.missing(), ["directory /a has not been scanned yet"]);
        health.scanned(Path::new("/a"));
        assert!(health.missing().is_empty());
    }
}
