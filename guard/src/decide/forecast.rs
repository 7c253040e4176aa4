//! How fast a filesystem fills, and how long there is until a threshold.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::model::{Bytes, Monotonic};

/// Half of what the fast estimate knows is older than this: a writer at full speed shows within seconds.
const FAST: Duration = Duration::from_secs(2);
/// Likewise of the slow estimate: an archive every ten seconds is a steady trend and no series of alarms.
const SLOW: Duration = Duration::from_secs(60);
/// Further ahead than this, a rate of the last minute says nothing.
const HORIZON: Duration = Duration::from_secs(7 * 86_400);

/// The rate at which something is used up, from readings of a counter that grows.
///
/// Two exponential averages, of which the larger counts: the fast one sees a burst while it lasts and forgets it
/// within seconds, the slow one sees what bursts amount to together. Both begin at zero and weigh bytes by how long ago
/// they came, not by how often somebody looked: a burst of one millisecond is no "10 GB/s".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Forecast {
    last: Option<(Monotonic, Bytes)>,
    /// Bytes per second at the time of `last`.
    fast: f64,
    slow: f64,
}

impl Forecast {
    /// Knows nothing yet.
    pub fn new() -> Forecast {
        Forecast::default()
    }

    /// Takes note that `total` had been written at `now`. A total below the one before means that the counter began
    /// anew; it counts from there. Readings out of order are ignored.
    pub fn sample(&mut self, now: Monotonic, total: Bytes) {
        let Some((before, total_before)) = self.last else {
            self.last = Some((now, total));
            return;
        };
        if now < before {
            return;
        }
        let bytes = total.saturating_sub(total_before).0 as f64;
        let elapsed = now.since(before);
        self.fast = averaged(self.fast, bytes, elapsed, FAST);
        self.slow = averaged(self.slow, bytes, elapsed, SLOW);
        self.last = Some((now, total));
    }

    /// Bytes per second at `now`. Falls while no reading comes.
    pub fn rate(&self, now: Monotonic) -> Bytes {
        let elapsed = self.last.map_or(Duration::ZERO, |(last, _)| now.since(last));
        let rate = averaged(self.fast, 0.0, elapsed, FAST).max(averaged(self.slow, 0.0, elapsed, SLOW));
        Bytes(rate as u64)
    }

    /// How long until `headroom` is used up at the present rate; `None` when that is further ahead than the rate says
    /// anything about.
    pub fn until(&self, headroom: Bytes, now: Monotonic) -> Option<Duration> {
        let rate = self.rate(now);
        if headroom.is_zero() {
            return Some(Duration::ZERO);
        }
        if rate.is_zero() {
            return None;
        }
        Some(Duration::from_secs_f64(headroom.0 as f64 / rate.0 as f64)).filter(|until| *until <= HORIZON)
    }
}

/// What has been used up of a filesystem, from looks at what is available.
///
/// Whoever uses it up counts, what deletions give back in between does not: a filesystem that is filled and emptied by turns
/// is being filled all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumption {
    available: Option<Bytes>,
    total: Bytes,
}

impl Consumption {
    /// Takes note of a look; the result is the total since the first one.
    pub fn see(&mut self, available: Bytes) -> Bytes {
        let before = self.available.replace(available).unwrap_or(available);
        self.total += before.saturating_sub(available);
        self.total
    }

    /// What was available at the last look.
    pub fn available(&self) -> Option<Bytes> {
        self.available
    }
}

/// The average after `elapsed` with `bytes` spread evenly over it.
fn averaged(rate: f64, bytes: f64, elapsed: Duration, half_life: Duration) -> f64 {
    let half_lives = elapsed.as_secs_f64() / half_life.as_secs_f64();
    let kept = (-half_lives).exp2();
    // What `(1 - kept) / elapsed` tends to: all came at this very moment.
    let at_once = std::f64::consts::LN_2 / half_life.as_secs_f64();
    let weight = if half_lives < 1e-6 { at_once } else { (1.0 - kept) / elapsed.as_secs_f64() };
    rate * kept + bytes * weight
}

/// When to look at the filesystem again at the latest: before the fastest writer there could be (`fastest`, bytes per
/// second) has used up `headroom`, within `bounds`. As earlyoom's `sleep_time_ms`.
pub fn next_look(headroom: Bytes, fastest: Bytes, bounds: RangeInclusive<Duration>) -> Duration {
    let seconds = headroom.0 as f64 / fastest.0.max(1) as f64;
    let until = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    until.max(*bounds.start()).min(*bounds.end())
}

