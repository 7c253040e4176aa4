//! `checkpoint-guard top`: the running daemon, live.

mod plain;
mod screen;
mod terminal;
mod words;

pub(crate) use words::printable;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::cli::{Common, Misconfigured, Output};
use crate::config::parse_duration;
use crate::report::record::API_VERSION;
use crate::report::snapshot::Snapshot;
use crate::report::socket::{Client, ClientError, Reply, Request};

/// Arguments of `top`.
///
/// Shows each watched filesystem as the running daemon sees it: how full it is against the thresholds, how soon the
/// next one is reached, who writes, what would be deleted next and why, and what was deleted lately. Asks the daemon over
/// its socket ([socket] path), so it needs root.
///
/// Keys: tab and the arrows go from filesystem to filesystem, p pauses, q quits. In scripts: --once, or -o json for one
/// line of JSON at each interval.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// How often to ask: "1s", "200ms"; from 100 ms to a minute.
    #[arg(long, short = 'n', value_name = "DURATION", default_value = "1s")]
    interval: String,
    /// Print once, plainly, and end; works without a terminal.
    ///
    /// What is written by whom is measured over one interval, so it takes that long.
    #[arg(long)]
    once: bool,
    /// How to print. "json" prints snapshots instead of drawing a screen.
    #[arg(long, short, default_value = "table", value_name = "FORMAT")]
    output: Output,
    /// The daemon's socket, where it is not the configured one.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Shows the daemon until told to quit.
pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let interval = match parse_duration(&args.interval) {
        Ok(interval) if (Duration::from_millis(100)..=Duration::from_secs(60)).contains(&interval) => {
            interval
        }
        Ok(_) => anyhow::bail!(Misconfigured::new("--interval: from \"100ms\" to \"60s\" is accepted")),
        Err(problem) => anyhow::bail!(Misconfigured::new(format!("--interval: {problem}"))),
    };
    let path = match &args.socket {
        Some(path) => path.clone(),
        None => {
            let off =
                || Misconfigured::new("[socket] path = \"off\": the daemon has no socket to be asked over");
            common.load()?.1.socket.path.ok_or_else(off)?
        }
    };
    match args.output {
        Output::Json => print_json(args, &path, interval)?,
        Output::Table if args.once => {
            let snapshot = once(&path, interval)?;
            plain::print(&mut std::io::stdout().lock(), &snapshot)?;
        }
        Output::Table => terminal::run(&path, interval)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn watch(path: &Path, interval: Duration) -> Result<Client, ClientError> {
    let interval_milliseconds = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
    Client::send(path, &Request::Watch { interval_milliseconds })
}

fn next(client: &mut Client) -> Result<Snapshot, ClientError> {
    match client.reply()? {
        Some(Reply::Snapshot(snapshot)) => Ok(*snapshot),
        Some(_) => Err(ClientError::Refused("something else than a snapshot".to_owned())),
        None => Err(client.ended()),
    }
}

/// The second of two snapshots: rates are known between two.
fn once(path: &Path, interval: Duration) -> Result<Snapshot, ClientError> {
    let mut client = watch(path, interval)?;
    next(&mut client)?;
    next(&mut client)
}

/// One line for each snapshot, until the reader or the daemon has enough.
fn print_json(args: &Args, path: &Path, interval: Duration) -> anyhow::Result<()> {
    #[derive(serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Document {
        api_version: &'static str,
        kind: &'static str,
        #[serde(flatten)]
        snapshot: Snapshot,
    }
    let document = |snapshot| Document { api_version: API_VERSION, kind: "Snapshot", snapshot };
    let mut out = std::io::stdout().lock();
    if args.once {
        serde_json::to_writer_pretty(&mut out, &document(once(path, interval)?))?;
        writeln!(out)?;
        return Ok(());
    }
    let mut client = watch(path, interval)?;
    loop {
        serde_json::to_writer(&mut out, &document(next(&mut client)?))?;
        writeln!(out)?;
        out.flush()?;
    }
}

/// Snapshots as they come, from a thread that may wait for them; the last is why there are no more.
fn snapshots(path: PathBuf, interval: Duration) -> Receiver<Result<Snapshot, ClientError>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let ended = watch(&path, interval).and_then(|mut client| {
            loop {
                if sender.send(Ok(next(&mut client)?)).is_err() {
                    return Ok(());
                }
            }
        });
        if let Err(error) = ended {
            // Err: nobody looks any more.
            let _ = sender.send(Err(error));
        }
    });
    receiver
}
