//! `checkpoint-guard brake`: whether writers of checkpoints are refused; refusing them by hand, and letting them go.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use crate::cli::{Common, FAILED, Misconfigured, Output, table};
use crate::config::{format_duration, parse_duration};
use crate::decide::brake::{ENGAGED_FOR, INHIBITED};
use crate::model::Bytes;
use crate::report::record::{API_VERSION, BrakeRecord};
use crate::report::socket::{Client, Reply, Request};

/// Asks the running daemon; only root may.
///
/// docs/BRAKE.md tells when it engages by itself, who is refused, and how to try it safely.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show whether writers are refused, why, since when, and how many calls.
    Status(Which),
    /// Refuse writers into the checkpoint directories from now on, whatever the level.
    ///
    /// Exit code 1 where nobody is refused all the same; the last column says why.
    Engage {
        #[command(flatten)]
        which: Which,
        /// For so long; then it ends by itself, unless it must hold anyway. Default: 10m.
        #[arg(long = "for", value_name = "DURATION", value_parser = duration, conflicts_with = "until_released")]
        time: Option<Duration>,
        /// Until somebody releases it.
        #[arg(long)]
        until_released: bool,
    },
    /// Let everybody write, at once.
    ///
    /// Exit code 1 where somebody is refused all the same.
    Release {
        #[command(flatten)]
        which: Which,
        /// For so long it does not engage by itself. Default: 10m.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        inhibit: Option<Duration>,
    },
}

#[derive(Debug, clap::Args)]
struct Which {
    /// Only the filesystem of this watched directory.
    #[arg(long, value_name = "PATH")]
    filesystem: Option<PathBuf>,
    /// How to print.
    #[arg(long, short, default_value = "table", value_name = "FORMAT")]
    output: Output,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    api_version: &'static str,
    kind: &'static str,
    mode: &'a str,
    items: &'a [BrakeRecord],
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text)
}

/// Asks, and prints how it is now.
pub fn run(args: Args, common: &Common) -> anyhow::Result<ExitCode> {
    let (_, config) = common.load()?;
    let off = || Misconfigured::new("[socket] path = \"off\": the daemon cannot be asked");
    let socket = config.socket.path.ok_or_else(off)?;
    let of = |which: &Which| which.filesystem.as_ref().map(|path| path.display().to_string());
    let (request, output) = match args.action {
        Action::Status(which) => (Request::BrakeStatus { filesystem: of(&which) }, which.output),
        Action::Engage { which, time, until_released } => {
            let time = (!until_released).then(|| time.unwrap_or(ENGAGED_FOR).as_secs());
            (Request::BrakeEngage { filesystem: of(&which), seconds: time }, which.output)
        }
        Action::Release { which, inhibit } => {
            let inhibit_seconds = inhibit.unwrap_or(INHIBITED).as_secs();
            (Request::BrakeRelease { filesystem: of(&which), inhibit_seconds }, which.output)
        }
    };
    let Reply::Brake { mode, items } = Client::ask(&socket, &request)? else {
        anyhow::bail!("the daemon answered something else; is it of another version than this command?");
    };
    let is_unmet = |item: &BrakeRecord| match request {
        Request::BrakeEngage { .. } => !item.engaged || item.problem.is_some(),
        Request::BrakeRelease { .. } => item.engaged,
        _ => false,
    };
    let mut out = std::io::stdout().lock();
    match output {
        Output::Json => {
            let document = Document { api_version: API_VERSION, kind: "Brake", mode: &mode, items: &items };
            serde_json::to_writer_pretty(&mut out, &document)?;
            writeln!(out)?;
        }
        Output::Table => writeln!(out, "{}", rows(&mode, &items))?,
    }
    let has_failed = items.iter().any(is_unmet);
    Ok(if has_failed { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

fn rows(mode: &str, items: &[BrakeRecord]) -> comfy_table::Table {
    let mut table = table::new(vec!["FILESYSTEM", "BRAKE", "BY", "SINCE", "CALLS", "BYTES", "WHY"]);
    for item in items {
        let why = item.reason.clone().unwrap_or_default();
        let seconds = |seconds: Option<u64>| seconds.map(|it| format_duration(Duration::from_secs(it)));
        let ends = seconds(item.expires_in_seconds).map(|time| format!("ends in {time}"));
        let inhibited =
            seconds(item.inhibited_for_seconds).map(|time| format!("does not engage by itself for {time}"));
        let why: Vec<_> = [Some(why), ends, inhibited, item.problem.clone()].into_iter().flatten().collect();
        table.add_row(vec![
            item.filesystem.clone(),
            if item.engaged { "engaged" } else { "released" }.to_owned(),
            mode.to_owned(),
            item.since.map(|since| since.to_string()).unwrap_or_default(),
            item.refused_calls.to_string(),
            Bytes(item.refused_bytes).to_string(),
            why.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; "),
        ]);
    }
    table
}
