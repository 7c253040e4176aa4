//! List and watch, of metadata only.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, Resource as KubeResource};
use serde::de::DeserializeOwned;

use super::trouble::Cause;
use super::{Resource, Seen, Trouble};

/// A list is answered from the server's cache; a busy server of a large cluster takes seconds.
const LIST_LIMIT: Duration = Duration::from_secs(60);
/// The server answers a watch with its headers, which cost it nothing.
const WATCH_LIMIT: Duration = Duration::from_secs(30);
/// The server ends a watch after this long, and it is begun anew from where it was. Also how long a connection may be
/// dead without anybody noticing. The kubelet's watches last five to ten minutes.
pub(super) const WATCH_SECONDS: u32 = 290;
/// So much longer than that, and the connection is dead.
const WATCH_GRACE: Duration = Duration::from_secs(10);
/// From the first failure to the last; each wait is drawn from its upper half, so that a fleet does not come back as one.
const BACKOFF: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

/// The labels of this Node, asked once; `None` when there is no answer or no such Node.
pub async fn node_labels(client: &Client, node: &str) -> Option<BTreeMap<String, String>> {
    let params = ListParams::default().match_any().fields(&format!("metadata.name={node}"));
    let list = Api::<Node>::all(client.clone()).list_metadata(&params).await.ok()?;
    Some(list.items.into_iter().next()?.metadata.labels.unwrap_or_default())
}

/// Watches `resource` for ever, telling everything to `tell`: how it is first, then what changes, and what goes wrong.
pub async fn follow(client: Client, resource: Resource, node: &str, tell: impl FnMut(Seen)) -> Infallible {
    match resource {
        Resource::Nodes => go_on::<Node>(client, resource, &format!("metadata.name={node}"), tell).await,
        Resource::Pods => go_on::<Pod>(client, resource, &format!("spec.nodeName={node}"), tell).await,
        Resource::Namespaces => go_on::<Namespace>(client, resource, "", tell).await,
    }
}

async fn go_on<K>(client: Client, resource: Resource, fields: &str, mut tell: impl FnMut(Seen)) -> Infallible
where
    K: KubeResource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let mut watch = Watch { api: Api::<K>::all(client), resource, fields, version: None };
    let mut wait = BACKOFF[0];
    loop {
        let mut heard = false;
        let mut listen = |seen: Seen| {
            heard |= !matches!(seen, Seen::Calling(_));
            tell(seen);
        };
        let trouble = watch.until_it_fails(&mut listen).await;
        if trouble.cause == Cause::Expired {
            watch.version = None;
        }
        tell(Seen::Failed(trouble));
        wait = if heard { BACKOFF[0] } else { (wait * 2).min(BACKOFF[1]) };
        tokio::time::sleep(jittered(wait)).await;
    }
}

/// Between a half and all of `wait`.
pub(crate) fn jittered(wait: Duration) -> Duration {
    // The keys of a hasher are random; nothing here needs better dice.
    let dice = std::hash::RandomState::new().build_hasher().finish() % 1000;
    wait / 2 + (wait / 2).mul_f64(dice as f64 / 1000.0)
}

/// One resource, and how far it has been followed.
struct Watch<'a, K> {
    api: Api<K>,
    resource: Resource,
    /// A field selector.
    fields: &'a str,
    /// `None`: to be listed again.
    version: Option<String>,
}

impl<K> Watch<'_, K>
where
    K: KubeResource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    async fn until_it_fails(&mut self, tell: &mut impl FnMut(Seen)) -> Trouble {
        loop {
            let version = match &self.version {
                Some(version) => version.clone(),
                None => match self.list(tell).await {
                    Ok(version) => version,
                    Err(trouble) => return trouble,
                },
            };
            self.version = Some(version.clone());
            if let Err(trouble) = self.watch(&version, tell).await {
                return trouble;
            }
        }
    }

    /// Lists everything, from the server's cache, and tells it. The result is the version to watch from.
    async fn list(&self, tell: &mut impl FnMut(Seen)) -> Result<String, Trouble> {
        let what = format!("list {}", self.resource.as_str());
        // Without a limit: a list in pages is answered from etcd, by reading all objects of the cluster for each node
        // (kube leaves `resourceVersion=0` out then, because the server's cache knows no pages).
        let mut params = ListParams::default().match_any();
        if !self.fields.is_empty() {
            params = params.fields(self.fields);
        }
        tell(Seen::Calling("list"));
        let list = tokio::time::timeout(LIST_LIMIT, self.api.list_metadata(&params));
        let list = list.await.map_err(|_| Trouble::timeout(&what, LIST_LIMIT))?;
        let list = list.map_err(|error| Trouble::new(&what, &error))?;
        tell(Seen::All(list.items.into_iter().map(|object| object.metadata).collect()));
        Ok(list.metadata.resource_version.unwrap_or_default())
    }

    /// One watch, until the server ends it.
    async fn watch(&mut self, version: &str, tell: &mut impl FnMut(Seen)) -> Result<(), Trouble> {
        let what = format!("watch {}", self.resource.as_str());
        let mut params = WatchParams::default().timeout(WATCH_SECONDS);
        if !self.fields.is_empty() {
            params = params.fields(self.fields);
        }
        tell(Seen::Calling("watch"));
        let begun = tokio::time::timeout(WATCH_LIMIT, self.api.watch_metadata(&params, version));
        let begun = begun.await.map_err(|_| Trouble::timeout(&what, WATCH_LIMIT))?;
        let stream = begun.map_err(|error| Trouble::new(&what, &error))?;
        hear(stream, &what, &mut self.version, |heard| {
            tell(match heard {
                Heard::Current => Seen::Current,
                Heard::Changed(object) => Seen::Changed(Box::new(object.metadata)),
                Heard::Deleted(object) => Seen::Deleted(Box::new(object.metadata)),
            });
        })
        .await
    }
}

/// What a watch says.
pub(super) enum Heard<T> {
    /// Nothing has changed.
    Current,
    /// One has come, or changed.
    Changed(T),
    /// One was deleted.
    Deleted(T),
}

/// Listens to a watch that has begun until the server ends it, or is silent for longer than it may be; `version` follows.
pub(super) async fn hear<T>(
    stream: impl Stream<Item = kube::Result<WatchEvent<T>>>,
    what: &str,
    version: &mut Option<String>,
    mut tell: impl FnMut(Heard<T>),
) -> Result<(), Trouble>
where
    T: KubeResource + Clone,
{
    let mut stream = std::pin::pin!(stream);
    tell(Heard::Current);
    let silence = Duration::from_secs(WATCH_SECONDS.into()) + WATCH_GRACE;
    loop {
        let next = tokio::time::timeout(silence, stream.next());
        let next = next.await.map_err(|_| Trouble::timeout(what, silence))?;
        let Some(event) = next else { return Ok(()) };
        let (object, is_gone) = match event.map_err(|error| Trouble::new(what, &error))? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
            WatchEvent::Deleted(object) => (object, true),
            WatchEvent::Bookmark(bookmark) => {
                *version = Some(bookmark.metadata.resource_version);
                tell(Heard::Current);
                continue;
            }
            WatchEvent::Error(status) => {
                let (cause, message) = (Cause::from_status(status.code), status.message.clone());
                return Err(Trouble { what: what.to_owned(), cause, message });
            }
        };
        if object.meta().resource_version.is_some() {
            version.clone_from(&object.meta().resource_version);
        }
        tell(if is_gone { Heard::Deleted(object) } else { Heard::Changed(object) });
    }
}
