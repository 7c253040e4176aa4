//! What a configuration needs of the system, with the reason for each: what [`super::enter`] leaves.
//!
//! Whoever adds a feature that opens, calls or listens adds it here.

use std::path::{Component, Path, PathBuf};

use caps::Capability::{self, *};

use super::calls::Feature;
use super::looks;
use crate::config::{BrakeMode, Config, KubernetesMode, ProbeMode, SandboxReach};
use crate::observe::host::kernel::Kernel;
use crate::trust;

/// What is done with the files below a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Written and rotated: the audit log, and what is known of the cluster.
    Log,
    /// Read, moved aside, deleted.
    Checkpoints,
}

/// A path that is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathNeed {
    /// The file or directory.
    pub path: PathBuf,
    /// What is done below it.
    pub access: Access,
}

/// Whom to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connect {
    /// These TCP ports; none: nobody.
    Ports(Vec<u16>),
    /// A server that is only known later.
    Anywhere,
}

/// Everything that is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Capabilities of the guard, and what for.
    pub capabilities: Vec<(Capability, &'static str)>,
    /// Files.
    pub paths: Vec<PathNeed>,
    /// The TCP port that is listened on.
    pub bind: Option<u16>,
    /// Where to connect to.
    pub connect: Connect,
    /// Which system calls.
    pub features: Vec<Feature>,
}

/// The API server's port, as the kubelet tells every pod.
const API_SERVER_PORT: &str = "KUBERNETES_SERVICE_PORT";
/// Another kubeconfig than the configured one.
const KUBECONFIG: &str = "KUBECONFIG";

impl Needs {
    /// What `config`, which was read from `config_path`, needs on this machine.
    pub fn of(config: &Config, config_path: &Path) -> Needs {
        let is_low = |port: &u16| (1..1024).contains(port);
        let bind = config.metrics.listen.map(|address| address.port());
        let mut features = vec![Feature::Always];
        let mut capabilities = vec![
            (CAP_SYS_NICE, "SCHED_FIFO: a busy node must not delay making room"),
            (CAP_LEASE, "prove that nobody has an archive open, also of one that is not root's"),
            (CAP_DAC_OVERRIDE, "archives and pod checkpoints that are not root's"),
            (
                CAP_FOWNER,
                "the same where directories are sticky, and reading without a trace in their access times",
            ),
        ];
        let may_refuse_by_lsm = matches!(config.brake, BrakeMode::Auto | BrakeMode::Lsm);
        if config.probe != ProbeMode::Off || may_refuse_by_lsm {
            features.push(Feature::Probe);
            capabilities.push((
                CAP_BPF,
                "load the programs that count what is written, and use their maps (Linux 5.8)",
            ));
            capabilities.push((
                CAP_PERFMON,
                "attach them to tracepoints and read kernel memory from them (Linux 5.8)",
            ));
            if !has_bpf_capability() {
                capabilities.push((CAP_SYS_ADMIN, "the same before Linux 5.8"));
            }
        }
        if may_use_kprobes(config.probe, Kernel::here().version()) {
            features.push(Feature::Kprobes);
        }
        if bind.as_ref().is_some_and(is_low) {
            capabilities.push((CAP_NET_BIND_SERVICE, "[metrics] listen on a port below 1024"));
        }
        if may_brake_by_fanotify(config) {
            features.push(Feature::Fanotify);
        }
        if config.kubernetes.mode != KubernetesMode::Off {
            features.push(Feature::Kubernetes);
        }
        if config.notify.webhook.is_some() {
            features.push(Feature::Webhook);
        }
        if config.notify.command.is_some() {
            features.push(Feature::Command);
        }
        Needs { capabilities, paths: paths(config, config_path), bind, connect: connect(config), features }
    }

