//! Everything that is not policy: where checkpoints lie, how writes are seen, where to report.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::raw::{Raw, Value};
use super::read::{self, Reader};
use crate::model::{Amount, Bytes, Protection, Signal};

/// What a directory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Each tar file is a checkpoint.
    Archives,
    /// Each subdirectory is a checkpoint (KEP-5823).
    PodCheckpoints,
    /// An engine's work directory: watched and forecast, never deleted from.
    Staging,
}

impl Layout {
    /// The word for it in configuration and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Layout::Archives => "archives",
            Layout::PodCheckpoints => "pod-checkpoints",
            Layout::Staging => "staging",
        }
    }
}

/// One watched directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryConfig {
    /// Absolute.
    pub path: PathBuf,
    /// What it holds.
    pub layout: Layout,
    /// It may be missing.
    pub optional: bool,
    /// On xfs, files created here are given this extent size hint. `None`: the directory is left as it is.
    pub extent_size: Option<Bytes>,
}

/// How writes are refused when nothing more may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrakeMode {
    /// BPF LSM where the kernel has it, else fanotify.
    Auto,
    /// BPF LSM or an error.
    Lsm,
    /// fanotify permission events or an error.
    Fanotify,
    /// Never.
    Off,
}

impl BrakeMode {
    /// The word for it in configuration, logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            BrakeMode::Auto => "auto",
            BrakeMode::Lsm => "lsm",
            BrakeMode::Fanotify => "fanotify",
            BrakeMode::Off => "off",
        }
    }
}

/// How writes are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeMode {
    /// The best that works here.
    Auto,
    /// Raw tracepoints of the filesystems, or an error.
    RawTracepoint,
    /// fexit on the VFS, or an error.
    Fexit,
    /// kprobes on the VFS, or an error.
    Kprobe,
    /// statfs and inotify only.
    Off,
}

impl ProbeMode {
    /// The word for it in configuration, logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            ProbeMode::Auto => "auto",
            ProbeMode::RawTracepoint => "raw-tracepoint",
            ProbeMode::Fexit => "fexit",
            ProbeMode::Kprobe => "kprobe",
            ProbeMode::Off => "off",
        }
    }
}

/// Whether to ask the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubernetesMode {
    /// When there are credentials.
    Auto,
    /// Or an error.
    On,
    /// Never.
    Off,
}

/// `[kubernetes]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// Whether to ask the API server.
    pub mode: KubernetesMode,
    /// Credentials; `None`: the service account, then `KUBECONFIG`.
    pub kubeconfig: Option<PathBuf>,
    /// The Node object; `None`: `NODE_NAME`, then the host name.
    pub node_name: Option<String>,
    /// Labels of the Node that may name the pool, first one first.
    pub pool_labels: Vec<String>,
    /// The most that an annotation of a Namespace or a Pod can raise a protection to; zero: annotations are ignored.
    pub max_from_annotations: Protection,
    /// Where what is known is kept; `None`: nowhere.
    pub state: Option<PathBuf>,
    /// Whether Events are published.
    pub events: bool,
}

/// Where rounds are posted to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookConfig {
    /// http or https, with a host.
    pub url: String,
    /// The URL as it may be shown: scheme, host and port. The rest may be a secret.
    pub shown: String,
    /// The TCP port.
    pub port: u16,
    /// Certificates to check the server with; `None`: the system's.
    pub ca_file: Option<PathBuf>,
    /// What identifies us to it.
    pub token_file: Option<PathBuf>,
}

/// What becomes of a checkpoint whose command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandFailure {
    /// It is spared, below critical.
    Spare,
    /// It is deleted all the same.
    Delete,
}

/// What is run before each deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandConfig {
    /// The program, by its absolute path.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// It is ended after so long.
    pub timeout: Duration,
    /// What its failure means.
    pub failure: CommandFailure,
}

