//! `config.dump`, `spec.dump` and `status.dump`: the few keys that say whose checkpoint it is.
//!
//! Everything else in them, environment values above all, is passed over by the parser and never stored. A dump
//! that is no JSON, too deep, or has a key of another type or twice, says nothing.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::label::{is_dns_label, is_dns_subdomain, is_podman_name, is_uid};
use crate::model::{Engine, Owner};

/// What `config.dump` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Config {
    /// The engine's name for the container; podman lets its user choose it.
    pub(super) name: String,
    /// When the *container* was created.
    pub(super) created: Option<Timestamp>,
    /// When the checkpoint was made; podman does not say.
    pub(super) checkpointed: Option<Timestamp>,
}

/// A CRI engine's name for a container, taken apart. `_` is illegal in each part, so this is exact.
///
/// CRI-O: `k8s_<container>_<pod>_<namespace>_<uid>_<attempt>`; containerd: the same without `k8s_`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EngineName {
    /// Whose it is.
    pub(super) owner: Owner,
    /// The pod's UID.
    pub(super) pod_uid: Arc<str>,
}

/// What `spec.dump` says, by the keys of the engine that wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spec {
    /// Who wrote it.
    pub(super) engine: Engine,
    /// Whose it is.
    pub(super) owner: Owner,
    /// The pod's UID.
    pub(super) pod_uid: Option<Arc<str>>,
}

impl Config {
    pub(super) fn parse(data: &[u8]) -> Option<Config> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Raw {
            name: String,
            created_time: Option<String>,
            checkpointed_time: Option<String>,
        }
        let raw: Raw = parse(data)?;
        let time = |text: Option<String>| text.as_deref().and_then(time);
        Some(Config {
            name: raw.name,
            created: time(raw.created_time),
            checkpointed: time(raw.checkpointed_time),
        })
    }

    /// The name as podman's, when it can be one.
    pub(super) fn podman_container(&self) -> Option<Arc<str>> {
        is_podman_name(&self.name).then(|| self.name.as_str().into())
    }

    /// The name as a CRI engine's, when it can be one.
    pub(super) fn engine_name(&self) -> Option<EngineName> {
        let parts: Vec<&str> = self.name.split('_').collect();
        let (["k8s", container, pod, namespace, uid, attempt] | [container, pod, namespace, uid, attempt]) =
            parts.as_slice()
        else {
            return None;
        };
        let counted = !attempt.is_empty() && attempt.bytes().all(|byte| byte.is_ascii_digit());
        let legal =
            is_dns_label(container) && is_dns_subdomain(pod) && is_dns_label(namespace) && is_uid(uid);
        (counted && legal)
            .then(|| EngineName { owner: Owner::new(namespace, pod, container), pod_uid: (*uid).into() })
    }
}

impl Spec {
    /// Reads the engine first and then only that engine's keys: a pod's author chooses its annotations, and
    /// engines copy those of other engines' names into the spec.
    pub(super) fn parse(data: &[u8]) -> Option<Spec> {
        #[derive(Deserialize)]
        struct Raw {
            #[serde(default)]
            annotations: Option<Annotations>,
        }
        let annotations = parse::<Raw>(data)?.annotations.unwrap_or_default();
        let engine = annotations.engine();
        let (owner, pod_uid) = match engine {
            Engine::CriO => annotations.crio(),
            Engine::Containerd => annotations.containerd(),
            Engine::Other => annotations.checkpointctl(),
            // podman knows no pods that Kubernetes would; its container's name stands in config.dump.
            Engine::Podman | Engine::Unknown => (Owner::default(), None),
        };
        Some(Spec { engine, owner, pod_uid })
    }
}

/// The owner that containerd repeats in `status.dump`, from the labels that the kubelet sets.
pub(super) fn status_owner(data: &[u8]) -> Option<Owner> {
    #[derive(Deserialize)]
    struct Raw {
        labels: Labels,
    }
    Some(parse::<Raw>(data)?.labels.owner())
}

