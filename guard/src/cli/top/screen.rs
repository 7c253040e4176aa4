//! What the screen of `top` shows, drawn from one value: a pure function, so that a test can look at it.

mod bars;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row, Table, Widget};

use super::words;
use crate::cli::table::age;
use crate::model::{Bytes, Level};
use crate::report::snapshot::{FilesystemSnapshot, Snapshot};

/// A filesystem that was last looked at so long ago is said to be silent: its loop turns every second.
pub(super) const STALE_SECONDS: i64 = 5;

/// Everything that is drawn.
#[derive(Clone, Debug, Default)]
pub(super) struct Screen {
    /// The daemon's last word.
    pub(super) snapshot: Option<Snapshot>,
    /// Which filesystem.
    pub(super) selected: usize,
    /// New snapshots are not taken up.
    pub(super) is_paused: bool,
    /// Why there are no new ones.
    pub(super) problem: Option<String>,
}

impl Screen {
    /// The filesystem that is shown.
    fn filesystem(&self) -> Option<&FilesystemSnapshot> {
        let filesystems = &self.snapshot.as_ref()?.filesystems;
        filesystems.get(self.selected.min(filesystems.len().saturating_sub(1)))
    }

    /// Goes on by so many filesystems, round and round.
    pub(super) fn go(&mut self, by: isize) {
        let count = self.snapshot.as_ref().map_or(0, |it| it.filesystems.len()).max(1).cast_signed();
        let now = self.selected.min(count.cast_unsigned() - 1).cast_signed();
        self.selected = (now + by).rem_euclid(count).cast_unsigned();
    }
}

/// Heights of the parts that are not always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heights {
    headroom: u16,
    history: u16,
    growth: u16,
    victims: u16,
    deletions: u16,
}

impl Heights {
    /// The header, the status, the bar with its marks, the thresholds, the keys.
    const FIXED: u16 = 6;

    /// What fits: first of all who goes next, then what went, who writes, what was.
    fn of(height: u16) -> Heights {
        let rest = height.saturating_sub(Heights::FIXED);
        let headroom = u16::from(rest >= 8);
        let rest = rest - headroom;
        let history = if rest >= 14 { (rest / 6).clamp(3, 8) } else { 0 };
        let growth = if rest >= 11 { (rest / 5).clamp(4, 12) } else { 0 };
        let rest = rest - history - growth;
        let deletions = if rest >= 8 { (rest * 2 / 5).clamp(3, 14) } else { 0 };
        Heights { headroom, history, growth, victims: rest - deletions, deletions }
    }
}

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let area = frame.area();
    let heights = Heights::of(area.height);
    let lengths = [
        1,
        1,
        2,
        heights.headroom,
        1,
        heights.history,
        heights.growth,
        heights.victims,
        heights.deletions,
        1,
    ];
    let [header, status, bar, headroom, thresholds, history, growth, victims, deletions, footer] =
        Layout::vertical(lengths.map(Constraint::Length)).areas(area);
    let buffer = frame.buffer_mut();
    draw_header(screen, header, buffer);
    draw_footer(screen, footer, buffer);
    let (Some(snapshot), Some(it)) = (&screen.snapshot, screen.filesystem()) else {
        let message = match (&screen.problem, &screen.snapshot) {
            (Some(problem), _) => words::printable(problem),
            (None, Some(_)) => "no filesystem is watched: its directories are not there (yet)".to_owned(),
            (None, None) => "asking the daemon …".to_owned(),
        };
        return Line::from(message).render(status, buffer);
    };
    draw_status(snapshot, it, status, buffer);
    bars::available(it, bar, buffer);
    bars::headroom(it, headroom, buffer);
    draw_thresholds(it, thresholds, buffer);
    draw_history(it, history, buffer);
    draw_growth(it, growth, buffer);
    draw_victims(it, victims, buffer);
    draw_deletions(it, deletions, buffer);
}

/// The colour of a level, here and on the bars.
fn colour(level: Level) -> Style {
    match level {
        Level::Normal => Style::new().fg(Color::Green),
        Level::Soft => Style::new().fg(Color::Yellow),
        Level::Hard => Style::new().fg(Color::LightRed),
        Level::Critical => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
    }
}

