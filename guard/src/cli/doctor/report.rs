//! [`Report`]: what was found, printed.

use std::io::{self, Write};

use serde::Serialize;

use crate::cli::Output;
use crate::cli::top::printable;
use crate::report::record::API_VERSION;

/// How it stands with one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// The guard does its work, but not as well as it could.
    Degraded,
    /// The guard cannot do its work.
    Missing,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Note => "note",
            State::Degraded => "could be better",
            State::Missing => "MISSING",
        }
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// The directory or filesystem it is about; `null`: the node.
    pub(super) subject: Option<String>,
    /// What was looked at.
    pub(super) name: String,
    pub(super) state: State,
    /// What was found.
    pub(super) value: String,
    /// What to change.
    pub(super) advice: Option<String>,
}

impl Check {
    pub(super) fn ok(name: impl Into<String>, value: impl Into<String>) -> Check {
        Check { subject: None, name: name.into(), state: State::Ok, value: value.into(), advice: None }
    }

    pub(super) fn note(name: impl Into<String>, value: impl Into<String>) -> Check {
        Check { state: State::Note, ..Check::ok(name, value) }
    }

    pub(super) fn degraded(
        name: impl Into<String>,
        value: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        Check { state: State::Degraded, advice: Some(advice.into()), ..Check::ok(name, value) }
    }

    pub(super) fn missing(
        name: impl Into<String>,
        value: impl Into<String>,
        advice: impl Into<String>,
    ) -> Check {
        Check { state: State::Missing, advice: Some(advice.into()), ..Check::ok(name, value) }
    }

    /// The same with something to do about it, although nothing is wrong.
    pub(super) fn advising(self, advice: impl Into<String>) -> Check {
        Check { advice: Some(advice.into()), ..self }
    }

    /// The same about one directory or filesystem.
    pub(super) fn on(self, subject: &str) -> Check {
        Check { subject: Some(subject.to_owned()), ..self }
    }
}

/// Lines that belong together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) checks: Vec<Check>,
}

impl Section {
    pub(super) fn says_something(&self) -> bool {
        !self.checks.is_empty()
    }
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    api_version: &'static str,
    kind: &'static str,
    /// Nothing essential is missing.
    ready: bool,
    sections: Vec<Section>,
}

impl Report {
    pub(super) fn new(sections: Vec<Section>) -> Report {
        let mut report = Report { api_version: API_VERSION, kind: "Doctor", ready: true, sections };
        report.ready = report.count(State::Missing) == 0;
        report
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    fn count(&self, state: State) -> usize {
        let checks = self.sections.iter().flat_map(|section| &section.checks);
        checks.filter(|check| check.state == state).count()
    }

    pub(super) fn print(&self, output: Output, out: &mut impl Write) -> io::Result<()> {
        if output == Output::Json {
            serde_json::to_writer_pretty(&mut *out, self)?;
            return writeln!(out);
        }
        for section in &self.sections {
            writeln!(out, "{}", section.name.to_uppercase())?;
            let width =
                section.checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0).min(44);
            let mut subject = &None;
            for check in &section.checks {
                if std::mem::replace(&mut subject, &check.subject) != &check.subject {
                    writeln!(out, "  {}", printable(check.subject.as_deref().unwrap_or("this node")))?;
                }
                let (name, value) = (printable(&check.name), printable(&check.value));
                writeln!(out, "  {:<15}  {name:<width$}  {value}", check.state.word())?;
                if let Some(advice) = &check.advice {
                    writeln!(out, "  {:<15}  {:<width$}  -> {}", "", "", printable(advice))?;
                }
            }
            writeln!(out)?;
        }
        let better = self.count(State::Degraded);
        match self.count(State::Missing) {
            0 if better == 0 => writeln!(out, "ready"),
            0 => writeln!(out, "ready; {better} could be better"),
            missing => writeln!(out, "NOT READY: {missing} missing; {better} could be better"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_ready_unless_something_essential_is_missing() {
        let section = |checks| Report::new(vec![Section { name: "it", checks }]);
        let better = Check::degraded("eBPF", "refused", "add CAP_BPF");
        assert!(section(vec![Check::ok("a", "b"), Check::note("c", "d"), better.clone()]).is_ready());
        let report = section(vec![better, Check::missing("directory", "gone\u{1b}[2J", "make it")]);
        assert!(!report.is_ready());
        let mut text = Vec::new();
        report.print(Output::Table, &mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "IT\n  could be better  eBPF       refused\n                              -> add CAP_BPF\n  \
             MISSING          directory  gone\u{fffd}[2J\n                              -> make it\n\n\
             NOT READY: 1 missing; 1 could be better\n"
        );
    }
}
