//! Programs of the Kubernetes world, as `cargo xtask kubernetes-tools` fetches them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where that task puts them.
fn cache() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    Some(cache.or_else(home)?.join("checkpoint-guard/tools"))
}

/// helm: in PATH, else in the cache; `None`, loudly, where there is none.
pub fn helm() -> Option<Command> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(cache());
    let found = directories.map(|directory| directory.join("helm")).find(|file| file.is_file());
    if found.is_none() {
        println!("SKIPPED what needs helm: there is none; `cargo xtask kubernetes-tools` fetches one");
    }
    found.map(Command::new)
}

/// kubernetes-validate, which has the schemas of every version of Kubernetes; `None`, loudly, where it is not.
pub fn kubernetes_validate() -> Option<Command> {
    let packages = cache()?.join("python");
    if !packages.join("kubernetes_validate").is_dir() {
        println!("SKIPPED what needs kubernetes-validate: `cargo xtask kubernetes-tools` fetches it");
        return None;
    }
    let mut command = Command::new("python3");
    // Without `--strict` it takes fields that do not exist.
    command.env("PYTHONPATH", packages).args(["-m", "kubernetes_validate", "--strict", "--quiet"]);
    Some(command)
}
