//! Publishing a [`Notice`] as an Event.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client, Error};

use super::{About, Notice};

/// Who reports, a qualified name.
const CONTROLLER: &str = "checkpoint-guard.io/checkpoint-guard";
/// Where Events about things outside namespaces live, by convention.
const NAMESPACE_OF_NODES: &str = "default";
const LIMIT: Duration = Duration::from_secs(10);

/// What became of a notice.
#[derive(Debug)]
pub enum Delivery {
    /// It is there.
    Published,
    /// The server will not take it, now or later: no permission, or the namespace is going away.
    Refused(Error),
    /// Try again later.
    Failed(String),
}

/// Publishes `notice`, which is of `at`.
pub async fn publish(client: &Client, node: &str, notice: &Notice, at: Timestamp) -> Delivery {
    let event = event(node, notice, at);
    let namespace = event.metadata.namespace.clone().unwrap_or_default();
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    let params = PostParams { field_manager: Some("checkpoint-guard".to_owned()), ..PostParams::default() };
    match tokio::time::timeout(LIMIT, api.create(&params, &event)).await {
        Err(_) => Delivery::Failed(format!("no answer within {} s", LIMIT.as_secs())),
        Ok(Ok(_)) => Delivery::Published,
        // The first try arrived after all.
        Ok(Err(Error::Api(status))) if status.code == 409 => Delivery::Published,
        Ok(Err(Error::Api(status))) if (400..500).contains(&status.code) && status.code != 429 => {
            Delivery::Refused(Error::Api(status))
        }
        Ok(Err(error)) => Delivery::Failed(error.to_string()),
    }
}

fn event(node: &str, notice: &Notice, at: Timestamp) -> Event {
    let (namespace, regarding) = match &notice.about {
        // As the kubelet does it: `kubectl describe node` looks for the name in the place of the uid.
        About::Node => (NAMESPACE_OF_NODES.to_owned(), reference("Node", None, node, node)),
        About::Pod { namespace, name, uid } => {
            (namespace.to_string(), reference("Pod", Some(namespace), name, uid))
        }
        About::PodCheckpoint { api_version, namespace, name, uid } => {
            let object = reference("PodCheckpoint", Some(namespace), name, uid);
            let api_version = Some(api_version.to_string());
            (namespace.to_string(), ObjectReference { api_version, ..object })
        }
    };
    let name = regarding.name.as_deref().unwrap_or_default();
    // As client-go names them: the object's name and the time in ns, here in hexadecimal; a name has 253 bytes at most.
    let name: String = name.chars().take(220).collect();
    let name = format!("{name}.{:x}", at.as_nanosecond());
    Event {
        metadata: ObjectMeta { namespace: Some(namespace), name: Some(name), ..ObjectMeta::default() },
        event_time: micro_time(at),
        type_: Some(if notice.warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(notice.reason.to_owned()),
        action: Some(notice.action.to_owned()),
        note: Some(notice.note()),
        regarding: Some(regarding),
        reporting_controller: Some(CONTROLLER.to_owned()),
        // 128 bytes at most.
        reporting_instance: Some(node.chars().take(120).collect()),
        ..Event::default()
    }
}

/// k8s-openapi has its own version of jiff.
fn micro_time(at: Timestamp) -> Option<MicroTime> {
    k8s_openapi::jiff::Timestamp::from_nanosecond(at.as_nanosecond()).ok().map(MicroTime)
}

fn reference(kind: &str, namespace: Option<&str>, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}
