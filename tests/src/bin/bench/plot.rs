//! Pictures, as SVG below docs/plots.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;

/// One line of a chart.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub name: &'static str,
    pub points: Vec<(f64, f64)>,
}

/// Charts with the same axes below each other; `limit` is drawn across all of them.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub across: &'static str,
    pub up: &'static str,
    pub limit: (&'static str, f64),
    pub charts: Vec<(&'static str, Vec<Line>)>,
}

/// Told apart by those who see fewer colours, too (Okabe and Ito).
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(230, 159, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];
const LIMIT: RGBColor = RGBColor(213, 94, 0);
const WIDTH: u32 = 900;
const HEIGHT: u32 = 300;
/// More points than that are not seen.
const POINTS_MAX: usize = 900;

impl Plot {
    /// Writes it to `path`.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let size = (WIDTH, HEIGHT * self.charts.len() as u32);
        let area = SVGBackend::new(path, size).into_drawing_area();
        area.fill(&WHITE)?;
        for ((title, lines), part) in self.charts.iter().zip(area.split_evenly((self.charts.len(), 1))) {
            self.draw(title, lines, &part).with_context(|| format!("cannot draw {title}"))?;
        }
        area.present().with_context(|| format!("cannot write {}", path.display()))
    }

    fn draw(
        &self,
        title: &str,
        lines: &[Line],
        area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    ) -> Result<()> {
        let points = || lines.iter().flat_map(|line| &line.points);
        let right = points().map(|point| point.0).fold(1.0, f64::max);
        let top = points().map(|point| point.1).fold(self.limit.1, f64::max) * 1.05;
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 16))
            .margin(8)
            .x_label_area_size(32)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..right, 0.0..top)?;
        chart.configure_mesh().x_desc(self.across).y_desc(self.up).light_line_style(TRANSPARENT).draw()?;
        for (line, colour) in lines.iter().zip(COLOURS) {
            let thinned = thin(&line.points);
            chart
                .draw_series(LineSeries::new(thinned, colour.stroke_width(2)))?
                .label(line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        let limit = [(0.0, self.limit.1), (right, self.limit.1)];
        chart
            .draw_series(LineSeries::new(limit, LIMIT.stroke_width(1)))?
            .label(self.limit.0)
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], LIMIT));
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        Ok(())
    }
}

/// The lowest of each stretch: what went below stays to be seen.
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let stretch = points.len().div_ceil(POINTS_MAX).max(1);
    let lowest = |points: &[(f64, f64)]| points.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
    points.chunks(stretch).filter_map(lowest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_what_was_lowest() {
        let mut points: Vec<_> = (0..10_000).map(|n| (f64::from(n), 5.0)).collect();
        points[4321].1 = 1.0;
        let thinned = thin(&points);
        assert!(thinned.len() <= POINTS_MAX && thinned.contains(&(4321.0, 1.0)), "{}", thinned.len());
        assert_eq!(thin(&points[..3]), points[..3]);
    }

    #[test]
    fn a_plot_names_its_lines_and_its_limit() {
        let line = |name| Line { name, points: vec![(0.0, 9.0), (1.0, 2.0)] };
        let plot = Plot {
            across: "seconds",
            up: "MiB",
            limit: ("hard", 4.0),
            charts: vec![("ext4", vec![line("guard")]), ("xfs", vec![line("nobody")])],
        };
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("plots/storm.svg");
        plot.write(&path).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        for expect in ["ext4", "xfs", "guard", "nobody", "hard", "seconds", "MiB"] {
            assert!(text.contains(expect), "{expect} is not in it");
        }
    }
}
