//! The terminal: drawing as snapshots and keys come, and leaving it as it was, whatever ends it.

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::screen::{Screen, draw};
use super::{next, snapshots, watch};
use crate::cli::Misconfigured;
use crate::report::snapshot::Snapshot;
use crate::report::socket::ClientError;

/// How long a key, a signal or a snapshot may lie about.
const TICK: Duration = Duration::from_millis(100);
/// A daemon that has gone is asked for again so often; it may be starting anew.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Draws until somebody quits.
pub(super) fn run(path: &Path, interval: Duration) -> anyhow::Result<()> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let message = "top draws on a terminal and this is none; --once prints plainly, -o json for programs";
        anyhow::bail!(Misconfigured::new(message));
    }
    // The first is waited for outside: a daemon that is not there is an error, not a screen.
    let first = next(&mut watch(path, interval)?)?;
    // Before any other thread, so that all of them leave these signals to the descriptor. Ctrl-C is a key by then.
    let signals = ending_signals()?;
    let receiver = snapshots(path.to_owned(), interval);
    let mut terminal = Restored(ratatui::try_init()?);
    let mut top = Top { screen: Screen::default(), receiver, idle: Duration::ZERO };
    top.take(first);
    loop {
        top.receive(path, interval);
        terminal.0.draw(|frame| draw(frame, &top.screen))?;
        if event::poll(TICK)? {
            while event::poll(Duration::ZERO)? {
                if let Event::Key(key) = event::read()?
                    && top.pressed(key)
                {
                    return Ok(());
                }
            }
        }
        if signals.read_signal()?.is_some() {
            return Ok(());
        }
    }
}

/// SIGTERM, SIGHUP and SIGINT as a descriptor.
fn ending_signals() -> nix::Result<SignalFd> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        signals.add(signal);
    }
    signals.thread_block()?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

/// The terminal, put back as it was on every way out; a panic does it by a hook, before its message.
struct Restored(DefaultTerminal);

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

struct Top {
    screen: Screen,
    receiver: Receiver<Result<Snapshot, ClientError>>,
    /// How long there has been nobody to receive from.
    idle: Duration,
}

impl Top {
    fn take(&mut self, snapshot: Snapshot) {
        self.screen.problem = None;
        if !self.screen.is_paused || self.screen.snapshot.is_none() {
            self.screen.snapshot = Some(snapshot);
        }
    }

    /// Takes what has come; asks anew when nothing will come any more.
    fn receive(&mut self, path: &Path, interval: Duration) {
        loop {
            match self.receiver.try_recv() {
                Ok(Ok(snapshot)) => self.take(snapshot),
                Ok(Err(error)) => self.screen.problem = Some(error.to_string()),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.idle += TICK;
                    if self.idle >= ASK_AGAIN {
                        self.idle = Duration::ZERO;
                        self.receiver = snapshots(path.to_owned(), interval);
                    }
                    return;
                }
            }
        }
    }

    /// Does what a key says; whether that is to quit.
    fn pressed(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Tab | KeyCode::Right | KeyCode::Down | KeyCode::Char('j') => self.screen.go(1),
            KeyCode::BackTab | KeyCode::Left | KeyCode::Up | KeyCode::Char('k') => self.screen.go(-1),
            KeyCode::Char('p' | ' ') => self.screen.is_paused = !self.screen.is_paused,
            _ => {}
        }
        false
    }
}
