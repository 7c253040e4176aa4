//! System calls, by a seccomp filter.

use std::collections::BTreeMap;

use nix::errno::Errno;
use nix::libc;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule, TargetArch};

use super::State;
use super::calls::{CALLS, Feature};

/// What is not allowed is answered with ENOSYS and not by death: should a C library of the future use a call that nobody
/// thought of, it takes the older way that it has for older kernels, and the guard lives. The kernel logs each (audit
/// type 1326), so that it is not overlooked.
const REFUSED: SeccompAction = SeccompAction::Errno(libc::ENOSYS as u32);

/// Refused by a filter of its own, which logs nothing: the C library tries it for each thread and falls back to clone(2), whose
/// flags a filter can see. Of two filters that answer differently the kernel takes the stricter answer and its way of logging
/// (`seccomp_run_filters`), so the one that logs lets it pass.
const REFUSED_QUIETLY: i64 = libc::SYS_clone3;

/// Lets this thread, and those it will start, use the calls that `features` need.
pub(super) fn confine(features: &[Feature]) -> State {
    let quiet = filter(BTreeMap::from([(REFUSED_QUIETLY, Vec::new())]), SeccompAction::Allow, REFUSED);
    let is_refused = quiet.is_ok_and(|program| install(&program, 0).is_ok());
    let program = match program(features, is_refused) {
        Ok(program) => program,
        Err(error) => return State::Missing(error),
    };
    // SECCOMP_FILTER_FLAG_LOG came with Linux 4.14.
    match install(&program, libc::SECCOMP_FILTER_FLAG_LOG).or_else(|_| install(&program, 0)) {
        Ok(()) => State::Active(None),
        Err(errno) => State::Missing(format!("seccomp(2): {errno}")),
    }
}

/// The filter for `features`; with `is_refused`, another one has refused [`REFUSED_QUIETLY`].
fn program(features: &[Feature], is_refused: bool) -> Result<BpfProgram, String> {
    let mut rules = BTreeMap::new();
    for call in CALLS.iter().filter(|call| call.features.iter().any(|feature| features.contains(feature))) {
        rules.insert(call.number, call.rules()?);
    }
    if is_refused {
        rules.insert(REFUSED_QUIETLY, Vec::new());
    }
    filter(rules, REFUSED, SeccompAction::Allow)
}

fn filter(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matching: SeccompAction,
) -> Result<BpfProgram, String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let filter = SeccompFilter::new(rules, otherwise, matching, arch);
    filter.and_then(BpfProgram::try_from).map_err(|error| error.to_string())
}

fn install(program: &BpfProgram, flags: libc::c_ulong) -> Result<(), Errno> {
    let len = u16::try_from(program.len()).map_err(|_| Errno::E2BIG)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut() };
    // SAFETY: the kernel copies `len` instructions from the pointer, which outlives the call, and keeps no reference;
    // seccompiler's instruction has the layout of the kernel's `struct sock_filter`.
    let answer =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    Errno::result(answer).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_features_makes_a_filter_that_the_kernel_would_take() {
        // BPF_MAXINSNS.
        const LONGEST: usize = 4096;
        for features in [Feature::ALL.as_slice(), &[Feature::Always], &[Feature::Finder]] {
            let program = program(features, true).unwrap();
            assert!((10..LONGEST).contains(&program.len()), "{features:?}: {}", program.len());
        }
    }
}
