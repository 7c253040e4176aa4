//! Where the eBPF object lies and what it was made from. Shared by `cargo xtask build-ebpf`, which makes it, and the
//! build script of `guard`, which embeds it.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The object's file name.
pub(crate) const OBJECT: &str = "guard-ebpf.o";

/// Beside it: the [`fingerprint`] of the sources it was made from.
pub(crate) const FINGERPRINT: &str = "guard-ebpf.fingerprint";

/// `target/ebpf`, in whatever target directory cargo was told to use.
pub(crate) fn directory(root: &Path) -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root.join(target).join("ebpf")
}

/// The files that the object is made from, sorted.
pub(crate) fn sources(root: &Path) -> io::Result<Vec<PathBuf>> {
    let crate_root = root.join("guard-ebpf");
    let mut files = vec![crate_root.join("Cargo.toml")];
    let mut directories = vec![crate_root.join("src")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let found = if entry.file_type()?.is_dir() { &mut directories } else { &mut files };
            found.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// A hash (FNV-1a, 64 bits) of the sources' names and contents. Times would not do: a checkout makes every source
/// newer than a cached object.
pub(crate) fn fingerprint(root: &Path) -> io::Result<String> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    for file in sources(root)? {
        let name = file.strip_prefix(root).unwrap_or(&file);
        add(name.as_os_str().as_encoded_bytes());
        add(&fs::read(&file)?);
    }
    Ok(format!("{hash:016x}"))
}
