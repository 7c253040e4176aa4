//! What this kernel offers, without using any of it: for `doctor`.

use nix::errno::Errno;
use nix::libc;

use super::Layer;

/// One layer, and how far this kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    /// Which.
    pub layer: Layer,
    /// Whether it can be used at all.
    pub usable: bool,
    /// What there is, or why there is none; a short sentence.
    pub detail: String,
}

/// What this kernel and the surroundings of this process offer.
pub fn available() -> Vec<Available> {
    Layer::ALL.into_iter().map(look).collect()
}

fn look(layer: Layer) -> Available {
    let (usable, detail) = match layer {
        Layer::NoNewPrivileges => match nix::sys::prctl::get_no_new_privs() {
            Ok(set) => (true, if set { "set already" } else { "can be set" }.to_owned()),
            Err(errno) => (false, format!("prctl(PR_GET_NO_NEW_PRIVS): {errno}")),
        },
        Layer::Capabilities => {
            match caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SETPCAP) {
                Ok(true) => (true, "all sets can be reduced".to_owned()),
                Ok(false) => (true, "all but the bounding set can be reduced (no CAP_SETPCAP)".to_owned()),
                Err(error) => (false, error.to_string()),
            }
        }
        Layer::Landlock => match landlock_abi() {
            Ok(abi @ 4..) => (true, format!("version {abi}: files and ports")),
            Ok(abi @ 2..=3) => (true, format!("version {abi}: files, no ports (they came with Linux 6.7)")),
            Ok(abi) => (false, format!("version {abi}: too old, Linux 5.19 has the first usable one")),
            Err(reason) => (false, reason.to_owned()),
        },
        Layer::Seccomp => match has_seccomp_filters() {
            true => (true, "filters with errno and log".to_owned()),
            false => (false, "this kernel has no filters (CONFIG_SECCOMP_FILTER)".to_owned()),
        },
    };
    Available { layer, usable, detail }
}

/// The version of Landlock that runs.
pub(super) fn landlock_abi() -> Result<i32, &'static str> {
    const LANDLOCK_CREATE_RULESET_VERSION: libc::c_ulong = 1;
    // SAFETY: with this flag the call takes no pointer and makes nothing, it only answers (landlock_create_ruleset(2)).
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    match Errno::result(answer) {
        Ok(abi) => Ok(i32::try_from(abi).unwrap_or(i32::MAX)),
        Err(Errno::EOPNOTSUPP) => Err("switched off at boot; add landlock to the kernel's lsm= parameter"),
        Err(Errno::ENOSYS) => {
            Err("this kernel has none (before Linux 5.13, or without CONFIG_SECURITY_LANDLOCK)")
        }
        Err(_) => Err("the container's seccomp profile forbids to ask for it"),
    }
}

fn has_seccomp_filters() -> bool {
    const SECCOMP_GET_ACTION_AVAIL: libc::c_ulong = 2;
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: this operation reads one u32 through the pointer, which outlives the call (seccomp(2)).
    let answer =
        unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0_usize, &raw const action) };
    answer == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_is_told_of_and_asking_changes_nothing() {
        let before = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let told = available();
        assert_eq!(told.iter().map(|it| it.layer).collect::<Vec<_>>(), Layer::ALL);
        assert!(told.iter().all(|it| !it.detail.is_empty()));
        let limits = |status: &str| -> Vec<String> {
            let keys = ["NoNewPrivs", "Seccomp", "CapEff", "CapBnd"];
            status
                .lines()
                .filter(|line| keys.iter().any(|key| line.starts_with(key)))
                .map(str::to_owned)
                .collect()
        };
        let after = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert_eq!(limits(&before), limits(&after));
    }
}
