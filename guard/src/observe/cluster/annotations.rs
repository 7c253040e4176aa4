//! The annotations of a Namespace or a Pod: what its owner wishes for its checkpoints.

use std::collections::BTreeMap;

use crate::model::{Annotation, Protection, Wish};

/// An annotation that says nothing we understand. It counts as not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {value:?} is not accepted; write {accepted}")]
pub struct Misread {
    /// Its key.
    pub key: &'static str,
    /// What was written.
    pub value: String,
    /// What is understood.
    pub accepted: &'static str,
}

/// Reads them. `keep: "true"` wins over a number; `"false"` is as if it were not there.
pub fn read(annotations: Option<&BTreeMap<String, String>>) -> (Option<Wish>, Vec<Misread>) {
    let mut misread = Vec::new();
    let Some(annotations) = annotations else { return (None, misread) };
    let mut wish = None;
    let value = |annotation: Annotation| annotations.get(annotation.key()).map(|value| value.trim());
    let mut refuse = |annotation: Annotation, value: &str, accepted| {
        // Whoever wrote a megabyte there need not read all of it again.
        let value = value.chars().take(40).collect();
        misread.push(Misread { key: annotation.key(), value, accepted });
    };
    if let Some(text) = value(Annotation::Protection) {
        match text.parse().ok().and_then(Protection::new) {
            Some(protection) => wish = Some(Wish { protection, annotation: Annotation::Protection }),
            None => refuse(Annotation::Protection, text, "a whole number from 0 to 100 in quotes"),
        }
    }
    match value(Annotation::Keep) {
        Some("true") => wish = Some(Wish { protection: Protection::NEVER, annotation: Annotation::Keep }),
        Some("false") | None => {}
        Some(text) => refuse(Annotation::Keep, text, "\"true\" or \"false\""),
    }
    (wish, misread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(annotations: &[(Annotation, &str)], wish: Option<u8>, misread: usize) {
        let map =
            annotations.iter().map(|(key, value)| (key.key().to_owned(), (*value).to_owned())).collect();
        let (found, problems) = read(Some(&map));
        assert_eq!(found.map(|wish| wish.protection.get()), wish, "{annotations:?}");
        assert_eq!(problems.len(), misread, "{annotations:?}: {problems:?}");
    }

    #[test]
    fn a_number_is_a_protection_and_keep_is_all_of_it() {
        use Annotation::{Keep, Protection};
        check(&[], None, 0);
        check(&[(Protection, "70")], Some(70), 0);
        check(&[(Protection, " 0 ")], Some(0), 0);
        check(&[(Protection, "101")], None, 1);
        check(&[(Protection, "high")], None, 1);
        check(&[(Protection, "-1")], None, 1);
        check(&[(Keep, "true")], Some(100), 0);
        check(&[(Keep, "false")], None, 0);
        check(&[(Keep, "yes")], None, 1);
        check(&[(Keep, "true"), (Protection, "10")], Some(100), 0);
        check(&[(Keep, "false"), (Protection, "10")], Some(10), 0);
        check(&[(Keep, ""), (Protection, "")], None, 2);
    }

    #[test]
    fn a_misread_one_says_what_is_accepted() {
        let map = BTreeMap::from([(Annotation::Protection.key().to_owned(), "1000".to_owned())]);
        let (_, problems) = read(Some(&map));
        assert_eq!(
            problems[0].to_string(),
            "checkpoint-guard.io/protection: \"1000\" is not accepted; write a whole number from 0 to 100 in quotes"
        );
    }
}
