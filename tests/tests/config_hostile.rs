//! Whatever stands in a file, reading it ends with a configuration or with problems, never with a crash.

use std::path::Path;

use guard::config::{ConfigFile, import_operator};
use proptest::prelude::*;

const SAMPLE: &str = include_str!("../../config/gpu.toml");
const RESOURCE: &str = include_str!("../fixtures/config/operator.yaml");

/// `text` with a piece cut out and put in elsewhere: most are broken, and broken in places a person breaks them.
fn mangled(text: &'static str) -> impl Strategy<Value = String> {
    let lines = text.lines().count();
    (0..lines, 0..lines, 0..lines, "[\\[\\]{}=.\"a-z0-9%# -]{0,8}").prop_map(|(from, length, to, typed)| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        let end = (from + length % 4).min(lines.len());
        let cut: Vec<_> = lines.drain(from.min(end)..end).collect();
        let at = to.min(lines.len());
        lines.splice(at..at, cut);
        if let Some(line) = lines.get_mut(to) {
            let middle = line.char_indices().nth(line.chars().count() / 2).map_or(0, |(offset, _)| offset);
            line.insert_str(middle, &typed);
        }
        lines.join("\n")
    })
}

/// Every problem is one line and says something.
fn read(text: &str) {
    if let Err(problems) = ConfigFile::parse(text, Path::new("guard.toml")) {
        assert!(problems.iter().count() > 0);
        for problem in &problems {
            assert!(!problem.message.is_empty());
            assert!(!problem.to_string().contains('\n'), "{problem}");
        }
    }
}

proptest! {
    #[test]
    fn a_mangled_file_is_read_or_refused(text in mangled(SAMPLE)) {
        read(&text);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        read(&text);
    }

    #[test]
    fn a_mangled_resource_is_imported_into_something_valid_or_refused(yaml in mangled(RESOURCE)) {
        if let Ok(toml) = import_operator(&yaml) {
            let parsed = ConfigFile::parse(&toml, Path::new("imported.toml"));
            // A relative directory is the one thing that the operator takes and we do not.
            if let Err(problems) = parsed {
                prop_assert!(problems.iter().all(|problem| problem.key == "directory[0].path"), "{problems}\n{toml}");
            }
        }
    }
}

#[test]
fn deep_and_long_files_are_refused_in_bounded_time() {
    read(&format!("a = {}", "[".repeat(100_000)));
    read(&format!("a{} = 1", ".a".repeat(100_000)));
    read(&"[[directory]]\npath = \"/a\"\n".repeat(2_000));
    read(&format!("[[directory]]\npath = \"/{}\"", "a".repeat(1_000_000)));
}
