//! Giving up capabilities.

use caps::{CapSet, Capability, CapsHashSet};

use super::State;

/// Keeps of what this process has only `needed`: in the permitted and the effective set, and in none of the others
/// beyond that.
pub(super) fn keep(needed: &[(Capability, &'static str)]) -> State {
    let needed: CapsHashSet = needed.iter().map(|(capability, _)| *capability).collect();
    // Before the others: it takes CAP_SETPCAP, which is not kept.
    let left_in_bounding = shrink_bounding(&needed);
    // Without ambient capabilities in this kernel (before 4.3) there is nothing to clear.
    let _ = caps::clear(None, CapSet::Ambient);
    match shrink(&needed) {
        Err(error) => State::Missing(error.to_string()),
        Ok(()) if left_in_bounding => State::Active(Some(
            "the bounding set stays what it was (CAP_SETPCAP is missing); nothing that is started can use it"
                .into(),
        )),
        Ok(()) => State::Active(None),
    }
}

/// Whether more than `needed` is left there.
fn shrink_bounding(needed: &CapsHashSet) -> bool {
    let unneeded: Vec<_> = caps::runtime::thread_all_supported().difference(needed).copied().collect();
    let is_there = |it: &&Capability| caps::has_cap(None, CapSet::Bounding, **it).unwrap_or(true);
    let there = unneeded.iter().filter(is_there);
    there.filter(|it| caps::drop(None, CapSet::Bounding, **it).is_err()).count() > 0
}

fn shrink(needed: &CapsHashSet) -> Result<(), caps::errors::CapsError> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    let kept: CapsHashSet = permitted.intersection(needed).copied().collect();
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    caps::clear(None, CapSet::Inheritable)
}
