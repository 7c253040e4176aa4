//! Notices that the configuration file has changed.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::mpsc::UnboundedSender;

use crate::agent::{Happened, Options};

/// Without inotify, and for filesystems that have none, the file is looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Editors and the kubelet change several names in a row; the last change counts.
const SETTLE: Duration = Duration::from_millis(200);

/// Asks for a look right now (SIGHUP).
pub(super) struct Reloads(Option<Arc<EventFd>>);

impl Reloads {
    pub(super) fn now(&self) {
        if let Some(bell) = &self.0 {
            let _ = bell.write(1);
        }
    }
}

/// Watches the directory of the configuration file rather than the file: editors replace it, and in a ConfigMap
/// volume the file is a link into `..data`, which the kubelet swaps for another (mediamtx#181). Content decides, so
/// any event there is only a reason to look.
pub(super) fn watch(options: Options, outbox: UnboundedSender<Happened>) -> Reloads {
    let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).map(Arc::new).ok();
    let rung = bell.clone();
    let before = std::fs::read(&options.config_path).ok();
    let spawned = std::thread::Builder::new().name("reload".to_owned()).spawn(move || {
        let inotify = options.config_path.parent().and_then(watch_directory);
        let mut before = (before, options.labels.get());
        while !outbox.is_closed() {
            wait(inotify.as_ref(), rung.as_deref());
            let now = (std::fs::read(&options.config_path).ok(), options.labels.get());
            // A file that is away for a moment is being replaced.
            if now.0.is_none() || now == before {
                continue;
            }
            before = now;
            let loaded = crate::config::load(&options.config_path)
                .and_then(|file| options.choose(&file))
                .map_err(|problems| problems.to_string());
            if outbox.send(Happened::Reloaded(Box::new(loaded))).is_err() {
                return;
            }
        }
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "changes of the configuration will not be noticed: no thread to watch it");
    }
    Reloads(bell)
}

fn watch_directory(directory: &Path) -> Option<Inotify> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
    let flags = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CREATE;
    inotify.add_watch(directory, flags).ok()?;
    Some(inotify)
}

/// Sleeps until there is a reason to look.
fn wait(inotify: Option<&Inotify>, bell: Option<&EventFd>) {
    let mut fds = Vec::new();
    fds.extend(bell.map(|bell| PollFd::new(bell.as_fd(), PollFlags::POLLIN)));
    fds.extend(inotify.map(|inotify| PollFd::new(inotify.as_fd(), PollFlags::POLLIN)));
    let woken = poll(&mut fds, PollTimeout::from(LOOK_EVERY.as_millis() as u16)).unwrap_or(0);
    if woken > 0 {
        std::thread::sleep(SETTLE);
    }
    if let Some(bell) = bell {
        let _ = bell.read();
    }
    while inotify.is_some_and(|inotify| inotify.read_events().is_ok_and(|events| !events.is_empty())) {}
}
