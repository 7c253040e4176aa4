//! Numbers and names as `top` says them.

use crate::model::Bytes;
use crate::report::snapshot::{
    FilesystemSnapshot, NextVictims, ThresholdSnapshot, VictimSnapshot, WriterGrowth,
};

/// `120 MiB/s`
pub(super) fn rate(bytes_per_second: u64) -> String {
    format!("{}/s", Bytes(bytes_per_second))
}

/// `now`, `40 s`, `12 min`, `3 h`, `5 d`; `-` for never.
pub(super) fn until(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else { return "-".to_owned() };
    match seconds as u64 {
        0 if seconds <= 0.0 => "now".to_owned(),
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// `12.3 %` of `whole`.
pub(super) fn share(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// What a terminal may be told: names come from whoever made the file, and may hold commands to it.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// `soft below 20.0 GiB in 12 min`, `hard below 15.0 GiB: crossed`.
pub(super) fn threshold(it: &ThresholdSnapshot) -> String {
    let below = match (it.available_bytes, it.inodes_free) {
        (Some(bytes), _) => Bytes(bytes).to_string(),
        (None, Some(inodes)) => format!("{inodes} inodes"),
        (None, None) => "nothing".to_owned(),
    };
    match it.seconds_until {
        Some(seconds) if seconds <= 0.0 => format!("{} below {below}: crossed", it.level),
        Some(_) => format!("{} below {below} in {}", it.level, until(it.seconds_until)),
        None => format!("{} below {below}", it.level),
    }
}

/// The same in a few letters: `hard 12 min`.
pub(super) fn threshold_short(it: &ThresholdSnapshot) -> String {
    format!("{} {}", it.level, until(it.seconds_until))
}

/// `1.30 GiB to hard`; what is missing when there is none left.
pub(super) fn headroom(it: &FilesystemSnapshot) -> String {
    match it.headroom_bytes {
        Some(bytes) => format!("{} until {}", Bytes(bytes), next_level(it)),
        None => "none: below every threshold".to_owned(),
    }
}

/// The level that begins when the headroom is used up.
pub(super) fn next_level(it: &FilesystemSnapshot) -> &'static str {
    let below = it
        .thresholds
        .iter()
        .filter(|threshold| threshold.available_bytes.is_some_and(|value| value <= it.available_bytes));
    below.max_by_key(|threshold| threshold.available_bytes).map_or("-", |threshold| threshold.level.as_str())
}

/// What the list of victims is about.
pub(super) fn next_title(next: Option<&NextVictims>) -> String {
    match next {
        None => "next victims: not decided yet".to_owned(),
        Some(next) => {
            let when =
                if next.is_forecast { format!("when {} begins", next.level) } else { "now".to_owned() };
            let mut title = format!(
                "next victims: {when} {} go, {} of {}",
                next.count,
                Bytes(next.frees_bytes),
                Bytes(next.need_bytes)
            );
            if next.shortfall_bytes > 0 {
                title.push_str(&format!("; {} CANNOT BE FREED", Bytes(next.shortfall_bytes)));
            }
            title
        }
    }
}

/// Its place; reserves in brackets.
pub(super) fn rank(victim: &VictimSnapshot) -> String {
    if victim.is_reserve { format!("({})", victim.rank) } else { victim.rank.to_string() }
}

/// `containerd[4711]`
pub(super) fn writer(writer: &WriterGrowth) -> String {
    format!("{}[{}]", printable(&writer.comm), writer.pid)
}

/// For whom it writes.
pub(super) fn written_for(writer: &WriterGrowth) -> String {
    if writer.namespace.is_none() && writer.pod.is_none() {
        return "not known".to_owned();
    }
    let part = |part: &Option<String>| part.clone().unwrap_or_else(|| "?".to_owned());
    let container = writer.container.as_deref().unwrap_or("-");
    printable(&format!("{}/{}/{container}", part(&writer.namespace), part(&writer.pod)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_coarse_and_never_pretend() {
        for (seconds, text) in [
            (None, "-"),
            (Some(0.0), "now"),
            (Some(0.4), "0 s"),
            (Some(119.0), "119 s"),
            (Some(720.0), "12 min"),
            (Some(10_800.0), "3 h"),
            (Some(500_000.0), "5 d"),
        ] {
            assert_eq!(until(seconds), text);
        }
    }

    #[test]
    fn names_cannot_command_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\u{7}\n"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}");
    }
}
