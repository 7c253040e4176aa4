//! Quantities as Kubernetes writes them, which are not ours: a bare number is bytes.

/// Reads a `resource.Quantity` (k8s.io/apimachinery/pkg/api/resource/quantity.go) as a whole number, rounded up
/// as `Quantity.Value()` does: `100Mi`, `1.5G`, `1e9`, `500`, `1500m`.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let malformed =
        || format!("{text:?} is not a Kubernetes quantity such as \"100Mi\", \"1.5G\" or \"1e9\"");
    let trimmed = text.trim();
    let unsigned = trimmed.strip_prefix('+').unwrap_or(trimmed);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(malformed());
    }
    let (multiply, divide) = factor(suffix).ok_or_else(malformed)?;
    let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| malformed())?;
    let divide = u32::try_from(fraction.len())
        .ok()
        .and_then(|places| 10u128.checked_pow(places))
        .and_then(|scale| scale.checked_mul(divide))
        .ok_or_else(malformed)?;
    let value = digits.checked_mul(multiply).ok_or_else(malformed)?.div_ceil(divide);
    u64::try_from(value).map_err(|_| malformed())
}

fn factor(suffix: &str) -> Option<(u128, u128)> {
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        exponent => {
            let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let scale = 10u128.checked_pow(power.unsigned_abs())?;
            if power < 0 { (1, scale) } else { (scale, 1) }
        }
    })
}

/// The same number of bytes in our notation, exactly: `10GiB`, `1500MB`, `12345B`.
pub(super) fn in_our_notation(bytes: u64) -> String {
    const UNITS: [(&str, u64); 8] = [
        ("TiB", 1 << 40),
        ("TB", 1_000_000_000_000),
        ("GiB", 1 << 30),
        ("GB", 1_000_000_000),
        ("MiB", 1 << 20),
        ("MB", 1_000_000),
        ("KiB", 1 << 10),
        ("kB", 1000),
    ];
    match UNITS.iter().find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor)) {
        Some((unit, factor)) => format!("{}{unit}", bytes / factor),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Bytes;

    #[test]
    fn our_notation_is_exact() {
        for (bytes, text) in [
            (0, "0B"),
            (10 << 30, "10GiB"),
            (1500 << 20, "1500MiB"),
            (100_000_000, "100MB"),
            (12345, "12345B"),
        ] {
            assert_eq!(in_our_notation(bytes), text);
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)));
        }
    }

    #[track_caller]
    fn check(text: &str, expect: Option<u64>) {
        assert_eq!(parse(text).ok(), expect, "{text:?}");
    }

    #[test]
    fn quantities_are_read_as_kubernetes_does() {
        check("100Mi", Some(100 << 20));
        check("1.5G", Some(1_500_000_000));
        check("1e9", Some(1_000_000_000));
        check("1E9", Some(1_000_000_000));
        check("1E", Some(1_000_000_000_000_000_000));
        check("500", Some(500));
        check("1500m", Some(2));
        check(".5Gi", Some(1 << 29));
        check("5.", Some(5));
        for bad in [
            "",
            "Mi",
            "-1Gi",
            "10%",
            "10MiB",
            "1.2.3",
            "1e",
            "1e99",
            "99999999999999999999999999999999999999999",
        ] {
            check(bad, None);
        }
    }
}
