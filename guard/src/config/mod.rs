//! From TOML as written to a valid policy per pool.
//!
//! Two stages. `raw`, `shape` and `layers` hold what was typed: values with their lines, keys that exist, pools
//! laid over the base. `thresholds`, `order`, `rules` and `surroundings` read from that what is needed, through `read`,
//! which takes defaults and documentation from one table, `keys`. Nothing stops at the first mistake: everything
//! that is wrong, in any pool, is reported at once.

mod ahead;
mod duration;
mod keys;
mod kubelet;
mod kubelet_file;
mod kubernetes_quantity;
mod layers;
mod operator;
mod order;
mod pool;
mod problem;
mod raw;
mod read;
mod reload;
mod rules;
mod shape;
mod surroundings;
mod thresholds;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use ahead::{ASSUMED_WRITE_SPEED, later_than_kubelet, resolve_auto};
pub use duration::{format_duration, parse_duration};
pub use keys::{KEYS, Key, reference};
pub use kubelet::{KubeletError, KubeletFilesystem, KubeletThreshold, KubeletThresholds};
pub use operator::{ImportError, import_operator};
pub use pool::{POOL_VARIABLE, PoolChoice, choose_pool, pool_from_labels};
pub use problem::{Origin, Place, Problem, Problems};
pub use read::Setting;
pub use reload::Reload;
pub use surroundings::{
    AuditConfig, BrakeMode, CommandConfig, CommandFailure, DirectoryConfig, KubernetesConfig, KubernetesMode,
    Layout, MetricsConfig, NotifyConfig, ProbeMode, SandboxConfig, SandboxMode, SandboxReach, SocketConfig,
    WebhookConfig,
};

use crate::model::{Amount, Bytes, Level, Observation, Policy, PressurePolicy, Signal};
use raw::Raw;
use read::Reader;

/// Where the configuration is looked for when nobody says.
pub const DEFAULT_PATH: &str = "/etc/checkpoint-guard/guard.toml";

/// Everything the agent needs to know, for one pool.
///
/// Equal configurations make for equal behaviour; a reload that changes nothing but comments is no change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The pool; `None`: what stands outside any pool.
    pub pool: Option<String>,
    /// At least one.
    pub directories: Vec<DirectoryConfig>,
    /// What decisions need. Thresholds that are `auto` are estimates until [`Config::pressure_on`] resolves them.
    pub policy: Policy,
    /// Thresholds to derive from the kubelet's.
    pub auto: Vec<(Level, Signal)>,
    /// The kubelet's thresholds; `None`: no kubelet, or none that we know of.
    pub kubelet: Option<KubeletThresholds>,
    /// How much room at most is made ahead for archives on their way; `None`: none is.
    pub staging_ahead: Option<Amount>,
    /// How writes are refused.
    pub brake: BrakeMode,
    /// How writes are seen.
    pub probe: ProbeMode,
    /// The API server.
    pub kubernetes: KubernetesConfig,
    /// Who is told of deletions, after and before.
    pub notify: NotifyConfig,
    /// Metrics and health.
    pub metrics: MetricsConfig,
    /// Where commands ask the running daemon.
    pub socket: SocketConfig,
    /// The audit log.
    pub audit: AuditConfig,
    /// How the daemon limits itself.
    pub sandbox: SandboxConfig,
}

impl Config {
    /// The directory that archives are expected in: the first of layout `archives`, else the first pod checkpoints are
    /// in. `None`: there are staging directories only.
    pub fn destination(&self) -> Option<&DirectoryConfig> {
        let of = |layout| self.directories.iter().find(move |directory| directory.layout == layout);
        of(Layout::Archives).or_else(|| of(Layout::PodCheckpoints))
    }

    /// The thresholds on this filesystem: `auto` ones resolved for its size and `write_speed` (bytes per second,
    /// the most that was measured, else [`ASSUMED_WRITE_SPEED`]).
    pub fn pressure_on(&self, filesystem: &Observation, write_speed: Bytes) -> PressurePolicy {
        match &self.kubelet {
            Some(kubelet) if !self.auto.is_empty() => resolve_auto(
                &self.policy.pressure,
                &self.auto,
                kubelet,
                filesystem.capacity,
                filesystem.inodes.map(|inodes| inodes.total),
                write_speed,
            ),
            _ => self.policy.pressure.clone(),
        }
    }
}

