//! Every key there is: what it means, its unit, its default, what zero means.
//!
//! The reader takes defaults from here and refuses keys that are not here, and docs/CONFIGURATION.md is printed
//! from here, so that code and documentation cannot differ.

/// A key of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Dotted; `[]` marks a list of tables, `*` any name.
    pub path: &'static str,
    /// What is accepted.
    pub accepts: &'static str,
    /// As TOML; empty where there is no default.
    pub default: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What zero means; empty where zero is not accepted or says nothing special.
    pub zero: &'static str,
}

const fn key(
    path: &'static str,
    accepts: &'static str,
    default: &'static str,
    meaning: &'static str,
    zero: &'static str,
) -> Key {
    Key { path, accepts, default, meaning, zero }
}

const BYTES_LEFT: &str = "bytes, a percentage, a list of them, `\"auto\"`, `false`";
const INODES_LEFT: &str = "inodes, a percentage, a list of them, `\"auto\"`, `false`";
const LEVEL: &str = "a table, or `false`";
const NEVER_BEGINS: &str = "the level never begins by this signal";
const COUNT: &str = "a whole number, `\"unlimited\"`";
const SIZE: &str = "bytes, `\"unlimited\"`";
const KEEP_NONE: &str = "none is kept";
const GLOB: &str = "a name or glob";

