//! What the path of a control group says: the pod's uid and the container's id.
//!
//! The forms differ by engine (containerd, CRI-O, podman, docker), by the kubelet's driver (systemd's slices and scopes, or
//! plain directories), by version of the hierarchy, and by what lies around (a node that is itself a container, a private
//! cgroup namespace that shows the rest as `..`). They agree in this: a pod's group is called `pod` and its uid, a
//! container's group is called by its id of 64 hexadecimal digits, with the engine's name before it or not.

/// What a control group belongs to. Nothing is known of a service of the node itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Workload {
    /// The pod's uid as Kubernetes writes it, with dashes; a static pod's is 32 digits without.
    pub pod_uid: Option<String>,
    /// The container's id, 64 hexadecimal digits.
    pub container: Option<String>,
    /// The process watches the container from outside (conmon), it is not in it.
    pub is_monitor: bool,
}

impl Workload {
    /// Whether anything is known.
    pub fn is_known(&self) -> bool {
        self.pod_uid.is_some() || self.container.is_some()
    }

    /// More is better: pod and container, container alone, pod alone, nothing.
    pub(super) fn rank(&self) -> u8 {
        2 * u8::from(self.container.is_some()) + u8::from(self.pod_uid.is_some())
    }
}

/// Reads a control group's path, of either version of the hierarchy, relative to whatever root.
///
/// Of pods within pods (a node that runs as a pod), the outermost counts: it is the one that this node's kubelet knows. The
/// container is the first one below its pod; without a pod, the innermost.
pub fn of_path(path: &str) -> Workload {
    let path = path.trim_end().trim_end_matches(DELETED);
    let mut found = Workload::default();
    // containerd given systemd's paths for plain directories: `kubepods-burstable-pod<uid>.slice:cri-containerd:<id>`.
    for part in path.split(['/', ':']).filter(|part| !part.is_empty()) {
        if let Some(uid) = pod_uid(part).filter(|_| found.pod_uid.is_none()) {
            found = Workload { pod_uid: Some(uid), ..Workload::default() };
        } else if let Some((prefix, id)) = container_id(part)
            && (found.pod_uid.is_none() || found.container.is_none())
        {
            found.container = Some(id.to_owned());
            found.is_monitor = prefix.ends_with("conmon-");
        }
    }
    found
}

/// Whether `text` is what every engine calls a container: 64 hexadecimal digits.
pub fn is_container_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What the kernel appends to the path of a removed group (`/proc/PID/cgroup`, cgroups(7)).
const DELETED: &str = " (deleted)";

/// `pod<uid>`, or systemd's `…-pod<uid>.slice`, where the uid's dashes are underscores (a dash would mean a slice below).
fn pod_uid(part: &str) -> Option<String> {
    let part = part.strip_suffix(".slice").unwrap_or(part);
    let (before, uid) = part.rsplit_once("pod")?;
    let is_whole_word = before.is_empty() || before.ends_with('-');
    (is_whole_word && is_uid(uid)).then(|| uid.replace('_', "-"))
}

/// A UUID (8-4-4-4-12), or a static pod's hash (32 digits).
fn is_uid(text: &str) -> bool {
    let is_hex = |text: &str, len: usize| text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit());
    let groups: Vec<&str> = text.split(['-', '_']).collect();
    match groups[..] {
        [whole] => is_hex(whole, 32),
        [a, b, c, d, e] => is_hex(a, 8) && is_hex(b, 4) && is_hex(c, 4) && is_hex(d, 4) && is_hex(e, 12),
        _ => false,
    }
}

