//! Percentages, and quantities that may be one.

use std::fmt;
use std::str::FromStr;

use crate::model::{Bytes, ParseBytesError, Signal};

/// A share of a whole in hundredths of a per cent, so that equal means equal. At most 100 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(u16);

impl Percent {
    /// The whole.
    pub const ALL: Percent = Percent(10_000);

    /// `hundredths` of a per cent; `None` above 100 %.
    pub const fn from_hundredths(hundredths: u16) -> Option<Percent> {
        if hundredths <= 10_000 { Some(Percent(hundredths)) } else { None }
    }

    /// Both shares together, at most the whole.
    pub const fn saturating_add(self, other: Percent) -> Percent {
        let sum = self.0 + other.0;
        if sum <= 10_000 { Percent(sum) } else { Percent::ALL }
    }

    /// This share of `total`, rounded down.
    pub const fn of(self, total: u64) -> u64 {
        (total as u128 * self.0 as u128 / 10_000) as u64
    }

    /// What share of `total` `part` is, rounded down; 100 % when `total` is zero.
    pub fn from_ratio(part: u64, total: u64) -> Percent {
        if total == 0 {
            return Percent::ALL;
        }
        let hundredths = (u128::from(part) * 10_000 / u128::from(total)).min(10_000);
        Percent(hundredths as u16)
    }

    /// In per cent, for gauges.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, hundredths) = (self.0 / 100, self.0 % 100);
        let text = match hundredths {
            0 => format!("{whole}%"),
            h if h % 10 == 0 => format!("{whole}.{}%", h / 10),
            h => format!("{whole}.{h:02}%"),
        };
        f.pad(&text)
    }
}

/// Why a text is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// Below zero, above the whole, too fine, or no number at all.
    #[error("{0:?} is not a percentage; write \"0%\" to \"100%\", at most two decimals")]
    Percent(String),
    /// Neither a percentage nor bytes.
    #[error("{0}, or a percentage such as \"15%\"")]
    Bytes(#[from] ParseBytesError),
    /// Neither a percentage nor a number of inodes.
    #[error("{0:?} is not a number of inodes; write a percentage such as \"5%\" or a whole number")]
    Inodes(String),
}

impl FromStr for Percent {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Percent, ParseQuantityError> {
        let refuse = || ParseQuantityError::Percent(text.to_owned());
        let number = text.trim().strip_suffix('%').ok_or_else(refuse)?.trim_end();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 2 || whole.len() > 3 {
            return Err(refuse());
        }
        let whole: u16 = whole.parse().map_err(|_| refuse())?;
        let scale = if fraction.len() == 1 { 10 } else { 1 };
        let fraction: u16 = fraction.parse().map_err(|_| refuse())?;
        Percent::from_hundredths(whole.saturating_mul(100).saturating_add(fraction * scale))
            .ok_or_else(refuse)
    }
}

/// One threshold value: a share of the filesystem, or an absolute number (bytes or inodes, by its signal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantity {
    /// A share of the filesystem's capacity.
    Share(Percent),
    /// Bytes, or inodes.
    Absolute(u64),
}

impl Quantity {
    /// The absolute number this is on a filesystem of `total` bytes or inodes.
    ///
    /// Resolved when compared and not before: a filesystem may grow. Same as the kubelet's
    /// `GetThresholdQuantity` (pkg/kubelet/eviction/api/types.go).
    pub const fn resolve(self, total: u64) -> u64 {
        match self {
            Quantity::Share(percent) => percent.of(total),
            Quantity::Absolute(value) => value,
        }
    }

    /// Reads a quantity of `signal`: bytes need a unit, inodes are a bare number, both may be a percentage.
    pub fn parse(text: &str, signal: Signal) -> Result<Quantity, ParseQuantityError> {
        let trimmed = text.trim();
        if trimmed.ends_with('%') {
            return Ok(Quantity::Share(trimmed.parse()?));
        }
        match signal {
            Signal::Available => Ok(Quantity::Absolute(trimmed.parse::<Bytes>()?.0)),
            Signal::InodesFree => trimmed
                .parse()
                .map(Quantity::Absolute)
                .map_err(|_| ParseQuantityError::Inodes(text.to_owned())),
        }
    }

    /// As a person writes it.
    pub fn display(self, signal: Signal) -> String {
        match (self, signal) {
            (Quantity::Share(percent), _) => percent.to_string(),
            (Quantity::Absolute(bytes), Signal::Available) => Bytes(bytes).to_string(),
            (Quantity::Absolute(inodes), Signal::InodesFree) => inodes.to_string(),
        }
    }
}

/// One quantity or several, of which the smallest on the filesystem at hand counts.
///
/// 10 % of a 4 TB disk is more than anybody needs: `["10%", "100GiB"]` (kubernetes#54058, earlyoom#162).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount(Vec<Quantity>);

impl Amount {
    /// `None` without any quantity: the smallest of nothing is undefined.
    pub fn new(quantities: Vec<Quantity>) -> Option<Amount> {
        (!quantities.is_empty()).then_some(Amount(quantities))
    }

    /// A single quantity.
    pub fn one(quantity: Quantity) -> Amount {
        Amount(vec![quantity])
    }

    /// The absolute number this is on a filesystem of `total` bytes or inodes.
    pub fn resolve(&self, total: u64) -> u64 {
        self.0.iter().map(|quantity| quantity.resolve(total)).min().unwrap_or(0)
    }

    /// The quantities it was made from.
    pub fn quantities(&self) -> &[Quantity] {
        &self.0
    }

    /// As a person writes it; several as `min(15%, 100 GiB)`.
    pub fn display(&self, signal: Signal) -> String {
        let parts: Vec<_> = self.0.iter().map(|quantity| quantity.display(signal)).collect();
        match parts.as_slice() {
            [one] => one.clone(),
            several => format!("min({})", several.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, hundredths: Option<u16>) {
        assert_eq!(text.parse::<Percent>().ok(), hundredths.map(Percent), "{text:?}");
    }

    #[test]
    fn percentages_are_exact_to_a_hundredth() {
        check("15%", Some(1500));
        check("2.5%", Some(250));
        check("0.05%", Some(5));
        check("100%", Some(10_000));
        check("0%", Some(0));
        for bad in ["100.01%", "-1%", "15", "%", "1.234%", "1.%", ".5%", "1e1%", "+5%", "1000%", "70000%"] {
            check(bad, None);
        }
    }

    #[test]
    fn the_smaller_of_several_counts() {
        let amount = Amount::new(vec![
            Quantity::parse("15%", Signal::Available).unwrap(),
            Quantity::parse("100GiB", Signal::Available).unwrap(),
        ])
        .unwrap();
        assert_eq!(amount.resolve(Bytes::gib(100).0), Bytes::gib(15).0);
        assert_eq!(amount.resolve(Bytes::gib(4000).0), Bytes::gib(100).0);
        assert_eq!(amount.display(Signal::Available), "min(15%, 100 GiB)");
    }

    #[test]
    fn inodes_are_counted_and_bytes_have_units() {
        assert_eq!(Quantity::parse("5000", Signal::InodesFree), Ok(Quantity::Absolute(5000)));
        assert!(Quantity::parse("5000", Signal::Available).is_err());
        assert!(Quantity::parse("5GiB", Signal::InodesFree).is_err());
        assert!(Quantity::parse("-3", Signal::InodesFree).is_err());
    }
}