    /// Makes the directories of the audit log and of what is known of the cluster where they are missing: once
    /// inside, they could not be made. Those on a filesystem that hangs are needed no longer.
    pub(super) fn make_directories(&mut self) {
        use std::os::unix::fs::DirBuilderExt as _;
        let (logs, others): (Vec<_>, Vec<_>) =
            self.paths.drain(..).partition(|need: &PathNeed| need.access == Access::Log);
        self.paths = others;
        let directories: Vec<_> = logs.iter().map(|need| need.path.clone()).collect();
        // Err: told by the audit log when it is opened.
        let make =
            |path: &PathBuf| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).is_ok();
        for (need, answer) in logs.into_iter().zip(looks::at_each(&directories, make)) {
            match answer {
                Some(_) => self.paths.push(need),
                None => looks::say_left_out(&need.path),
            }
        }
    }
}

/// Capabilities of the process that looks through /proc.
pub(super) const FINDER_CAPABILITIES: &[(Capability, &str)] = &[
    (CAP_SYS_PTRACE, "say who has a checkpoint open: /proc/<pid>/fd of others"),
    (CAP_CHECKPOINT_RESTORE, "the same for mappings: /proc/<pid>/map_files (Linux 5.9)"),
    (CAP_DAC_OVERRIDE, "the same of processes that are not root's"),
];

/// Capabilities of the process that starts the brake's helper, and of the helper.
pub(super) const STARTER_CAPABILITIES: &[(Capability, &str)] = &[
    (CAP_SYS_ADMIN, "permission events (fanotify_init(2))"),
    (CAP_SYS_PTRACE, "whether the file is opened for writing: the arguments of the call that waits"),
    (CAP_LEASE, "whether a refused creation's file is open, also of one that is not root's"),
    (CAP_DAC_OVERRIDE, "directories that are not root's"),
    (CAP_SYS_NICE, "SCHED_FIFO: somebody waits for each answer"),
];

/// Capabilities of the process that runs the command before a deletion, and of the command.
pub(super) const RUNNER_CAPABILITIES: &[(Capability, &str)] = &[
    (CAP_DAC_OVERRIDE, "read archives that are not root's, and write the copy"),
    (CAP_FOWNER, "keep the times and the mode of what is copied"),
];

/// Whether kprobes may be used: when they are asked for, and where they come before fexit because that does not see io_uring.
fn may_use_kprobes(mode: ProbeMode, kernel: (u32, u32)) -> bool {
    mode == ProbeMode::Kprobe || mode == ProbeMode::Auto && kernel < TELLS_IO_URING
}

/// From then on io_uring's tracepoint certainly tells which request is complete; 5.10's does not.
const TELLS_IO_URING: (u32, u32) = (6, 1);

/// Whether `config` lets writers be refused by fanotify.
pub(super) fn may_brake_by_fanotify(config: &Config) -> bool {
    matches!(config.brake, BrakeMode::Auto | BrakeMode::Fanotify)
}

