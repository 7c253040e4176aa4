//! Who could read the memory that checkpoints hold: encryption beneath them, permissions above them.

use std::os::fd::AsFd as _;

use nix::sys::stat::fstat;

use super::directories::Opened;
use super::report::{Check, Section};
use crate::cli::node;
use crate::config::Config;
use crate::model::{Checkpoint, States};
use crate::observe::host::encryption::Encryption;
use crate::observe::reach::Reach;

/// What makes it right.
const FIX: &str = "checkpoint-guard doctor --fix-permissions";
/// So many are named; the others are counted.
const NAMED_MAX: usize = 5;

/// Every directory's encryption and permissions, and the checkpoints that others may read.
pub(super) fn section(config: &Config, opened: &[Opened]) -> Section {
    let mut checks = Vec::new();
    for it in opened {
        checks.extend([encryption(it), permissions(it)].map(|check| check.on(&it.name())));
    }
    checks.extend(checkpoints(config));
    Section { name: "privacy", checks }
}

fn encryption(it: &Opened) -> Check {
    const NAME: &str = "encryption";
    let found = Encryption::of(it.dir.as_fd(), it.mount.as_ref());
    let value = found.to_string();
    match found {
        Encryption::DmCrypt | Encryption::Fscrypt | Encryption::Ecryptfs => Check::ok(NAME, value),
        Encryption::Memory | Encryption::Unknown { .. } => Check::note(NAME, value),
        Encryption::None { .. } => Check::degraded(
            NAME,
            value,
            "archives hold the memory of containers, and a deleted one stays readable on the disk: mount a dm-crypt device \
             there, or set an fscrypt policy (a disk that encrypts itself cannot be seen from here)",
        ),
    }
}

fn permissions(it: &Opened) -> Check {
    const NAME: &str = "permissions";
    let mode = fstat(it.dir.as_fd()).map_or(0, |stat| stat.st_mode & 0o7777);
    match Reach::of(it.dir.as_fd()) {
        Reach { others: true, .. } => Check::degraded(
            NAME,
            format!("mode {mode:04o}: anybody can get in"),
            format!("{FIX}, or chmod 700"),
        ),
        Reach { group: true, .. } => Check::note(NAME, format!("mode {mode:04o}: its group can get in"))
            .advising(format!("{FIX}, or chmod 700")),
        _ if mode & 0o077 == 0 => Check::ok(NAME, format!("mode {mode:04o}: its owner alone")),
        _ => Check::ok(NAME, format!("mode {mode:04o}, but a directory above lets its owner alone pass")),
    }
}

/// Those that the gauge `checkpoint_guard_exposed_checkpoints` counts.
fn checkpoints(config: &Config) -> Vec<Check> {
    const NAME: &str = "checkpoints that others may read";
    let filesystems = match node::take(config) {
        Ok(filesystems) => filesystems,
        Err(error) => return vec![Check::note(NAME, format!("not known: {error:#}"))],
    };
    let all: Vec<&Checkpoint> = filesystems.iter().flat_map(|it| &it.inventory.checkpoints).collect();
    let exposed: Vec<_> = all.iter().filter(|it| it.states.contains(States::EXPOSED)).collect();
    if exposed.is_empty() {
        return vec![Check::ok(NAME, format!("none of {}", all.len()))];
    }
    let named: Vec<_> = exposed.iter().take(NAMED_MAX).map(|it| it.display_name()).collect();
    let more = if exposed.len() > NAMED_MAX { ", …" } else { "" };
    let value = format!("{} of {}: {}{more}", exposed.len(), all.len(), named.join(", "));
    vec![Check::degraded(NAME, value, FIX)]
}
