//! What a test knows of the VM that `cargo xtask vm-test` runs it in.

use std::time::Duration;

/// The release of the VM's kernel, `6.12.117+deb13-cloud-amd64`; `None` on a machine that is no such VM.
pub fn kernel() -> Option<String> {
    std::env::var("CHECKPOINT_GUARD_VM").ok()
}

/// How long to wait for what comes within `here` on this machine: an emulated processor takes many times as long, and
/// two of them share this machine's with whatever else runs there.
pub fn patience(here: Duration) -> Duration {
    if kernel().is_some() { here * 6 } else { here }
}
