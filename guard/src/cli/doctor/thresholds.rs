//! Our thresholds on each filesystem, and the kubelet's beside them.

use super::directories::{Opened, by_filesystem};
use super::report::{Check, Section};
use crate::config::{ASSUMED_WRITE_SPEED, Config, ConfigFile, KubeletThreshold};
use crate::decide::threshold::level_of;
use crate::model::{Bytes, Level, Observation, Percent, Signal};
use crate::observe::filesystem::observe;

/// Every filesystem's levels and signals.
pub(super) fn section(file: &ConfigFile, config: &Config, opened: &[Opened]) -> Section {
    let mut checks = vec![kubelet(config)];
    for (paths, it) in by_filesystem(opened) {
        let Ok(seen) = observe(&it.dir) else { continue };
        let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        let names = names.join(", ");
        checks.extend(on_filesystem(config, &seen).into_iter().map(|check| check.on(&names)));
        // The daemon would refuse to start with these.
        for late in
            file.later_than_kubelet(config.pool.as_deref(), &seen, ASSUMED_WRITE_SPEED).unwrap_or_default()
        {
            let advice = "raise it, or write \"auto\": behind the kubelet's it protects nothing";
            checks.push(Check::missing("too late", late.to_string(), advice).on(&names));
        }
    }
    Section { name: "thresholds", checks }
}

fn kubelet(config: &Config) -> Check {
    match &config.kubelet {
        Some(kubelet) if kubelet.files.is_empty() => {
            Check::note("kubelet", "its configuration is not to be found; its defaults are assumed")
                .advising("mount /var/lib/kubelet, or name the file in [pressure] kubelet-config")
        }
        Some(kubelet) => {
            let files: Vec<_> = kubelet.files.iter().map(|path| path.display().to_string()).collect();
            Check::ok("kubelet", format!("its thresholds are read from {}", files.join(", ")))
        }
        None => {
            Check::note("kubelet", "its thresholds are not known: there is none here, or it is switched off")
                .advising("name its file in [pressure] kubelet-config to have thresholds compared")
        }
    }
}

fn on_filesystem(config: &Config, seen: &Observation) -> Vec<Check> {
    let policy = config.pressure_on(seen, ASSUMED_WRITE_SPEED);
    let level = level_of(&policy, seen);
    let now = format!("{level}, by what is available now");
    let mut checks =
        vec![if level >= Level::Hard { Check::note("level", now) } else { Check::ok("level", now) }];
    for (level, signal) in Level::ALL.into_iter().flat_map(|level| Signal::ALL.map(|signal| (level, signal)))
    {
        let (Some(threshold), Some(total)) = (policy.threshold(level), seen.total(signal)) else { continue };
        let Some(ours) = threshold.amount(signal).map(|amount| amount.resolve(total)) else { continue };
        let mut text = format!("below {}", amount(ours, total, signal));
        if let Some(theirs) = theirs(config, level, signal, total) {
            let at = amount(theirs.value.resolve(total), total, signal);
            text.push_str(&format!("; the kubelet's {theirs} is {at}"));
        }
        checks.push(Check::ok(format!("{level} {signal}"), text));
    }
    checks
}

/// The kubelet's threshold that is crossed first: of the soft ones beside soft, of the hard ones beside the others.
fn theirs(config: &Config, level: Level, signal: Signal, total: u64) -> Option<&KubeletThreshold> {
    let kubelet = config.kubelet.as_ref()?;
    let all = if level == Level::Soft { &kubelet.soft } else { &kubelet.hard };
    all.iter().filter(|it| it.signal == signal).max_by_key(|it| it.value.resolve(total))
}

fn amount(value: u64, total: u64, signal: Signal) -> String {
    // To the nearest: 20 % of a disk, resolved to whole bytes, is a little less than 20 % of it.
    let share = Percent::from_ratio(value.saturating_add(total / 20_000), total);
    match signal {
        Signal::Available => format!("{} ({share})", Bytes(value)),
        Signal::InodesFree => format!("{value} ({share})"),
    }
}