fn draw_header(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let mut left = vec!["checkpoint-guard".bold()];
    if let (Some(snapshot), Some(it)) = (&screen.snapshot, screen.filesystem()) {
        let count = snapshot.filesystems.len();
        if count > 1 {
            left.push(format!(" {}/{count}", screen.selected.min(count - 1) + 1).into());
        }
        left.push(Span::raw("  "));
        left.push(words::printable(&it.directories.join(", ")).into());
    }
    Line::from(left).render(area, buffer);
    let mut right = Vec::new();
    if let Some(snapshot) = &screen.snapshot {
        if snapshot.dry_run {
            right.push(" DRY RUN ".reversed());
        }
        if screen.is_paused {
            right.push(" PAUSED ".reversed());
        }
        // Last, so that a narrow screen cuts the directories and not the state.
        right.push(format!(" {} ", snapshot.backend).into());
        right.push(snapshot.time.strftime("%H:%M:%SZ").to_string().into());
    }
    let right = Line::from(right).alignment(Alignment::Right);
    if area.width >= 60 || screen.is_paused {
        right.render(area, buffer);
    }
}

fn draw_status(snapshot: &Snapshot, it: &FilesystemSnapshot, area: Rect, buffer: &mut Buffer) {
    let share = words::share(it.available_bytes, it.size_bytes);
    let mut line = vec![
        Span::styled(it.level.as_str().to_uppercase(), colour(it.level)),
        format!("  {} ({share}) of {} available", Bytes(it.available_bytes), Bytes(it.size_bytes)).into(),
    ];
    if it.brake.as_ref().is_some_and(|brake| brake.is_engaged) {
        line.insert(1, Span::styled("  BRAKE ENGAGED", colour(Level::Critical)));
    }
    let silent = snapshot.time.duration_since(it.observed_at).as_secs();
    if silent >= STALE_SECONDS {
        line.insert(1, Span::styled(format!("  SILENT FOR {silent} s"), colour(Level::Critical)));
    }
    line.push(format!(", filling {}", words::rate(it.fill_bytes_per_second)).into());
    line.push(format!(", {} checkpoints hold {}", it.checkpoints, Bytes(it.checkpoint_bytes)).into());
    if let Some(inodes) = it.inodes {
        line.push(format!(", {} of inodes free", words::share(inodes.free, inodes.total)).into());
    }
    Line::from(line).render(area, buffer);
}

fn draw_thresholds(it: &FilesystemSnapshot, area: Rect, buffer: &mut Buffer) {
    let long: Vec<_> = it.thresholds.iter().map(words::threshold).collect();
    let fits = long.iter().map(|text| text.chars().count() + 3).sum::<usize>() <= usize::from(area.width);
    let texts = if fits { long } else { it.thresholds.iter().map(words::threshold_short).collect() };
    let mut line = Vec::new();
    for (text, threshold) in texts.into_iter().zip(&it.thresholds) {
        line.push(Span::styled(text, colour(threshold.level)));
        line.push(Span::raw("   "));
    }
    Line::from(line).render(area, buffer);
}

fn draw_history(it: &FilesystemSnapshot, area: Rect, buffer: &mut Buffer) {
    let steps = &it.history.available_bytes;
    let (low, high) = (steps.iter().min().copied().unwrap_or(0), steps.iter().max().copied().unwrap_or(0));
    let minutes = words::until(Some((steps.len() as u64 * it.history.step_seconds) as f64));
    let title = format!("available, last {minutes}: {} to {}", Bytes(low), Bytes(high));
    let area = titled(&title, area, buffer);
    bars::history(steps, area, buffer);
}

