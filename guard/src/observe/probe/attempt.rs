//! [`survey`]: what each backend says on this node, for people who want a better one.

use std::os::fd::BorrowedFd;

use super::surroundings::{Others, remedy};
use super::{Backend, Coverage, ProbeError, ebpf_attempts};

/// What became of trying a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Which.
    pub backend: Backend,
    /// Whether it works.
    pub outcome: Outcome,
    /// Why it does not, in one line; the kernel's words included.
    pub why: Option<String>,
    /// What to change so that it does, where that is known.
    pub remedy: Option<String>,
}

/// Whether a backend works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel lets it in; on a directory's filesystem, it counted a probe file, and this is what it covers.
    Works(Option<Coverage>),
    /// The kernel lets it in, but no probe file could be written there, for this reason.
    Untested(Coverage, String),
    /// The kernel refuses it, or lacks what it needs.
    Refused,
    /// It is loaded but did not count a probe file.
    DoesNotCount,
    /// It has nothing to offer on this type of filesystem.
    NotHere,
}

impl Outcome {
    /// Whether the guard would use it.
    pub fn is_usable(&self) -> bool {
        matches!(self, Outcome::Works(_) | Outcome::Untested(..))
    }
}

impl Attempt {
    #[cfg(feature = "ebpf")]
    pub(super) fn new(backend: Backend, result: Result<Outcome, ProbeError>) -> Attempt {
        match result {
            Ok(outcome) => Attempt { backend, outcome, why: None, remedy: None },
            Err(error) => {
                let outcome = match error {
                    ProbeError::DoesNotCount { .. } => Outcome::DoesNotCount,
                    _ => Outcome::Refused,
                };
                let errno = match error {
                    ProbeError::Refused { errno, .. } => errno,
                    _ => None,
                };
                let remedy = remedy(errno, Others::Unknown);
                Attempt { backend, outcome, why: Some(error.to_string()), remedy }
            }
        }
    }

    /// EPERM means something else when another backend was let in.
    fn knowing(mut self, others: Others) -> Attempt {
        if others == Others::Work && self.why.as_ref().is_some_and(|why| why.contains("(os error 1)")) {
            self.remedy = remedy(Some(libc::EPERM), others);
        }
        self
    }
}

/// Tries every backend, the best first, without watching anything: programs are attached for a moment and detached.
///
/// The last is inotify with the timer, which always works.
pub fn survey() -> Vec<Attempt> {
    complete(ebpf_attempts(None))
}

/// Tries every backend on the filesystem of `directory`, with a nameless probe file in it. The first that is usable is the one
/// that a probe takes there.
pub fn survey_of(directory: BorrowedFd<'_>) -> Vec<Attempt> {
    complete(ebpf_attempts(Some(directory)))
}

fn complete(attempts: Result<Vec<Attempt>, ProbeError>) -> Vec<Attempt> {
    let mut attempts = attempts.unwrap_or_else(|error| {
        // It is the object or a map that was refused: no backend comes to be tried.
        let ebpf = Backend::ALL.into_iter().filter(|backend| *backend != Backend::Inotify);
        let errno = match &error {
            ProbeError::Refused { errno, .. } => *errno,
            _ => None,
        };
        let refused = |backend| Attempt {
            backend,
            outcome: Outcome::Refused,
            why: Some(error.to_string()),
            remedy: remedy(errno, Others::Unknown),
        };
        ebpf.map(refused).collect()
    });
    let others = if attempts.iter().any(|attempt| attempt.outcome.is_usable()) {
        Others::Work
    } else {
        Others::Unknown
    };
    attempts = attempts.into_iter().map(|attempt| attempt.knowing(others)).collect();
    attempts.push(Attempt {
        backend: Backend::Inotify,
        outcome: Outcome::Works(None),
        why: None,
        remedy: None,
    });
    attempts
}
