//! `demo`: a storm of checkpoints on a small disk of its own, with and without the guard.
//!
//! `cargo xtask demo` builds everything and runs this. Every number that it prints was measured in this run.

mod audit;
mod picture;
mod scene;
mod stage;
mod summary;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use guard::model::Bytes;
use nix::sys::signal::{SigHandler, Signal, signal};
use tests::loopfs::Filesystem;

/// Shows the guard keeping a small disk above its thresholds while checkpoints arrive at full speed.
///
/// The disk is an image below TMPDIR; with TMPDIR=/dev/shm it is as fast as memory. CHECKPOINT_GUARD names another guard
/// than the one beside this program.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// The same storm with nobody watching: it ends in ENOSPC.
    #[arg(long)]
    pub without_guard: bool,
    /// What to make on the loop device.
    #[arg(long, value_enum, default_value = "ext4")]
    pub filesystem: FilesystemName,
    /// How long the storm lasts.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// So many writers at once.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub writers: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FilesystemName {
    Ext4,
    Xfs,
    Btrfs,
}

impl From<FilesystemName> for Filesystem {
    fn from(name: FilesystemName) -> Filesystem {
        match name {
            FilesystemName::Ext4 => Filesystem::Ext4,
            FilesystemName::Xfs => Filesystem::Xfs,
            FilesystemName::Btrfs => Filesystem::Btrfs,
        }
    }
}

/// Of the filesystem that the demo makes.
pub(crate) const DISK: Bytes = Bytes::gib(1);

/// Set by SIGINT and SIGTERM. The demo then ends early but in order: storm, guard, mount.
pub(crate) static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the demo mounts a filesystem and loads eBPF programs, so it needs root: sudo cargo xtask demo"
    );
    catch_interrupts().context("cannot catch SIGINT and SIGTERM")?;
    let summary = stage::play(&options)?;
    print!("{summary}");
    if INTERRUPTED.load(Ordering::Relaxed) {
        println!("interrupted: the numbers are those up to then");
    }
    Ok(if summary.kept_every_promise() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn catch_interrupts() -> Result<()> {
    extern "C" fn note(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for caught in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe (signal-safety(7)).
        unsafe { signal(caught, SigHandler::Handler(note)) }?;
    }
    Ok(())
}