/// The engine's prefix and the id of `<id>`, `<engine>-<id>`, `<engine>-<id>.scope`.
fn container_id(part: &str) -> Option<(&str, &str)> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let (prefix, id) = part.split_at_checked(part.len().checked_sub(64)?)?;
    let is_engine = prefix.is_empty()
        || prefix.ends_with('-') && prefix.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    (is_engine && is_container_id(id)).then_some((prefix, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "19799841-684a-43df-95e8-50ad687b8d68";
    const UID_: &str = "19799841_684a_43df_95e8_50ad687b8d68";
    const STATIC: &str = "0123456789abcdef0123456789abcdef";
    const A: &str = "2540fdaa9dd148c3096a1f4c1a07eb2cbdd6a22aaed07a589d538a4dc1b7c4f3";
    const B: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";

    /// `{u}`, `{_}`, `{s}`, `{a}` and `{b}` stand for the ids above.
    #[track_caller]
    fn check(path: &str, pod_uid: Option<&str>, container: Option<&str>) {
        check_all(path, pod_uid, container, false);
    }

    #[track_caller]
    fn check_all(path: &str, pod_uid: Option<&str>, container: Option<&str>, is_monitor: bool) {
        let whole = [("{u}", UID), ("{_}", UID_), ("{s}", STATIC), ("{a}", A), ("{b}", B)]
            .iter()
            .fold(path.to_owned(), |path, (word, id)| path.replace(word, id));
        let expect = Workload {
            pod_uid: pod_uid.map(str::to_owned),
            container: container.map(str::to_owned),
            is_monitor,
        };
        assert_eq!(of_path(&whole), expect, "{path}");
    }

    #[test]
    fn the_kubelet_with_systemd() {
        let burstable = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_}.slice";
        let guaranteed = "/kubepods.slice/kubepods-pod{_}.slice";
        let best_effort = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{s}.slice";
        for (pod, uid) in [(burstable, UID), (guaranteed, UID), (best_effort, STATIC)] {
            check(pod, Some(uid), None);
            for engine in ["cri-containerd", "crio", "docker", "libpod", "nerdctl"] {
                check(&format!("{pod}/{engine}-{{a}}.scope"), Some(uid), Some(A));
            }
            check(&format!("{pod}/crio-{{a}}.scope/container"), Some(uid), Some(A));
            check(&format!("{pod}/crio-{{a}}.scope/system.slice/init.scope"), Some(uid), Some(A));
            check_all(&format!("{pod}/crio-conmon-{{a}}.scope"), Some(uid), Some(A), true);
        }
    }

    #[test]
    fn the_kubelet_with_plain_directories() {
        for class in ["/burstable", "/besteffort", ""] {
            check(&format!("/kubepods{class}/pod{{u}}"), Some(UID), None);
            check(&format!("/kubepods{class}/pod{{u}}/{{a}}"), Some(UID), Some(A));
            check(&format!("/kubepods{class}/pod{{s}}/crio-{{a}}"), Some(STATIC), Some(A));
            check_all(&format!("/kubepods{class}/pod{{u}}/crio-conmon-{{a}}"), Some(UID), Some(A), true);
        }
        check("/k8s.io/{a}", None, Some(A));
    }

    #[test]
    fn containerd_with_systemds_paths_for_plain_directories() {
        let path = "/system.slice/containerd.service/kubepods-burstable-pod{_}.slice:cri-containerd:{a}";
        check(path, Some(UID), Some(A));
        check("/kubepods-besteffort-pod{s}.slice:crio:{a}", Some(STATIC), Some(A));
    }

    #[test]
    fn engines_without_a_kubelet() {
        check("/docker/{a}", None, Some(A));
        check("/system.slice/docker-{a}.scope", None, Some(A));
        check("/machine.slice/libpod-{a}.scope", None, Some(A));
        check("/machine.slice/libpod-{a}.scope/container", None, Some(A));
        check_all("/machine.slice/libpod-conmon-{a}.scope", None, Some(A), true);
        check("/libpod_parent/libpod-{a}", None, Some(A));
        // podman's pods are not Kubernetes' pods.
        check("/machine.slice/machine-libpod_pod_{b}.slice/libpod-{a}.scope", None, Some(A));
        let user = "/user.slice/user-1000.slice/user@1000.service/user.slice";
        check(&format!("{user}/libpod-{{a}}.scope/container"), None, Some(A));
        check("/lxc/{a}/ns", None, Some(A));
    }

    #[test]
    fn a_private_namespace_shows_what_lies_outside_as_dots() {
        check("/../../kubepods-burstable-pod{_}.slice/cri-containerd-{a}.scope", Some(UID), Some(A));
        check("/../cri-containerd-{a}.scope", None, Some(A));
        check("/../../pod{u}/{a}", Some(UID), Some(A));
        check("/..", None, None);
        check("/", None, None);
    }

    #[test]
    fn of_containers_in_containers_the_one_that_the_node_knows() {
        // kind: the node is a docker container, whose id says nothing about the pod's container.
        check("/docker/{b}/kubelet/kubepods/burstable/pod{u}/{a}", Some(UID), Some(A));
        let kind = "/docker/{b}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{_}.slice";
        check(&format!("{kind}/cri-containerd-{{a}}.scope"), Some(UID), Some(A));
        // docker in a pod, and a cluster in a pod.
        check("/kubepods/pod{u}/{a}/docker/{b}", Some(UID), Some(A));
        check("/kubepods/pod{u}/{a}/kubelet/kubepods/pod{s}/{b}", Some(UID), Some(A));
        check("/docker/{b}/docker/{a}", None, Some(A));
    }

    #[test]
    fn services_and_look_alikes_are_nobodys() {
        for path in [
            "/system.slice/containerd.service",
            "/system.slice/crio.service",
            "/init.scope",
            "/kubepods.slice/kubepods-burstable.slice",
            "/kubepods",
            "/user.slice/user-0.slice/session-1.scope",
            "/system.slice/podman.service",
            "/podcast",
            "/pod{a}",
            "/kubepods/podgibberish",
            "/tripod{u}",
            "/kubepods/pod19799841-684a-43df-95e8",
            "/{a}0",
            "/x{a}",
            "/Docker-{a}.scope",
            "",
            "/é{a}",
            "/ééééééééééééééééééééééééééééééééééééé",
        ] {
            check(path, None, None);
        }
    }

    #[test]
    fn a_removed_group_still_says_whose_it_was() {
        check("/kubepods/pod{u}/{a} (deleted)\n", Some(UID), Some(A));
    }
}
