//! `cargo xtask kube-apiserver`: a real API server for the tests that need one.
//!
//! Debian has none as a package, but its source; building that takes five minutes and 2 GB. `cargo xtask setup` only takes
//! what is there: one in the cache, or one that somebody has packed beside the checkout.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result};

use crate::command;

/// Builds kube-apiserver from Debian's source and puts it where the tests look for it.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Build although there is one.
    #[arg(long)]
    again: bool,
}

/// Packed, beside the checkout.
const PACKED: &str = "../shared/kubebuilder/kube-apiserver.xz";

/// Builds it, unless it is there.
pub(crate) fn run(options: Options, root: &Path) -> Result<()> {
    let cached = cached()?;
    if !options.again && find(root)? {
        println!("kube-apiserver: {}", cached.display());
        return Ok(());
    }
    let work = command::target_directory()?.join("kube-apiserver");
    let script = root.join("xtask/scripts/build-kube-apiserver.sh");
    command::run(Command::new("bash").arg(script).arg(&work))?;
    put(&work.join("bin/kube-apiserver"), &cached)?;
    println!("kube-apiserver: {}", cached.display());
    Ok(())
}

/// Whether the tests will find one; unpacks one that lies packed beside the checkout.
pub(crate) fn find(root: &Path) -> Result<bool> {
    if env::var_os("KUBEBUILDER_ASSETS")
        .is_some_and(|assets| Path::new(&assets).join("kube-apiserver").is_file())
    {
        return Ok(true);
    }
    let cached = cached()?;
    if cached.is_file() {
        return Ok(true);
    }
    let packed = root.join(PACKED);
    if !packed.is_file() {
        return Ok(false);
    }
    let unpacked = cached.with_extension("new");
    fs::create_dir_all(unpacked.parent().context("the cache is a directory")?)?;
    let file = fs::File::create(&unpacked).with_context(|| format!("cannot write {}", unpacked.display()))?;
    command::run(Command::new("xz").args(["--decompress", "--stdout"]).arg(&packed).stdout(file))?;
    put(&unpacked, &cached)?;
    Ok(true)
}

/// Where the tests look for it (`tests/src/api_server.rs`).
pub(crate) fn cached() -> Result<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = cache.or_else(home).context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(cache.join("checkpoint-guard/kube-apiserver"))
}

fn put(made: &Path, place: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::create_dir_all(place.parent().context("the cache is a directory")?)?;
    fs::set_permissions(made, fs::Permissions::from_mode(0o755))?;
    if fs::rename(made, place).is_err() {
        // Another filesystem.
        fs::copy(made, place).with_context(|| format!("cannot write {}", place.display()))?;
    }
    Ok(())
}
