//! The modules that go into the initramfs: those wanted, and what they need, in the order of insertion.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A module's name and contents.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) contents: Vec<u8>,
}

/// Filesystems, loop devices, and the checksums that they ask for by algorithm rather than by module. What a kernel
/// has built in, or has not, is no error here: the tests say which filesystems there are.
pub(crate) const WANTED: [&str; 10] = [
    "crc32c_generic",
    "crc32c_cryptoapi",
    "xxhash_generic",
    "blake2b_generic",
    "sha256_generic",
    "loop",
    "ext4",
    "xfs",
    "btrfs",
    "overlay",
];

/// Finds them below `directory`, wherever the distribution puts them, compressed or not.
pub(crate) fn find(directory: &Path) -> Result<Vec<Module>> {
    let mut paths = BTreeMap::new();
    index(directory, &mut paths)?;
    let mut modules = Vec::new();
    for name in WANTED {
        add(name, &paths, &mut modules)?;
    }
    Ok(modules)
}

fn add(name: &str, paths: &BTreeMap<String, PathBuf>, modules: &mut Vec<Module>) -> Result<()> {
    let Some(path) = paths.get(name).filter(|_| !modules.iter().any(|module| module.name == name)) else {
        return Ok(());
    };
    let contents = read(path)?;
    for needed in depends(&contents) {
        add(&needed, paths, modules)?;
    }
    modules.push(Module { name: name.to_owned(), contents });
    Ok(())
}

/// All modules below `directory`. Their names have `_` where the files' may have `-`.
fn index(directory: &Path, paths: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            index(&path, paths)?;
        } else if let Some((stem, _)) =
            path.file_name().unwrap_or_default().to_string_lossy().split_once(".ko")
        {
            paths.insert(stem.replace('-', "_"), path.clone());
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let decompressor = match path.extension().and_then(|it| it.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).with_context(|| format!("cannot read {}", path.display())),
    };
    let output = Command::new(decompressor).args(["-d", "-c"]).arg(path).output();
    let output = output.with_context(|| format!("{decompressor} is needed for {}", path.display()))?;
    ensure!(output.status.success(), "{decompressor} cannot read {}", path.display());
    Ok(output.stdout)
}

/// What the module says it needs: `depends=a,b` in its section `.modinfo`, a list of strings that end with a zero.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_module_needs_stands_in_it() {
        assert_eq!(
            depends(b"ELF\0license=GPL\0depends=libcrc32c,raid6-pq\0name=x\0"),
            ["libcrc32c", "raid6_pq"]
        );
        assert!(depends(b"ELF\0depends=\0").is_empty());
        assert!(depends(b"ELF").is_empty());
    }
}