/// A configuration file: parsed once, every pool of it valid.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    path: Arc<Path>,
    pools: BTreeMap<Option<Arc<str>>, Effective>,
}

/// One pool, and what there is to say about it.
#[derive(Clone, Debug)]
struct Effective {
    config: Config,
    settings: Vec<Setting>,
    notes: Vec<Problem>,
}

/// Reads and validates a configuration file and, with it, the kubelet's that it names.
pub fn load(path: &Path) -> Result<ConfigFile, Problems> {
    let file: Arc<Path> = path.into();
    match std::fs::read_to_string(path) {
        Ok(text) => ConfigFile::parse(&text, path),
        Err(error) => {
            let hint = match error.kind() {
                std::io::ErrorKind::NotFound => "; --config names another file",
                std::io::ErrorKind::InvalidData => "; a configuration is UTF-8 text",
                _ => "",
            };
            let message = format!("cannot read the configuration: {error}{hint}");
            Err(Problems::new(vec![Problem::of_file(&file, "", message)]))
        }
    }
}

impl ConfigFile {
    /// Validates the text of a configuration file; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<ConfigFile, Problems> {
        let file: Arc<Path> = path.into();
        let document = Raw::parse(text, &file).map_err(Problems::new)?;
        let mut problems = shape::check(&document);
        let mut pools = BTreeMap::new();
        for (name, values) in layers::pools(&document, &mut problems) {
            let effective = effective(name.as_deref(), &values, &file, &mut problems);
            pools.insert(name, effective);
        }
        if problems.is_empty() { Ok(ConfigFile { path: file, pools }) } else { Err(Problems::new(problems)) }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of its pools.
    pub fn pools(&self) -> impl Iterator<Item = &str> + Clone {
        self.pools.keys().filter_map(|name| name.as_deref())
    }

    /// The configuration of a pool, or of none.
    pub fn effective(&self, pool: Option<&str>) -> Result<Config, Problems> {
        self.find(pool).map(|effective| effective.config.clone())
    }

    /// The configuration for a choice of pool. A label may name a node pool that nobody wrote a `[pool]` for:
    /// then none applies, and the second part says so.
    pub fn choose(&self, choice: &PoolChoice) -> Result<(Config, Option<Problem>), Problems> {
        let base = |note| self.effective(None).map(|config| (config, note));
        match choice {
            PoolChoice::Named(name) => self.effective(Some(name)).map(|config| (config, None)),
            PoolChoice::None => base(None),
            PoolChoice::Label { label, pool } => match self.effective(Some(pool)) {
                Ok(config) => Ok((config, None)),
                Err(_) => {
                    let unknown = layers::unknown_pool(pool, self.pools());
                    let message =
                        format!("the Node's label {label} names it, but {unknown}; no pool applies");
                    base(Some(Problem::of_file(&self.path, format!("pool.{pool}"), message)))
                }
            },
        }
    }

    /// Every effective value of a pool and where it came from, in the order of the documentation.
    pub fn settings(&self, pool: Option<&str>) -> Result<&[Setting], Problems> {
        self.find(pool).map(|effective| effective.settings.as_slice())
    }

    /// What is worth knowing about a pool although it is valid.
    pub fn notes(&self, pool: Option<&str>) -> Result<&[Problem], Problems> {
        self.find(pool).map(|effective| effective.notes.as_slice())
    }

    /// [`later_than_kubelet`] for a pool on a real filesystem, with the lines to blame. The daemon does not start
    /// while there are any.
    pub fn later_than_kubelet(
        &self,
        pool: Option<&str>,
        filesystem: &Observation,
        write_speed: Bytes,
    ) -> Result<Vec<Problem>, Problems> {
        let Effective { config, settings, .. } = self.find(pool)?;
        let Some(kubelet) = &config.kubelet else { return Ok(Vec::new()) };
        let pressure = config.pressure_on(filesystem, write_speed);
        let inodes = filesystem.inodes.map(|inodes| inodes.total);
        let mut problems = later_than_kubelet(&pressure, kubelet, filesystem.capacity, inodes);
        for problem in &mut problems {
            problem.file = Some(self.path.clone());
            let origin = settings.iter().find(|setting| setting.key == problem.key).map(|it| &it.origin);
            if let Some(Origin::Written(place)) = origin {
                problem.line = Some(place.line);
            }
        }
        Ok(problems)
    }

