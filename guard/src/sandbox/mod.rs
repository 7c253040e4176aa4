//! The guard limits itself: before it starts a thread, opens an archive or listens, it gives up what it will not need.
//!
//! ```text
//! needs.rs         configuration ─► Needs: capabilities, paths, ports, features, each with its reason
//! finder           a process of its own looks through /proc (observe/finder.rs): it alone keeps CAP_SYS_PTRACE
//! capabilities.rs  everything not needed leaves all five sets
//! landlock.rs      files below the needed paths, the listener's port, no signals to others
//! seccomp.rs       the system calls of calls.rs; the rest is answered with ENOSYS and logged by the kernel
//! memory.rs        no core dump, and nobody looks into it without CAP_SYS_PTRACE: also without a sandbox
//! ```
//!
//! All threads come later and inherit it; none of it can be taken back. A layer that the kernel does not have is said
//! and done without: an unprotected guard protects the disk all the same. docs/SECURITY.md tells what is kept and why.

mod available;
mod calls;
mod capabilities;
mod landlock;
mod looks;
mod memory;
mod needs;
mod seccomp;

use std::fmt;
use std::path::{Path, PathBuf};

pub use self::available::{Available, available};
pub use self::calls::{CALLS, Call, Feature};
pub use self::memory::hide as hide_memory;
pub use self::needs::{Access, Connect, Needs, PathNeed};
use crate::act::brake::starter;
use crate::act::command;
use crate::config::{Config, SandboxMode};
use crate::observe::finder;
use crate::observe::probe::lift_locked_memory_limit;

/// What limits the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// `PR_SET_NO_NEW_PRIVS`: no program it starts gains anything, now or later.
    NoNewPrivileges,
    /// Capabilities outside the needed ones are gone from every set.
    Capabilities,
    /// Files and ports (Linux 5.19).
    Landlock,
    /// System calls.
    Seccomp,
}

impl Layer {
    /// Every one, in the order of application.
    pub const ALL: [Layer; 4] =
        [Layer::NoNewPrivileges, Layer::Capabilities, Layer::Landlock, Layer::Seccomp];

    /// Its name in logs, metrics and `doctor`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Layer::NoNewPrivileges => "no-new-privileges",
            Layer::Capabilities => "capabilities",
            Layer::Landlock => "landlock",
            Layer::Seccomp => "seccomp",
        }
    }
}

/// What became of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// In force; the text says how far, where the kernel or the surroundings leave something out.
    Active(Option<String>),
    /// Not in force, for this reason.
    Missing(String),
    /// `[sandbox] mode = "off"`.
    Off,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Active(None) => f.write_str("active"),
            State::Active(Some(limit)) => write!(f, "active, but {limit}"),
            State::Missing(reason) => write!(f, "missing: {reason}"),
            State::Off => f.write_str("off"),
        }
    }
}

/// The layers, and what the files among them leave within reach.
#[derive(Clone, Debug)]
pub struct Sandbox {
    layers: [(Layer, State); 4],
    /// Where checkpoint directories may lie; `None`: anywhere.
    reach: Option<Vec<PathBuf>>,
}

impl Sandbox {
    /// None of it.
    pub fn off() -> Sandbox {
        Sandbox { layers: Layer::ALL.map(|layer| (layer, State::Off)), reach: None }
    }

    /// What became of each layer.
    pub fn layers(&self) -> &[(Layer, State); 4] {
        &self.layers
    }

    /// Those of `config`'s directories, which need not exist yet, below which files may not be read and deleted. What
    /// Landlock once allowed cannot be widened, so they need a restart. Of one that hangs nothing is known.
    pub fn out_of_reach(&self, config: &Config) -> Vec<PathBuf> {
        self.beyond(config.directories.iter().map(|directory| directory.path.clone()).collect())
    }

    fn beyond(&self, mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
        let Some(reach) = &self.reach else { return Vec::new() };
        let resolved = looks::at_each(&paths, |path| needs::resolve(path));
        let is_beyond = |path: &PathBuf| !reach.iter().any(|anchor| path.starts_with(anchor));
        let mut resolved = resolved.iter();
        paths.retain(|_| resolved.next().and_then(Option::as_ref).is_some_and(is_beyond));
        paths
    }
}

