//! Notices that the configuration file has changed.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::mpsc::UnboundedSender;

use crate::agent::{Happened, Options, stumbles};
use crate::config::{Config, Problems};

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
    watch_with(options, outbox, load)
}

fn load(options: &Options) -> Result<Config, Problems> {
    crate::config::load(&options.config_path).and_then(|file| options.choose(&file))
}

fn watch_with(
    options: Options,
    outbox: UnboundedSender<Happened>,
    load: fn(&Options) -> Result<Config, Problems>,
) -> Reloads {
    let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).map(Arc::new).ok();
    let rung = bell.clone();
    let mut before = (std::fs::read(&options.config_path).ok(), options.labels.get());
    let mut work = move || {
        let inotify = options.config_path.parent().and_then(watch_directory);
        while !outbox.is_closed() {
            let now = (std::fs::read(&options.config_path).ok(), options.labels.get());
            // A file that is away for a moment is being replaced.
            if now.0.is_some() && now != before {
                before = now;
                if outbox.send(Happened::Reloaded(Box::new(survive(&options, load)))).is_err() {
                    return;
                }
            }
            wait(inotify.as_ref(), rung.as_deref());
        }
    };
    let thread = std::thread::Builder::new().name("reload".to_owned());
    let spawned = thread.spawn(move || stumbles::go_on("reload", &mut work));
    if let Err(error) = spawned {
        tracing::error!(%error, "changes of the configuration will not be noticed: no thread to watch it");
    }
    Reloads(bell)
}

/// What the file says. One that makes the guard panic is as one that is invalid, and not looked at again until it changes.
fn survive(options: &Options, load: fn(&Options) -> Result<Config, Problems>) -> Result<Config, String> {
    let mut loaded = Err("a bug of the guard: reading it panicked; the log says where".to_owned());
    stumbles::survives("reload", || loaded = load(options).map_err(|problems| problems.to_string()));
    loaded
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

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::agent::Labels;

    /// A bug, on one configuration.
    fn stumble(options: &Options) -> Result<Config, Problems> {
        let text = std::fs::read_to_string(&options.config_path).unwrap();
        assert!(!text.contains("stone"), "a bug that this test has made");
        load(options)
    }

    #[test]
    fn a_configuration_that_makes_the_guard_panic_is_refused_and_the_next_one_is_taken_up() {
        let folder = tempfile::tempdir().unwrap();
        let config_path = folder.path().join("guard.toml");
        let valid = "[[directory]]\npath = \"/ckpt\"\n";
        std::fs::write(&config_path, valid).unwrap();
        let (outbox, mut inbox) = unbounded_channel();
        let options =
            Options { config_path: config_path.clone(), labels: Labels::default(), ..Options::default() };
        let reloads = watch_with(options, outbox, stumble);
        let mut change = |text: &str| {
            let new = folder.path().join("new");
            std::fs::write(&new, text).unwrap();
            std::fs::rename(&new, &config_path).unwrap();
            let told = (0..3000).find_map(|_| {
                reloads.now();
                std::thread::sleep(Duration::from_millis(20));
                inbox.try_recv().ok()
            });
            match told {
                Some(Happened::Reloaded(result)) => *result,
                _ => panic!("the thread has ended"),
            }
        };
        let before = stumbles::panics();
        let refused = change(&format!("# a stone\n{valid}")).expect_err("it panicked");
        assert!(refused.contains("panicked"), "{refused}");
        assert!(stumbles::panics() > before);
        let taken_up = change(&format!("# a pebble\n{valid}")).expect("it is valid");
        assert_eq!(taken_up.directories.len(), 1);
    }
}
