//! Opens configured directories, however long that takes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use crate::act::checkpoint_dir::CheckpointDir;
use crate::agent::Happened;
use crate::agent::shared::Shared;
use crate::config::DirectoryConfig;

/// How often to look for a directory that is not there, or that cannot be watched.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// Opens `directory`, trying until it is there, on a thread of its own: on a stuck network or FUSE mount open(2)
/// hangs, and that must not stop the others.
///
/// A missing directory is said once: as an error when it is required (the kubelet's root may be elsewhere,
/// csi-driver#536), for information when it is optional.
pub(super) fn open(directory: DirectoryConfig, shared: Arc<Shared>, outbox: UnboundedSender<Happened>) {
    let thread = std::thread::Builder::new().name("open".to_owned());
    let ticket = shared.awaited.begin(&directory.path);
    let (again, later) = (directory.clone(), outbox.clone());
    let spawned = thread.spawn(move || {
        let mut said = None;
        let is_wanted = || !outbox.is_closed() && shared.awaited.is_wanted(&directory.path, ticket);
        while !shared.stop.load(Ordering::Relaxed) && is_wanted() {
            match CheckpointDir::open(&directory.path) {
                Ok(dir) => {
                    if shared.awaited.end(&directory.path, ticket) {
                        shared.count_missing();
                        let _ = outbox.send(Happened::Opened(directory, Box::new(dir)));
                    }
                    return;
                }
                Err(error) if said.as_ref() != Some(&error) => {
                    if directory.optional {
                        tracing::info!(%error, "waiting for an optional directory");
                    } else {
                        tracing::error!(%error, "cannot watch a directory; trying again every second");
                    }
                    said = Some(error);
                }
                Err(_) => {}
            }
            if !directory.optional && shared.awaited.miss(&directory.path, ticket) {
                shared.count_missing();
            }
            std::thread::sleep(RETRY);
        }
    });
    if let Err(error) = spawned {
        tracing::error!(directory = %again.path.display(), %error, "cannot start a thread to open the directory; trying again");
        open_after(RETRY, again, later);
    }
}

/// Has `directory` opened after a while.
pub(super) fn open_after(pause: Duration, directory: DirectoryConfig, outbox: UnboundedSender<Happened>) {
    tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        // Err: the guard ends.
        let _ = outbox.send(Happened::Lost(directory));
    });
}