/// `[notify]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotifyConfig {
    /// `None`: rounds are posted nowhere.
    pub webhook: Option<WebhookConfig>,
    /// `None`: nothing is run.
    pub command: Option<CommandConfig>,
}

/// `[metrics]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsConfig {
    /// `None`: nothing is served.
    pub listen: Option<SocketAddr>,
}

/// `[socket]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketConfig {
    /// `None`: there is none, and `top` has nobody to ask.
    pub path: Option<PathBuf>,
}

/// `[audit]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// `None`: no audit log.
    pub path: Option<PathBuf>,
    /// A file is rotated at this size.
    pub max_size: Bytes,
    /// Rotated files kept beside the current one.
    pub keep: u32,
}

pub(super) fn staging_ahead(reader: &mut Reader<'_>) -> Option<Amount> {
    reader.value("staging.ahead", read::or_off(|raw| read::amount(raw, Signal::Available))).flatten()
}

/// xfs takes multiples of its blocks, which have at most 64 KiB.
fn extent_size(raw: &Raw) -> Result<Bytes, String> {
    const STEP: Bytes = Bytes(64 << 10);
    const MAX: Bytes = Bytes::gib(1);
    match read::bytes(raw)? {
        size if size >= STEP && size <= MAX && size.0 % STEP.0 == 0 => Ok(size),
        size => Err(format!(
            "{size} is not accepted; write a multiple of 64 KiB up to 1 GiB such as \"1MiB\", or false"
        )),
    }
}

/// Whether the daemon limits itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxMode {
    /// As far as the kernel can.
    Auto,
    /// Not at all.
    Off,
}

/// Below which paths Landlock lets checkpoints be read and deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxReach {
    /// The parents of the configured directories: one may appear, be replaced or be mounted over later.
    Parents,
    /// The directories as they are at the start. Whatever takes the place of one needs a restart.
    Directories,
}

/// `[sandbox]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxConfig {
    /// Whether there is one.
    pub mode: SandboxMode,
    /// How far it reaches.
    pub reach: SandboxReach,
}

pub(super) fn directories(reader: &mut Reader<'_>) -> Vec<DirectoryConfig> {
    const SCHEMA: &str = "directory[]";
    let layouts =
        [Layout::Archives, Layout::PodCheckpoints, Layout::Staging].map(|layout| (layout.as_str(), layout));
    let mut found: Vec<(DirectoryConfig, &Raw)> = Vec::new();
    for (index, raw) in reader.tables("directory").iter().enumerate() {
        let key = format!("directory[{index}]");
        if raw.get("path").is_none() {
            reader.problem(raw, &key, "path is missing; write path = \"/var/lib/kubelet/checkpoints\"");
        }
        let path = reader.member(raw, (&key, SCHEMA, "path"), directory_path);
        let layout = reader.member(raw, (&key, SCHEMA, "layout"), read::one_of(&layouts));
        let optional = reader.member(raw, (&key, SCHEMA, "optional"), read::truth);
        let extent_size = reader.member(raw, (&key, SCHEMA, "extent-size"), read::or_off(extent_size));
        let (Some(path), Some(layout), Some(optional), Some(extent_size)) =
            (path, layout, optional, extent_size)
        else {
            continue;
        };
        if let Some((earlier, first)) = found
            .iter()
            .find(|(earlier, _)| earlier.path.starts_with(&path) || path.starts_with(&earlier.path))
        {
            let line = first.place.as_ref().map_or(0, |place| place.line);
            let relation = if earlier.path == path { "is the same directory as" } else { "overlaps with" };
            let message = format!(
                "{path:?} {relation} {:?} on line {line}; each directory stands here once",
                earlier.path
            );
            reader.problem(raw.get("path").unwrap_or(raw), &format!("{key}.path"), message);
        }
        found.push((DirectoryConfig { path, layout, optional, extent_size }, raw));
    }
    let written_wrong = reader.written("directory").is_some_and(|raw| match &raw.value {
        Value::List(members) => !members.is_empty(),
        _ => true,
    });
    if !written_wrong {
        reader.problem_with(
            "directory",
            "no directory to watch; write [[directory]] and path = \"/var/lib/kubelet/checkpoints\"",
        );
    }
    found.into_iter().map(|(directory, _)| directory).collect()
}

