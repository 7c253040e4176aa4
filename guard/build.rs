//! Embeds the eBPF object that `cargo xtask build-ebpf` makes, or says what to do when it is not there.

use std::path::Path;
use std::{env, fs};

#[path = "../xtask/src/ebpf_artifact.rs"]
mod ebpf_artifact;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../xtask/src/ebpf_artifact.rs");
    println!("cargo::rerun-if-env-changed=CARGO_TARGET_DIR");
    if env::var_os("CARGO_FEATURE_EBPF").is_some() {
        embed(Path::new("..").canonicalize().expect("the workspace is there").as_path());
    }
}

fn embed(root: &Path) {
    let directory = ebpf_artifact::directory(root);
    let object = directory.join(ebpf_artifact::OBJECT);
    println!("cargo::rerun-if-changed={}", object.display());
    let out = Path::new(&env::var_os("OUT_DIR").expect("cargo sets it")).join(ebpf_artifact::OBJECT);
    if let Err(error) = fs::copy(&object, out) {
        println!("cargo::error=no eBPF object {}: {error}", object.display());
        println!(
            "cargo::error=make it with `cargo xtask build-ebpf` (`cargo xtask setup` installs what that needs),"
        );
        println!("cargo::error=or build without eBPF by choice: --no-default-features");
        return;
    }
    warn_if_stale(root, &directory);
}

fn warn_if_stale(root: &Path, directory: &Path) {
    for source in ebpf_artifact::sources(root).unwrap_or_default() {
        println!("cargo::rerun-if-changed={}", source.display());
    }
    let made_from = directory.join(ebpf_artifact::FINGERPRINT);
    println!("cargo::rerun-if-changed={}", made_from.display());
    let made_from = fs::read_to_string(made_from).unwrap_or_default();
    if ebpf_artifact::fingerprint(root).is_ok_and(|now| now != made_from) {
        println!(
            "cargo::warning=guard-ebpf has changed since its object was made: run `cargo xtask build-ebpf`"
        );
    }
}