/// Every key, in the order of the documentation.
pub const KEYS: &[Key] = &[
    key(
        "directory[].path",
        "an absolute path",
        "",
        "A directory that checkpoints are written into. Needed.",
        "",
    ),
    key(
        "directory[].layout",
        "`\"archives\"`, `\"pod-checkpoints\"`, `\"staging\"`",
        "\"archives\"",
        "What a checkpoint is there: a tar file, a subdirectory (finished when nothing in it has changed for 10 s), or nothing of ours (an engine's work directory: \
         watched and forecast, never deleted from).",
        "",
    ),
    key(
        "directory[].optional",
        "`true`, `false`",
        "false",
        "It may be missing and appear later; until then it is only watched for.",
        "",
    ),
    key(
        "directory[].extent-size",
        "bytes (a multiple of 64 KiB), `false`",
        "\"16MiB\"",
        "xfs only. By itself xfs sets aside as much space again as a growing file has, until it is closed; the kubelet \
         counts that as used. The guard sets this extent size hint (`xfs_io -c extsize`) on the directory, unless it \
         has one already, so that a file created in it takes at most this much more than what is written, until it is \
         closed; up to 1 GiB of filesystem 2 MiB instead. On a busy disk small ones make writers and deletions wait for xfs \
         more often. `false`: the directory is left as it is, and the guard keeps 32 MiB more free while writers are \
         fast. Not in directories of layout `staging`.",
        "",
    ),
    key("pressure.soft", LEVEL, "", "Reclaim after a grace period. `false` switches the level off.", ""),
    key(
        "pressure.soft.available",
        BYTES_LEFT,
        "\"20%\"",
        "The level begins when less than this is available. Of a list the smallest counts; `false`: this signal \
         does not count for this level; `\"auto\"`: see below.",
        NEVER_BEGINS,
    ),
    key(
        "pressure.soft.inodes-free",
        INODES_LEFT,
        "\"10%\"",
        "The same for inodes. Filesystems without an inode total have no such signal.",
        NEVER_BEGINS,
    ),
    key(
        "pressure.soft.grace-period",
        "a duration",
        "\"30s\"",
        "How long a signal must be below its value before the level begins.",
        "at once",
    ),
    key("pressure.hard", LEVEL, "", "Reclaim at once. `false` switches the level off.", ""),
    key("pressure.hard.available", BYTES_LEFT, "\"15%\"", "As for soft.", NEVER_BEGINS),
    key("pressure.hard.inodes-free", INODES_LEFT, "\"7%\"", "As for soft.", NEVER_BEGINS),
    key(
        "pressure.critical",
        LEVEL,
        "",
        "Reclaim at once, the young and the last ones too. `false` switches the level off, and with it the brake.",
        "",
    ),
    key("pressure.critical.available", BYTES_LEFT, "\"11%\"", "As for soft.", NEVER_BEGINS),
    key("pressure.critical.inodes-free", INODES_LEFT, "\"6%\"", "As for soft.", NEVER_BEGINS),
    key(
        "pressure.minimum-reclaim.available",
        "bytes, a percentage, a list of them, `false`",
        "\"2%\"",
        "A reclaim goes this far past the threshold that was crossed.",
        "up to the threshold and no further",
    ),
    key(
        "pressure.minimum-reclaim.inodes-free",
        "inodes, a percentage, a list of them, `false`",
        "\"1%\"",
        "The same for inodes.",
        "up to the threshold and no further",
    ),
    key(
        "pressure.transition-period",
        "a duration",
        "\"1m\"",
        "A level is left only when its signals have been above their thresholds for so long.",
        "left as soon as the threshold is passed",
    ),
    key(
        "pressure.kubelet-config",
        "an absolute path, `false`",
        "\"/var/lib/kubelet/config.yaml\"",
        "The kubelet's configuration file, or what its `/configz` answered, saved. Its eviction thresholds are read \
         from here. When written, the file must exist; the default may be missing. `false`: there is no kubelet.",
        "",
    ),
    key(
        "pressure.kubelet-config-dir",
        "an absolute path",
        "",
        "The kubelet's drop-in directory (its `--config-dir`): every `*.conf` there is merged over the file, in \
         lexical order.",
        "",
    ),
    key(
        "pressure.kubelet-filesystems",
        "a list of `\"nodefs\"`, `\"imagefs\"`",
        "[\"nodefs\", \"imagefs\"]",
        "Which of the kubelet's filesystems the directories lie on. On a node with one disk they are the same, and \
         the larger threshold acts first. Name one where images have a disk of their own.",
        "",
    ),
    key(
        "eviction.order",
        "a list of order keys",
        "[\"incomplete\", \"least-protected\", \"orphan\", \"superseded\", \"fair-share\", \"oldest\", \"largest\"]",
        "Who goes first. The first key that tells two checkpoints apart decides.",
        "",
    ),
    key(
        "eviction.age-bucket",
        "a duration",
        "\"1h\"",
        "Ages within one bucket are equal, so that the keys after `oldest` can decide.",
        "ages differ by the nanosecond",
    ),
    key(
        "eviction.min-age",
        "a duration",
        "\"2m\"",
        "Younger ones are spared; at critical they go last.",
        "none is spared for its youth",
    ),
    key(
        "eviction.keep-last",
        "a whole number",
        "1",
        "The newest so many complete ones of each container are spared; at critical they go last.",
        "none is spared for being the last",
    ),
    key(
        "eviction.keep-together",
        "`\"chains\"`, `\"containers\"`, `false`",
        "\"chains\"",
        "Which checkpoints are kept or dropped as a whole: those that need each other (a pre-checkpoint and what builds on \
         it); all of one container, as a forensic series; none. See below.",
        "",
    ),
    key(
        "protection.default",
        "0 to 100",
        "50",
        "The protection of those for whom no rule is written. 100 is never evicted, 99 is rather not.",
        "no protection",
    ),
    key(
        "protection.namespaces.*",
        "0 to 100",
        "",
        "The protection of a namespace, or of all whose name the glob covers: `{ kube-system = 90, \"ci-*\" = 5 }`.",
        "no protection",
    ),
    key("protection.rule[].namespace", GLOB, "", "The rule is about these namespaces.", ""),
    key("protection.rule[].pod", GLOB, "", "The rule is about these pods.", ""),
    key(
        "protection.rule[].container",
        GLOB,
        "",
        "The rule is about these containers. A rule needs one of the three.",
        "",
    ),
    key("protection.rule[].protection", "0 to 100", "", "What they get. Needed.", "no protection"),
    key("retention[].namespace", GLOB, "", "The rule is about these namespaces; absent: all.", ""),
    key("retention[].pod", GLOB, "", "The rule is about these pods; absent: all.", ""),
    key("retention[].container", GLOB, "", "The rule is about these containers; absent: all.", ""),
    key("retention[].max-count.container", COUNT, "", "At most so many of each container.", KEEP_NONE),
    key("retention[].max-count.pod", COUNT, "", "At most so many of each pod.", KEEP_NONE),
    key("retention[].max-count.namespace", COUNT, "", "At most so many of each namespace.", KEEP_NONE),
    key(
        "retention[].max-total-size.container",
        SIZE,
        "",
        "At most so much of each container, together.",
        KEEP_NONE,
    ),
    key("retention[].max-total-size.pod", SIZE, "", "At most so much of each pod, together.", KEEP_NONE),
    key(
        "retention[].max-total-size.namespace",
        SIZE,
        "",
        "At most so much of each namespace, together.",
        KEEP_NONE,
    ),
    key("retention[].max-size", SIZE, "", "At most so large, each checkpoint.", KEEP_NONE),
    key(
        "retention[].max-age",
        "a duration, `\"unlimited\"`",
        "",
        "At most so old. For an hour after somebody has set the clock by more than a minute, nothing goes for its age alone.",
        KEEP_NONE,
    ),
    key(
        "retention[].retain-orphans",
        "`true`, `false`",
        "",
        "`false`: checkpoints whose pod is known to be gone are deleted. Without a rule they stay.",
        "",
    ),
    key(
        "staging.ahead",
        "bytes, a percentage, a list of them, `false`",
        "\"25%\"",
        "How much room at most is made ahead for archives that are on their way. An engine fills a directory of layout \
         `staging` before it writes the archive, which will be about as large; so the room for it is made while there is \
         time. `false`: staging directories are only watched.",
        "no room is made ahead",
    ),
    key(
        "brake.mode",
        "`\"auto\"`, `\"lsm\"`, `\"fanotify\"`, `\"off\"`",
        "\"auto\"",
        "How writes into the directories are refused at critical when nothing more may be deleted (docs/BRAKE.md). `auto`: BPF \
         LSM where it works, else fanotify, else none, which is said. A named mode that does not work is an error at the \
         start; another mode takes effect with the next start, `off` at once.",
        "",
    ),
    key(
        "probe.mode",
        "`\"auto\"`, `\"raw-tracepoint\"`, `\"fexit\"`, `\"kprobe\"`, `\"off\"`",
        "\"auto\"",
        "How writes are seen. A named backend that does not work here is an error; `auto` takes the next one down. \
         `off`: statfs and inotify only. `kprobe` lets the sandbox pass perf_event_open(2).",
        "",
    ),
    key(
        "kubernetes.mode",
        "`\"auto\"`, `\"on\"`, `\"off\"`",
        "\"auto\"",
        "Whether to ask the API server: for the Node's labels, annotations, and whether pods exist, and to publish Events. \
         `auto`: when there are credentials. `on` without any is an error at the start; a server that does not answer never is.",
        "",
    ),
    key(
        "kubernetes.kubeconfig",
        "an absolute path",
        "",
        "Credentials outside a pod; absent: the pod's service account, then `KUBECONFIG`.",
        "",
    ),
    key(
        "kubernetes.node-name",
        "a name",
        "",
        "The Node object of this machine; absent: `NODE_NAME`, then the host name.",
        "",
    ),
    key(
        "kubernetes.pool-labels",
        "a list of label keys",
        "[\"cloud.google.com/gke-nodepool\", \"eks.amazonaws.com/nodegroup\", \"kubernetes.azure.com/agentpool\", \
         \"agentpool\", \"karpenter.sh/nodepool\"]",
        "The first of these labels found on the Node names the pool, unless `--pool` or `CHECKPOINT_GUARD_POOL` does. \
         Read outside pools only.",
        "",
    ),
    key(
        "kubernetes.max-from-annotations",
        "0 to 100",
        "50",
        "The most that `checkpoint-guard.io/protection` and `checkpoint-guard.io/keep`, annotations of a Namespace or a Pod, \
         raise a protection to. They never lower what a rule gives.",
        "annotations are ignored",
    ),
    key(
        "kubernetes.state",
        "an absolute path, `\"off\"`",
        "\"/var/lib/checkpoint-guard/cluster.json\"",
        "Where what is known of the cluster is kept, for a start without the API server and for commands such as `plan`.",
        "",
    ),
    key(
        "kubernetes.events",
        "`true`, `false`",
        "true",
        "Whether to publish Events about the Node and its pods.",
        "",
    ),
    key(
        "notify.url",
        "an http or https URL",
        "",
        "Where each round of deletions is posted to as JSON (docs/NOTIFY.md). Absent: nowhere. The guard never waits for it; \
         what cannot be delivered within 10 min is dropped, and the audit log has everything in any case.",
        "",
    ),
    key(
        "notify.ca-file",
        "an absolute path",
        "",
        "Certificates (PEM) that the server of an https URL is checked with; absent: the system's, and in the image, which \
         has no system, Mozilla's.",
        "",
    ),
    key(
        "notify.token-file",
        "an absolute path",
        "",
        "A file whose content is sent as `Authorization: Bearer`; read anew for each try.",
        "",
    ),
    key(
        "notify.command",
        "a list of a program's absolute path and its arguments",
        "",
        "What is run before each deletion, to copy the checkpoint away first (docs/NOTIFY.md). Absent: nothing. The deletion \
         waits for it, but not at critical: there it is not run, and one that runs when critical comes is ended.",
        "",
    ),
    key(
        "notify.command-timeout",
        "a duration",
        "\"30s\"",
        "A command that takes longer is ended, with all that it started, and has failed.",
        "",
    ),
    key(
        "notify.command-failure",
        "`\"spare\"`, `\"delete\"`",
        "\"spare\"",
        "What becomes of a checkpoint whose command failed: it is spared and tried again, until critical, where it goes; or \
         it is deleted all the same.",
        "",
    ),
    key(
        "metrics.listen",
        "an address and port, `\"off\"`",
        "\"127.0.0.1:9477\"",
        "Where `/metrics`, `/healthz` and `/readyz` are served.",
        "port 0: any free port, which the log names",
    ),
    key(
        "socket.path",
        "an absolute path, `\"off\"`",
        "\"/run/checkpoint-guard/guard.sock\"",
        "Where `top`, `doctor` and other commands ask the running daemon: a unix socket that only root and the daemon's \
         own user can use. A directory that is not there is made for root alone; one where others may write is refused.",
        "",
    ),
    key(
        "audit.path",
        "an absolute path, `\"off\"`",
        "\"/var/log/checkpoint-guard/audit.jsonl\"",
        "The audit log.",
        "",
    ),
    key("audit.max-size", "bytes", "\"16MiB\"", "A file of the audit log is rotated at this size.", ""),
    key(
        "audit.keep",
        "a whole number",
        "4",
        "So many rotated files are kept beside the current one.",
        "only the current one",
    ),
    key(
        "sandbox.mode",
        "`\"auto\"`, `\"off\"`",
        "\"auto\"",
        "Whether the daemon limits itself, for good, before it opens an archive: capabilities, no_new_privs, Landlock, \
         seccomp, as far as the kernel has them (docs/SECURITY.md).",
        "",
    ),
    key(
        "sandbox.reach",
        "`\"parents\"`, `\"directories\"`",
        "\"parents\"",
        "Where Landlock lets checkpoints be read and deleted: below the parents of the directories, so that one may \
         appear, be replaced or be mounted over later; or below the directories as they are at the start only, and \
         then a restart is needed for that. A directory beyond reach that a changed configuration adds makes it \
         invalid until the next start.",
        "",
    ),
    key(
        "pool.*.extends",
        "a pool's name",
        "",
        "This pool begins with the values of that one instead of those outside any pool.",
        "",
    ),
];

