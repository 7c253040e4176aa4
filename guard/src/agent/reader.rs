//! A thread that reads what archives say inside, so that the loop never waits for one.
//!
//! A hostile archive may cost 50 ms (the reader's own bound); a thousand of them must not delay a deletion. Should one make
//! the reader panic, by a bug that neither tests nor fuzzing have found, it is one that cannot be read, like any damaged one:
//! without its reader, the guard would take every later archive for one that is being written, and never delete again.

use std::os::fd::{AsFd as _, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use nix::sys::eventfd::EventFd;

use crate::agent::priority;
use crate::observe::archive;
use crate::observe::catalog::{Answer, Catalog, ReadRequest, Reading, Version};
use crate::observe::scan;

/// So many requests are with the thread at a time; the rest waits in the catalog, where it can still change.
const AHEAD_MAX: usize = 64;

/// A request with the directory to open its file in.
type Order = (Arc<OwnedFd>, ReadRequest);

/// The thread and the two ends of the conversation with it.
#[derive(Debug)]
pub(super) struct Reader {
    /// `None` once it has been told to end.
    orders: Option<Sender<Order>>,
    answers: Receiver<Answer>,
    ahead: usize,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Starts the thread. It rings `bell` after each answer.
    ///
    /// # Errors
    /// The system is out of threads.
    pub(super) fn start(name: &str, bell: Arc<EventFd>) -> std::io::Result<Reader> {
        Reader::start_with(name, bell, read)
    }

    fn start_with(
        name: &str,
        bell: Arc<EventFd>,
        read: fn(&OwnedFd, &ReadRequest) -> Reading,
    ) -> std::io::Result<Reader> {
        let (orders, inbox) = channel::<Order>();
        let (outbox, answers) = channel();
        let thread = Builder::new().name(format!("read-{name}")).spawn(move || {
            // An archive that has not been read is no candidate, so a busy node must not keep us from reading; but
            // what lies in archives must not get a real-time priority either.
            priority::prefer();
            for (dir, request) in inbox {
                // Nothing outlives a panic but its message: each archive is read with buffers of its own.
                let reading = catch_unwind(AssertUnwindSafe(|| read(&dir, &request)));
                let reading = reading.unwrap_or_else(|_| {
                    tracing::error!(
                        archive = %request.name.to_string_lossy(),
                        "a bug: reading it panicked; it counts as one that cannot be read"
                    );
                    Reading::Unreadable
                });
                if outbox.send((request, reading)).is_err() {
                    return;
                }
                // The only error is a full counter, and then the loop is awake already.
                let _ = bell.write(1);
            }
        })?;
        Ok(Reader { orders: Some(orders), answers, ahead: 0, thread: Some(thread) })
    }

    /// Takes the answers that have come into `catalog` and hands out what it wants read next. The result is how
    /// many answers came.
    pub(super) fn exchange(
        &mut self,
        catalog: &mut Catalog,
        directory: impl Fn(u16) -> Option<Arc<OwnedFd>>,
    ) -> usize {
        let mut answered = 0;
        while let Ok(answer) = self.answers.try_recv() {
            self.ahead -= 1;
            answered += 1;
            catalog.answer(answer);
        }
        let Some(orders) = &self.orders else { return answered };
        for request in catalog.wanted(AHEAD_MAX.saturating_sub(self.ahead)) {
            let order = directory(request.directory).map(|dir| (dir, request.clone()));
            match order.map(|order| orders.send(order)) {
                Some(Ok(())) => self.ahead += 1,
                _ => catalog.answer((request, Reading::Stale)),
            }
        }
        answered
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // What panics in it is caught there.
            let _ = thread.join();
        }
    }
}

/// Reads one archive.
fn read(dir: &OwnedFd, request: &ReadRequest) -> Reading {
    let Ok(file) = scan::open_file(dir.as_fd(), &request.name) else { return Reading::Stale };
    match scan::stat_of(&file) {
        Ok(stat) if Version::from(&stat) == request.version => {}
        _ => return Reading::Stale,
    }
    match archive::read(&file, &archive::Limits::default()) {
        Ok(contents) => Reading::Contents(Box::new(contents)),
        Err(error) => {
            tracing::debug!(archive = %request.name.to_string_lossy(), %error, "content not read");
            Reading::Unreadable
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::model::States;
    use crate::observe::catalog::Holds;

    /// A bug, on one archive.
    fn stumble(dir: &OwnedFd, request: &ReadRequest) -> Reading {
        assert!(!request.name.to_string_lossy().contains("stone"), "a bug that this test has made");
        read(dir, request)
    }

    #[test]
    fn one_that_makes_the_reader_panic_cannot_be_read_and_the_others_are() {
        let folder = tempfile::tempdir().unwrap();
        for container in ["a", "stone", "z"] {
            let name = format!("checkpoint-web_team-{container}-2026-01-01T00:00:00Z.tar");
            std::fs::write(folder.path().join(name), "cut short").unwrap();
        }
        let open = |path: &Path| Arc::new(OwnedFd::from(std::fs::File::open(path).unwrap()));
        let dir = open(folder.path());
        let mut catalog = Catalog::new(vec![folder.path().to_owned()]);
        catalog.scan(0, dir.as_fd(), Holds::Archives).unwrap();
        let bell = Arc::new(EventFd::new().unwrap());
        let mut reader = Reader::start_with("test", bell, stumble).unwrap();
        let mut answered = 0;
        for _ in 0..1000 {
            answered += reader.exchange(&mut catalog, |_| Some(dir.clone()));
            if answered == 3 {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let is_unread = |states: States| states.contains(States::BEING_WRITTEN);
        let unread = catalog.inventory().checkpoints.iter().filter(|it| is_unread(it.states)).count();
        assert_eq!((answered, unread), (3, 0));
    }
}
