//! What sees writes here: each backend tried, and why it does not work when it does not.

use std::os::fd::AsFd as _;

use super::directories::Opened;
use super::report::{Check, Section};
use crate::config::{Config, ProbeMode};
use crate::observe::probe::{self, Attempt, Backend, Coverage, Outcome};

/// What trying each has shown.
#[derive(Debug)]
pub(super) struct Survey {
    checks: Vec<Check>,
    /// The attempts on each directory, best backend first, in the order the directories were given.
    on_directories: Vec<Vec<Attempt>>,
}

impl Survey {
    /// Tries all of them, and on the directories.
    pub(super) fn take(config: &Config, opened: &[Opened]) -> Survey {
        let mut survey = Survey::without_directories();
        survey.on_directories = opened.iter().map(|it| probe::survey_of(it.dir.as_fd())).collect();
        survey.checks.push(Check::ok("statfs", "always; between 2 ms and 1 s apart, by the headroom"));
        if config.probe != ProbeMode::Auto {
            let mode = format!("[probe] mode = {:?}", config.probe.as_str());
            survey.checks.push(Check::note("chosen", mode).advising("\"auto\" takes the best that works"));
        }
        survey
    }

    /// Where it is not known which directories matter.
    pub(super) fn without_directories() -> Survey {
        let attempts = probe::survey();
        let any_works = attempts.iter().any(|it| it.backend != Backend::Inotify && is_usable(it));
        Survey {
            checks: attempts.iter().map(|attempt| check(attempt, any_works)).collect(),
            on_directories: Vec::new(),
        }
    }

    /// What is seen of the directory at this place, for its own section; `None` without any.
    pub(super) fn seen(&self, place: usize) -> Option<Check> {
        const NAME: &str = "writes seen";
        let best = self.on_directories.get(place)?.iter().find(|attempt| is_usable(attempt))?;
        let by = best.backend.as_str();
        Some(match &best.outcome {
            Outcome::Works(Some(coverage)) | Outcome::Untested(coverage, _)
                if !coverage.lacking().is_empty() =>
            {
                let lacking = coverage.lacking();
                Check::degraded(
                    NAME,
                    format!("by {by}: {coverage}"),
                    format!(
                        "this kernel's hooks for {lacking} are missing or others than are known, so statfs must show what is \
                         written so; [probe] mode = \"kprobe\" may see more"
                    ),
                )
            }
            Outcome::Works(Some(Coverage::Blocks)) => {
                Check::ok(NAME, format!("by {by}: {}", Coverage::Blocks))
            }
            Outcome::Works(Some(Coverage::Nothing) | None) => Check::degraded(
                NAME,
                format!("by {by} only: that something is written, and statfs how much is left"),
                "docs/KERNEL.md says which filesystems are counted by which backend",
            ),
            Outcome::Works(Some(coverage)) => Check::note(NAME, format!("by {by}: {coverage}"))
                .advising("statfs takes over where the count falls short; ext4 would be counted exactly"),
            Outcome::Untested(coverage, why) => {
                Check::note(NAME, format!("by {by}: {coverage}; not tried out: {why}"))
            }
            Outcome::Refused | Outcome::DoesNotCount | Outcome::NotHere => return None,
        })
    }

    pub(super) fn section(self) -> Section {
        Section { name: "backends", checks: self.checks }
    }
}

fn is_usable(attempt: &Attempt) -> bool {
    attempt.outcome.is_usable()
}

/// A backend that does not work matters only when no better one does.
fn check(attempt: &Attempt, any_works: bool) -> Check {
    let name = attempt.backend.as_str();
    let why = attempt.why.clone().unwrap_or_else(|| "does not work here".to_owned());
    match (attempt.outcome.is_usable(), any_works) {
        (true, _) => Check::ok(name, "works"),
        (false, true) => {
            let note = Check::note(name, why);
            match attempt.remedy.clone() {
                Some(remedy) => note.advising(remedy),
                None => note,
            }
        }
        (false, false) => Check::degraded(
            name,
            why,
            attempt.remedy.clone().unwrap_or_else(|| {
                "until then inotify and statfs do: deletions begin some milliseconds later, and nobody is named as writer"
                    .to_owned()
            }),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::State;
    use super::*;
    use crate::observe::probe::{Unseen, Writing};

    #[track_caller]
    fn seen(outcome: Outcome) -> Check {
        let attempt = Attempt { backend: Backend::Fexit, outcome, why: None, remedy: None };
        let survey = Survey { checks: Vec::new(), on_directories: vec![vec![attempt]] };
        survey.seen(0).unwrap()
    }

    #[test]
    fn what_passes_unseen_is_named_and_a_missing_hook_could_be_better() {
        let calls = |lacking: &[Writing]| {
            let for_lack_of_hooks = lacking.iter().copied().collect();
            let by_design = [Writing::Aio].into_iter().collect();
            Coverage::Calls(Unseen { by_design, for_lack_of_hooks })
        };
        let whole = seen(Outcome::Works(Some(calls(&[Writing::IoUring]))));
        assert_eq!(whole.state, State::Note, "{whole:?}");
        assert!(whole.value.ends_with("unseen: io_uring, libaio"), "{whole:?}");
        for outcome in [
            Outcome::Works(Some(calls(&[Writing::Vector]))),
            Outcome::Untested(calls(&[Writing::Vector]), "no space left".to_owned()),
        ] {
            let torn = seen(outcome);
            assert_eq!(torn.state, State::Degraded, "{torn:?}");
            assert!(torn.value.ends_with("unseen: writev, libaio"), "{torn:?}");
            assert!(
                torn.advice.as_ref().is_some_and(|advice| advice.contains("hooks for writev")),
                "{torn:?}"
            );
        }
    }
}