/// The key at `path`, if there is one.
pub(super) fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The names that may stand directly in the table at `path` (empty: the document), each once.
pub(super) fn children(path: &str) -> impl Iterator<Item = &'static str> {
    let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
    let mut last = "";
    KEYS.iter().filter_map(move |key| {
        let name = key.path.strip_prefix(&prefix)?.split('.').next()?;
        let name = name.trim_end_matches("[]");
        (std::mem::replace(&mut last, name) != name).then_some(name)
    })
}

/// Whether `path` is a list of tables.
pub(super) fn is_list_of_tables(path: &str) -> bool {
    KEYS.iter().any(|key| key.path.strip_prefix(path).is_some_and(|rest| rest.starts_with("[].")))
}

/// Whether `path` is a table.
pub(super) fn is_table(path: &str) -> bool {
    KEYS.iter().any(|key| key.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// The key table as docs/CONFIGURATION.md shows it.
pub fn reference() -> String {
    let mut text = String::new();
    let mut section = "";
    for key in KEYS {
        let this = key.path.split(['.', '[']).next().unwrap_or(key.path);
        if this != section {
            section = this;
            text.push_str(&format!("\n### {}\n\n", heading(section)));
            text.push_str("| key | accepts | default | meaning | zero |\n| --- | --- | --- | --- | --- |\n");
        }
        let default = if key.default.is_empty() { String::new() } else { format!("`{}`", key.default) };
        text.push_str(&format!(
            "| `{}` | {} | {} | {} | {} |\n",
            key.path, key.accepts, default, key.meaning, key.zero
        ));
    }
    text
}

fn heading(section: &str) -> String {
    match section {
        "directory" | "retention" => format!("`[[{section}]]`"),
        "pool" => "`[pool.NAME]`".to_owned(),
        _ => format!("`[{section}]`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::raw::Raw;

    #[test]
    fn every_default_is_toml() {
        for key in KEYS.iter().filter(|key| !key.default.is_empty()) {
            Raw::literal(key.default);
        }
    }

    #[test]
    fn keys_of_one_table_stand_together() {
        let sections: Vec<_> = children("").collect();
        let mut once = sections.clone();
        once.sort();
        once.dedup();
        assert_eq!(sections.len(), once.len(), "{sections:?}");
    }
}
