//! `cargo xtask image`: the container image as an OCI archive, without a container engine.
//!
//! One layer with one static binary and nothing else. Equal sources and tools make an equal archive, byte for byte: no time, no
//! user and no path of this machine is in it.

use std::env;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use crate::command;

/// Makes the image.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The archive: `podman load --input`, `skopeo copy oci-archive:…`, `ctr image import`.
    #[arg(long, value_name = "FILE", default_value = "target/checkpoint-guard.oci.tar")]
    output: PathBuf,
    /// What the image is called.
    #[arg(long, value_name = "NAME:TAG", default_value = concat!("checkpoint-guard:", env!("CARGO_PKG_VERSION")))]
    name: String,
    /// A static binary that is there already; by default one is built for release.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// A registry that keeps thousands of versions and a node that pulls on a slow line both care.
const SIZE_MAX: u64 = 20 << 20;

/// Builds the binary, unless there is one, and packs it.
pub(crate) fn run(options: Options, root: &Path) -> Result<()> {
    let binary = match options.binary {
        Some(binary) => binary,
        None => build(root)?,
    };
    let mut program = Vec::new();
    let mut file = File::open(&binary).with_context(|| format!("cannot read {}", binary.display()))?;
    file.read_to_end(&mut program)?;
    let architecture = inspect(&program).with_context(|| binary.display().to_string())?;
    let output = root.join(&options.output);
    let archive = pack(&program, architecture, &options.name)?;
    std::fs::write(&output, &archive).with_context(|| format!("cannot write {}", output.display()))?;
    let size = archive.len() as u64;
    println!(
        "{}: {:.1} MiB, {} for linux/{architecture}",
        output.display(),
        size as f64 / 1_048_576.0,
        options.name
    );
    ensure!(size <= SIZE_MAX, "the archive is larger than the {} MiB that it may be", SIZE_MAX >> 20);
    Ok(())
}

/// A static release binary. With `--target`, so that crt-static is for it and not for build scripts and procedural macros.
fn build(root: &Path) -> Result<PathBuf> {
    command::xtask("setup", root)?;
    command::xtask("build-ebpf", root)?;
    let version = command::output(Command::new("rustc").arg("-vV"))?;
    let host =
        version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV names no host")?;
    let mut cargo = command::cargo();
    cargo.args(["build", "--release", "--locked", "--package", "guard", "--target", host]);
    let target = command::target_directory()?;
    let places = [(root, "/src"), (&target, "/target"), (&cargo_home()?, "/cargo")];
    let remap = |flag: &str, (path, name): &(&Path, &str)| format!("{flag}={}={name}", path.display());
    let rust = places.iter().map(|place| remap("--remap-path-prefix", place));
    let rust: Vec<_> =
        ["-C".to_owned(), "target-feature=+crt-static".to_owned()].into_iter().chain(rust).collect();
    let c: Vec<_> = places.iter().map(|place| remap("-ffile-prefix-map", place)).collect();
    cargo.env("CARGO_ENCODED_RUSTFLAGS", rust.join("\x1f")).env("CFLAGS", c.join(" "));
    command::run(cargo.current_dir(root))?;
    let binary = target.join(host).join("release/checkpoint-guard");
    let program = std::fs::read(&binary)?;
    for (path, _) in places {
        ensure!(
            !contains(&program, path),
            "{} tells that it was built in {}",
            binary.display(),
            path.display()
        );
    }
    Ok(binary)
}

fn cargo_home() -> Result<PathBuf> {
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cargo"));
    env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home).context("neither CARGO_HOME nor HOME is set")
}

/// Whether a path in `program` begins with `path`.
fn contains(program: &[u8], path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    let wanted = [path.as_os_str().as_bytes(), b"/"].concat();
    program.windows(wanted.len()).any(|window| window == wanted)
}

