//! The storm as it happens: a chart that redraws itself on a terminal, a line a second elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use guard::model::Bytes;
// The crate, not the module of tests below.
use ::tests::storm::Totals;

use crate::audit::Deleted;
use crate::scene::{CRITICAL_PERCENT, HARD_PERCENT, SOFT_PERCENT, share};

const COLUMNS: usize = 60;
const ROWS: usize = 14;
/// Deletions below the chart.
const RECENT: usize = 6;
/// Deletions a second that are told in full without a terminal; the rest is counted.
const TOLD_PER_SECOND: usize = 3;

/// What has changed since the last frame.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    /// The least available since then.
    pub low: Option<Bytes>,
    /// Of the storm, so far.
    pub totals: Totals,
    /// Carried out since then.
    pub fresh: &'a [Deleted],
    /// Carried out so far.
    pub deletions: usize,
}

/// Draws on stdout.
#[derive(Debug)]
pub(crate) struct Picture {
    chart: Chart,
    mode: Mode,
}

#[derive(Debug)]
enum Mode {
    /// Redraws in place.
    Terminal { colour: bool, recent: Vec<String>, lines_drawn: usize },
    /// Appends, once a second.
    Plain { next_second: u64, waiting: Vec<String>, low: Option<Bytes> },
}

impl Picture {
    pub(crate) fn new(capacity: Bytes, length: Duration) -> Picture {
        let mode = if std::io::stdout().is_terminal() {
            let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            Mode::Terminal { colour, recent: Vec::new(), lines_drawn: 0 }
        } else {
            Mode::Plain { next_second: 1, waiting: Vec::new(), low: None }
        };
        Picture { chart: Chart::new(capacity, length), mode }
    }

    /// `last`: nothing comes after it, so nothing is held back.
    pub(crate) fn show(&mut self, frame: &Frame<'_>, last: bool) {
        if let Some(low) = frame.low {
            self.chart.add(frame.totals.took, low);
        }
        let told = frame.fresh.iter().map(tell);
        match &mut self.mode {
            Mode::Terminal { colour, recent, lines_drawn } => {
                recent.extend(told);
                recent.drain(..recent.len().saturating_sub(RECENT));
                let mut lines = self.chart.lines(*colour);
                lines.push(progress(frame));
                lines.extend(recent.iter().cloned());
                redraw(&lines, lines_drawn);
            }
            Mode::Plain { next_second, waiting, low } => {
                waiting.extend(told);
                *low = (*low).into_iter().chain(frame.low).min();
                if frame.totals.took.as_secs() < *next_second && !last {
                    return;
                }
                *next_second = frame.totals.took.as_secs() + 1;
                println!("{} {}", self.chart.bar(low.take().unwrap_or_default()), progress(frame));
                let more = waiting.len().saturating_sub(TOLD_PER_SECOND);
                waiting.iter().take(TOLD_PER_SECOND).for_each(|line| println!("{line}"));
                if more > 0 {
                    println!("    … and {more} more");
                }
                waiting.clear();
            }
        }
    }
}

fn tell(deleted: &Deleted) -> String {
    let Deleted { name, namespace, trigger, reason, held, .. } = deleted;
    // The name without what all of them have in common.
    let short = name.strip_prefix("checkpoint-").unwrap_or(name);
    let pod = short.split('_').next().unwrap_or(short);
    // The sentence goes on with its sources and numbers, which the audit log has; here a line is a line.
    let why = reason.split(" (").next().unwrap_or(reason);
    format!("    {trigger:<8} deleted {namespace}/{pod} {held:>8}: {why}")
}

fn progress(frame: &Frame<'_>) -> String {
    let totals = &frame.totals;
    let full = match totals.out_of_space {
        0 => String::new(),
        failed => format!(", {failed} got ENOSPC"),
    };
    format!(
        "{:5.1} s: {} written as {} archives{full}; {} deleted",
        totals.took.as_secs_f64(),
        totals.bytes,
        totals.archives,
        frame.deletions
    )
}

/// Draws over what was drawn last.
fn redraw(lines: &[String], lines_drawn: &mut usize) {
    let mut screen = String::new();
    if *lines_drawn > 0 {
        screen.push_str(&format!("\x1b[{lines_drawn}A"));
    }
    for line in lines {
        // Cut rather than wrapped: a wrapped line would be two, and the next redraw one too low.
        let line: String =
            if line.contains('\x1b') { line.clone() } else { line.chars().take(100).collect() };
        screen.push_str(&format!("\r{line}\x1b[K\n"));
    }
    *lines_drawn = lines.len();
    print!("{screen}");
}

