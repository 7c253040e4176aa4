//! `quality`: what orders keep and what they waste, in simulated weeks; the same run for everybody who runs it.

use anyhow::{Context, Result, ensure};
use tests::setting::run as run_guard;

use crate::Options;
use crate::document::Section;

pub(crate) fn run(options: &Options) -> Result<Section> {
    let nodes = options.times(50, 10).to_string();
    let output = run_guard(&["simulate", "--nodes", &nodes, "--days", "7", "--seed", "2", "--markdown"]);
    ensure!(output.status.success(), "simulate failed: {}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).context("a table is text")?;
    let mut section = Section::new("Quality: what an order keeps and what it wastes");
    section.say(format!(
        "{nodes} simulated nodes for a week of each kind of fleet, through the same functions that the daemon decides with. Value \
         kept is against the best that anybody could have done who knew the future; DECISIONS.md tells how it is counted, and what \
         the fleets are. Another seed than there."
    ));
    section.say(table.trim());
    Ok(section)
}