/// The annotations that speak of identity. Spelt out, without `flatten`: that would hold all the others in memory.
#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(rename = "io.container.manager")]
    manager: Option<String>,
    #[serde(rename = "io.kubernetes.cri-o.Labels")]
    crio_labels: Option<String>,
    #[serde(rename = "io.kubernetes.cri-o.Metadata")]
    crio_metadata: Option<String>,
    #[serde(rename = "io.kubernetes.pod.namespace")]
    flat_namespace: Option<String>,
    #[serde(rename = "io.kubernetes.pod.name")]
    flat_pod: Option<String>,
    #[serde(rename = "io.kubernetes.container.name")]
    flat_container: Option<String>,
    #[serde(rename = "io.kubernetes.pod.uid")]
    flat_uid: Option<String>,
    #[serde(rename = "io.kubernetes.cri.sandbox-namespace")]
    containerd_namespace: Option<String>,
    #[serde(rename = "io.kubernetes.cri.sandbox-name")]
    containerd_pod: Option<String>,
    #[serde(rename = "io.kubernetes.cri.container-name")]
    containerd_container: Option<String>,
    #[serde(rename = "io.kubernetes.cri.sandbox-uid")]
    containerd_uid: Option<String>,
    #[serde(rename = "org.criu.checkpoint.pod.namespace")]
    checkpointctl_namespace: Option<String>,
    #[serde(rename = "org.criu.checkpoint.pod.name")]
    checkpointctl_pod: Option<String>,
    #[serde(rename = "org.criu.checkpoint.container.name")]
    checkpointctl_container: Option<String>,
}

/// The labels that the kubelet puts on every container.
#[derive(Default, Deserialize)]
struct Labels {
    #[serde(rename = "io.kubernetes.pod.namespace")]
    namespace: Option<String>,
    #[serde(rename = "io.kubernetes.pod.name")]
    pod: Option<String>,
    #[serde(rename = "io.kubernetes.container.name")]
    container: Option<String>,
    #[serde(rename = "io.kubernetes.pod.uid")]
    pod_uid: Option<String>,
}

impl Annotations {
    fn engine(&self) -> Engine {
        match self.manager.as_deref() {
            Some("cri-o") => Engine::CriO,
            Some("libpod") => Engine::Podman,
            _ if self.containerd_namespace.is_some() || self.containerd_pod.is_some() => Engine::Containerd,
            _ if self.checkpointctl_namespace.is_some() || self.checkpointctl_pod.is_some() => Engine::Other,
            _ => Engine::Unknown,
        }
    }

    /// The JSON string first, then the same keys flat, then the container's metadata.
    fn crio(&self) -> (Owner, Option<Arc<str>>) {
        #[derive(Default, Deserialize)]
        struct Metadata {
            name: Option<String>,
        }
        let labels: Labels =
            self.crio_labels.as_deref().and_then(|text| parse(text.as_bytes())).unwrap_or_default();
        let metadata: Metadata =
            self.crio_metadata.as_deref().and_then(|text| parse(text.as_bytes())).unwrap_or_default();
        let (first, flat) =
            (labels.owner(), owner(&self.flat_namespace, &self.flat_pod, &self.flat_container));
        let owner = Owner {
            namespace: first.namespace.or(flat.namespace),
            pod: first.pod.or(flat.pod),
            container: first.container.or(flat.container).or_else(|| name(&metadata.name, is_dns_label)),
        };
        (owner, name(&labels.pod_uid, is_uid).or_else(|| name(&self.flat_uid, is_uid)))
    }

    fn containerd(&self) -> (Owner, Option<Arc<str>>) {
        let owner = owner(&self.containerd_namespace, &self.containerd_pod, &self.containerd_container);
        (owner, name(&self.containerd_uid, is_uid))
    }

    fn checkpointctl(&self) -> (Owner, Option<Arc<str>>) {
        let owner =
            owner(&self.checkpointctl_namespace, &self.checkpointctl_pod, &self.checkpointctl_container);
        (owner, None)
    }
}

impl Labels {
    fn owner(&self) -> Owner {
        owner(&self.namespace, &self.pod, &self.container)
    }
}

fn owner(namespace: &Option<String>, pod: &Option<String>, container: &Option<String>) -> Owner {
    Owner {
        namespace: name(namespace, is_dns_label),
        pod: name(pod, is_dns_subdomain),
        container: name(container, is_dns_label),
    }
}

/// A name that may be one; an illegal one is as good as none.
fn name(text: &Option<String>, legal: fn(&str) -> bool) -> Option<Arc<str>> {
    text.as_deref().filter(|text| legal(text)).map(Arc::from)
}

/// An RFC 3339 time. Go writes its zero time, year 1, for "never".
fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok().filter(|&time| time > Timestamp::UNIX_EPOCH)
}