    fn find(&self, pool: Option<&str>) -> Result<&Effective, Problems> {
        self.pools.get(&pool.map(Arc::from)).ok_or_else(|| {
            let message = layers::unknown_pool(pool.unwrap_or_default(), self.pools());
            Problems::new(vec![Problem::of_file(&self.path, "", message)])
        })
    }
}

/// Reads one pool. What is wrong goes to `problems`; then the rest is of no use.
fn effective(pool: Option<&str>, values: &Raw, file: &Arc<Path>, problems: &mut Vec<Problem>) -> Effective {
    let mut reader = Reader::new(values, file);
    let mut notes = Vec::new();
    let directories = surroundings::directories(&mut reader);
    let (mut pressure, auto) = thresholds::read(&mut reader);
    let kubelet = kubelet(&mut reader, !auto.is_empty(), &mut notes);
    if let Some(kubelet) = &kubelet {
        pressure = ahead::estimate_auto(&pressure, &auto, kubelet);
    }
    order::check(&mut reader, &pressure, &mut notes);
    let policy = Policy {
        pressure,
        eviction: rules::eviction(&mut reader),
        protection: rules::protection(&mut reader),
        retention: rules::retention(&mut reader),
    };
    let config = Config {
        pool: pool.map(str::to_owned),
        directories,
        policy,
        auto,
        kubelet,
        staging_ahead: surroundings::staging_ahead(&mut reader),
        brake: surroundings::brake(&mut reader),
        probe: surroundings::probe(&mut reader),
        kubernetes: surroundings::kubernetes(&mut reader),
        notify: surroundings::notify(&mut reader),
        metrics: surroundings::metrics(&mut reader),
        socket: surroundings::socket(&mut reader),
        audit: surroundings::audit(&mut reader),
        sandbox: surroundings::sandbox(&mut reader),
    };
    problems.append(&mut reader.problems);
    notes.sort();
    Effective { config, settings: reader.settings, notes }
}

/// The kubelet's thresholds as far as there is a kubelet.
fn kubelet(reader: &mut Reader<'_>, needed: bool, notes: &mut Vec<Problem>) -> Option<KubeletThresholds> {
    const FILE: &str = "pressure.kubelet-config";
    const DIRECTORY: &str = "pressure.kubelet-config-dir";
    let words = KubeletFilesystem::ALL.map(|filesystem| (filesystem.as_str(), filesystem));
    let filesystems =
        reader.value("pressure.kubelet-filesystems", read::list_of(read::one_of(&words))).unwrap_or_default();
    if filesystems.is_empty() {
        let message =
            "an empty list hides every threshold of the kubelet; write kubelet-config = false for that";
        reader.problem_with("pressure.kubelet-filesystems", message);
    }
    let drop_ins: Option<PathBuf> = reader.value(DIRECTORY, read::absolute_path);
    let Some(path) = reader.value(FILE, read::or_off(read::absolute_path)).flatten() else {
        if needed {
            reader.problem_with(
                FILE,
                "there is no kubelet for \"auto\" to follow; name its configuration file",
            );
        }
        return None;
    };
    let written = reader.place(FILE).is_some();
    match KubeletThresholds::load(Some(&path), drop_ins.as_deref()) {
        Ok(kubelet) => Some(kubelet.about(&filesystems)),
        Err(error) if error.is_missing() && !written && drop_ins.is_none() => {
            let assumed = if needed { "; \"auto\" assumes the kubelet's defaults" } else { "" };
            let message =
                format!("{path:?} does not exist, so the kubelet's thresholds are not known{assumed}");
            notes.push(Problem::of_file(&reader.file, FILE, message));
            needed.then(|| KubeletThresholds::defaults().about(&filesystems))
        }
        Err(error) => {
            let blamed = if written || drop_ins.is_none() { FILE } else { DIRECTORY };
            reader.problem_with(blamed, error.to_string());
            None
        }
    }
}
