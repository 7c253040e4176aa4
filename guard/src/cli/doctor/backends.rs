//! What sees writes here: each backend tried, and why it does not work when it does not.

use std::os::fd::AsFd as _;

use super::directories::Opened;
use super::report::{Check, Section};
use crate::config::{Config, ProbeMode};
use crate::observe::inotify::Watcher;
use crate::observe::probe::{Backend, Coverage, Probe, ProbeError, SelfTest, Slot};

/// What trying each has shown.
#[derive(Debug)]
pub(super) struct Survey {
    checks: Vec<Check>,
    /// What the best one sees of each directory, in the order they were given; empty without any.
    coverage: Vec<Result<Coverage, ProbeError>>,
}

impl Survey {
    /// Tries all of them on the directories.
    pub(super) fn take(config: &Config, opened: &[Opened]) -> Survey {
        let mut survey = Survey { checks: Vec::new(), coverage: Vec::new() };
        match Probe::load() {
            Ok((probe, _wakes)) => {
                survey.coverage = opened.iter().map(|it| covered(&probe, it)).collect();
                survey.checks.push(loaded(&probe, &survey.coverage));
            }
            Err(error) => survey.checks.push(Check::degraded(
                Backend::RawTracepoint.as_str(),
                error.to_string(),
                "until then inotify and statfs do: deletions begin some milliseconds later, and nobody is named as writer",
            )),
        }
        survey.checks.push(inotify());
        survey.checks.push(Check::ok("statfs", "always; between 2 ms and 1 s apart, by the headroom"));
        if config.probe != ProbeMode::Auto {
            let mode = format!("[probe] mode = {:?}", config.probe.as_str());
            survey.checks.push(Check::note("chosen", mode).advising("\"auto\" takes the best that works"));
        }
        survey
    }

    /// Where it is not known which directories matter.
    pub(super) fn without_directories() -> Survey {
        let check = match Probe::load() {
            Ok((probe, _wakes)) => Check::ok(probe.backend().as_str(), "loads"),
            Err(error) => Check::degraded(
                Backend::RawTracepoint.as_str(),
                error.to_string(),
                "until then inotify and statfs do",
            ),
        };
        Survey { checks: vec![check, inotify()], coverage: Vec::new() }
    }

    /// What is seen of the directory at this place, for its own section; `None` when no eBPF loads.
    pub(super) fn seen(&self, place: usize) -> Option<Check> {
        Some(match self.coverage.get(place)? {
            Ok(coverage @ Coverage::Blocks) => Check::ok("writes seen", coverage.to_string()),
            Ok(coverage @ Coverage::Pages { .. }) => Check::note("writes seen", coverage.to_string())
                .advising("statfs takes over where the count falls short; ext4 would be counted exactly"),
            Ok(Coverage::Nothing) => Check::degraded(
                "writes seen",
                "nothing by eBPF: inotify tells that something is written, statfs how much is left",
                "ext4, xfs or btrfs would be counted; see docs/ARCHITECTURE.md",
            ),
            Err(error) => {
                Check::degraded("writes seen", error.to_string(), "the timer alone must do meanwhile")
            }
        })
    }

    pub(super) fn section(self) -> Section {
        Section { name: "backends", checks: self.checks }
    }
}

fn loaded(probe: &Probe, coverage: &[Result<Coverage, ProbeError>]) -> Check {
    let counts =
        coverage.iter().filter(|it| matches!(it, Ok(Coverage::Blocks | Coverage::Pages { .. }))).count();
    let name = probe.backend().as_str();
    match (counts, coverage.len()) {
        (_, 0) => Check::ok(name, "loads"),
        (counts, all) if counts == all => {
            Check::ok(name, "loads, and counts what is written in every directory")
        }
        (counts, all) => {
            Check::note(name, format!("loads, and counts what is written in {counts} of {all} directories"))
        }
    }
}

/// What is seen of one directory, by a probe file.
fn covered(probe: &Probe, opened: &Opened) -> Result<Coverage, ProbeError> {
    // One slot does for all: no budget is armed.
    let directory = opened.dir.as_fd();
    let coverage = probe.watch(Slot(0), directory)?;
    let tested =
        if coverage == Coverage::Nothing { Ok(SelfTest::Counts) } else { probe.self_test(directory) };
    // Err: it is unwatched with the probe at the latest.
    let _ = probe.unwatch(directory);
    tested.map(|_| coverage)
}

fn inotify() -> Check {
    match Watcher::new() {
        Ok(_) => Check::ok(Backend::Inotify.as_str(), "works"),
        Err(errno) => Check::degraded(
            Backend::Inotify.as_str(),
            format!("no instance: {}", errno.desc()),
            "raise fs.inotify.max_user_instances (sysctl)",
        ),
    }
}
