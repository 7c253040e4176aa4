//! `cargo xtask vm-test`: the guard on kernels that this machine does not run.
//!
//! Each kernel boots in an emulator (qemu, never kvm: results must not depend on what the machine allows) from an
//! initramfs that holds busybox, the guard and test programs, and nothing is installed or mounted on this machine.
//!
//! To add a VM test: write `tests/tests/vm_<what>.rs`, an integration test like any other. Each such file is run in
//! every VM as root, one test at a time, with the filesystems' mkfs, loop devices and `checkpoint-guard` at hand; on
//! this machine `cargo test` runs it too, so let a test that this kernel refuses print `SKIPPED: why` and return.
//! `tests::vm::kernel()` tells inside a VM which kernel that is. A module that a test needs goes into [`modules::WANTED`],
//! a program into [`initramfs::PROGRAMS`]. While writing one: `cargo xtask vm-test --only 6.12 --program vm_what`.

mod initramfs;
mod kernels;
mod machine;
mod modules;
mod programs;
mod records;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::{fs, thread};

use anyhow::{Context, Result, bail, ensure};

use self::kernels::Kernel;
use self::machine::{Machine, Outcome};
use crate::build_ebpf::cache;
use crate::command;

/// Boots other kernels and runs the tests named `vm_…` there.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Only kernels whose version begins so: `6.12`; `newest` is one too.
    #[arg(long, value_name = "VERSION")]
    only: Vec<String>,
    /// A kernel image of your own, in place of Debian's.
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,
    /// Where its modules lie (`/lib/modules/VERSION`); without, it must have the filesystems built in.
    #[arg(long, value_name = "DIRECTORY", requires = "kernel")]
    modules: Option<PathBuf>,
    /// Only these test programs: `vm_guard`.
    #[arg(long, value_name = "NAME")]
    program: Vec<String>,
    /// Only tests whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// More kernel parameters, as in `lockdown=confidentiality`.
    #[arg(long, value_name = "PARAMETERS", default_value = "")]
    append: String,
    /// The guard to test; by default the one built here.
    #[arg(long, value_name = "PATH")]
    guard: Option<PathBuf>,
    /// How many VMs run at a time.
    #[arg(long, value_name = "NUMBER", default_value_t = 2)]
    jobs: usize,
    /// Asks the Debian mirror for newer kernels; else those that were fetched once are used.
    #[arg(long)]
    refresh: bool,
    /// Where there is no emulator or no kernel to be had, says so and succeeds.
    #[arg(long)]
    or_skip: bool,
    /// Takes what the kernels count for the truth, and records how soon the guard reacts there: rewrites
    /// tests/fixtures/coverage and tests/fixtures/reaction.
    #[arg(long)]
    bless: bool,
}

/// Kernel parameters of every VM. Debian's 5.10 does not start the BPF LSM by itself.
const PARAMETERS: &str = "console=ttyS0 panic=-1 quiet lsm=lockdown,capability,yama,bpf";

/// Fetches, packs, boots, and fails when a test failed in any kernel.
pub(crate) fn run(options: Options, root: &Path) -> Result<()> {
    let directory = command::target_directory()?.join("vm");
    let kernels = match find_kernels(&options) {
        Err(error) if options.or_skip => {
            println!("SKIPPED all other kernels: {error:#}");
            println!("test result: ok. 0 passed; 0 failed; 1 ignored; no VM");
            return Ok(());
        }
        kernels => kernels?,
    };
    command::xtask("build-ebpf", root)?;
    let programs = programs::build(root, &options.program, options.guard.as_deref())?;
    let machines: Vec<Machine> = kernels
        .iter()
        .map(|kernel| prepare(kernel, &programs, &options, root, &directory))
        .collect::<Result<_>>()?;
    let outcomes = boot_all(&machines, options.jobs);
    if options.bless {
        for outcome in &outcomes {
            records::bless(outcome, root)?;
        }
    }
    report(&outcomes)
}

fn find_kernels(options: &Options) -> Result<Vec<Kernel>> {
    let missing = machine::missing();
    ensure!(
        missing.is_empty(),
        "no VM can be started without {}: run `cargo xtask setup`, or install it",
        missing.join(" and ")
    );
    if let Some(image) = &options.kernel {
        return Ok(vec![Kernel::given(image, options.modules.as_deref())?]);
    }
    let kernels = kernels::debian(&cache()?.join("kernels"), &options.only, options.refresh)?;
    ensure!(
        !kernels.is_empty(),
        "no kernel is called {}: there are {}",
        options.only.join(", "),
        kernels::NAMES
    );
    Ok(kernels)
}

/// Packs the initramfs of one kernel.
fn prepare(
    kernel: &Kernel,
    programs: &programs::Programs,
    options: &Options,
    root: &Path,
    directory: &Path,
) -> Result<Machine> {
    let place = directory.join("machines").join(&kernel.name);
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    let initramfs = place.join("initramfs.cpio");
    let modules = kernel.modules.as_deref().map(modules::find).transpose()?.unwrap_or_default();
    initramfs::pack(&initramfs, &modules, programs, options.filter.as_deref(), root)
        .with_context(|| format!("cannot pack {}", initramfs.display()))?;
    Ok(Machine {
        name: kernel.name.clone(),
        image: kernel.image.clone(),
        initramfs,
        parameters: format!("{PARAMETERS} {}", options.append).trim().to_owned(),
        place,
    })
}

/// Runs all of them, `jobs` at a time, telling each outcome when it is there.
fn boot_all(machines: &[Machine], jobs: usize) -> Vec<Outcome> {
    let next = Mutex::new(machines.iter());
    let outcomes = Mutex::new(Vec::new());
    let take = || next.lock().ok()?.next();
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, machines.len()) {
            scope.spawn(|| {
                while let Some(machine) = take() {
                    println!("-- {} boots", machine.name);
                    let outcome = machine.run();
                    println!("{outcome}");
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.push(outcome);
                    }
                }
            });
        }
    });
    outcomes.into_inner().unwrap_or_default()
}

/// The sum, in the words of libtest so that whoever counts tests counts these.
fn report(outcomes: &[Outcome]) -> Result<()> {
    let mut outcomes: Vec<&Outcome> = outcomes.iter().collect();
    outcomes.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    println!();
    for outcome in &outcomes {
        println!("{}", outcome.line());
    }
    let failed: Vec<&str> =
        outcomes.iter().filter(|outcome| !outcome.is_good()).map(|outcome| outcome.kernel.as_str()).collect();
    if !failed.is_empty() {
        bail!("failed with the kernels {}", failed.join(", "));
    }
    Ok(())
}