/// The image's word for the machine of an ELF file; refuses one that needs a dynamic linker, which the image has not.
fn inspect(program: &[u8]) -> Result<&'static str> {
    let number = |offset: usize, bytes: usize| -> Option<u64> {
        let field = program.get(offset..offset + bytes)?;
        Some(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    ensure!(program.starts_with(b"\x7fELF\x02\x01"), "this is no ELF file of 64 bits, least byte first");
    // elf(5): e_machine, e_phoff, e_phentsize, e_phnum; p_type 3 is PT_INTERP.
    let field = |offset, bytes| number(offset, bytes).context("the ELF header is cut off");
    let (table, entry, count) = (field(0x20, 8)?, field(0x36, 2)?, field(0x38, 2)?);
    for index in 0..count {
        let offset = usize::try_from(table + index * entry)?;
        ensure!(
            field(offset, 4)? != 3,
            "it needs a dynamic linker; build it with -C target-feature=+crt-static"
        );
    }
    match field(0x12, 2)? {
        62 => Ok("amd64"),
        183 => Ok("arm64"),
        other => anyhow::bail!("no image is made for the ELF machine {other}"),
    }
}

/// The archive.
fn pack(program: &[u8], architecture: &str, name: &str) -> Result<Vec<u8>> {
    let layer = layer(program)?;
    let compressed = gzip(&layer)?;
    let labels = labels();
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        // What needs no rights (check-config, simulate, --help) gets none. The DaemonSet says `runAsUser: 0`, because the
        // archives are root's, mode 0600, and a capability of a user who is not root is lost at execve(2).
        "config": {
            "User": "65532:65532",
            "Env": ["PATH=/usr/bin"],
            "Entrypoint": ["checkpoint-guard"],
            "Cmd": ["run"],
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
    });
    let config = serde_json::to_vec(&config)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &compressed)],
        "annotations": labels,
    });
    let manifest = serde_json::to_vec(&manifest)?;
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    entry["annotations"] = json!({
        "org.opencontainers.image.ref.name": name,
        "io.containerd.image.name": name,
    });
    let index = json!({ "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry] });
    let mut archive = Builder::new(Vec::new());
    add(&mut archive, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    add(&mut archive, "index.json", 0o644, &serde_json::to_vec(&index)?)?;
    for blob in [&manifest, &config, &compressed] {
        let path = format!("blobs/{}", digest(blob).replace(':', "/"));
        add(&mut archive, &path, 0o644, blob)?;
    }
    Ok(archive.into_inner()?)
}

fn labels() -> Value {
    json!({
        "org.opencontainers.image.title": "checkpoint-guard",
        "org.opencontainers.image.description": "Keeps container checkpoints from filling a node",
        "org.opencontainers.image.source": "https://github.com/checkpoint-guard/checkpoint-guard",
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
        "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
    })
}

fn layer(program: &[u8]) -> Result<Vec<u8>> {
    let mut layer = Builder::new(Vec::new());
    for directory in ["usr/", "usr/bin/"] {
        let mut header = header(0o755, 0);
        header.set_entry_type(EntryType::Directory);
        layer.append_data(&mut header, directory, std::io::empty())?;
    }
    add(&mut layer, "usr/bin/checkpoint-guard", 0o755, program)?;
    Ok(layer.into_inner()?)
}

fn add(archive: &mut Builder<Vec<u8>>, path: &str, mode: u32, content: &[u8]) -> Result<()> {
    Ok(archive.append_data(&mut header(mode, content.len() as u64), path, content)?)
}

fn header(mode: u32, size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut encoder: GzEncoder<Vec<u8>> = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(content)?;
    Ok(encoder.finish()?)
}

fn digest(content: &[u8]) -> String {
    let hash = Sha256::digest(content);
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(content), "size": content.len() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(archive);
        let read = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (entry.path().unwrap().display().to_string(), content)
        };
        archive.entries().unwrap().map(read).collect()
    }

    #[test]
    fn the_archive_is_an_oci_layout_whose_digests_hold_and_holds_the_binary_alone() {
        let archive = pack(b"program", "amd64", "checkpoint-guard:1").unwrap();
        assert_eq!(
            archive,
            pack(b"program", "amd64", "checkpoint-guard:1").unwrap(),
            "equal inputs, equal archive"
        );
        let files = files(&archive);
        let json = |name: &str| -> Value { serde_json::from_slice(&files[name]).unwrap() };
        let blob = |descriptor: &Value| {
            let digest_said = descriptor["digest"].as_str().unwrap();
            let content = &files[&format!("blobs/{}", digest_said.replace(':', "/"))];
            assert_eq!(digest(content), digest_said);
            assert_eq!(content.len() as u64, descriptor["size"].as_u64().unwrap());
            content.clone()
        };
        assert_eq!(json("oci-layout")["imageLayoutVersion"], "1.0.0");
        let entry = &json("index.json")["manifests"][0];
        assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], "checkpoint-guard:1");
        let manifest: Value = serde_json::from_slice(&blob(entry)).unwrap();
        let config: Value = serde_json::from_slice(&blob(&manifest["config"])).unwrap();
        let mut layer = Vec::new();
        flate2::read::GzDecoder::new(&*blob(&manifest["layers"][0])).read_to_end(&mut layer).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"], json!([digest(&layer)]));
        assert_eq!(config["config"]["User"], "65532:65532");
        let held = self::files(&layer);
        assert_eq!(held.keys().collect::<Vec<_>>(), ["usr/", "usr/bin/", "usr/bin/checkpoint-guard"]);
        assert_eq!(held["usr/bin/checkpoint-guard"], b"program");
    }

    #[test]
    fn a_path_of_the_machine_is_found() {
        let program = b"\0\0panicked at /home/me/src/main.rs\0";
        assert!(contains(program, Path::new("/home/me/src")));
        assert!(!contains(program, Path::new("/home/me/sr")) && !contains(program, Path::new("/home/you")));
    }

    #[test]
    fn a_binary_that_needs_a_linker_is_refused() {
        // The tests themselves are such a one.
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let error = inspect(&this).unwrap_err().to_string();
        assert!(error.contains("crt-static"), "{error}");
        assert!(inspect(b"#!/bin/sh").is_err());
        assert!(inspect(b"\x7fELF\x02\x01").is_err());
    }
}
