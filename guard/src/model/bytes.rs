//! [`Bytes`]: an amount of storage.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An amount of storage in bytes. Arithmetic saturates: a size is never negative and never wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Nothing.
    pub const ZERO: Bytes = Bytes(0);

    /// `n` binary megabytes.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    /// `n` binary gigabytes.
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }

    /// This less `other`, zero when `other` is the larger.
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// Whether this is nothing.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(sizes: I) -> Bytes {
        sizes.fold(Bytes::ZERO, Add::add)
    }
}

/// Three significant digits and a binary unit: `1.50 GiB`, `20.0 MiB`, `512 B`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64;
        let mut unit = 0;
        // 999.5 prints as "1000": four digits, so the next unit is due.
        while value >= 999.5 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
        f.pad(&format!("{value:.decimals$} {}", UNITS[unit]))
    }
}

/// Why a text is no amount of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseBytesError {
    /// A bare number: nobody knows whether it was meant as bytes or as gigabytes.
    #[error("{0:?} has no unit; write for example \"{0}GiB\" or \"{0}B\"")]
    NoUnit(String),
    /// A percentage where only bytes make sense.
    #[error("{0:?} is a percentage; a size in bytes is wanted here, such as \"10GiB\"")]
    Percentage(String),
    /// Anything else.
    #[error("{0:?} is not a size; write a number and a unit, such as \"10GiB\", \"500MB\" or \"1.5TiB\"")]
    Malformed(String),
    /// More than fits in 64 bits.
    #[error("{0:?} is larger than any filesystem; the largest size is 16EiB less one byte")]
    TooLarge(String),
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    /// `"10GiB"`, `"500MB"`, `"1.5 TiB"`, `"4096B"`; a bare `"0"` needs no unit. Kubernetes' short binary
    /// suffixes (`Ki`, `Mi`, `Gi`, `Ti`) are understood too, since thresholds are copied from there.
    fn from_str(text: &str) -> Result<Bytes, ParseBytesError> {
        let trimmed = text.trim();
        let malformed = || ParseBytesError::Malformed(text.to_owned());
        if trimmed.ends_with('%') {
            return Err(ParseBytesError::Percentage(text.to_owned()));
        }
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let factor: u128 = match unit.trim_start() {
            "" if number == "0" => 1,
            "" if !number.is_empty() => return Err(ParseBytesError::NoUnit(text.to_owned())),
            "B" => 1,
            "kB" | "KB" | "k" => 1_000,
            "MB" | "M" => 1_000_000,
            "GB" | "G" => 1_000_000_000,
            "TB" | "T" => 1_000_000_000_000,
            "PB" | "P" => 1_000_000_000_000_000,
            "KiB" | "Ki" => 1 << 10,
            "MiB" | "Mi" => 1 << 20,
            "GiB" | "Gi" => 1 << 30,
            "TiB" | "Ti" => 1 << 40,
            "PiB" | "Pi" => 1 << 50,
            _ => return Err(malformed()),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.len() > 18 {
            return Err(malformed());
        }
        let too_large = || ParseBytesError::TooLarge(text.to_owned());
        let whole: u128 = whole
            .parse::<u64>()
            .map_err(|_| if number.contains("..") { malformed() } else { too_large() })?
            .into();
        let part: u128 =
            if fraction.is_empty() { 0 } else { fraction.parse::<u64>().map_err(|_| malformed())?.into() };
        let scale = 10u128.pow(fraction.len() as u32);
        let bytes = whole * factor + part * factor / scale;
        u64::try_from(bytes).map(Bytes).map_err(|_| too_large())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<u64, fn(String) -> ParseBytesError>) {
        let expect = expect.map(Bytes).map_err(|error| error(text.to_owned()));
        assert_eq!(text.parse::<Bytes>(), expect, "{text:?}");
    }

    #[test]
    fn sizes_are_read_with_their_unit() {
        check("10GiB", Ok(10 << 30));
        check("500MB", Ok(500_000_000));
        check("1.5 TiB", Ok((1 << 40) + (1 << 39)));
        check("100Mi", Ok(100 << 20));
        check("4096B", Ok(4096));
        check("0", Ok(0));
        check("0.5KiB", Ok(512));
    }

    #[test]
    fn what_is_no_size_is_refused_for_its_own_reason() {
        use ParseBytesError::*;
        check("10", Err(NoUnit));
        check("10%", Err(Percentage));
        check("-1GiB", Err(Malformed));
        check("", Err(Malformed));
        check("GiB", Err(Malformed));
        check("1.GiB", Err(Malformed));
        check(".5GiB", Err(Malformed));
        check("1.2.3GiB", Err(Malformed));
        check("10gib", Err(Malformed));
        check("10 GiB 5", Err(Malformed));
        check("99999999PiB", Err(TooLarge));
        check("99999999999999999999999B", Err(TooLarge));
    }

    #[test]
    fn sizes_print_with_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (20 << 20, "20.0 MiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (1536 << 20, "1.50 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