/// Limits this process, for good. To be called after [`start_companions`], while no thread but the calling one does
/// anything; those that hang in looking at a path do not.
///
/// Never fails: what cannot be had is in the result, and in the log.
pub fn enter(config: &Config, config_path: &Path) -> Sandbox {
    memory::forbid_dumps();
    if config.sandbox.mode == SandboxMode::Off {
        tracing::warn!("running without a sandbox ([sandbox] mode = \"off\")");
        return Sandbox::off();
    }
    let mut needs = Needs::of(config, config_path);
    needs.make_directories();
    lift_locked_memory_limit();
    let no_new_privileges = no_new_privileges();
    let capabilities = capabilities::keep(&needs.capabilities);
    let (landlock, reach) = landlock::confine(&needs);
    let seccomp = seccomp::confine(&needs.features);
    let sandbox = Sandbox {
        layers: [
            (Layer::NoNewPrivileges, no_new_privileges),
            (Layer::Capabilities, capabilities),
            (Layer::Landlock, landlock),
            (Layer::Seccomp, seccomp),
        ],
        reach,
    };
    sandbox.log();
    sandbox
}

/// Starts the processes that do what the sandbox forbids. To be called while the calling thread is its process's only
/// one, so before anything is looked at that may hang; before [`enter`], and before anything is opened that must end with
/// the guard: they inherit what is open.
pub fn start_companions(config: &Config) {
    let is_off = config.sandbox.mode == SandboxMode::Off;
    // Landlock forbids to look into processes outside of it, so somebody outside of it looks.
    if !is_off && let Err(error) = finder::start(confine_finder) {
        tracing::warn!(%error, "no process to find out who has checkpoints open; they will not be named");
    }
    start_runner(config);
    if !needs::may_brake_by_fanotify(config) {
        return;
    }
    let confine = || {
        if !is_off {
            let _ = no_new_privileges();
            let _ = capabilities::keep(needs::STARTER_CAPABILITIES);
        }
    };
    // Also when the file was replaced by a newer one meanwhile, this is the program that runs.
    if let Err(error) = starter::start(Path::new("/proc/self/exe"), confine) {
        tracing::warn!(%error, "no process to start the brake's helper");
    }
}

/// Starts the process that runs the command before a deletion, where there is one. As for [`start_companions`].
pub fn start_runner(config: &Config) {
    let Some(command) = &config.notify.command else { return };
    let is_off = config.sandbox.mode == SandboxMode::Off;
    let confine = || {
        if !is_off {
            let _ = no_new_privileges();
            let _ = capabilities::keep(needs::RUNNER_CAPABILITIES);
        }
    };
    if let Err(error) = command::start(command.program.clone(), command.arguments.clone(), confine) {
        tracing::error!(%error, "no process to run the command before deletions");
    }
}

/// The same for the process that looks through /proc: it reads, and nothing else.
fn confine_finder() {
    memory::forbid_dumps();
    let _ = no_new_privileges();
    let _ = capabilities::keep(needs::FINDER_CAPABILITIES);
    let _ = seccomp::confine(&[Feature::Finder]);
}

fn no_new_privileges() -> State {
    match nix::sys::prctl::set_no_new_privs() {
        Ok(()) => State::Active(None),
        Err(errno) => State::Missing(format!("prctl(PR_SET_NO_NEW_PRIVS): {errno}")),
    }
}

impl Sandbox {
    fn log(&self) {
        let state = |layer: Layer| {
            self.layers.iter().find(|(it, _)| *it == layer).map(|(_, state)| state.to_string())
        };
        let [nnp, capabilities, landlock, seccomp] = Layer::ALL.map(|layer| state(layer).unwrap_or_default());
        let reach: Vec<_> = self.reach.iter().flatten().map(|path| path.display().to_string()).collect();
        if self.layers.iter().all(|(_, state)| *state == State::Active(None)) {
            tracing::info!(
                ?reach,
                "sandboxed: capabilities, no_new_privs, Landlock and seccomp are in force"
            );
        } else if self.layers.iter().all(|(_, state)| matches!(state, State::Active(_))) {
            tracing::info!(no_new_privileges = nnp, capabilities, landlock, seccomp, ?reach, "sandboxed");
        } else {
            tracing::warn!(
                no_new_privileges = nnp,
                capabilities,
                landlock,
                seccomp,
                ?reach,
                "sandboxed as far as this kernel and its surroundings can"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reach_is_by_whole_components_and_through_links() {
        let root = tempfile::tempdir().unwrap();
        let (real, link) = (root.path().join("real"), root.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let sandbox = Sandbox { reach: Some(vec![needs::resolve(&real)]), ..Sandbox::off() };
        for (path, reaches) in [
            (real.join("checkpoints"), true),
            (real.clone(), true),
            (link.join("not/yet/there"), true),
            (root.path().join("real-ly"), false),
            (root.path().to_owned(), false),
            (real.join("../elsewhere"), false),
        ] {
            assert_eq!(sandbox.beyond(vec![path.clone()]).is_empty(), reaches, "{path:?}");
        }
        assert!(Sandbox::off().beyond(vec!["/anywhere".into()]).is_empty());
    }
}
