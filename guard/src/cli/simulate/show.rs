//! The results of a simulation, for people, for programs and for docs/DECISIONS.md.

use std::io::Write;

use comfy_table::{CellAlignment, Table, presets};

use super::Comparison;
use crate::model::Bytes;

const HEADER: [&str; 9] =
    ["FLEET", "ORDER", "VALUE KEPT", "DELETED", "PER NEEDED", "STARVED", "SURVIVED", "REFUSED", "MISSED"];

fn row(result: &Comparison) -> [String; 9] {
    let outcome = &result.outcome;
    [
        result.fleet.clone(),
        result.order.clone(),
        format!("{:.1} %", result.value_kept * 100.0),
        Bytes(outcome.deleted_bytes).to_string(),
        format!("{:.3}", result.bytes_deleted),
        outcome.starved.to_string(),
        outcome.survived.to_string(),
        outcome.refused.to_string(),
        outcome.unreachable.to_string(),
    ]
}

pub(super) fn table(out: &mut impl Write, results: &[Comparison]) -> std::io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(HEADER);
    for result in results {
        table.add_row(row(result));
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    writeln!(
        out,
        "{table}\n\n\
         VALUE KEPT: restores that found their checkpoint, by worth, against the best column.\n\
         PER NEEDED: bytes deleted for each that had to be. STARVED: namespaces that lost their last checkpoint.\n\
         REFUSED: arrivals that hit ENOSPC. MISSED: plans that could not reach their target."
    )
}

/// Each line stands for itself, so that a part of the table can be made anew.
pub(super) fn markdown(out: &mut impl Write, results: &[Comparison]) -> std::io::Result<()> {
    let header = HEADER.map(|title| title[..1].to_owned() + &title[1..].to_lowercase());
    writeln!(out, "| {} |\n| --- | --- {}|", header.join(" | "), "| --: ".repeat(HEADER.len() - 2))?;
    for result in results {
        writeln!(out, "| {} |", row(result).join(" | "))?;
    }
    Ok(())
}

pub(super) fn json(out: &mut impl Write, results: &[Comparison]) -> anyhow::Result<()> {
    let document = serde_json::json!({
        "apiVersion": "checkpoint-guard/v1",
        "kind": "Simulation",
        "items": results,
    });
    Ok(writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?)
}
