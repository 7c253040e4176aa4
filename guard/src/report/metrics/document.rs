//! docs/METRICS.md, made from the declarations.

use std::fmt::Write;

use super::families::Family;

const INTRODUCTION: &str = "\
# Metrics

`checkpoint-guard run` serves these at `/metrics` (`[metrics] listen`, default `127.0.0.1:9477`). This page is made
from the declarations in `guard/src/report/metrics/`; a test fails when it differs, and rewrites it when run with
`UPDATE_DOCS=1` in its environment.

Base units throughout. A series that does not apply is absent (the inodes of btrfs), one that is nothing is zero:
counters exist before their first event, so that `increase` sees it. No label holds a pod, a checkpoint or a time.
";

/// The page.
pub(super) fn render(families: &[Family]) -> String {
    let mut page = INTRODUCTION.to_owned();
    page.push_str("\n| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n");
    for family in families {
        let labels: Vec<_> = family.labels.iter().map(|label| format!("`{}`", label.name)).collect();
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            family.name,
            family.kind.as_str(),
            labels.join(", "),
            family.help
        );
    }
    page.push_str("\n## Labels\n\n| label | of | values |\n| --- | --- | --- |\n");
    let mut written: Vec<(&str, &str)> = Vec::new();
    for label in families.iter().flat_map(|family| family.labels) {
        if written.contains(&(label.name, label.values)) {
            continue;
        }
        written.push((label.name, label.values));
        let of: Vec<_> = families
            .iter()
            .filter(|family| family.labels.contains(label))
            .map(|family| format!("`{}`", family.name.trim_start_matches("checkpoint_guard_")))
            .collect();
        let of = if of.len() > 4 { format!("{} families", of.len()) } else { of.join(", ") };
        let _ = writeln!(page, "| `{}` | {of} | {} |", label.name, label.values);
    }
    page
}
