//! Files and ports, by Landlock.

use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, NetPort, PathBeneath, PathFd, RestrictionStatus,
    Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};

use super::State;
use super::available::landlock_abi;
use super::looks;
use super::needs::{Access, Connect, Needs, resolve};

/// The rights that are handled where the kernel knows them: those of Linux 6.12.
const NEWEST: ABI = ABI::V6;

/// Before this version a file cannot be moved to another directory at all (`LANDLOCK_ACCESS_FS_REFER`), and the guard
/// moves what it deletes into a private one first. That is worth more than this layer.
const OLDEST: i32 = 2;

/// Confines this thread and those it will start; tells where checkpoint directories may lie from now on.
pub(super) fn confine(needs: &Needs) -> (State, Option<Vec<PathBuf>>) {
    match landlock_abi() {
        Err(reason) => return (State::Missing(reason.to_owned()), None),
        Ok(abi) if abi < OLDEST => {
            return (
                State::Missing(
                    "this kernel's version of it is too old (Linux 5.19 has the first usable)".into(),
                ),
                None,
            );
        }
        Ok(_) => {}
    }
    match restrict(needs) {
        Ok((status, reach)) => {
            let state = match status.ruleset {
                RulesetStatus::FullyEnforced => State::Active(None),
                RulesetStatus::PartiallyEnforced => {
                    State::Active(Some("this kernel knows some of it only: files, and not all else".into()))
                }
                RulesetStatus::NotEnforced => {
                    return (State::Missing("the kernel enforces nothing of it".into()), None);
                }
            };
            (state, Some(reach))
        }
        Err(error) => (State::Missing(error.to_string()), None),
    }
}

/// Also tells where checkpoint directories may lie.
fn restrict(needs: &Needs) -> Result<(RestrictionStatus, Vec<PathBuf>), RulesetError> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .handle_access(AccessNet::BindTcp)?;
    if needs.connect != Connect::Anywhere {
        ruleset = ruleset.handle_access(AccessNet::ConnectTcp)?;
    }
    let mut ruleset = ruleset.create()?;
    let paths: Vec<_> = needs.paths.iter().map(|need| need.path.clone()).collect();
    // What is not there has no rule: it cannot be opened, which is what would happen anyway.
    let opened = looks::at_each(&paths, |path| Some((PathFd::new(path).ok()?, path.is_dir(), resolve(path))));
    let mut reach = Vec::new();
    for (need, opened) in needs.paths.iter().zip(opened) {
        let Some(opened) = opened else {
            looks::say_left_out(&need.path);
            continue;
        };
        let Some((path, is_directory, resolved)) = opened else { continue };
        let rights = match is_directory {
            true => rights(need.access),
            false => rights(need.access) & AccessFs::from_file(NEWEST),
        };
        if need.access == Access::Checkpoints {
            reach.push(resolved);
        }
        ruleset = ruleset.add_rule(PathBeneath::new(path, rights))?;
    }
    if let Some(port) = needs.bind {
        ruleset = ruleset.add_rule(NetPort::new(port, AccessNet::BindTcp))?;
    }
    if let Connect::Ports(ports) = &needs.connect {
        for port in ports {
            ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
    }
    Ok((ruleset.restrict_self()?, reach))
}

fn rights(access: Access) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    match access {
        Access::Read => read,
        // Lock, append, rotate, cut off a torn line.
        Access::Log => {
            read | AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::Truncate
        }
        // Moving aside into the private directory takes making and removing; writing is for the nameless file of the
        // eBPF self-test and for truncating on xfs. No symbolic links, no devices, nothing to be executed.
        Access::Checkpoints => {
            read | AccessFs::WriteFile
                | AccessFs::Truncate
                | AccessFs::MakeReg
                | AccessFs::MakeDir
                | AccessFs::RemoveFile
                | AccessFs::RemoveDir
                | AccessFs::Refer
        }
    }
}
