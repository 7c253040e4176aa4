//! `checkpoint-guard doctor`: what this node offers, what is missing, and what to change.

mod backends;
mod brake;
mod capabilities;
mod configuration;
mod daemon;
mod directories;
mod fix;
mod kernel;
mod privacy;
mod report;
mod sandbox;
mod thresholds;

use std::process::ExitCode;

use self::report::{Report, Section};
use crate::cli::{Common, FAILED, Output};
use crate::config::BrakeMode;
use crate::observe::host::kernel::Kernel;

/// Arguments of `doctor`.
///
/// Looks at this node the way the daemon does: loads its eBPF program, opens the configured directories, measures their
/// filesystems, reads what lies there; and asks the daemon, if one is running. Changes nothing, but for a nameless file of
/// 64 KiB in each directory that shows whether what is written there is counted, and one outside of them (in /dev/shm, /run
/// or /tmp) that shows whether writing can be refused.
///
/// Each line is "ok", a note, "could be better", or "MISSING": without that the guard cannot do its work. Below each that
/// is not ok stands what to change.
///
/// Exit code 0 when everything essential is there, 1 when something is missing.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How to print.
    #[arg(long, short, default_value = "table", value_name = "FORMAT")]
    output: Output,
    /// Take checkpoints out of the reach of others instead: archives to mode 0600, directories to 0700.
    ///
    /// Only checkpoints and the configured directories, only what belongs to you, and no file that has other names; each
    /// change is told. Exit code 1 when something had to stay as it is.
    #[arg(long)]
    fix_permissions: bool,
}

/// Prints what this node offers, or puts its permissions right.
pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    if args.fix_permissions {
        let (_, config) = common.load()?;
        return fix::run(&config, args.output);
    }
    let report = examine(common);
    report.print(args.output, &mut std::io::stdout().lock())?;
    Ok(if report.is_ready() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Everything there is to say.
fn examine(common: &Common) -> Report {
    let loaded = common.load();
    let mut sections = vec![configuration::section(common, &loaded)];
    let kernel = Kernel::here();
    let config = loaded.as_ref().ok().map(|(_, config)| config);
    let daemon = daemon::Found::look(config);
    sections.push(daemon.section());
    if let Ok((file, config)) = &loaded {
        let opened = directories::open(config);
        let survey = backends::Survey::take(config, &opened);
        sections.extend([
            directories::section(config, &opened, &survey),
            thresholds::section(file, config, &opened),
            privacy::section(config, &opened),
            survey.section(),
        ]);
    } else {
        sections.push(backends::Survey::without_directories().section());
    }
    sections.extend([
        kernel::section(&kernel),
        capabilities::section(daemon.process()),
        brake::section(&kernel, config.map_or(BrakeMode::Auto, |config| config.brake)),
        sandbox::section(daemon.process()),
    ]);
    Report::new(sections.into_iter().filter(Section::says_something).collect())
}
