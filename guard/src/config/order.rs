//! Whether the levels follow each other: soft before hard, hard before critical.

use super::problem::{Place, Problem};
use super::read::Reader;
use super::thresholds::{LEVELS, key};
use crate::model::{Amount, Level, PressurePolicy, Quantity, Signal};

/// Reports levels that do not follow each other.
///
/// What is so on a filesystem of any size is a problem. What is so on some sizes only (bytes against
/// percentages) is worth knowing and goes to `notes`.
pub(super) fn check(reader: &mut Reader<'_>, policy: &PressurePolicy, notes: &mut Vec<Problem>) {
    for signal in Signal::ALL {
        let amount = |level: &Level| Some((*level, policy.threshold(*level)?.amount(signal)?));
        let amounts: Vec<_> = LEVELS.iter().filter_map(amount).collect();
        for pair in amounts.windows(2) {
            let [(mild, above), (severe, below)] = pair else { continue };
            if let Some(crossing) = crossing(above, below) {
                let pair = Pair { signal, mild: *mild, above, severe: *severe, below };
                pair.report(crossing, reader, notes);
            }
        }
    }
}

/// Two levels of which the milder one has the smaller value.
struct Pair<'a> {
    signal: Signal,
    mild: Level,
    above: &'a Amount,
    severe: Level,
    below: &'a Amount,
}

impl Pair<'_> {
    fn report(&self, crossing: Crossing, reader: &mut Reader<'_>, notes: &mut Vec<Problem>) {
        // Blame the one that somebody wrote.
        let [mild, severe] = [self.mild, self.severe].map(|level| key(level, self.signal));
        let blamed = if reader.place(&mild).is_some() { &mild } else { &severe };
        match crossing {
            Crossing::Everywhere => reader.problem_with(blamed, self.sentence(reader, "")),
            Crossing::At(size) => {
                let size = Quantity::Absolute(size).display(self.signal);
                let message = self.sentence(reader, &format!(" on a filesystem of {size}"));
                let full_key = reader.written(blamed).map_or(blamed.clone(), |raw| raw.full_key(blamed));
                notes.push(Problem::at(reader.place(blamed), full_key, message));
            }
        }
    }

    fn sentence(&self, reader: &Reader<'_>, size: &str) -> String {
        let value = |level: Level, amount: &Amount| {
            let key = key(level, self.signal);
            let origin = reader.place(&key).as_ref().map_or("default".to_owned(), Place::to_string);
            format!("{key}, {} ({origin}),", amount.display(self.signal))
        };
        let (above, below) = (value(self.mild, self.above), value(self.severe, self.below));
        let below = below.trim_end_matches(',');
        format!("{above} is less than {below}{size}; {} must begin before {}", self.mild, self.severe)
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
    sizes.retain(|size| above.resolve(*size) <= *size && below.resolve(*size) <= *size);
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
        check("10%,1PiB", "15%,1GiB", "somewhere");
    }

    #[test]
    fn the_size_that_is_named_is_one_where_it_is_wrong() {
        let (above, below) = (amount("20%"), amount("120GiB"));
        let Some(Crossing::At(size)) = crossing(&above, &below) else { panic!("they cross") };
        assert!(above.resolve(size) < below.resolve(size), "{}", Bytes(size));
    }
}