/// An absolute path without detours: what is compared with it later is compared by text.
fn directory_path(raw: &Raw) -> Result<PathBuf, String> {
    let path = read::absolute_path(raw)?;
    if path.components().any(|part| matches!(part, std::path::Component::ParentDir)) {
        return Err(format!("{path:?} goes up with \"..\"; write the path without detours"));
    }
    if path.parent().is_none() {
        return Err(
            "\"/\" is not a checkpoint directory; write the directory that checkpoints are written into"
                .into(),
        );
    }
    // Collecting the components drops "//", "/./" and a slash at the end.
    Ok(path.components().collect())
}

pub(super) fn brake(reader: &mut Reader<'_>) -> BrakeMode {
    use BrakeMode::*;
    let words = [Auto, Lsm, Fanotify, Off].map(|mode| (mode.as_str(), mode));
    reader.value("brake.mode", read::one_of(&words)).unwrap_or(Auto)
}

pub(super) fn probe(reader: &mut Reader<'_>) -> ProbeMode {
    use ProbeMode::*;
    let words = [Auto, RawTracepoint, Fexit, Kprobe, Off].map(|mode| (mode.as_str(), mode));
    reader.value("probe.mode", read::one_of(&words)).unwrap_or(Auto)
}

pub(super) fn kubernetes(reader: &mut Reader<'_>) -> KubernetesConfig {
    use KubernetesMode::*;
    let words = [("auto", Auto), ("on", On), ("off", Off)];
    const LABELS: &str = "kubernetes.pool-labels";
    if reader.written(LABELS).is_some_and(|raw| raw.pool.is_some()) {
        reader.problem_with(LABELS, "a pool cannot say how the pool is found; write it outside any pool");
    }
    KubernetesConfig {
        mode: reader.value("kubernetes.mode", read::one_of(&words)).unwrap_or(Auto),
        kubeconfig: reader.value("kubernetes.kubeconfig", read::absolute_path),
        node_name: reader.value("kubernetes.node-name", read::text),
        pool_labels: reader.value(LABELS, read::list_of(read::text)).unwrap_or_default(),
        max_from_annotations: reader
            .value("kubernetes.max-from-annotations", read::protection)
            .unwrap_or_default(),
        state: reader.value("kubernetes.state", read::or_off(read::absolute_path)).flatten(),
        events: reader.value("kubernetes.events", read::truth).unwrap_or(true),
    }
}

pub(super) fn notify(reader: &mut Reader<'_>) -> NotifyConfig {
    let url = reader.value("notify.url", webhook_url);
    let ca_file = reader.value("notify.ca-file", read::absolute_path);
    let token_file = reader.value("notify.token-file", read::absolute_path);
    let webhook = url.map(|(url, shown, port)| WebhookConfig {
        url,
        shown,
        port,
        ca_file: ca_file.clone(),
        token_file,
    });
    if let (Some(webhook), Some(_)) = (&webhook, &ca_file)
        && !webhook.url.starts_with("https:")
    {
        reader.problem_with("notify.ca-file", "notify.url is not https: there is no certificate to check");
    }
    let words = [("spare", CommandFailure::Spare), ("delete", CommandFailure::Delete)];
    let failure = reader.value("notify.command-failure", read::one_of(&words));
    let timeout = reader.value("notify.command-timeout", command_timeout);
    let command = reader.value("notify.command", command).map(|(program, arguments)| CommandConfig {
        program,
        arguments,
        timeout: timeout.unwrap_or_default(),
        failure: failure.unwrap_or(CommandFailure::Spare),
    });
    NotifyConfig { webhook, command }
}

