//! docs/BENCHMARKS.md: one section per benchmark, each replaced when it is measured anew.

use std::fmt::{self, Write as _};
use std::io;
use std::path::Path;

use clap::ValueEnum;

use crate::machine::{self, Before};
use crate::table::Table;
use crate::{Name, Options};

const PATH: &str = "docs/BENCHMARKS.md";

const HEAD: &str = "# Benchmarks

`cargo xtask bench --write` measures everything and writes this page; `cargo xtask bench NAME` measures one thing,
`--quick` repeats less. Each section says when and where it was measured, with which command, and how busy the
machine was. Machines differ: trust the ratios more than the times. Spreads in parentheses are the middle half.
";

/// What one benchmark found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Section {
    title: &'static str,
    text: String,
}

impl Section {
    pub(crate) fn new(title: &'static str) -> Section {
        Section { title, text: String::new() }
    }

    pub(crate) fn say(&mut self, paragraph: impl AsRef<str>) {
        let _ = writeln!(self.text, "{}\n", paragraph.as_ref());
    }

    pub(crate) fn show(&mut self, table: &Table) {
        let _ = writeln!(self.text, "{table}");
    }

    /// Adds where, when and how it was measured.
    pub(crate) fn finish(mut self, name: Name, options: &Options, before: &Before) -> Section {
        let quick = if options.quick { " --quick" } else { "" };
        let (machine, measured) = (machine::describe(), before.tell());
        self.say(format!(
            "Measured with `cargo xtask bench{} {}{quick}` on {machine}; {measured}.",
            profile(),
            name.as_str()
        ));
        self
    }
}

/// The option that had this program built as it was; none for the release profile.
fn profile() -> String {
    let this = std::env::current_exe().unwrap_or_default();
    let profile = this.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    if profile == "release" { String::new() } else { format!(" --profile {profile}") }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "## {}\n\n{}", self.title, self.text.trim_end())
    }
}

/// Puts `section` in the place of the one that was there, or in the order of the names.
pub(crate) fn write(name: Name, section: &Section) -> io::Result<()> {
    let path = Path::new(PATH);
    let before = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        other => other?,
    };
    std::fs::write(path, with_section(&before, name, &section.to_string()))
}

fn with_section(document: &str, name: Name, text: &str) -> String {
    let mut new = HEAD.to_owned();
    for each in Name::value_variants() {
        let (begin, end) =
            (format!("<!-- {} -->\n", each.as_str()), format!("\n<!-- end of {} -->\n", each.as_str()));
        let there =
            document.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end)).map(|(text, _)| text);
        if let Some(text) = if *each == name { Some(text) } else { there } {
            let _ = write!(new, "\n{begin}{text}{end}");
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_replaces_only_its_predecessor() {
        let document = with_section("", Name::Decide, "## Decide\n\nold");
        let document = with_section(&document, Name::Reaction, "## Reaction");
        let document = with_section(&document, Name::Decide, "## Decide\n\nnew");
        assert!(document.starts_with(HEAD) && !document.contains("old"));
        assert!(document.find("## Reaction").unwrap() < document.find("## Decide\n\nnew").unwrap());
        assert_eq!(with_section(&document, Name::Decide, "## Decide\n\nnew"), document);
    }
}
