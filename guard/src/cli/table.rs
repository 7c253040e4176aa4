//! Tables for people: plain columns that fit a terminal.

use comfy_table::{ContentArrangement, Table, presets};

/// A table with this header. On a terminal it is arranged to its width; elsewhere nothing is wrapped, so that it can
/// be piped through grep.
pub(super) fn new(header: Vec<&str>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    fit(&mut table);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// Arranges a table to the width of the terminal, if there is one that tells it: a serial line says that it has none, and
/// columns of one letter each would fit it.
pub(super) fn fit(table: &mut Table) {
    if table.is_tty() && table.width().is_some_and(|width| width >= NARROWEST) {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
}

/// No terminal that people read tables on has less.
const NARROWEST: u16 = 40;

/// An age as `kubectl get` prints it: `45s`, `12m`, `3h`, `14d`.
pub(super) fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}