fn draw_growth(it: &FilesystemSnapshot, area: Rect, buffer: &mut Buffer) {
    let Some(growth) = &it.growth else {
        let area = titled("who writes", area, buffer);
        return Line::from("nothing counts bytes here (no eBPF); see checkpoint-guard doctor")
            .render(area, buffer);
    };
    let [left, right] =
        Layout::horizontal([Constraint::Percentage(35), Constraint::Percentage(65)]).spacing(1).areas(area);
    let left = titled("growth by namespace", left, buffer);
    let right = titled("by writer", right, buffer);
    if growth.namespaces.is_empty() {
        Line::from("nobody writes").render(left, buffer);
    }
    let rows = growth.namespaces.iter().map(|it| {
        let name = words::printable(it.namespace.as_deref().unwrap_or("?"));
        Row::new([Cell::from(name), rate(it.bytes_per_second)])
    });
    Table::new(rows, [Constraint::Fill(1), Constraint::Length(10)]).render(left, buffer);
    let rows = growth.writers.iter().map(|it| {
        let of = Cell::from(words::written_for(it));
        Row::new([Cell::from(words::writer(it)), of, rate(it.bytes_per_second)])
    });
    let widths = [Constraint::Length(17), Constraint::Fill(1), Constraint::Length(10)];
    Table::new(rows, widths).render(right, buffer);
}

fn rate(bytes_per_second: u64) -> Cell<'static> {
    Cell::from(Line::from(words::rate(bytes_per_second)).alignment(Alignment::Right))
}

fn draw_victims(it: &FilesystemSnapshot, area: Rect, buffer: &mut Buffer) {
    let next = it.next.as_ref();
    let area = titled(&words::next_title(next), area, buffer);
    let rows = next.into_iter().flat_map(|next| &next.victims).map(|victim| {
        let style = if victim.is_reserve { Style::new().fg(Color::DarkGray) } else { Style::new() };
        let cells = [
            words::rank(victim),
            words::printable(&victim.of.owner()),
            age(victim.age_seconds),
            Bytes(victim.size_bytes).to_string(),
            victim.reason.clone(),
        ];
        Row::new(cells).style(style)
    });
    Table::new(rows, columns(area.width, 4)).render(area, buffer);
}

fn draw_deletions(it: &FilesystemSnapshot, area: Rect, buffer: &mut Buffer) {
    let title = if it.deletions.is_empty() { "nothing was deleted lately" } else { "last deletions" };
    let area = titled(title, area, buffer);
    let rows = it.deletions.iter().map(|deletion| {
        let dry_run = if deletion.dry_run { "dry run: " } else { "" };
        Row::new([
            deletion.time.strftime("%H:%M:%S").to_string(),
            words::printable(&deletion.of.owner()),
            deletion.trigger.split(':').next().unwrap_or_default().to_owned(),
            Bytes(deletion.freed_bytes).to_string(),
            format!("{dry_run}{}", deletion.reason),
        ])
    });
    Table::new(rows, columns(area.width, 8)).render(area, buffer);
}

/// First, owner, a word, size, and the reason where there is room for one.
fn columns(width: u16, first: u16) -> [Constraint; 5] {
    // Below that a reason would be a syllable: the owner takes its place.
    let (owner, reason) = if width < 60 { (Constraint::Fill(1), 0) } else { (Constraint::Max(width / 3), 1) };
    let word = if first > 4 { 9 } else { 4 };
    [
        Constraint::Length(first),
        owner,
        Constraint::Length(word),
        Constraint::Length(8),
        Constraint::Fill(reason),
    ]
}

/// Draws a title, and gives the area below it.
fn titled(title: &str, area: Rect, buffer: &mut Buffer) -> Rect {
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    if area.height > 0 {
        let rule = "─".repeat(usize::from(head.width).saturating_sub(title.chars().count() + 1));
        let line =
            vec![title.to_owned().bold(), " ".into(), Span::styled(rule, Style::new().fg(Color::DarkGray))];
        Line::from(line).render(head, buffer);
    }
    body
}

fn draw_footer(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    match &screen.problem {
        Some(problem) if screen.snapshot.is_some() => {
            Line::from(Span::styled(words::printable(problem), colour(Level::Critical))).render(area, buffer);
        }
        _ => Line::from("q quit  tab next filesystem  p pause").dim().render(area, buffer),
    }
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
