//! PodCheckpoint objects (KEP-5823): whose the data in the kubelet's `pod-checkpoints` is, and whether it is being restored.
//!
//! The resource is alpha in Kubernetes 1.37, and the proposal has had it in two groups and with two shapes; both are read.
//! Where no server has it, that is asked again every [`DISCOVER_EVERY`] and nothing else.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{DynamicObject, ListParams, WatchParams};
use kube::core::discovery::ApiResource;
use kube::{Api, Client, Error};
use serde_json::Value;

use super::Trouble;
use super::trouble::Cause;
use super::watch::{Heard, WATCH_SECONDS, hear, jittered};
use crate::model::Declared;

/// Its name in metrics, logs and the ClusterRole.
pub const RESOURCE: &str = "podcheckpoints";
/// The groups it has been proposed in.
const GROUPS: [&str; 2] = ["checkpoint.k8s.io", "node.k8s.io"];
/// An administrator who switches the feature on waits for so long at most. Drawn from its upper half, as all waits here: a
/// fleet does not come back as one.
const DISCOVER_EVERY: Duration = Duration::from_secs(600);
/// After a failure.
const BACKOFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
const LIMIT: Duration = Duration::from_secs(30);
const PAGE: u32 = 500;

/// What is told.
#[derive(Clone, Debug)]
pub enum Told {
    /// All there are of this node, in place of what was told before.
    All(Vec<Declared>),
    /// One has come, or changed.
    Changed(Declared),
    /// One was deleted; its data may still be there.
    Deleted(Declared),
    /// A call is about to be made: `discover`, `list` or `watch`.
    Calling(&'static str),
    /// The server is there, and nothing has changed.
    Current,
    /// The server does not have the resource.
    Absent,
    /// It did not work; it will be tried again.
    Failed(Trouble),
}

/// Follows the objects of `node` for ever.
pub async fn follow(client: Client, node: &str, mut tell: impl FnMut(Told)) -> Infallible {
    let mut wait = BACKOFF[0];
    loop {
        let resource = match discover(&client, &mut tell).await {
            Ok(Some(resource)) => resource,
            Ok(None) => {
                tell(Told::Absent);
                tokio::time::sleep(jittered(DISCOVER_EVERY)).await;
                continue;
            }
            Err(trouble) => {
                tell(Told::Failed(trouble));
                tokio::time::sleep(jittered(wait)).await;
                wait = (wait * 2).min(BACKOFF[1]);
                continue;
            }
        };
        let api = Api::all_with(client.clone(), &resource);
        let mut watch = Watch { api, resource: &resource, node, is_selected: true, version: None };
        loop {
            let mut heard = false;
            let mut listen = |told: Told| {
                heard |= !matches!(told, Told::Calling(_));
                tell(told);
            };
            let trouble = watch.until_it_fails(&mut listen).await;
            if trouble.cause == Cause::Expired {
                watch.version = None;
            }
            // 404: it was switched off, or serves another version now.
            let is_refused = trouble.cause == Cause::Refused;
            tell(Told::Failed(trouble));
            wait = if heard { BACKOFF[0] } else { (wait * 2).min(BACKOFF[1]) };
            tokio::time::sleep(jittered(wait)).await;
            if is_refused {
                break;
            }
        }
    }
}

/// Where the server has the resource; `None` where it has not.
async fn discover(client: &Client, tell: &mut impl FnMut(Told)) -> Result<Option<ApiResource>, Trouble> {
    let what = format!("discover {RESOURCE}");
    tell(Told::Calling("discover"));
    let groups = limited(&what, client.list_api_groups()).await?.groups;
    let is_ours = |name: &str| GROUPS.contains(&name);
    for group in groups.into_iter().filter(|group| is_ours(&group.name)) {
        // The preferred version stands first.
        for version in group.versions {
            tell(Told::Calling("discover"));
            let served = limited(&what, client.list_api_group_resources(&version.group_version)).await?;
            if served.resources.iter().any(|resource| resource.name == RESOURCE) {
                return Ok(Some(ApiResource {
                    group: group.name,
                    version: version.version,
                    api_version: version.group_version,
                    kind: "PodCheckpoint".to_owned(),
                    plural: RESOURCE.to_owned(),
                }));
            }
        }
    }
    Ok(None)
}

async fn limited<T>(what: &str, call: impl Future<Output = Result<T, Error>>) -> Result<T, Trouble> {
    let answer = tokio::time::timeout(LIMIT, call).await.map_err(|_| Trouble::timeout(what, LIMIT))?;
    answer.map_err(|error| Trouble::new(what, &error))
}

/// The objects, and how far they have been followed.
struct Watch<'a> {
    api: Api<DynamicObject>,
    resource: &'a ApiResource,
    node: &'a str,
    /// The server narrows them down to this node.
    is_selected: bool,
    /// `None`: to be listed again.
    version: Option<String>,
}

