//! Glob patterns over names.

use std::fmt;

use globset::{Glob, GlobMatcher};

/// A glob over one name: `*`, `?`, `[a-z]`, `{a,b}`. Without those characters it is that exact name.
///
/// A pattern always covers the whole name: `team` never matches `team-prod`.
#[derive(Clone)]
pub struct Pattern {
    text: String,
    /// `None` for an exact name, which is the common case and needs no automaton.
    glob: Option<GlobMatcher>,
}

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Nothing, or only spaces: it would match nothing, which nobody means to write.
    #[error("a blank pattern matches nothing; write a name, or \"*\" for all")]
    Blank,
    /// Not a glob.
    #[error("{text:?} is not a pattern: {problem}; \"*\", \"?\", \"[a-z]\" and \"{{a,b}}\" are understood")]
    Malformed {
        /// What was written.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Pattern {
    /// Reads a pattern.
    pub fn new(text: &str) -> Result<Pattern, PatternError> {
        if text.trim().is_empty() {
            return Err(PatternError::Blank);
        }
        let glob = if text.contains(['*', '?', '[', '{', '\\']) {
            let glob = Glob::new(text).map_err(|error| PatternError::Malformed {
                text: text.to_owned(),
                problem: error.kind().to_string(),
            })?;
            Some(glob.compile_matcher())
        } else {
            None
        };
        Ok(Pattern { text: text.to_owned(), glob })
    }

    /// Whether it covers `name`.
    pub fn matches(&self, name: &str) -> bool {
        match &self.glob {
            Some(glob) => glob.is_match(name),
            None => self.text == name,
        }
    }

    /// Whether it is a plain name rather than a glob.
    pub fn is_exact(&self) -> bool {
        self.glob.is_none()
    }

    /// How much it says: exact names before globs, and of two globs the one with more literal characters.
    /// Larger is more specific.
    pub fn specificity(&self) -> (bool, usize) {
        let literal = self.text.chars().filter(|c| !"*?[]{},\\".contains(*c)).count();
        (self.is_exact(), literal)
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, name: &str, expect: bool) {
        assert_eq!(Pattern::new(pattern).unwrap().matches(name), expect, "{pattern:?} on {name:?}");
    }

    #[test]
    fn a_pattern_covers_the_whole_name() {
        check("team", "team", true);
        check("team", "team-prod", false);
        check("team-*", "team-prod", true);
        check("team-*", "team", false);
        check("kube-*", "kube-system", true);
        check("*", "anything.at-all", true);
        check("ci-??", "ci-01", true);
        check("{a,b}-x", "b-x", true);
    }

    #[test]
    fn blank_and_broken_patterns_are_errors() {
        assert_eq!(Pattern::new(" "), Err(PatternError::Blank));
        assert!(matches!(Pattern::new("ci-["), Err(PatternError::Malformed { .. })));
    }

    #[test]
    fn exact_names_are_more_specific_than_globs() {
        let order = ["*", "ci-*", "ci-nightly-*", "ci"];
        let specificity: Vec<_> =
            order.iter().map(|text| Pattern::new(text).unwrap().specificity()).collect();
        assert!(specificity.is_sorted());
    }
}
