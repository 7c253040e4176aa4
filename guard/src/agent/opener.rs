//! Opens configured directories, however long that takes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use crate::act::checkpoint_dir::{CheckpointDir, OpenError};
use crate::agent::awaited::Ticket;
use crate::agent::shared::Shared;
use crate::agent::{Happened, stumbles};
use crate::config::DirectoryConfig;

/// How often to look for a directory that is not there, or that cannot be watched.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// Opens `directory`, trying until it is there, on a thread of its own: on a stuck network or FUSE mount open(2)
/// hangs, and that must not stop the others.
///
/// A missing directory is said once: as an error when it is required (the kubelet's root may be elsewhere,
/// csi-driver#536), for information when it is optional.
pub(super) fn open(directory: DirectoryConfig, shared: Arc<Shared>, outbox: UnboundedSender<Happened>) {
    open_with(directory, shared, outbox, CheckpointDir::open);
}

fn open_with(
    directory: DirectoryConfig,
    shared: Arc<Shared>,
    outbox: UnboundedSender<Happened>,
    open: fn(&Path) -> Result<CheckpointDir, OpenError>,
) {
    let thread = std::thread::Builder::new().name("open".to_owned());
    let ticket = shared.awaited.begin(&directory.path);
    let (again, later) = (directory.clone(), outbox.clone());
    let mut opening = Opening { directory, shared, outbox, ticket, said: None };
    if let Err(error) = thread.spawn(move || stumbles::go_on("open", || opening.run(open))) {
        tracing::error!(directory = %again.path.display(), %error, "cannot start a thread to open the directory; trying again");
        open_after(RETRY, again, later);
    }
}

/// The thread.
struct Opening {
    directory: DirectoryConfig,
    shared: Arc<Shared>,
    outbox: UnboundedSender<Happened>,
    ticket: Ticket,
    said: Option<OpenError>,
}

impl Opening {
    /// Ends when the directory is open, or not wanted any more. After a panic it can be called again.
    fn run(&mut self, open: fn(&Path) -> Result<CheckpointDir, OpenError>) {
        while !self.shared.stop.load(Ordering::Relaxed) && self.is_wanted() {
            let (path, optional) = (&self.directory.path, self.directory.optional);
            // While there is no loop, nobody else does.
            self.shared.publish_losses();
            match open(path) {
                Ok(dir) => {
                    if self.shared.awaited.end(path, self.ticket) {
                        self.shared.count_missing();
                        let _ = self.outbox.send(Happened::Opened(self.directory.clone(), Box::new(dir)));
                    }
                    return;
                }
                Err(error) if self.said.as_ref() != Some(&error) => {
                    if optional {
                        tracing::info!(%error, "waiting for an optional directory");
                    } else {
                        tracing::error!(%error, "cannot watch a directory; trying again every second");
                    }
                    self.said = Some(error);
                }
                Err(_) => {}
            }
            if !optional && self.shared.awaited.miss(path, self.ticket) {
                self.shared.count_missing();
            }
            std::thread::sleep(RETRY);
        }
    }

    fn is_wanted(&self) -> bool {
        !self.outbox.is_closed() && self.shared.awaited.is_wanted(&self.directory.path, self.ticket)
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::config::ConfigFile;
    use crate::report::metrics::Metrics;

    /// A bug, twice.
    fn stumble(path: &Path) -> Result<CheckpointDir, OpenError> {
        static LEFT: AtomicU32 = AtomicU32::new(2);
        let left = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        assert!(left.is_err(), "a bug that this test has made");
        CheckpointDir::open(path)
    }

    #[test]
    fn a_directory_whose_opening_panics_is_opened_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "[[directory]]\npath = {:?}\n[probe]\nmode = \"off\"\n[brake]\nmode = \"off\"\n[audit]\npath = \"off\"\n",
            folder.path()
        );
        let config = ConfigFile::parse(&text, Path::new("guard.toml")).unwrap().effective(None).unwrap();
        let metrics = Arc::new(Metrics::new());
        let shared = Arc::new(Shared::new(&config, false, metrics.clone(), None).unwrap());
        let (outbox, mut inbox) = unbounded_channel();
        open_with(config.directories[0].clone(), shared, outbox, stumble);
        let opened = (0..6000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            inbox.try_recv().ok()
        });
        let opened = opened.expect("the thread goes on");
        assert!(matches!(opened, Happened::Opened(directory, _) if directory.path == folder.path()));
        let told = metrics.encode().unwrap();
        let told = told.lines().find_map(|line| line.strip_prefix("checkpoint_guard_loop_panics_total "));
        assert!(told.and_then(|count| count.parse::<u32>().ok()) >= Some(2), "{told:?}");
    }
}
