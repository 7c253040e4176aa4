//! The initramfs: busybox, an init script, modules, programs with their libraries. Written as cpio "newc"
//! (Documentation/driver-api/early-userspace/buffer-format.rst), uncompressed: an emulated processor reads it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::modules::Module;
use super::programs::{self, Programs};
use crate::setup;

/// Programs of this machine that tests in a VM start. busybox has the rest, and each of these is looked for first.
pub(crate) const PROGRAMS: [&str; 6] =
    ["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "chattr", "setpriv", "prlimit"];

const INIT: &str = include_str!("init.sh");

/// Writes it to `file`.
pub(crate) fn pack(
    file: &Path,
    modules: &[Module],
    programs: &Programs,
    filter: Option<&str>,
    root: &Path,
) -> Result<()> {
    let scratch = file.parent().context("it lies in a directory")?;
    let mut archive = Archive::default();
    archive.file("init", 0o755, INIT.as_bytes());
    archive.node("dev/console", 5, 1);
    for directory in ["proc", "sys", "tmp", "dev", "root", "sbin", "usr/bin", "usr/sbin", "var/lib"] {
        archive.directory(directory);
    }
    archive.copy(&setup::find("busybox").context("there is no busybox")?, "bin/busybox")?;

    let order: String = modules.iter().map(|module| format!("{}\n", module.name)).collect();
    archive.file("modules/order", 0o644, order.as_bytes());
    for module in modules {
        archive.file(&format!("modules/{}.ko", module.name), 0o644, &module.contents);
    }

    let mut libraries = BTreeSet::new();
    let tests = programs.tests.iter().map(|(name, path)| (format!("tests/{name}"), path.clone()));
    let ours = tests.chain([("usr/bin/checkpoint-guard".to_owned(), programs.guard.clone())]);
    for (name, path) in ours {
        libraries.extend(programs::libraries(&path)?);
        archive.file(&name, 0o755, &programs::stripped(&path, scratch)?);
    }
    for program in PROGRAMS {
        let path = setup::find(program).with_context(|| format!("there is no {program}"))?;
        libraries.extend(programs::libraries(&path)?);
        archive.copy(&path, &format!("usr/bin/{program}"))?;
    }
    for library in &libraries {
        archive
            .copy(library, library.to_str().context("library paths are UTF-8")?.trim_start_matches('/'))?;
    }
    archive.file("filter", 0o644, filter.unwrap_or_default().as_bytes());
    // Where the tests look for it: the path is compiled in.
    archive.tree(&root.join("tests/fixtures/coverage"))?;
    fs::write(file, archive.finish())?;
    Ok(())
}

/// A cpio archive being made.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    directories: BTreeSet<String>,
    inode: u32,
}

/// File types of `st_mode`.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

impl Archive {
    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        self.inode += 1;
        let len = u32::try_from(contents.len()).unwrap_or(u32::MAX);
        let name_len = name.len() as u32 + 1;
        let fields = [self.inode, mode, 0, 0, 1, 0, len, 0, 0, device.0, device.1, name_len, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").into_bytes());
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(contents);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// A directory, after those that it lies in.
    fn directory(&mut self, name: &str) {
        if name.is_empty() || self.directories.contains(name) {
            return;
        }
        self.parent(name);
        self.directories.insert(name.to_owned());
        self.entry(name, DIRECTORY | 0o755, (0, 0), &[]);
    }

    fn parent(&mut self, name: &str) {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.directory(parent);
        }
    }

    fn file(&mut self, name: &str, permissions: u32, contents: &[u8]) {
        self.parent(name);
        self.entry(name, REGULAR | permissions, (0, 0), contents);
    }

    fn node(&mut self, name: &str, major: u32, minor: u32) {
        self.parent(name);
        self.entry(name, CHARACTER_DEVICE | 0o600, (major, minor), &[]);
    }

    /// What lies at `path`, links followed, as an executable.
    fn copy(&mut self, path: &Path, name: &str) -> Result<()> {
        let contents = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.file(name, 0o755, &contents);
        Ok(())
    }

    /// A directory with what lies in it, at the same path.
    fn tree(&mut self, directory: &Path) -> Result<()> {
        let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                self.tree(&path)?;
            } else {
                let name =
                    path.to_str().context("paths in the repository are UTF-8")?.trim_start_matches('/');
                self.copy(&path, name)?;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_first_and_everything_is_aligned() {
        let mut archive = Archive::default();
        archive.file("a/b/c", 0o644, b"12345");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes).replace('\0', "_");
        let places: Vec<_> =
            ["a_", "a/b_", "a/b/c_", "12345", "TRAILER!!!_"].map(|it| text.find(it)).to_vec();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} in {text}");
    }
}
