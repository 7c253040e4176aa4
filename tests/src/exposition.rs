//! Numbers out of Prometheus' text format.

use std::time::Duration;

/// The least of the samples of `family`, whatever their labels; `None` when it has none.
pub fn min(text: &str, family: &str) -> Option<f64> {
    samples(text, family).map(|(_, value)| value).min_by(f64::total_cmp)
}

/// The sum of the samples of `family`, whatever their labels; `None` when it has none.
pub fn sum(text: &str, family: &str) -> Option<f64> {
    let values: Vec<f64> = samples(text, family).map(|(_, value)| value).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

/// The value of `label` in the only sample of an info family.
pub fn info<'a>(text: &'a str, family: &'a str, label: &str) -> Option<&'a str> {
    let (labels, _) = samples(text, family).next()?;
    label_value(labels, label)
}

/// A histogram without labels of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bound in seconds and cumulative count, ascending, the last one +Inf.
    buckets: Vec<(f64, f64)>,
}

impl Histogram {
    /// `None` when `family` has no buckets.
    pub fn read(text: &str, family: &str) -> Option<Histogram> {
        let family = format!("{family}_bucket");
        let bucket = |(labels, count)| {
            let bound = label_value(labels, "le")?;
            Some((if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? }, count))
        };
        let buckets: Vec<_> = samples(text, &family).filter_map(bucket).collect();
        (!buckets.is_empty()).then_some(Histogram { buckets })
    }

    /// Observations in all.
    pub fn count(&self) -> u64 {
        self.buckets.last().map_or(0, |(_, count)| *count as u64)
    }

    /// The `quantile` (0 to 1), interpolated within its bucket as Prometheus' `histogram_quantile` does it; the
    /// largest bound when it lies beyond.
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let rank = quantile * self.count() as f64;
        let at = self.buckets.iter().position(|(_, count)| *count >= rank && *count > 0.0)?;
        let (below_bound, below_count) = if at == 0 { (0.0, 0.0) } else { self.buckets[at - 1] };
        let (bound, count) = self.buckets[at];
        let seconds = if bound.is_infinite() {
            below_bound
        } else {
            below_bound + (bound - below_bound) * (rank - below_count) / (count - below_count)
        };
        Duration::try_from_secs_f64(seconds).ok()
    }
}

/// Labels (without braces) and value of each sample of exactly this name.
pub fn samples<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(labelled) => labelled.rsplit_once("} ")?,
            None => ("", rest.strip_prefix(' ')?),
        };
        Some((labels, value.parse().ok()?))
    })
}

fn label_value<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP a_bytes_total text
a_bytes_total{filesystem=\"/a\"} 10
a_bytes_total{filesystem=\"/b\"} 32
a_bytes_total_more 5
backend_info{backend=\"raw-tracepoint\"} 1
reaction_seconds_bucket{le=\"0.001\"} 50
reaction_seconds_bucket{le=\"0.002\"} 100
reaction_seconds_bucket{le=\"+Inf\"} 101
reaction_seconds_sum 0.2
reaction_seconds_count 101
";

    #[test]
    fn samples_are_found_by_their_exact_name() {
        assert_eq!(sum(TEXT, "a_bytes_total"), Some(42.0));
        assert_eq!(sum(TEXT, "a_bytes"), None);
        assert_eq!(min(TEXT, "a_bytes_total"), Some(10.0));
        assert_eq!(info(TEXT, "backend_info", "backend"), Some("raw-tracepoint"));
    }

    #[test]
    fn quantiles_are_interpolated_within_their_bucket() {
        let histogram = Histogram::read(TEXT, "reaction_seconds").unwrap();
        assert_eq!(histogram.count(), 101);
        let micros = |quantile| histogram.quantile(quantile).unwrap().as_micros();
        assert_eq!(micros(50.0 / 101.0), 1000);
        assert_eq!(micros(75.0 / 101.0), 1500);
        assert_eq!(micros(1.0), 2000, "beyond the last bound: at least that");
        assert_eq!(Histogram { buckets: vec![(1.0, 0.0), (f64::INFINITY, 0.0)] }.quantile(0.5), None);
    }
}
