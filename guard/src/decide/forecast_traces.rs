//! The forecast on whole stories: a filesystem that is written to, a guard that looks at it and deletes, and what the time to
//! the threshold says meanwhile.

use super::*;

const MB: u64 = 1_000_000;
/// Available at the start of every story, in MB; the threshold lies at zero.
const ROOM: u64 = 20_000;

/// One story, looked at every `step` ms.
struct Story {
    now: u64,
    step: u64,
    available: u64,
    forecast: Forecast,
    consumption: Consumption,
}

impl Story {
    fn new(step: u64) -> Story {
        let mut story = Story {
            now: 0,
            step,
            available: ROOM * MB,
            forecast: Forecast::new(),
            consumption: Consumption::default(),
        };
        story.look();
        story
    }

    fn look(&mut self) {
        let total = self.consumption.see(Bytes(self.available));
        self.forecast.sample(self.at(), total);
    }

    fn at(&self) -> Monotonic {
        Monotonic(Duration::from_millis(self.now))
    }

    /// `rate` MB a second for so many milliseconds.
    fn write(mut self, milliseconds: u64, rate: u64) -> Story {
        for _ in 0..milliseconds / self.step {
            self.now += self.step;
            self.available = self.available.saturating_sub(rate * MB * self.step / 1000);
            self.look();
        }
        self
    }

    /// The guard deletes so many MB and looks again.
    fn delete(mut self, size: u64) -> Story {
        self.available += size * MB;
        self.look();
        self
    }

    /// Seconds until all is used up; `None`: not in sight.
    fn until(&self) -> Option<u64> {
        self.forecast.until(Bytes(self.available), self.at()).map(|until| until.as_secs())
    }

    #[track_caller]
    fn says(self, least: u64, most: u64) -> Story {
        let until = self.until();
        assert!(
            until.is_some_and(|seconds| (least..=most).contains(&seconds)),
            "after {} ms, looked at every {} ms, with {} MB left: {until:?}",
            self.now,
            self.step,
            self.available / MB
        );
        self
    }

    #[track_caller]
    fn says_more_than(self, seconds: u64) -> Story {
        let until = self.until();
        assert!(until.is_none_or(|until| until > seconds), "after {} ms: {until:?}", self.now);
        self
    }
}

/// Looks every 10 ms (a storm), every 100 ms and every second (all is quiet).
fn at_every_step(story: impl Fn(Story)) {
    for step in [10, 100, 1000] {
        story(Story::new(step));
    }
}

#[test]
fn steady_the_time_left_runs_down_like_a_clock() {
    at_every_step(|story| {
        let story = story.write(30_000, 100).says(168, 172);
        let story = story.write(60_000, 100).says(108, 112);
        story.write(90_000, 100).says(18, 22);
    });
}

#[test]
fn idle_there_is_no_end_in_sight() {
    at_every_step(|story| {
        story.write(600_000, 0).says_more_than(7 * 86_400);
    });
}

#[test]
fn one_burst_is_told_while_it_lasts_and_is_no_end_of_the_world_after_it() {
    at_every_step(|story| {
        // 1 GB in two seconds: at that speed 38 s are left, and half of the fast estimate knows it.
        let story = story.write(60_000, 0).write(2_000, 500).says(30, 80);
        // Ten seconds on, nobody writes: what is left lasts for more than a quarter of an hour, not for a minute.
        let story = story.write(10_000, 0).says_more_than(900);
        // And after some minutes the burst is forgotten.
        story.write(600_000, 0).says_more_than(7 * 86_400);
    });
}

#[test]
fn bursts_in_a_row_are_a_trend_that_says_when_the_row_will_be_too_long() {
    // 200 MB every ten seconds are 20 MB a second.
    at_every_step(|mut story| {
        for _ in 0..30 {
            story = story.write(1_000, 200).write(9_000, 0);
        }
        story.says(550, 850);
    });
}

#[test]
fn a_burst_of_a_millisecond_is_not_extrapolated() {
    let mut story = Story::new(1).write(60_000, 0);
    story.step = 1;
    story.write(1, 10_000).says_more_than(1_000);
}

#[test]
fn what_the_guard_deletes_is_no_falling_rate() {
    // Filled at 100 MB a second; every two seconds 200 MB are deleted, so that the level stands still.
    at_every_step(|mut story| {
        for _ in 0..60 {
            story = story.write(2_000, 100).delete(200);
        }
        story.says(190, 230);
    });
}

#[test]
fn deletions_alone_are_no_writing() {
    at_every_step(|mut story| {
        story = story.write(5_000, 0);
        for _ in 0..20 {
            story = story.delete(500).write(1_000, 0);
        }
        story.says_more_than(7 * 86_400);
    });
}

#[test]
fn the_first_looks_say_nothing_rather_than_anything() {
    assert_eq!(Story::new(10).until(), None);
    Story::new(10).write(10, 100).says_more_than(1_000);
}
