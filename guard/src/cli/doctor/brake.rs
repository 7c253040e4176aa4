//! What could refuse writes when nothing more may be deleted.

use nix::errno::Errno;

use super::report::{Check, Section, State};
use crate::act::brake::{BrakeError, try_group};
use crate::config::BrakeMode;
use crate::observe::host::kernel::Kernel;
use crate::observe::probe::Refusing;

/// BPF LSM, fanotify, and which of them a daemon takes.
pub(super) fn section(kernel: &Kernel, mode: BrakeMode) -> Section {
    // As the daemon tries it, a mark included; nobody is held up.
    let (lsm, fanotify) = (lsm(), fanotify(kernel.version(), try_group()));
    let taken = taken(mode, lsm.state == State::Ok, can_refuse(&fanotify));
    Section { name: "brake", checks: vec![lsm, fanotify, taken] }
}

/// As a daemon does at its start, on a call of our own.
fn lsm() -> Check {
    const NAME: &str = "BPF LSM";
    match Refusing::load() {
        Ok(_) => {
            Check::ok(NAME, "creating and writing can be refused, with ENOSPC, also in the middle of a file")
        }
        Err(error) => Check::note(NAME, error.to_string()),
    }
}

/// A note that begins otherwise tells why not.
const OPENS: &str = "opens ";

fn can_refuse(fanotify: &Check) -> bool {
    fanotify.value.starts_with(OPENS)
}

fn taken(mode: BrakeMode, lsm: bool, fanotify: bool) -> Check {
    const NAME: &str = "taken";
    let by_name = |works: bool, means: &str| {
        let said = format!("{means} ([brake] mode = {:?})", mode.as_str());
        if works {
            Check::ok(NAME, said)
        } else {
            Check::missing(
                NAME,
                format!("{said}, which does not work here"),
                "\"auto\" takes what works; a daemon that is told otherwise does not start",
            )
        }
    };
    match mode {
        BrakeMode::Off => Check::note(NAME, "none ([brake] mode = \"off\")"),
        BrakeMode::Lsm => by_name(lsm, "BPF LSM"),
        BrakeMode::Fanotify => by_name(fanotify, "fanotify"),
        BrakeMode::Auto if lsm => Check::ok(NAME, "BPF LSM"),
        BrakeMode::Auto if fanotify => Check::ok(NAME, "fanotify"),
        BrakeMode::Auto => {
            Check::note(NAME, "none: at critical, when nothing more may be deleted, writers go on").advising(
                "make one of the two above work (docs/BRAKE.md), or leave more room: pins and protection that do not reach critical",
            )
        }
    }
}

fn fanotify(version: (u32, u32), tried: Result<(), Errno>) -> Check {
    const NAME: &str = "fanotify";
    match tried {
        Ok(()) if version >= (6, 14) => {
            Check::ok(NAME, format!("{OPENS}and writes can be refused, with ENOSPC"))
        }
        Ok(()) if version >= (6, 13) => Check::ok(NAME, format!("{OPENS}can be refused, with ENOSPC")),
        Ok(()) => Check::note(
            NAME,
            format!("{OPENS}can be refused, but only with EPERM (ENOSPC came with Linux 6.13)"),
        ),
        Err(Errno::EPERM) => Check::note(NAME, "not permitted to this command")
            .advising("it needs CAP_SYS_ADMIN; deploy/kubernetes/components/fanotify-brake adds it"),
        Err(errno) => Check::note(NAME, BrakeError::Fanotify(errno).to_string())
            .advising("the other means is BPF LSM; docs/BRAKE.md says what each needs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(mode: BrakeMode, works: (bool, bool), state: State, begins: &str) {
        let taken = taken(mode, works.0, works.1);
        assert_eq!(taken.state, state, "{taken:?}");
        assert!(taken.value.starts_with(begins), "{taken:?}");
    }

    #[test]
    fn fanotify_is_what_the_trial_says_whatever_the_version() {
        for version in [(5, 10), (6, 13), (6, 18)] {
            assert!(can_refuse(&fanotify(version, Ok(()))), "{version:?}");
            // A group can be had, and marks are refused.
            let refused = fanotify(version, Err(Errno::EINVAL));
            assert!(!can_refuse(&refused) && refused.state == State::Note, "{refused:?}");
            assert!(refused.value.contains("CONFIG_FANOTIFY_ACCESS_PERMISSIONS"), "{refused:?}");
        }
    }

    #[test]
    fn what_is_taken_follows_the_mode_and_what_works() {
        check(BrakeMode::Auto, (true, true), State::Ok, "BPF LSM");
        check(BrakeMode::Auto, (false, true), State::Ok, "fanotify");
        check(BrakeMode::Auto, (false, false), State::Note, "none");
        check(BrakeMode::Lsm, (true, false), State::Ok, "BPF LSM");
        check(BrakeMode::Lsm, (false, true), State::Missing, "BPF LSM");
        check(BrakeMode::Fanotify, (true, false), State::Missing, "fanotify");
        check(BrakeMode::Off, (true, true), State::Note, "none");
    }
}
