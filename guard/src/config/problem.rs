//! What is wrong with a configuration, where it is written, and where each value came from.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file, as its path was given to us.
    pub file: Arc<Path>,
    /// Counted from 1.
    pub line: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// Where an effective value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody wrote it; docs/CONFIGURATION.md lists it.
    Default,
    /// Somebody did, here.
    Written(Place),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.pad("default"),
            Origin::Written(place) => f.pad(&place.to_string()),
        }
    }
}

/// One thing that is wrong, or worth knowing, about a configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file, where there is one.
    pub file: Option<Arc<Path>>,
    /// The line, where one is to blame.
    pub line: Option<u32>,
    /// The key as a person would write it, `pool.gpu.pressure.hard.available`; empty for the file itself.
    pub key: String,
    /// What is wrong, and what is accepted.
    pub message: String,
}

impl Problem {
    pub(super) fn at(place: Option<Place>, key: impl Into<String>, message: impl Into<String>) -> Problem {
        let (file, line) = match place {
            Some(place) => (Some(place.file), Some(place.line)),
            None => (None, None),
        };
        Problem { file, line, key: key.into(), message: message.into() }
    }

    pub(super) fn of_file(file: &Arc<Path>, key: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem { file: Some(file.clone()), line: None, key: key.into(), message: message.into() }
    }
}

/// `guard.toml:12: pressure.hard.available: "15" has no unit; …`
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
            if let Some(line) = self.line {
                write!(f, "{line}:")?;
            }
            f.write_str(" ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// Everything that is wrong with a configuration, in the order of the file, each thing once.
///
/// Displays as one problem per line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.0.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Sorts by place; what several pools inherit from one line is one problem.
    pub(super) fn new(mut problems: Vec<Problem>) -> Problems {
        problems.sort();
        problems.dedup();
        Problems(problems)
    }

    /// Each of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// `; did you mean "available"?` when one of `known` looks like `written`, nothing otherwise.
pub(super) fn did_you_mean<'k>(written: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    let close = |name: &&str| strsim::jaro_winkler(&written.to_lowercase(), name);
    let best = known.into_iter().max_by(|a, b| close(a).total_cmp(&close(b)));
    match best {
        // 0.8: "avail" and "avialable" find "available", while "colour" finds nothing among our keys.
        Some(name) if close(&name) >= 0.8 => format!("; did you mean \"{name}\"?"),
        _ => String::new(),
    }
}
