//! `cargo xtask setup`: what building and testing need beyond Rust.
//!
//! Debian: installs what is missing, and only that. Elsewhere: says what to install. Running it twice does nothing
//! the second time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Result, bail};

use crate::build_ebpf::{self, Compiler};
use crate::command::{line, run as run_command};
use crate::kube_apiserver;

/// Installs what is missing.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only say what is missing; fail when something is.
    #[arg(long)]
    check: bool,
}

/// A program that tests run, and the Debian package that has it.
const PROGRAMS: [(&str, &str); 11] = [
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("losetup", "mount"),
    ("mount", "mount"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("openssl", "openssl"),
    ("curl", "curl"),
    ("xz", "xz-utils"),
    ("strace", "strace"),
];

/// What an API server keeps its objects in; needed only where there is one. Debian's package also starts a service of its
/// own on 127.0.0.1:2379, which the tests leave alone.
const ETCD: (&str, &str) = ("etcd", "etcd-server");

/// Debian's compiler with a core library for eBPF.
const COMPILER: [&str; 2] = ["rustc-web", "libstd-rust-web-dev-bpf"];

/// Installs it.
pub(crate) fn run(options: Options, root: &Path) -> Result<()> {
    let mut missing = missing();
    let without_etcd = || Ok::<_, anyhow::Error>(kube_apiserver::find(root)? && find(ETCD.0).is_none());
    if find("xz").is_some() && without_etcd()? {
        missing.push(ETCD.1);
    }
    if options.check {
        return if missing.is_empty() { Ok(()) } else { bail!("missing: {}", missing.join(" ")) };
    }
    if missing.is_empty() {
        println!("nothing is missing");
    } else if Path::new("/etc/debian_version").exists() {
        install(&missing)?;
    } else {
        bail!(
            "this is not Debian, so install these (Debian's names) by hand: {}. In place of {}, a rustup \
             nightly with rust-src will do, if its LLVM is the one that bpf-linker reads",
            missing.join(" "),
            COMPILER.join(" and ")
        );
    }
    // The API server may have been packed, and what unpacks it has only come now.
    if without_etcd()? {
        install(&[ETCD.1])?;
    }
    let linker = build_ebpf::linker()?;
    println!("bpf-linker: {}", linker.display());
    if !kube_apiserver::find(root)? {
        println!(
            "no kube-apiserver: the tests that need one are skipped (`cargo xtask kube-apiserver` builds one in 5 min)"
        );
    }
    Ok(())
}

fn missing() -> Vec<&'static str> {
    let programs =
        PROGRAMS.into_iter().filter(|(program, _)| find(program).is_none()).map(|(_, package)| package);
    let mut missing: Vec<&str> = programs.collect();
    if Compiler::find().is_err() {
        missing.extend(COMPILER);
    }
    missing.dedup();
    missing
}

/// Where `program` lies: in PATH or where administration programs lie, which is not in everybody's PATH.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.map(|directory| directory.join(program)).find(|file| fs::metadata(file).is_ok())
}

fn install(packages: &[&str]) -> Result<()> {
    let mut install = apt_get(&["install", "--yes", "--no-install-recommends"]);
    install.args(packages);
    println!("installing: {}", line(&install));
    // A fresh system has no package lists yet, or old ones.
    run_command(&mut install).or_else(|_| {
        run_command(&mut apt_get(&["update"]))?;
        run_command(&mut install)
    })
}

fn apt_get(arguments: &[&str]) -> Command {
    // `id -u` is the one question about ourselves that needs no library.
    let root = crate::command::output(Command::new("id").arg("-u")).is_ok_and(|id| id == "0");
    let mut command = Command::new(if root { "env" } else { "sudo" });
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"]).args(arguments);
    command
}