impl Watch<'_> {
    async fn until_it_fails(&mut self, tell: &mut impl FnMut(Told)) -> Trouble {
        loop {
            if self.version.is_none() {
                match self.list(tell).await {
                    Ok(version) => self.version = Some(version),
                    // The proposal makes this field selectable; a server that does not know it gives all, and we choose.
                    Err(trouble) if self.is_selected && trouble.cause == Cause::Refused => {
                        self.is_selected = false;
                        continue;
                    }
                    Err(trouble) => return trouble,
                }
            }
            if let Err(trouble) = self.watch(tell).await {
                return trouble;
            }
        }
    }

    fn selector(&self) -> Option<String> {
        self.is_selected.then(|| format!("status.nodeName={}", self.node))
    }

    async fn list(&self, tell: &mut impl FnMut(Told)) -> Result<String, Trouble> {
        let what = format!("list {RESOURCE}");
        // This node's alone come from the server's cache, as they are; whole objects of all nodes in pages, from etcd.
        let default = if self.is_selected {
            ListParams::default().match_any()
        } else {
            ListParams::default().limit(PAGE)
        };
        let base = ListParams { field_selector: self.selector(), ..default };
        let (mut params, mut all) = (base.clone(), Vec::new());
        loop {
            tell(Told::Calling("list"));
            let page = limited(&what, self.api.list(&params)).await?;
            all.extend(page.items.iter().filter_map(|object| self.read(object)));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = base.clone().continue_token(&token),
                None => {
                    tell(Told::All(all));
                    return Ok(page.metadata.resource_version.unwrap_or_default());
                }
            }
        }
    }

    async fn watch(&mut self, tell: &mut impl FnMut(Told)) -> Result<(), Trouble> {
        let what = format!("watch {RESOURCE}");
        let params =
            WatchParams { field_selector: self.selector(), ..WatchParams::default().timeout(WATCH_SECONDS) };
        tell(Told::Calling("watch"));
        let version = self.version.clone().unwrap_or_default();
        let stream = limited(&what, self.api.watch(&params, &version)).await?;
        let (api_version, node) = (&self.resource.api_version, self.node);
        hear(stream, &what, &mut self.version, |heard| {
            let told = match heard {
                Heard::Current => Some(Told::Current),
                Heard::Changed(object) => read(&object, api_version, node).map(Told::Changed),
                Heard::Deleted(object) => read(&object, api_version, node).map(Told::Deleted),
            };
            told.into_iter().for_each(&mut *tell);
        })
        .await
    }

    /// What an object says of data on this node; `None` when its data is elsewhere, or not there yet.
    fn read(&self, object: &DynamicObject) -> Option<Declared> {
        read(object, &self.resource.api_version, self.node)
    }
}

fn read(object: &DynamicObject, api_version: &str, node: &str) -> Option<Declared> {
    let (metadata, data) = (&object.metadata, &object.data);
    let text = |pointer: &str| data.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    if text("/status/nodeName") != Some(node) {
        return None;
    }
    // Relative to the kubelet's root of pod checkpoints, and one directory.
    let path = text("/status/checkpointLocation/nodeLocal/path")?.trim_end_matches('/');
    if path.contains('/') || path.starts_with('.') {
        return None;
    }
    // Each of the two shapes the proposal has had.
    let pod = text("/spec/sourcePodName").or(text("/spec/sourcePod/name"));
    // "Restore-lock": as the controller's finalizer is called in the proposal, which does not spell it.
    let is_lock = |finalizer: &String| finalizer.contains("restore");
    Some(Declared {
        path: path.into(),
        api_version: api_version.into(),
        namespace: metadata.namespace.as_deref()?.into(),
        name: metadata.name.as_deref()?.into(),
        uid: metadata.uid.as_deref()?.into(),
        pod: pod.map(Arc::from),
        pod_uid: text("/status/sourcePodUID").map(Arc::from),
        restoring: metadata.finalizers.iter().flatten().any(is_lock),
        gone: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> DynamicObject {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn both_shapes_of_the_proposal_are_read() {
        for spec in [r#"{"sourcePodName":"web-0"}"#, r#"{"sourcePod":{"name":"web-0"}}"#] {
            let object = object(&format!(
                r#"{{"metadata":{{"name":"snap","namespace":"team","uid":"u","finalizers":["x.io/restore-lock"]}},
                    "spec":{spec},"status":{{"nodeName":"n","sourcePodUID":"p",
                    "checkpointLocation":{{"type":"NodeLocal","nodeLocal":{{"path":"checkpoint-u/"}}}}}}}}"#
            ));
            let read = read(&object, "checkpoint.k8s.io/v1alpha1", "n").unwrap();
            assert_eq!(
                (&*read.path, read.pod.as_deref(), read.restoring),
                ("checkpoint-u", Some("web-0"), true)
            );
        }
    }

    #[test]
    fn what_lies_elsewhere_or_points_out_of_the_directory_is_not_ours() {
        for (node, path) in [("other", "a"), ("n", "../a"), ("n", "a/b"), ("n", "")] {
            let object = object(&format!(
                r#"{{"metadata":{{"name":"s","namespace":"t","uid":"u"}},"status":{{"nodeName":"{node}",
                    "checkpointLocation":{{"nodeLocal":{{"path":"{path}"}}}}}}}}"#
            ));
            assert_eq!(read(&object, "v", "n"), None, "{node} {path}");
        }
    }
}
