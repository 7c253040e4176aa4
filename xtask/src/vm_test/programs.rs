//! What runs in a VM: the guard and the test programs, the same that run on this machine.
//!
//! They are linked dynamically and their libraries go with them, as mkfs's have to anyhow: a static build would be
//! another binary than the one that is tested here, and the whole of the dependencies compiled once more.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::command::{self, output};

/// Built, ready to be packed.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    /// The daemon and command line.
    pub(crate) guard: PathBuf,
    /// Test programs, with the name that reports have for them.
    pub(crate) tests: Vec<(String, PathBuf)>,
}

/// Builds those `wanted`, all when none is named.
pub(crate) fn build(root: &Path, wanted: &[String], guard: Option<&Path>) -> Result<Programs> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("tests/tests"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".rs").filter(|name| name.starts_with("vm_")).map(str::to_owned));
    }
    names.sort();
    names.retain(|name| wanted.is_empty() || wanted.contains(name));
    ensure!(!names.is_empty(), "tests/tests has no {}.rs", wanted.join(".rs, no "));
    let guard = match guard {
        Some(guard) => guard.to_owned(),
        None => {
            let build = ["build", "--quiet", "--package", "guard", "--bins"];
            command::run(command::cargo().args(build).current_dir(root))?;
            command::target_directory()?.join("debug/checkpoint-guard")
        }
    };
    Ok(Programs { guard, tests: executables(root, &names)? })
}

fn executables(root: &Path, names: &[String]) -> Result<Vec<(String, PathBuf)>> {
    let mut cargo = command::cargo();
    cargo.args([
        "test",
        "--quiet",
        "--package",
        "tests",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    for name in names {
        cargo.args(["--test", name]);
    }
    let messages = output(cargo.current_dir(root).stderr(Stdio::inherit()))?;
    let mut found = Vec::new();
    for path in messages.lines().filter_map(executable) {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = file.rsplit_once('-').map_or(file.as_str(), |(name, _)| name).to_owned();
        if names.contains(&name) {
            found.push((name, path));
        }
    }
    found.sort();
    ensure!(found.len() == names.len(), "cargo built {found:?} when asked for {names:?}");
    Ok(found)
}

/// `…,"executable":"/target/debug/deps/vm_guard-0123456789abcdef",…` of cargo's messages.
fn executable(message: &str) -> Option<PathBuf> {
    let (_, rest) = message.split_once("\"executable\":\"")?;
    Some(PathBuf::from(rest.split_once('"')?.0))
}

/// The shared libraries of `program`, and the loader.
pub(crate) fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let Ok(lines) = output(Command::new("ldd").arg(program)) else {
        // Linked statically.
        return Ok(Vec::new());
    };
    let paths = lines.lines().filter_map(|line| {
        // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, `/lib64/ld-linux-x86-64.so.2 (0x…)`.
        let line = line.split_once("=> ").map_or(line, |(_, path)| path).trim();
        line.starts_with('/').then(|| PathBuf::from(line.split(" (").next().unwrap_or(line)))
    });
    Ok(paths.collect())
}

/// The program without what only a debugger wants: it is read by an emulated processor.
pub(crate) fn stripped(program: &Path, scratch: &Path) -> Result<Vec<u8>> {
    let small = scratch.join("stripped");
    let strip = Command::new("strip").arg("-o").arg(&small).arg(program).status();
    let path = if strip.is_ok_and(|status| status.success()) { small.as_path() } else { program };
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