fn paths(config: &Config, config_path: &Path) -> Vec<PathNeed> {
    let mut needs: Vec<PathNeed> = Vec::new();
    let mut need = |path: PathBuf, access| {
        let need = PathNeed { path, access };
        if !needs.contains(&need) {
            needs.push(need);
        }
    };
    for anchor in anchors(config) {
        need(anchor, Access::Checkpoints);
    }
    if let Some(log) = config.audit.path.as_deref().and_then(Path::parent) {
        need(log.to_owned(), Access::Log);
    }
    // The directory and not the file: editors and the kubelet replace it.
    need(folder_of(config_path), Access::Read);
    if let Ok(target) = config_path.canonicalize() {
        need(folder_of(&target), Access::Read);
    }
    for file in config.kubelet.iter().flat_map(|kubelet| &kubelet.files) {
        match config.sandbox.reach {
            // It is replaced rather than written, and then it is another file.
            SandboxReach::Parents => need(folder_of(file), Access::Read),
            // The kubelet's keys lie beside it.
            SandboxReach::Directories => need(file.clone(), Access::Read),
        }
    }
    // The process itself, and the kernel's version; type information for eBPF, what btrfs owes.
    for system in ["/proc", "/sys"] {
        need(system.into(), Access::Read);
    }
    // Whose container a writer is: the names of the kubelet's logs say it.
    for logs in ["/var/log/containers", "/var/log/pods"] {
        need(logs.into(), Access::Read);
    }
    if config.kubernetes.mode != KubernetesMode::Off || config.notify.webhook.is_some() {
        let resolver =
            ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"];
        let certificates = ["/etc/ssl", "/usr/share/ca-certificates", "/etc/pki"];
        let system = resolver.into_iter().chain(certificates).map(PathBuf::from);
        for path in system.chain(trust::named_places()) {
            need(path, Access::Read);
        }
    }
    if let Some(webhook) = &config.notify.webhook {
        // The directory and not the file: a mounted Secret is a link that is replaced.
        for file in webhook.ca_file.iter().chain(&webhook.token_file) {
            need(folder_of(file), Access::Read);
        }
    }
    if config.kubernetes.mode != KubernetesMode::Off {
        need("/var/run/secrets/kubernetes.io".into(), Access::Read);
        // What is known of the cluster is written beside the old file, and then replaces it.
        if let Some(state) = config.kubernetes.state.as_deref().and_then(Path::parent) {
            need(state.to_owned(), Access::Log);
        }
        // Certificates and keys stand beside it.
        for kubeconfig in config.kubernetes.kubeconfig.clone().into_iter().chain(kubeconfig()) {
            need(folder_of(&kubeconfig), Access::Read);
        }
    }
    needs
}

/// What stands for each checkpoint directory: a rule is tied to an inode, so one for the directory itself would not hold for
/// what is mounted over it, what replaces it, or what appears later; one for its parent does. None for a directory whose
/// filesystem hangs: nothing can be opened there to make a rule of.
fn anchors(config: &Config) -> Vec<PathBuf> {
    let directories: Vec<_> = config.directories.iter().map(|it| it.path.clone()).collect();
    let found = looks::at_each(&directories, |directory| {
        let mut above = directory.ancestors().skip(1);
        above.find(|ancestor| ancestor.is_dir()).unwrap_or(Path::new("/")).to_owned()
    });
    let anchors = directories.into_iter().zip(found).filter_map(|(directory, parent)| {
        let Some(parent) = parent else {
            looks::say_left_out(&directory);
            return None;
        };
        Some(match config.sandbox.reach {
            // A rule for the root directory would be none.
            SandboxReach::Parents if parent != Path::new("/") => parent,
            _ => directory,
        })
    });
    anchors.collect()
}

fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if folder.as_os_str().is_empty() => PathBuf::from("."),
        // Not everything.
        Some(folder) if folder == Path::new("/") => file.to_owned(),
        Some(folder) => folder.to_owned(),
        None => file.to_owned(),
    }
}

fn connect(config: &Config) -> Connect {
    let webhook = config.notify.webhook.as_ref().map(|webhook| webhook.port);
    // 53: a resolver whose answer is too long for a datagram.
    let resolver = webhook.map(|_| 53);
    if config.kubernetes.mode == KubernetesMode::Off {
        return Connect::Ports(webhook.into_iter().chain(resolver).collect());
    }
    // A kubeconfig names its server by a URL, which is not read here.
    if config.kubernetes.kubeconfig.is_some() || kubeconfig().is_some() {
        return Connect::Anywhere;
    }
    let port = std::env::var(API_SERVER_PORT).ok().and_then(|port| port.parse().ok());
    Connect::Ports(port.into_iter().chain(webhook).chain([53]).collect())
}

