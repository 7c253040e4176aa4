//! `[pressure]`: when to act.

use std::time::Duration;

use super::raw::{Raw, Value};
use super::read::{self, Reader};
use crate::model::{Amount, Level, MinimumReclaim, PressurePolicy, Signal, Threshold};

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
