//! Glob patterns over names.

use std::fmt;

use globset::{Glob, GlobMatcher};

/// A glob over one name: `*`, `?`, `[a-z]`, `{a,b}`. Without those characters it is that exact name.
///
/// A pattern always covers the whole name: `team` never matches `team-prod`.
#[derive(Clone)]
pub struct Pattern {
    text: String,
    how: How,
}

/// How a pattern is matched. Only what needs an automaton gets one: every plan matches every rule with every owner.
#[derive(Clone)]
enum How {
    /// A name.
    Exact,
    /// A name's beginning, so many bytes of the text, and `*`.
    Prefix(usize),
    /// Anything else.
    Glob(GlobMatcher),
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
        const MAGIC: [char; 5] = ['*', '?', '[', '{', '\\'];
        let how =
            match text.strip_suffix('*').filter(|prefix| !prefix.contains(MAGIC) && !prefix.contains('}')) {
                Some(prefix) => How::Prefix(prefix.len()),
                None if text.contains(MAGIC) => {
                    let glob = Glob::new(text).map_err(|error| PatternError::Malformed {
                        text: text.to_owned(),
                        problem: error.kind().to_string(),
                    })?;
                    How::Glob(glob.compile_matcher())
                }
                None => How::Exact,
            };
        Ok(Pattern { text: text.to_owned(), how })
    }

    /// Whether it covers `name`.
    pub fn matches(&self, name: &str) -> bool {
        match &self.how {
            How::Exact => self.text == name,
            How::Prefix(length) => name.as_bytes().starts_with(&self.text.as_bytes()[..*length]),
            How::Glob(glob) => glob.is_match(name),
        }
    }

    /// Whether it is a plain name rather than a glob.
    pub fn is_exact(&self) -> bool {
        matches!(self.how, How::Exact)
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
    fn a_beginning_is_matched_as_the_glob_that_it_is() {
        let names =
            ["", "t", "te", "team", "team-prod", "Team", "team/a", "te\nam", "téam", "*", "te*", "te,x"];
        for pattern in ["*", "te*", "team-*", "té*", "te,*", "te]*", "**", "t*e*"] {
            let glob = Glob::new(pattern).unwrap().compile_matcher();
            for name in names {
                check(pattern, name, glob.is_match(name));
            }
        }
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
