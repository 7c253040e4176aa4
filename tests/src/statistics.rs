//! Medians and the spread around them.

use std::time::Duration;

/// Measured durations, sorted.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// Of measurements in any order.
    pub fn new(mut times: Vec<Duration>) -> Times {
        times.sort_unstable();
        Times(times)
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// By nearest rank: a value that was measured. `percent` of all are not above it.
    pub fn percentile(&self, percent: usize) -> Option<Duration> {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied()
    }

    /// The middle one.
    pub fn median(&self) -> Option<Duration> {
        self.percentile(50)
    }

    /// The longest.
    pub fn max(&self) -> Option<Duration> {
        self.0.last().copied()
    }

    /// Median, and where the middle half lies: `210 µs (190 to 250)`.
    pub fn tell(&self) -> String {
        let [Some(low), Some(median), Some(high)] = [25, 50, 75].map(|percent| self.percentile(percent))
        else {
            return "none".to_owned();
        };
        format!("{} ({} to {})", show(Some(median)), show(Some(low)), show(Some(high)))
    }
}

/// Three digits and a unit.
pub fn show(time: Option<Duration>) -> String {
    let Some(time) = time else { return "none".to_owned() };
    let nanos = time.as_nanos() as f64;
    let (value, unit) = match nanos {
        0.0..1e3 => (nanos, "ns"),
        1e3..1e6 => (nanos / 1e3, "µs"),
        1e6..1e9 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// How many times as long as `ours` something took.
pub fn ratio(theirs: Option<Duration>, ours: Option<Duration>) -> String {
    match (theirs, ours) {
        (Some(theirs), Some(ours)) if !ours.is_zero() => {
            let ratio = theirs.as_secs_f64() / ours.as_secs_f64();
            if ratio < 10.0 { format!("{ratio:.2}") } else { format!("{ratio:.0}") }
        }
        _ => "-".to_owned(),
    }
}

/// The middle one; of an even number, the higher of the two. `None` of nothing.
pub fn middle<T: Ord + Copy>(mut values: Vec<T>) -> Option<T> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let times = Times::new((1..=200).rev().map(Duration::from_micros).collect());
        let micros = |percent| times.percentile(percent).unwrap().as_micros();
        assert_eq!([1, 50, 99, 100].map(micros), [2, 100, 198, 200]);
        assert_eq!(Times::default().median(), None);
        assert_eq!(Times::new(vec![Duration::from_secs(1)]).percentile(99), Some(Duration::from_secs(1)));
    }

    #[test]
    fn times_have_three_digits() {
        let shown = |nanos| show(Some(Duration::from_nanos(nanos)));
        assert_eq!(shown(7), "7.00 ns");
        assert_eq!(shown(1_234), "1.23 µs");
        assert_eq!(shown(34_560), "34.6 µs");
        assert_eq!(shown(5_012_345_678), "5.01 s");
    }
}
