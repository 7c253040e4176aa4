//! Finding the way that works: each is attached and has to count a probe file.

use std::os::fd::BorrowedFd;

use guard_ebpf::SELF_TEST_SLOT;

use super::super::attempt::{Attempt, Outcome};
use super::super::{Backend, Coverage, ProbeError, SelfTest};
use super::watched::Directories;
use super::way::Way;
use super::{Probe, lock};

/// Watches `directory` in the best way that counts there.
pub(super) fn find_way(
    probe: &Probe,
    directories: &mut Directories,
    slot: u32,
    directory: BorrowedFd<'_>,
) -> Result<Coverage, ProbeError> {
    if let Some(coverage) = directories.move_to(slot, directory)? {
        return Ok(coverage);
    }
    let mut last = None;
    for way in directories.candidates(directory)? {
        match try_way(probe, directories, directory, way) {
            Ok((coverage, _)) => {
                directories.move_to(slot, directory)?;
                return Ok(coverage);
            }
            Err(error) if is_refusal(&error) => {
                tracing::info!(backend = way.backend().as_str(), %error, "this way of seeing writes is not used");
                // One that attaches and does not count here may well count on another filesystem.
                if !matches!(error, ProbeError::DoesNotCount { .. }) {
                    directories.refuse(way);
                }
                last = Some((way, error));
            }
            Err(error) => return Err(error),
        }
    }
    match last {
        // Raw tracepoints are what every kernel has; the others may be missing without anything being wrong.
        Some((way, error)) if way.backend() == Backend::RawTracepoint => Err(error),
        _ => Ok(Coverage::Nothing),
    }
}

/// Counts below `directory` in this way, for nobody's budget, if it counts.
fn try_way(
    probe: &Probe,
    directories: &mut Directories,
    directory: BorrowedFd<'_>,
    way: Way,
) -> Result<(Coverage, SelfTest), ProbeError> {
    let coverage = directories.add(SELF_TEST_SLOT, directory, way)?;
    match probe.count_probe_file(way.backend(), directory) {
        Ok(outcome) => Ok((coverage, outcome)),
        Err(error) => {
            directories.remove(directory)?;
            Err(error)
        }
    }
}

fn is_refusal(error: &ProbeError) -> bool {
    matches!(
        error,
        ProbeError::Refused { .. } | ProbeError::Unfamiliar { .. } | ProbeError::DoesNotCount { .. }
    )
}

/// What each backend says: on the filesystem of `directory`, in the order in which they are tried there; or whether the kernel
/// lets it in at all.
pub(in super::super) fn attempts(directory: Option<BorrowedFd<'_>>) -> Result<Vec<Attempt>, ProbeError> {
    let (probe, _wakes) = Probe::load()?;
    let mut directories = lock(&probe.directories);
    let ways = directory.map(|directory| directories.candidates(directory)).transpose()?.unwrap_or_default();
    let mut backends: Vec<Backend> = Vec::new();
    let known = [Backend::Fexit, Backend::Kprobe, Backend::RawTracepoint];
    for backend in ways.iter().map(|way| way.backend()).chain(known) {
        if !backends.contains(&backend) {
            backends.push(backend);
        }
    }
    let mut attempts = Vec::new();
    for backend in backends {
        let result = match directory {
            None => directories.try_backend(backend).map(|_| Outcome::Works(None)),
            Some(directory) => {
                let ways: Vec<Way> = ways.iter().copied().filter(|way| way.backend() == backend).collect();
                try_ways(&probe, &mut directories, directory, &ways)
            }
        };
        attempts.push(Attempt::new(backend, result));
    }
    directories.settle();
    Ok(attempts)
}

/// The first of `ways` that counts, or why the last does not.
fn try_ways(
    probe: &Probe,
    directories: &mut Directories,
    directory: BorrowedFd<'_>,
    ways: &[Way],
) -> Result<Outcome, ProbeError> {
    let mut outcome = Ok(Outcome::NotHere);
    for way in ways {
        outcome = try_way(probe, directories, directory, *way).map(|(coverage, outcome)| match outcome {
            SelfTest::Counts => Outcome::Works(Some(coverage)),
            SelfTest::Untested(error) => Outcome::Untested(coverage, error.to_string()),
        });
        if outcome.is_ok() {
            directories.remove(directory)?;
            break;
        }
    }
    outcome
}
