//! Bars: available against the thresholds, headroom, the last minutes.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::Line;
use ratatui::widgets::{Sparkline, Widget};

use super::{colour, words};
use crate::report::snapshot::FilesystemSnapshot;

/// Available as a bar over the whole filesystem, with a mark where each threshold is: as it shrinks, its end passes them.
pub(super) fn available(it: &FilesystemSnapshot, area: Rect, buffer: &mut Buffer) {
    let filled = cells(it.available_bytes, it.size_bytes, area.width);
    for x in 0..area.width {
        let (symbol, style) = if x < filled { ("█", colour(it.level)) } else { ("░", dim()) };
        put(buffer, area, (x, 0), symbol, style);
    }
    // From the left, so that each knows how much room there is until the next.
    let mut marks: Vec<_> =
        it.thresholds.iter().filter_map(|it| Some((it.available_bytes?, it.level))).collect();
    marks.sort();
    let places: Vec<_> = marks.iter().map(|(value, _)| cells(*value, it.size_bytes, area.width)).collect();
    for (index, ((_, level), x)) in marks.iter().zip(&places).enumerate() {
        put(buffer, area, (*x, 0), "┃", colour(*level));
        let room = places.get(index + 1).copied().unwrap_or(area.width).saturating_sub(*x);
        let word = level.as_str();
        let shown = if usize::from(room) > word.len() { word } else { &word[..1] };
        for (offset, letter) in (0..).zip(shown.chars()) {
            put(buffer, area, (x.saturating_add(offset), 1), letter.encode_utf8(&mut [0; 4]), colour(*level));
        }
    }
}

/// What is left until the next threshold, of the way there from the one before.
pub(super) fn headroom(it: &FilesystemSnapshot, area: Rect, buffer: &mut Buffer) {
    let text = format!("headroom {} ", words::headroom(it));
    let width = u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
    let [label, bar] = Layout::horizontal([Constraint::Length(width), Constraint::Fill(1)]).areas(area);
    Line::from(text).render(label, buffer);
    let headroom = it.headroom_bytes.unwrap_or(0);
    let values = it.thresholds.iter().filter_map(|threshold| threshold.available_bytes);
    let above = values.filter(|value| *value > it.available_bytes).min().unwrap_or(it.size_bytes);
    let whole = headroom + above.saturating_sub(it.available_bytes);
    let filled = cells(headroom, whole, bar.width);
    for x in 0..bar.width {
        let (symbol, style) = if x < filled { ("█", colour(it.level)) } else { ("░", dim()) };
        put(buffer, bar, (x, 0), symbol, style);
    }
}

/// Available over time, the newest at the right; scaled from the least to the most, as there may be little between them.
pub(super) fn history(steps: &[u64], area: Rect, buffer: &mut Buffer) {
    let columns = squeezed(steps, usize::from(area.width));
    let least = columns.iter().min().copied().unwrap_or(0);
    let range = columns.iter().max().copied().unwrap_or(0).saturating_sub(least).max(1);
    // In thousandths: the widget multiplies. A level line is drawn along the bottom, not as nothing.
    const WHOLE: u64 = 1000;
    const BOTTOM: u64 = WHOLE / 8;
    let part = |value: u64| u128::from(value - least) * u128::from(WHOLE) / u128::from(range);
    let data = columns.iter().map(|value| BOTTOM + u64::try_from(part(*value)).unwrap_or(WHOLE));
    Sparkline::default()
        .data(data.collect::<Vec<_>>())
        .max(WHOLE + BOTTOM)
        .style(Style::new().fg(Color::Cyan))
        .render(area, buffer);
}

/// At most `width` values: of those that share a column, the least.
fn squeezed(steps: &[u64], width: usize) -> Vec<u64> {
    if steps.len() <= width || width == 0 {
        return steps.to_vec();
    }
    let bounds = |column: usize| column * steps.len() / width;
    let columns = (0..width).map(|column| steps[bounds(column)..bounds(column + 1)].iter().min());
    columns.flatten().copied().collect()
}

/// How many of `width` cells `part` of `whole` takes.
fn cells(part: u64, whole: u64, width: u16) -> u16 {
    let cells = u128::from(part) * u128::from(width) / u128::from(whole.max(1));
    u16::try_from(cells).unwrap_or(width).min(width)
}

/// A single cell within `area`; nothing outside of it.
fn put(buffer: &mut Buffer, area: Rect, (x, y): (u16, u16), symbol: &str, style: Style) {
    if x < area.width
        && y < area.height
        && let Some(cell) = buffer.cell_mut((area.x + x, area.y + y))
    {
        cell.set_symbol(symbol).set_style(style);
    }
}

fn dim() -> Style {
    Style::new().fg(Color::DarkGray)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dip_of_one_second_is_seen_however_narrow_the_screen() {
        let mut steps = vec![9; 300];
        steps[137] = 1;
        assert_eq!(squeezed(&steps, 40).len(), 40);
        assert_eq!(squeezed(&steps, 40).iter().filter(|value| **value == 1).count(), 1);
        assert_eq!(squeezed(&[1, 2, 3], 40), [1, 2, 3]);
        assert_eq!(squeezed(&[1, 2, 3], 1), [1]);
    }
}