fn kubeconfig() -> Option<PathBuf> {
    std::env::var_os(KUBECONFIG).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Linux 5.8 split CAP_BPF off CAP_SYS_ADMIN.
fn has_bpf_capability() -> bool {
    caps::runtime::thread_all_supported().contains(&CAP_BPF)
}

/// `path` with its links followed as far as it exists, and without `..` in the rest.
pub(super) fn resolve(path: &Path) -> PathBuf {
    let existing = path.ancestors().find_map(|ancestor| Some((ancestor, ancestor.canonicalize().ok()?)));
    let Some((ancestor, resolved)) = existing else { return path.to_owned() };
    let rest = path.strip_prefix(ancestor).unwrap_or(Path::new(""));
    rest.components().fold(resolved, |mut path, component| {
        match component {
            Component::Normal(name) => path.push(name),
            Component::ParentDir => drop(path.pop()),
            _ => {}
        }
        path
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigFile;

    fn needs(text: &str) -> Needs {
        let text = format!("{text}\n[[directory]]\npath = \"/var/lib/kubelet/checkpoints\"\n");
        let file = ConfigFile::parse(&text, Path::new("guard.toml")).unwrap();
        Needs::of(&file.effective(None).unwrap(), Path::new("/etc/checkpoint-guard/guard.toml"))
    }

    fn has(needs: &Needs, capability: Capability) -> bool {
        needs.capabilities.iter().any(|(it, _)| *it == capability)
    }

    #[test]
    fn nobody_keeps_what_would_make_him_root_again() {
        let needs = needs("kubernetes.mode = \"off\"");
        for capability in
            [CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYS_MODULE, CAP_SETUID, CAP_SYS_RAWIO, CAP_NET_ADMIN]
        {
            assert!(!has(&needs, capability), "{capability}");
        }
        assert!(FINDER_CAPABILITIES.iter().all(|(it, _)| *it != CAP_SYS_ADMIN && *it != CAP_BPF));
    }

    #[test]
    fn a_feature_that_is_off_needs_nothing() {
        let off = needs(
            "kubernetes.mode = \"off\"\nprobe.mode = \"off\"\nmetrics.listen = \"off\"\naudit.path = \"off\"\nbrake.mode = \"off\"",
        );
        assert_eq!(off.features, [Feature::Always]);
        assert!(!has(&off, CAP_BPF) && !has(&off, CAP_PERFMON));
        assert_eq!((off.bind, &off.connect), (None, &Connect::Ports(Vec::new())));
        assert!(
            off.paths.iter().all(|need| need.access != Access::Log && !need.path.starts_with("/etc/ssl"))
        );
        let told = needs("kubernetes.mode = \"off\"\nnotify.url = \"https://hooks.example.com:8443/x\"");
        assert_eq!(told.connect, Connect::Ports(vec![8443, 53]));
        assert!(told.features.contains(&Feature::Webhook) && !told.features.contains(&Feature::Kubernetes));
        let low = needs("metrics.listen = \"127.0.0.1:80\"");
        assert!(has(&low, CAP_NET_BIND_SERVICE) && low.bind == Some(80));
        // Permission events are asked for by the starter and the helper it starts, never by the guard.
        let fanotify = needs("brake.mode = \"fanotify\"");
        assert!(!has(&fanotify, CAP_SYS_ADMIN) && fanotify.features.contains(&Feature::Fanotify));
    }

    #[test]
    fn kprobes_are_let_in_where_they_are_asked_for_or_see_more() {
        assert!(may_use_kprobes(ProbeMode::Kprobe, (7, 3)) && may_use_kprobes(ProbeMode::Auto, (5, 10)));
        for mode in [ProbeMode::Fexit, ProbeMode::RawTracepoint, ProbeMode::Off] {
            assert!(!may_use_kprobes(mode, (5, 10)), "{mode:?}");
        }
        assert!(!may_use_kprobes(ProbeMode::Auto, (6, 1)));
        assert!(needs("probe.mode = \"kprobe\"").features.contains(&Feature::Kprobes));
    }

    #[test]
    fn the_root_directory_is_never_given_away() {
        let root = |text: &str| needs(text).paths.iter().any(|need| need.path == Path::new("/"));
        assert!(!root("[[directory]]\npath = \"/no-such-directory\""));
        assert!(!root("[[directory]]\npath = \"/no-such/directory\""));
        assert!(!root("sandbox.reach = \"directories\""));
    }
}
