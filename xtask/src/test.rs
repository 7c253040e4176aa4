//! `cargo xtask test`: everything that CI runs, from a fresh clone.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::command;
use crate::tally::{Tally, run_tests};

/// Formatting, lints, unit tests, tests on this kernel and its filesystems, documentation tests, tests on other kernels.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only tests whose name contains this; formatting and lints are left out.
    #[arg(long)]
    filter: Option<String>,
    /// Without those on other kernels (`cargo xtask vm-test`).
    #[arg(long)]
    skip_vm: bool,
    /// With the tests that take many minutes (those marked `#[ignore]`: a million steps of the model, the soak), and with a
    /// minute for each race.
    #[arg(long)]
    soak: bool,
}

/// Runs every step, also after one has failed, and ends with the sum.
pub(crate) fn run(options: Options, root: &Path) -> Result<()> {
    let mut report = Report::default();
    command::xtask("setup", root)?;
    command::xtask("build-ebpf", root)?;
    if options.filter.is_none() {
        report.step("fmt", || command::run(&mut cargo(root, &["fmt", "--all", "--check"])));
        let clippy = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"];
        report.step("clippy", || command::run(&mut cargo(root, &clippy)));
    }
    // The tests of the real binary start it from the target directory.
    let build = ["build", "--workspace", "--bins", "--quiet"];
    report.step("build", || command::run(&mut cargo(root, &build)));
    let harness = harness_arguments(&options);
    report.tests("unit tests", cargo(root, &["test", "--workspace", "--lib", "--bins"]), &harness);
    let (undisturbed, beside): (Vec<_>, Vec<_>) =
        test_programs(root)?.into_iter().filter(|it| !is_left_out(it, &options)).partition(|it| measures(it));
    // They wait more than they work.
    let threads = std::thread::available_parallelism().map_or(2, usize::from) + 1;
    let few: Vec<_> = harness.iter().cloned().chain([format!("--test-threads={threads}")]).collect();
    report.tests("tests beside each other", tests_of(root, &beside), &few);
    // One at a time: they share the machine's mounts, CPU time and kernel hooks, and measure.
    let alone: Vec<_> = harness.iter().cloned().chain(["--test-threads=1".to_owned()]).collect();
    report.tests("tests one by one", races(tests_of(root, &undisturbed), &options), &alone);
    report.tests("documentation tests", cargo(root, &["test", "--workspace", "--doc"]), &harness);
    if !options.skip_vm {
        report.run("tests on other kernels", vm_test(root, options.filter.as_deref())?);
    }
    report.finish()
}

/// The names of the programs in tests/tests.
fn test_programs(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("tests/tests"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// Programs of which nothing would run: they are not built either.
fn is_left_out(program: &str, options: &Options) -> bool {
    let is_left_out = options.skip_vm && program.starts_with("vm_") || !options.soak && program == "soak";
    if is_left_out {
        println!(
            "-- {program} is left out: it runs {}",
            if program == "soak" { "with --soak" } else { "in VMs" }
        );
    }
    is_left_out
}

/// Whether a test program watches kernel and disk, and must have them for itself; the others read files, or wait for servers.
/// Those for other kernels (`vm_`) run there.
fn measures(program: &str) -> bool {
    const BESIDE: [&str; 21] = [
        "archive_",
        "cases_",
        "cluster_",
        "config_",
        "coverage_document",
        "daemon_archives",
        "daemon_bad_input",
        "daemon_checkpoints",
        "daemon_faults",
        "daemon_growth",
        "daemon_in_use",
        "daemon_retention",
        "decide_",
        "decisions_",
        "deploy_",
        "fuzz_",
        "identity_",
        "notify_",
        "plan_",
        "report_dashboard",
        "report_prometheus",
    ];
    !BESIDE.iter().any(|prefix| program.starts_with(prefix))
}

fn tests_of(root: &Path, programs: &[String]) -> Command {
    let mut cargo = cargo(root, &["test", "--package", "tests"]);
    programs.iter().for_each(|program| {
        cargo.args(["--test", program]);
    });
    cargo
}

/// With more time for the tests that race for a time, when there is time.
fn races(mut cargo: Command, options: &Options) -> Command {
    if options.soak {
        cargo.env("CHECKPOINT_GUARD_RACE_SECONDS", "60");
    }
    cargo
}

fn vm_test(root: &Path, filter: Option<&str>) -> Result<Command> {
    let mut task = Command::new(std::env::current_exe()?);
    task.args(["vm-test", "--or-skip"]).current_dir(root);
    if let Some(filter) = filter {
        task.args(["--filter", filter]);
    }
    Ok(task)
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut cargo = command::cargo();
    cargo.args(arguments).current_dir(root);
    cargo
}

/// What goes to the test programs themselves.
fn harness_arguments(options: &Options) -> Vec<String> {
    let mut arguments = Vec::from_iter(options.filter.clone());
    // A test that cannot run here says "SKIPPED", which is only shown with its output.
    arguments.push("--show-output".to_owned());
    if options.soak {
        arguments.push("--include-ignored".to_owned());
    }
    arguments
}

/// What became of the steps.
#[derive(Debug, Default)]
struct Report {
    lines: Vec<String>,
    total: Tally,
    failed_steps: u32,
}

impl Report {
    fn step(&mut self, name: &str, run: impl FnOnce() -> Result<()>) {
        println!("== {name}");
        let (result, took) = timed(run);
        self.note(name, took, result.err(), "");
    }

    fn tests(&mut self, name: &str, mut command: Command, harness: &[String]) {
        command.args(["--no-fail-fast", "--"]).args(harness);
        self.run(name, command);
    }

    /// A command that prints as libtest does.
    fn run(&mut self, name: &str, mut command: Command) {
        println!("== {name}");
        let (result, took) = timed(|| run_tests(&mut command));
        let (tally, error) = match result {
            Ok((tally, status)) if status.success() => (tally, None),
            Ok((tally, status)) => (tally, Some(anyhow::anyhow!("{command:?} ended with {status}"))),
            Err(error) => (Tally::default(), Some(error)),
        };
        self.total = self.total + tally;
        self.note(name, took, error, &format!(": {tally}"));
    }

    fn note(&mut self, name: &str, took: Duration, error: Option<anyhow::Error>, outcome: &str) {
        let verdict = if error.is_some() { "FAILED" } else { "ok" };
        self.lines.push(format!("{:7.1} s  {name} {verdict}{outcome}", took.as_secs_f64()));
        if let Some(error) = error {
            println!("{error:#}");
            self.failed_steps += 1;
        }
    }

    fn finish(self) -> Result<()> {
        println!();
        self.lines.iter().for_each(|line| println!("{line}"));
        let mut total = self.total;
        if self.failed_steps > 0 && total.failed == 0 {
            // A step without a failed test (formatting, lints, a build): never "0 failed" beside exit code 1.
            total.failed = self.failed_steps;
        }
        println!("{total}");
        // The sum stays the last line, so there is no error to print.
        std::process::exit(i32::from(self.failed_steps > 0))
    }
}

#[expect(clippy::disallowed_methods, reason = "each step is shown with the time it took")]
fn timed<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let result = run();
    (result, began.elapsed())
}
