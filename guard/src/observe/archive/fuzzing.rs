//! What must hold of this room whatever bytes it is given: for `guard::fuzzing`, and so for cargo-fuzz.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::dumps::{self, Config, Spec};
use super::input::BLOCK;
use super::label::{is_dns_label, is_dns_subdomain, is_podman_name, is_uid};
use super::pax::Pax;
use super::{CheckpointName, Contents, Limits, identify, is_checkpoint, read};
use crate::model::{Certainty, Engine, Kind, Owner};

/// A file name: what it is taken apart into could be names.
pub fn name(bytes: &[u8]) {
    let name = OsStr::from_bytes(bytes);
    for kind in [Kind::Archive, Kind::PodCheckpoint] {
        let Some(parsed) = CheckpointName::parse(name, kind) else { continue };
        parsed.owners().for_each(|owner| check_owner(&owner, Engine::Unknown));
        assert!(parsed.owners().next().is_some(), "a name without any owner");
        assert!(is_checkpoint(Some(&parsed), None));
        let (identity, time) = identify(Some(&parsed), None);
        assert_eq!(identity.certainty, Certainty::NameOnly);
        assert_eq!(time, Some(parsed.time));
    }
}

/// A whole archive, as it is.
pub fn archive(bytes: &[u8]) {
    let contents = read(&file(bytes), &Limits::DEFAULT).expect("a file in memory can be read");
    check(&contents);
}

/// A tar whose checksums are put right first, so that what is behind them is reached.
pub fn tar(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    for block in bytes.chunks_exact_mut(BLOCK).filter(|block| block.iter().any(|&byte| byte != 0)) {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    archive(&bytes);
}

/// A compressed stream: of one of the four kinds whatever its first bytes are.
pub fn stream(bytes: &[u8]) {
    const MAGIC: [&[u8]; 4] =
        [&[0x1f, 0x8b, 8], &[0x28, 0xb5, 0x2f, 0xfd], &[0xfd, b'7', b'z', b'X', b'Z', 0], b"BZh9"];
    let mut bytes = bytes.to_vec();
    if !MAGIC.iter().any(|magic| bytes.starts_with(&magic[..2])) {
        let magic = MAGIC[usize::from(bytes.first().copied().unwrap_or(0)) % MAGIC.len()];
        bytes.splice(..magic.len().min(bytes.len()), magic.iter().copied());
    }
    archive(&bytes);
}

/// A `config.dump`, a `spec.dump`, a `status.dump`, and the records of an extended header.
pub fn dumps(bytes: &[u8]) {
    if let Some(config) = Config::parse(bytes) {
        if let Some(name) = config.engine_name() {
            check_owner(&name.owner, Engine::Unknown);
            assert!(is_uid(&name.pod_uid));
        }
        assert!(config.podman_container().is_none_or(|name| is_podman_name(&name)));
    }
    if let Some(spec) = Spec::parse(bytes) {
        check_owner(&spec.owner, spec.engine);
        assert!(spec.pod_uid.is_none_or(|uid| is_uid(&uid)));
    }
    if let Some(owner) = dumps::status_owner(bytes) {
        check_owner(&owner, Engine::Unknown);
    }
    if let Some(pax) = Pax::parse(bytes) {
        assert!(pax.path.is_none_or(|path| !path.is_empty() && !path.contains(&0)));
    }
}

fn check(contents: &Contents) {
    let limits = Limits::DEFAULT;
    // What is taken in before a decoder is known counts as well.
    assert!(contents.bytes_read <= limits.bytes + BLOCK as u64, "{} bytes read", contents.bytes_read);
    assert!(contents.headers <= limits.headers, "{} headers read", contents.headers);
    assert!(!(contents.complete() && contents.incomplete()));
    check_owner(&contents.keys, contents.engine);
    for owner in [&contents.engine_name, &contents.labels].into_iter().flatten() {
        check_owner(owner, Engine::Unknown);
    }
    assert!(contents.pod_uid.as_deref().is_none_or(is_uid));
    let (identity, _) = identify(None, Some(contents));
    if let (Certainty::Exact, Some(said)) = (identity.certainty, &contents.engine_name) {
        assert_eq!(&identity.owner, said, "no tenant can write the engine's name, so nothing outweighs it");
    }
}

/// Every part that is said could be one.
fn check_owner(owner: &Owner, engine: Engine) {
    let is_container = if engine == Engine::Podman { is_podman_name } else { is_dns_label };
    assert!(owner.namespace.as_deref().is_none_or(is_dns_label), "{owner}");
    assert!(owner.pod.as_deref().is_none_or(is_dns_subdomain), "{owner}");
    assert!(owner.container.as_deref().is_none_or(is_container), "{owner}");
}

fn file(bytes: &[u8]) -> File {
    let memory: OwnedFd = memfd_create(c"fuzzed", MFdFlags::MFD_CLOEXEC).expect("memfd_create(2) works");
    let file = File::from(memory);
    file.write_all_at(bytes, 0).expect("memory can be written");
    file
}