#[cfg(test)]
#[path = "forecast_traces.rs"]
mod traces;

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn at(milliseconds: u64) -> Monotonic {
        Monotonic(Duration::from_millis(milliseconds))
    }

    /// Samples a trace of `(milliseconds until then, MB per second)` every `step` milliseconds.
    fn told(trace: &[(u64, u64)], step: u64) -> Forecast {
        let mut forecast = Forecast::new();
        let (mut now, mut total) = (0, 0);
        forecast.sample(at(0), Bytes(0));
        for (until, rate) in trace {
            while now < *until {
                now += step;
                total += rate * MB * step / 1000;
                forecast.sample(at(now), Bytes(total));
            }
        }
        forecast
    }

    #[track_caller]
    fn check(trace: &[(u64, u64)], now: u64, least: u64, most: u64) {
        for step in [10, 100, 500] {
            let rate = told(trace, step).rate(at(now)).0 / MB;
            assert!((least..=most).contains(&rate), "{trace:?} every {step} ms gives {rate} MB/s");
        }
    }

    #[test]
    fn a_steady_writer_is_seen_within_seconds_and_exactly_in_the_end() {
        check(&[(2_000, 400)], 2_000, 195, 205);
        check(&[(8_000, 400)], 8_000, 370, 380);
        check(&[(60_000, 400)], 60_000, 399, 401);
    }

    #[test]
    fn a_burst_is_forgotten_within_seconds_down_to_what_it_means_for_the_minute() {
        let burst = [(10_000, 0), (12_000, 500), (60_000, 0)];
        check(&burst[..2], 12_000, 245, 255);
        check(&[burst[0], burst[1], (22_000, 0)], 22_000, 9, 12);
        check(&burst, 60_000, 5, 8);
    }

    #[test]
    fn a_burst_of_one_millisecond_is_no_ten_gigabytes_per_second() {
        let mut forecast = Forecast::new();
        forecast.sample(at(0), Bytes(0));
        forecast.sample(at(1), Bytes(10 * MB));
        assert!(forecast.rate(at(1)) < Bytes(4 * MB));
        forecast.sample(at(1), Bytes(20 * MB));
        assert!(forecast.rate(at(1)) < Bytes(8 * MB));
    }

    #[test]
    fn archives_that_come_every_ten_seconds_are_a_trend() {
        let trace: Vec<_> =
            (0..30).flat_map(|n| [(n * 10_000 + 1_000, 100), (n * 10_000 + 10_000, 0)]).collect();
        check(&trace, 300_000, 8, 12);
    }

    #[test]
    fn silence_takes_the_rate_down_without_readings() {
        let forecast = told(&[(60_000, 400)], 100);
        assert!(forecast.rate(at(60_000)).0 / MB >= 399);
        assert!(forecast.rate(at(180_000)).0 / MB < 55);
        assert_eq!(forecast.until(Bytes(4_000 * MB), at(60_000)).map(|until| until.as_secs()), Some(10));
        assert_eq!(forecast.until(Bytes(4_000 * MB), at(3_600_000)), None);
    }

    #[test]
    fn nothing_written_is_no_forecast_and_nothing_left_is_now() {
        let forecast = told(&[(10_000, 0)], 100);
        assert_eq!(forecast.until(Bytes::gib(1), at(10_000)), None);
        assert_eq!(forecast.until(Bytes::ZERO, at(10_000)), Some(Duration::ZERO));
        assert_eq!(Forecast::new().until(Bytes::gib(1), at(0)), None);
    }

    #[test]
    fn a_counter_that_begins_anew_is_no_burst() {
        let mut forecast = told(&[(10_000, 0)], 100);
        for (milliseconds, total) in [(10_100, 500 * MB), (20_000, 10), (20_100, 10), (5_000, 900 * MB)] {
            forecast.sample(at(milliseconds), Bytes(total));
        }
        assert!(forecast.rate(at(20_100)) < Bytes(10 * MB));
    }

    #[test]
    fn the_next_look_comes_before_the_fastest_writer_is_through() {
        let bounds = Duration::from_millis(50)..=Duration::from_secs(10);
        let look = |headroom| next_look(headroom, Bytes::gib(2), bounds.clone());
        assert_eq!(look(Bytes::gib(4)), Duration::from_secs(2));
        assert_eq!(look(Bytes::ZERO), Duration::from_millis(50));
        assert_eq!(look(Bytes(u64::MAX)), Duration::from_secs(10));
        assert_eq!(next_look(Bytes::gib(1), Bytes::ZERO, bounds), Duration::from_secs(10));
    }
}
