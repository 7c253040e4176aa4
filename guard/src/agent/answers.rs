//! What the running daemon answers to those who ask over its socket.

use std::sync::Arc;
use std::time::Duration;

use crate::agent::braking::{self, Wish};
use crate::agent::clock::wall;
use crate::agent::shared::Shared;
use crate::report::snapshot::Snapshot;
use crate::report::socket::{Answer, Answers, Reply, Request};

/// The answers of the daemon whose loops share `shared`.
pub(super) fn answers(shared: Arc<Shared>, pool: Option<String>) -> Answers {
    Arc::new(move |request, _peer| -> Answer {
        let (shared, pool) = (shared.clone(), pool.clone());
        Box::pin(async move {
            match request {
                Request::BrakeStatus { filesystem } => braking::ask(&shared, filesystem, Wish::Tell).await,
                Request::BrakeEngage { filesystem, seconds } => {
                    braking::ask(&shared, filesystem, Wish::Engage(seconds.map(Duration::from_secs))).await
                }
                Request::BrakeRelease { filesystem, inhibit_seconds } => {
                    let wish = Wish::Release(Duration::from_secs(inhibit_seconds));
                    braking::ask(&shared, filesystem, wish).await
                }
                Request::Daemon => Reply::Daemon {
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    pid: std::process::id(),
                    pool,
                    dry_run: shared.dry_run,
                    backend: shared.backend().as_str().to_owned(),
                },
                Request::Snapshot | Request::Watch { .. } => Reply::Snapshot(Box::new(Snapshot {
                    filesystems: shared.view.look().await.iter().map(|it| (**it).clone()).collect(),
                    time: wall(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    pool,
                    dry_run: shared.dry_run,
                    backend: shared.backend().as_str().to_owned(),
                })),
            }
        })
    })
}
