//! `[pressure]`: when to act, and whether the levels follow each other.

use std::time::Duration;

use super::problem::Problem;
use super::raw::{Raw, Value};
use super::read::{self, Reader};
use crate::model::{Amount, Level, MinimumReclaim, PressurePolicy, Quantity, Signal, Threshold};

/// What a level's key says of one signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The signal does not count for this level.
    Off,
    /// Derived from the kubelet's.
    Auto,
    /// This much.
    Amount(Amount),
}

/// The levels that have thresholds, mildest first.
pub(super) const LEVELS: [Level; 3] = [Level::Soft, Level::Hard, Level::Critical];

/// `pressure.hard.available`
pub(super) fn key(level: Level, signal: Signal) -> String {
    format!("pressure.{level}.{signal}")
}

/// Reads the levels. A threshold that is `auto` is left out here and named in the second part.
pub(super) fn read(reader: &mut Reader<'_>) -> (PressurePolicy, Vec<(Level, Signal)>) {
    let mut auto = Vec::new();
    let [soft, hard, critical] = LEVELS.map(|level| threshold(reader, level, &mut auto));
    let minimum_reclaim = MinimumReclaim {
        available: minimum(reader, Signal::Available),
        inodes_free: minimum(reader, Signal::InodesFree),
    };
    let transition_period = reader.value("pressure.transition-period", read::duration).unwrap_or_default();
    (PressurePolicy { soft, hard, critical, minimum_reclaim, transition_period }, auto)
}

fn threshold(reader: &mut Reader<'_>, level: Level, auto: &mut Vec<(Level, Signal)>) -> Option<Threshold> {
    let level_key = format!("pressure.{level}");
    if let Some(raw) = reader.written(&level_key)
        && !matches!(raw.value, Value::Table(_))
    {
        let only_off = |raw: &Raw| {
            let accepted = "write a table such as { available = \"15%\" }, or false to switch the level off";
            if read::is_off(raw) { Ok(()) } else { Err(format!("{} is not accepted; {accepted}", raw.value)) }
        };
        reader.read(raw, &level_key, only_off);
        return None;
    }
    let mut amount = |signal| {
        let written = reader.value(&key(level, signal), |raw| written(raw, signal));
        if written == Some(Written::Auto) {
            auto.push((level, signal));
        }
        written
    };
    let (available, inodes_free) = (amount(Signal::Available), amount(Signal::InodesFree));
    if (&available, &inodes_free) == (&Some(Written::Off), &Some(Written::Off)) {
        reader.problem_with(
            &level_key,
            format!("no signal is left; write {level} = false to switch the level off"),
        );
    }
    let grace_period = match level {
        Level::Soft => reader.value("pressure.soft.grace-period", read::duration).unwrap_or_default(),
        _ => Duration::ZERO,
    };
    let amount = |written| match written {
        Some(Written::Amount(amount)) => Some(amount),
        _ => None,
    };
    Some(Threshold { available: amount(available), inodes_free: amount(inodes_free), grace_period })
}

fn written(raw: &Raw, signal: Signal) -> Result<Written, String> {
    match &raw.value {
        _ if read::is_off(raw) => Ok(Written::Off),
        Value::Text(text) if text == "auto" => Ok(Written::Auto),
        _ => read::amount(raw, signal)
            .map(Written::Amount)
            .map_err(|message| format!("{message}; or \"auto\", or false")),
    }
}

fn minimum(reader: &mut Reader<'_>, signal: Signal) -> Option<Amount> {
    let key = format!("pressure.minimum-reclaim.{signal}");
    reader.value(&key, read::or_off(|raw| read::amount(raw, signal))).flatten()
}