/// Lowest available space by time, with the thresholds as lines.
#[derive(Debug)]
struct Chart {
    columns: Vec<Option<Bytes>>,
    length: Duration,
    /// What the top of the chart stands for; fuller columns are cut off.
    top: Bytes,
    thresholds: [(&'static str, Bytes); 3],
}

impl Chart {
    fn new(capacity: Bytes, length: Duration) -> Chart {
        Chart {
            columns: vec![None; COLUMNS],
            length,
            top: share(capacity, 2 * SOFT_PERCENT),
            thresholds: [
                ("soft", share(capacity, SOFT_PERCENT)),
                ("hard", share(capacity, HARD_PERCENT)),
                ("critical", share(capacity, CRITICAL_PERCENT)),
            ],
        }
    }

    fn add(&mut self, at: Duration, low: Bytes) {
        let place = at.as_secs_f64() / self.length.as_secs_f64() * COLUMNS as f64;
        let (before, from) = self.columns.split_at_mut((place as usize).min(COLUMNS - 1));
        from[0] = Some(from[0].map_or(low, |lower| lower.min(low)));
        // A frame may cover several columns; its low is theirs.
        before.iter_mut().rev().take_while(|column| column.is_none()).for_each(|column| *column = Some(low));
    }

    /// Eighths of a row that `bytes` fill.
    fn eighths(&self, bytes: Bytes) -> usize {
        let eighths = u128::from(bytes.0) * (8 * ROWS) as u128 / u128::from(self.top.0.max(1));
        (eighths as usize).min(8 * ROWS)
    }

    fn lines(&self, colour: bool) -> Vec<String> {
        (0..ROWS).rev().map(|row| self.line(row, colour)).collect()
    }

    fn line(&self, row: usize, colour: bool) -> String {
        const FILLS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let threshold = self.thresholds.iter().find(|(_, value)| self.eighths(*value) / 8 == row);
        let empty = if threshold.is_some() { '┄' } else { ' ' };
        let mut line = String::from("  ▕");
        for column in &self.columns {
            let filled = column.map_or(0, |low| self.eighths(low)).saturating_sub(8 * row).min(8);
            let cell = if filled == 0 { empty } else { FILLS[filled] };
            match column {
                Some(low) if colour && filled > 0 => {
                    line.push_str(&format!("\x1b[{}m{cell}\x1b[0m", self.colour(*low)));
                }
                _ => line.push(cell),
            }
        }
        line.push('▏');
        if let Some((name, value)) = threshold {
            line.push_str(&format!(" {name} {value}"));
        }
        line
    }

    /// SGR codes: green, yellow below soft, red below hard.
    fn colour(&self, low: Bytes) -> u8 {
        let [(_, soft), (_, hard), _] = self.thresholds;
        if low < hard {
            31
        } else if low < soft {
            33
        } else {
            32
        }
    }

    /// One line for one moment: how much is available between nothing and the top, and where the thresholds are.
    fn bar(&self, low: Bytes) -> String {
        const WIDTH: usize = 32;
        let cells = |bytes| self.eighths(bytes) * WIDTH / (8 * ROWS);
        let mark = |cell: usize| {
            let of = |(name, value): &(&'static str, Bytes)| (cells(*value) == cell).then(|| &name[..1]);
            self.thresholds.iter().find_map(of)
        };
        let mut bar = String::new();
        for cell in 0..WIDTH {
            bar.push_str(mark(cell).unwrap_or(if cell < cells(low) { "█" } else { "·" }));
        }
        format!("  ▕{bar}▏ {low:>8} available")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_show_the_lowest_and_thresholds_are_drawn_where_nothing_else_is() {
        let mut chart = Chart::new(Bytes::gib(1), Duration::from_secs(60));
        chart.add(Duration::from_secs(0), Bytes::mib(512));
        chart.add(Duration::from_secs(0), Bytes::mib(184));
        let lines = chart.lines(false);
        assert_eq!(lines.len(), ROWS);
        let soft = lines.iter().find(|line| line.contains("soft")).unwrap();
        assert!(soft.starts_with("  ▕┄") && soft.ends_with("┄▏ soft 256 MiB"), "{soft}");
        assert!(lines[ROWS - 1].starts_with("  ▕█ "), "{}", lines[ROWS - 1]);
        assert!(lines.iter().all(|line| !line.contains('\x1b')));
    }

    #[test]
    fn the_bar_marks_the_thresholds() {
        let chart = Chart::new(Bytes::gib(1), Duration::from_secs(60));
        let bar = chart.bar(Bytes::mib(256));
        assert_eq!(bar, "  ▕██████c████h████s···············▏  256 MiB available");
    }
}