fn parse<T: DeserializeOwned>(json: &[u8]) -> Option<T> {
    serde_json::from_slice(json).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// `engine namespace/pod/container uid` of a spec.dump with these annotations.
    #[track_caller]
    fn check(annotations: Value, expect: &str) {
        let spec = Spec::parse(json!({ "annotations": annotations }).to_string().as_bytes()).unwrap();
        let uid = spec.pod_uid.as_deref().unwrap_or("?");
        assert_eq!(format!("{} {} {uid}", spec.engine.as_str(), spec.owner), expect, "{annotations}");
    }

    /// Everything a pod's author could plant for each family of keys.
    fn planted() -> Value {
        json!({
            "io.kubernetes.cri-o.Labels": r#"{"io.kubernetes.pod.namespace":"kube-system"}"#,
            "io.kubernetes.pod.namespace": "kube-system",
            "io.kubernetes.pod.name": "coredns",
            "org.criu.checkpoint.pod.namespace": "kube-system",
            "org.criu.checkpoint.pod.name": "coredns",
            "org.criu.checkpoint.container.name": "coredns",
        })
    }

    fn with(mut annotations: Value, more: Value) -> Value {
        annotations.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        annotations
    }

    #[test]
    fn case_03_all_three_families_of_annotations_are_understood() {
        let labels = json!({
            "io.kubernetes.pod.namespace": "team",
            "io.kubernetes.pod.name": "web-0",
            "io.kubernetes.container.name": "main",
            "io.kubernetes.pod.uid": "u-1",
        });
        let crio = json!({"io.container.manager": "cri-o", "io.kubernetes.cri-o.Labels": labels.to_string()});
        check(crio, "cri-o team/web-0/main u-1");
        check(with(labels, json!({"io.container.manager": "cri-o"})), "cri-o team/web-0/main u-1");
        let containerd = json!({
            "io.kubernetes.cri.sandbox-namespace": "team",
            "io.kubernetes.cri.sandbox-name": "web-0",
            "io.kubernetes.cri.container-name": "main",
            "io.kubernetes.cri.sandbox-uid": "u-1",
        });
        check(containerd.clone(), "containerd team/web-0/main u-1");
        check(with(containerd, planted()), "containerd team/web-0/main u-1");
        let other = json!({
            "org.criu.checkpoint.pod.namespace": "team",
            "org.criu.checkpoint.pod.name": "web-0",
            "org.criu.checkpoint.container.name": "main",
        });
        check(other, "other team/web-0/main ?");
    }

    #[test]
    fn only_the_engines_own_keys_count() {
        check(with(planted(), json!({"io.container.manager": "libpod"})), "podman ?/?/? ?");
        let metadata = json!({
            "io.container.manager": "cri-o",
            "io.kubernetes.cri-o.Metadata": r#"{"name":"main"}"#,
            "io.kubernetes.cri.sandbox-namespace": "kube-system",
            "io.kubernetes.cri.container-name": "coredns",
        });
        check(metadata, "cri-o ?/?/main ?");
        check(json!({"io.kubernetes.pod.namespace": "team"}), "unknown ?/?/? ?");
        check(json!({}), "unknown ?/?/? ?");
    }

    #[test]
    fn illegal_names_are_as_good_as_none() {
        let crio = json!({
            "io.container.manager": "cri-o",
            "io.kubernetes.cri-o.Labels": "not JSON",
            "io.kubernetes.pod.namespace": "../../etc",
            "io.kubernetes.pod.name": "web 0",
            "io.kubernetes.container.name": "main",
        });
        check(crio, "cri-o ?/?/main ?");
    }

    #[test]
    fn the_engines_name_is_taken_apart_exactly() {
        #[track_caller]
        fn check(name: &str, expect: Option<&str>) {
            let config = Config { name: name.to_owned(), ..Config::default() };
            let said = config.engine_name().map(|name| format!("{} {}", name.owner, name.pod_uid));
            assert_eq!(said.as_deref(), expect, "{name:?}");
        }
        check("k8s_side-car_web.v1-0_team-a_u-1_0", Some("team-a/web.v1-0/side-car u-1"));
        check("side-car_web.v1-0_team-a_u-1_12", Some("team-a/web.v1-0/side-car u-1"));
        check("k8s_web_team_u-1_0", Some("team/web/k8s u-1"));
        for other in
            ["counter", "", "a_b_c_d", "a_b_c_d_e", "a_b_c_d_0_0", "k8s_a_b_c_d_0_0", "A_b_c_d_0", "a_b__d_0"]
        {
            check(other, None);
        }
    }

    #[test]
    fn goes_zero_time_is_no_time() {
        let config = br#"{"name":"x","createdTime":"2026-11-30T07:46:24.5Z","checkpointedTime":"0001-01-01T00:00:00Z"}"#;
        let config = Config::parse(config).unwrap();
        assert_eq!(config.created, Some("2026-11-30T07:46:24.5Z".parse().unwrap()));
        assert_eq!(config.checkpointed, None);
        assert_eq!(Config::parse(br#"{"name":"x","createdTime":"yesterday"}"#).unwrap().created, None);
        assert_eq!(Config::parse(br#"{"createdTime":"2026-11-30T07:46:24.5Z"}"#), None);
    }
}