/// The URL, how it may be shown, and its port.
fn webhook_url(raw: &Raw) -> Result<(String, String, u16), String> {
    let text = read::text(raw)?;
    // The rest of it may be a secret, so it is not quoted.
    let refuse = || "is no URL; write for example \"https://hooks.example.com/checkpoints\"".to_owned();
    let url: hyper::Uri = text.parse().map_err(|_| refuse())?;
    let (scheme, host) = (url.scheme_str().ok_or_else(refuse)?, url.host().ok_or_else(refuse)?);
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return Err(format!("{scheme}: is not accepted; write http:// or https://")),
    };
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("a name and password in a URL are sent nowhere; write a token into token-file".to_owned());
    }
    let port = url.port_u16().unwrap_or(usual);
    Ok((text, format!("{scheme}://{host}:{port}"), port))
}

fn command(raw: &Raw) -> Result<(PathBuf, Vec<String>), String> {
    let refuse =
        || "write a list such as [\"/usr/local/bin/copy-away\", \"--fast\"]; no shell is involved".to_owned();
    let Value::List(items) = &raw.value else { return Err(refuse()) };
    let (program, arguments) = items.split_first().ok_or_else(refuse)?;
    let argument = |raw: &Raw| match &raw.value {
        Value::Text(text) => Ok(text.clone()),
        _ => Err(refuse()),
    };
    Ok((read::absolute_path(program)?, arguments.iter().map(argument).collect::<Result<_, _>>()?))
}

fn command_timeout(raw: &Raw) -> Result<Duration, String> {
    const MAX: Duration = Duration::from_secs(3600);
    match read::duration(raw)? {
        time if time.is_zero() || time > MAX => {
            Err(format!("{} is not accepted; write a duration up to \"1h\"", raw.value))
        }
        time => Ok(time),
    }
}

pub(super) fn metrics(reader: &mut Reader<'_>) -> MetricsConfig {
    MetricsConfig { listen: reader.value("metrics.listen", read::or_off(read::address)).flatten() }
}

pub(super) fn socket(reader: &mut Reader<'_>) -> SocketConfig {
    // `sun_path` in unix(7), with the zero at its end.
    const PATH_MAX: usize = 107;
    let path = |raw: &Raw| match read::absolute_path(raw)? {
        path if path.as_os_str().len() > PATH_MAX => {
            Err(format!("the path is longer than the {PATH_MAX} bytes that a unix socket may have"))
        }
        path if path.file_name().is_none() => {
            Err(format!("{path:?} names no file; write for example \"/run/checkpoint-guard/guard.sock\""))
        }
        path => Ok(path),
    };
    SocketConfig { path: reader.value("socket.path", read::or_off(path)).flatten() }
}

pub(super) fn sandbox(reader: &mut Reader<'_>) -> SandboxConfig {
    let modes = [("auto", SandboxMode::Auto), ("off", SandboxMode::Off)];
    let reaches = [("parents", SandboxReach::Parents), ("directories", SandboxReach::Directories)];
    SandboxConfig {
        mode: reader.value("sandbox.mode", read::one_of(&modes)).unwrap_or(SandboxMode::Auto),
        reach: reader.value("sandbox.reach", read::one_of(&reaches)).unwrap_or(SandboxReach::Parents),
    }
}

pub(super) fn audit(reader: &mut Reader<'_>) -> AuditConfig {
    // A line of the log is below 4 KiB; a file that holds fewer than a few of them rotates without end.
    let size = |raw: &Raw| match read::bytes(raw)? {
        bytes if bytes < Bytes(64 << 10) => {
            Err(format!("{} is too small; the smallest is \"64KiB\"", raw.value))
        }
        bytes => Ok(bytes),
    };
    AuditConfig {
        path: reader.value("audit.path", read::or_off(read::absolute_path)).flatten(),
        max_size: reader.value("audit.max-size", size).unwrap_or_default(),
        keep: reader.value("audit.keep", read::count).unwrap_or_default(),
    }
}
