//! Durations as people write them: `30s`, `2m`, `1h30m`, `14d`, `500ms`.

use std::time::Duration;

/// Units, largest first, in milliseconds. Months and years differ in length and are not understood.
const UNITS: [(&str, u64); 6] =
    [("w", 7 * 86_400_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Reads a duration. A bare `0` needs no unit; every other number does.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let trimmed = text.trim();
    let malformed =
        || format!("{text:?} is not a duration; write for example \"30s\", \"2m\", \"1h30m\" or \"14d\"");
    if trimmed == "0" {
        return Ok(Duration::ZERO);
    }
    if !trimmed.is_empty() && trimmed.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("{text:?} has no unit; write \"{trimmed}s\", or with ms, m, h, d or w"));
    }
    let mut rest = trimmed;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(malformed)?;
        let number: u64 = number.parse().map_err(|_| malformed())?;
        total = number
            .checked_mul(*factor)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(|| format!("{text:?} is longer than anybody waits"))?;
        rest = after.trim_start();
    }
    if trimmed.is_empty() { Err(malformed()) } else { Ok(Duration::from_millis(total)) }
}

/// Writes a duration so that [`parse_duration`] reads it back: `1h30m`, `500ms`, `0s`.
pub fn format_duration(duration: Duration) -> String {
    let mut left = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if left == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, factor) in UNITS.iter().filter(|(unit, _)| *unit != "w") {
        if left >= *factor {
            text.push_str(&format!("{}{unit}", left / factor));
            left %= factor;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<u64>) {
        assert_eq!(parse_duration(text).ok(), expect.map(Duration::from_millis), "{text:?}");
    }

    #[test]
    fn durations_have_units() {
        check("30s", Some(30_000));
        check("2m", Some(120_000));
        check("1h30m", Some(5_400_000));
        check("1h 30m", Some(5_400_000));
        check("14d", Some(14 * 86_400_000));
        check("2w", Some(14 * 86_400_000));
        check("500ms", Some(500));
        check("0", Some(0));
        check("0s", Some(0));
        for bad in ["", " ", "30", "s", "-1s", "1.5h", "1 y", "5 minutes", "99999999999999999999s", "1s2"] {
            check(bad, None);
        }
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for text in ["30s", "2m", "1h30m", "14d", "500ms", "0s", "1d2h3m4s5ms"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
    }
}
