//! Growth, as records tell it.

use std::sync::Arc;

use super::SHOWN_MAX;
use crate::model;
use crate::report::snapshot::{Growth, NamespaceGrowth, WriterGrowth};

/// What the ledger's reader knows, the fastest first.
pub(super) fn told(growth: model::Growth) -> Growth {
    let text = |part: Option<Arc<str>>| part.as_deref().map(str::to_owned);
    let namespaces = growth.namespaces.into_iter().map(|it| NamespaceGrowth {
        namespace: text(it.namespace),
        bytes_per_second: it.rate.0,
        bytes: it.bytes.0,
    });
    let writers = growth.writers.into_iter().take(SHOWN_MAX).map(|it| WriterGrowth {
        pid: it.pid,
        comm: it.comm.as_ref().to_owned(),
        namespace: text(it.owner.namespace),
        pod: text(it.owner.pod),
        container: text(it.owner.container),
        known_by: it.known_by.as_str().to_owned(),
        bytes_per_second: it.rate.0,
        bytes: it.bytes.0,
    });
    Growth { namespaces: namespaces.collect(), writers: writers.collect() }
}