/// Levels that do not follow each other: soft below hard, hard below critical.
///
/// What is so on a filesystem of any size is a problem. What is so on some sizes only (bytes against
/// percentages) is worth knowing and goes to `notes`.
pub(super) fn contradictions(reader: &mut Reader<'_>, policy: &PressurePolicy, notes: &mut Vec<Problem>) {
    for signal in Signal::ALL {
        for (mild, severe) in
            [(Level::Soft, Level::Hard), (Level::Hard, Level::Critical), (Level::Soft, Level::Critical)]
        {
            if mild == Level::Soft && severe == Level::Critical && policy.hard.is_some() {
                continue;
            }
            let amount = |level| policy.threshold(level).and_then(|threshold| threshold.amount(signal));
            let (Some(above), Some(below)) = (amount(mild), amount(severe)) else { continue };
            let Some(crossing) = crossing(above, below) else { continue };
            let (mild_key, severe_key) = (key(mild, signal), key(severe, signal));
            let where_severe =
                reader.place(&severe_key).map_or("default".to_owned(), |place| place.to_string());
            let said = |what: &str| {
                format!(
                    "{} is less than {severe_key}, {} ({where_severe}){what}; {mild} must begin before {severe}",
                    above.display(signal),
                    below.display(signal),
                )
            };
            // Blame the one that somebody wrote.
            let blamed = if reader.place(&mild_key).is_some() { &mild_key } else { &severe_key };
            match crossing {
                Crossing::Everywhere => reader.problem_with(blamed, said("")),
                Crossing::At(size) => {
                    let size = Quantity::Absolute(size).display(signal);
                    let message = said(&format!(" on a filesystem of {size}"));
                    let raw = reader.written(blamed);
                    let key = raw.map_or(blamed.clone(), |raw| raw.full_key(blamed));
                    notes.push(Problem::at(raw.and_then(|raw| raw.place.clone()), key, message));
                }
            }
        }
    }
}

/// Where one amount is less than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crossing {
    /// On every filesystem.
    Everywhere,
    /// On one of this many bytes or inodes, and not on all.
    At(u64),
}

/// Where `above` is less than `below`, if anywhere.
///
/// Both are minima of lines through the origin and constants, so they can only cross where a line of one
/// meets a constant of the other: looking around these sizes, and at a tiny and a huge one, is enough.
fn crossing(above: &Amount, below: &Amount) -> Option<Crossing> {
    let all = || above.quantities().iter().chain(below.quantities());
    let mut sizes = vec![1 << 20, 1 << 60];
    for share in all().filter_map(|quantity| match quantity {
        Quantity::Share(percent) => Some(percent.of(10_000)),
        Quantity::Absolute(_) => None,
    }) {
        for quantity in all() {
            if let Quantity::Absolute(value) = quantity
                && share > 0
            {
                let meet = (u128::from(*value) * 10_000 / u128::from(share)).min(1 << 60) as u64;
                sizes.extend([
                    meet / 2,
                    meet - meet / 10,
                    meet.saturating_add(meet / 10),
                    meet.saturating_mul(2),
                ]);
            }
        }
    }
    // A threshold that does not fit on the filesystem says nothing about filesystems of that size.
    let fits = |size: &u64| all().all(|quantity| quantity.resolve(*size) <= *size);
    sizes.retain(fits);
    let wrong: Vec<_> = sizes.iter().filter(|size| above.resolve(**size) < below.resolve(**size)).collect();
    match wrong.iter().min() {
        None => None,
        Some(_) if wrong.len() == sizes.len() => Some(Crossing::Everywhere),
        Some(size) => Some(Crossing::At(**size)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Bytes;

    fn amount(text: &str) -> Amount {
        let quantities = text.split(',').map(|text| Quantity::parse(text, Signal::Available).unwrap());
        Amount::new(quantities.collect()).unwrap()
    }

    #[track_caller]
    fn check(above: &str, below: &str, expect: &str) {
        let found = match crossing(&amount(above), &amount(below)) {
            None => "never",
            Some(Crossing::Everywhere) => "everywhere",
            Some(Crossing::At(_)) => "somewhere",
        };
        assert_eq!(found, expect, "{above} before {below}");
    }

    #[test]
    fn thresholds_are_compared_as_far_as_they_can_be() {
        check("20%", "15%", "never");
        check("15%", "15%", "never");
        check("10%", "15%", "everywhere");
        check("10GiB", "20GiB", "everywhere");
        check("20GiB", "10GiB", "never");
        check("20%", "15%,100GiB", "never");
        check("20%,100GiB", "15%", "somewhere");
        check("20%", "120GiB", "somewhere");
        check("120GiB", "11%", "somewhere");
        check("10%,5GiB", "15%,10GiB", "everywhere");
        check("0%", "0%", "never");
    }

    #[test]
    fn the_size_that_is_named_is_one_where_it_is_wrong() {
        let (above, below) = (amount("20%"), amount("120GiB"));
        let Some(Crossing::At(size)) = crossing(&above, &below) else { panic!("they cross") };
        assert!(above.resolve(size) < below.resolve(size), "{}", Bytes(size));
    }
}
