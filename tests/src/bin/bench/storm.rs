//! `storm`: four writers fill a disk at full speed; who keeps it from filling?

use std::path::Path;
use std::time::Duration;

use ::tests::daemon::Daemon;
use ::tests::loopfs::Filesystem;
use ::tests::sampler::{Sample, Sampler, Samples};
use ::tests::setting::read_audit;
use ::tests::storm::{self, Method, Storm, Totals, Until};
use anyhow::{Result, ensure};
use guard::model::Bytes;

use crate::Options;
use crate::document::Section;
use crate::plot::{Line, Plot};
use crate::rivals::{Rhythm, Rival};
use crate::scene::Scene;
use crate::table::Table;

const DISK: Bytes = Bytes::gib(2);
const HARD: Bytes = Bytes::mib(400);
const MINIMUM_RECLAIM: Bytes = Bytes::mib(40);
const WRITERS: u32 = 4;

#[derive(Clone, Copy, Debug)]
enum Keeper {
    Guard,
    Poll,
    Debounce,
    Nobody,
}

impl Keeper {
    const ALL: [Keeper; 4] = [Keeper::Guard, Keeper::Poll, Keeper::Debounce, Keeper::Nobody];

    fn name(self) -> &'static str {
        match self {
            Keeper::Guard => "guard",
            Keeper::Poll => "a look every 10 s",
            Keeper::Debounce => "inotify, 1 s of quiet",
            Keeper::Nobody => "nobody",
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<Section> {
    let time = Duration::from_secs(options.times(15, 5) as u64);
    let mut table = Table::new([
        "",
        "lowest available",
        "below hard by",
        "time below hard",
        "deleted",
        "of what had to go",
        "ENOSPC",
        "archives written",
        "bytes written",
        "not seen for",
    ]);
    let mut most_in_20_ms = Bytes::ZERO;
    let mut furthest_below = Bytes::ZERO;
    let mut charts = Vec::new();
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs] {
        let mut lines = Vec::new();
        // Without the guard the disk is full within two seconds, whatever the filesystem.
        let keepers = match options.quick && filesystem != Filesystem::Ext4 {
            true => &Keeper::ALL[..1],
            false => &Keeper::ALL[..],
        };
        for &keeper in keepers {
            eprintln!("{}, {}", filesystem.as_str(), keeper.name());
            // What the one before has left dirty on the disk below the loop device is not this one's.
            nix::unistd::sync();
            let weathered = weather(filesystem, keeper, time)?;
            let Weathered { samples, totals, deleted, freed, had_to_go } = &weathered;
            let lowest = samples.lowest.map(|sample| sample.available).unwrap_or_default();
            let below = HARD.saturating_sub(lowest);
            if let Keeper::Guard = keeper {
                let rate = totals.bytes.0 as f64 / totals.took.as_secs_f64();
                most_in_20_ms = most_in_20_ms.max(Bytes((rate * 0.02) as u64));
                furthest_below = furthest_below.max(below);
            }
            table.row([
                format!("{}, {}", filesystem.as_str(), keeper.name()),
                lowest.to_string(),
                below.to_string(),
                format!(
                    "{:.2} s of {:.1} s",
                    time_below(&samples.samples, HARD).as_secs_f64(),
                    totals.took.as_secs_f64()
                ),
                deleted.to_string(),
                share(*freed, *had_to_go),
                totals.out_of_space.to_string(),
                totals.archives.to_string(),
                totals.bytes.to_string(),
                format!("{:.0} ms", samples.longest_gap.as_secs_f64() * 1000.0),
            ]);
            lines.push(Line { name: keeper.name(), points: samples.samples.iter().map(point).collect() });
        }
        charts.push((filesystem.as_str(), lines));
    }
    if options.write {
        let limit = ("hard", mebibytes(HARD));
        Plot { across: "seconds", up: "MiB available", limit, charts }.write(Path::new(PICTURE))?;
    }
    let mut section = Section::new("Storm: four writers at full speed");
    section.say(format!(
        "![available space over time](plots/storm.svg)\n\n{DISK} on a loop device, archives of 16 to 64 MiB, hard at {HARD}, {MINIMUM_RECLAIM} beyond it to reclaim, {} s; \
         available space looked at every millisecond (the last column tells the longest time without a look), on \
         btrfs less what it owes to writers, which statvfs, and so the rivals, see only later. The poll's \
         first look comes after 5 s. What had to go: what was written beyond what there was room for above the target; less than \
         all of it when the disk was full, more when too much was deleted. A writer that gets ENOSPC goes on with the next archive 100 ms later.",
        time.as_secs()
    ));
    section.show(&table);
    section.say(format!(
        "With the guard, available was below hard by {furthest_below} at most; at their average speed the four writers \
         write {most_in_20_ms} in 20 ms."
    ));
    Ok(section)
}

struct Weathered {
    samples: Samples,
    totals: Totals,
    deleted: u64,
    freed: Bytes,
    had_to_go: Bytes,
}

const PICTURE: &str = "docs/plots/storm.svg";

fn mebibytes(bytes: Bytes) -> f64 {
    bytes.0 as f64 / f64::from(1 << 20)
}

fn point(sample: &Sample) -> (f64, f64) {
    (sample.at.as_secs_f64(), mebibytes(sample.available))
}

/// In per cent.
fn share(freed: Bytes, had_to_go: Bytes) -> String {
    if had_to_go.is_zero() {
        "-".to_owned()
    } else {
        format!("{:.0} %", freed.0 as f64 / had_to_go.0 as f64 * 100.0)
    }
}

fn weather(filesystem: Filesystem, keeper: Keeper, time: Duration) -> Result<Weathered> {
    let scene = Scene::new(filesystem, DISK, HARD, MINIMUM_RECLAIM)?;
    let directory = scene.directory();
    let rival = |rhythm| Rival::start(&directory, scene.hard, scene.target(), rhythm).map(Some);
    let (mut guard, mut rival) = match keeper {
        Keeper::Guard => {
            let settings = format!("{}\n[eviction]\nmin-age = \"0s\"\n", scene.settings());
            (Some(Daemon::start(&directory, &settings)?), None)
        }
        Keeper::Poll => {
            let (interval, first) = (Duration::from_secs(10), Duration::from_secs(5));
            (None, rival(Rhythm::Poll { interval, first })?)
        }
        Keeper::Debounce => (None, rival(Rhythm::Debounce(Duration::from_secs(1)))?),
        Keeper::Nobody => (None, None),
    };
    let room = scene.available()?.saturating_sub(scene.target());
    let sampler = Sampler::start_strict(scene.root(), Duration::from_millis(1))?;
    let totals = Storm::start(storm::Options {
        directory: directory.clone(),
        writers: WRITERS,
        size: (Bytes::mib(16), Bytes::mib(64)),
        namespaces: ["team", "team-prod", "ci"].map(str::to_owned).to_vec(),
        pods: 2,
        method: Method::Write,
        first_age: Duration::from_secs(12 * 3600),
        until: Until { time: Some(time), ..Until::default() },
    })
    .join();
    let samples = sampler.stop();
    ensure!(totals.failures == 0, "{} writes failed for another reason than space", totals.failures);
    let (deleted, freed) = match (&mut guard, rival.take()) {
        (Some(guard), _) => {
            guard.check_running()?;
            guard.terminate()?;
            let records = read_audit(&guard.audit_log());
            let deleted = || records.iter().filter(|record| record["outcome"] == "deleted");
            let freed = deleted().filter_map(|record| record["sizeBytes"].as_u64()).map(Bytes).sum();
            (deleted().count() as u64, freed)
        }
        (None, Some(rival)) => (rival.deleted(), rival.freed()),
        (None, None) => (0, Bytes::ZERO),
    };
    let had_to_go = totals.bytes.saturating_sub(room);
    Ok(Weathered { samples, totals, deleted, freed, had_to_go })
}

/// How long less than `hard` was available.
fn time_below(samples: &[Sample], hard: Bytes) -> Duration {
    let pairs = samples.windows(2);
    pairs.filter(|pair| pair[0].available < hard).map(|pair| pair[1].at.saturating_sub(pair[0].at)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_below_counts_from_each_low_look_to_the_next() {
        let sample = |(at, available)| Sample { at: Duration::from_millis(at), available: Bytes(available) };
        let samples = [(0, 9), (1, 4), (3, 4), (4, 5), (9, 1), (10, 8)].map(sample).to_vec();
        assert_eq!(time_below(&samples, Bytes(5)), Duration::from_millis(4));
    }
}
