//! `cargo xtask build-ebpf`: the object that the guard embeds.
//!
//! Three parts have to fit: a Rust compiler that has a `core` library for `bpfel-unknown-none` or may build one,
//! bpf-linker, and the LLVM library that bpf-linker loads, of the compiler's version.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail};

use crate::command::{output, run as run_command};
use crate::ebpf_artifact;

const TARGET: &str = "bpfel-unknown-none";
const LINKER_VERSION: &str = "0.10.0";
/// What that bpf-linker speaks: Rust 1.95 to 1.97 have it. It can't read what a newer LLVM wrote.
const LLVM_VERSION: &str = "22";

/// Builds the eBPF object.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The compiler; it must have a core library for bpfel-unknown-none.
    ///
    /// By default a rustup nightly with rust-src, else Debian's rustc-web.
    #[arg(long, value_name = "PATH")]
    rustc: Option<PathBuf>,
}

/// Builds it into `target/ebpf`, saying what with.
pub(crate) fn run(options: Options, root: &Path) -> Result<()> {
    let compiler = match options.rustc {
        Some(rustc) => Compiler::given(rustc)?,
        None => Compiler::find()?,
    };
    let linker = linker()?;
    let directory = ebpf_artifact::directory(root);
    let made_from = ebpf_artifact::fingerprint(root)?;
    run_command(&mut build(&compiler, &linker, &directory, root)?)?;

    let built = directory.join(TARGET).join("ebpf/guard-ebpf");
    let object = directory.join(ebpf_artifact::OBJECT);
    // Left alone when it is the same: its time makes cargo build the guard again.
    replace(&object, &fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?)?;
    replace(&directory.join(ebpf_artifact::FINGERPRINT), made_from.as_bytes())?;
    println!("compiler: {}", compiler.describe()?);
    println!("linker:   {} {}", linker.display(), LINKER_VERSION);
    println!("object:   {} ({} bytes)", object.display(), fs::metadata(&object)?.len());
    Ok(())
}

/// What compiles for eBPF.
pub(crate) enum Compiler {
    /// A rustup toolchain that builds `core` itself.
    BuildsCore {
        /// Its name.
        toolchain: &'static str,
    },
    /// A compiler that came with `core` for eBPF.
    HasCore {
        /// Its path.
        rustc: PathBuf,
    },
}

impl Compiler {
    /// The first that is there.
    pub(crate) fn find() -> Result<Compiler> {
        const TOOLCHAIN: &str = "nightly";
        if let Ok(sysroot) = output(rustc_of(TOOLCHAIN).args(["--print", "sysroot"]))
            && Path::new(&sysroot).join("lib/rustlib/src/rust/library/core").exists()
            && speaks_our_llvm(&mut rustc_of(TOOLCHAIN))
        {
            return Ok(Compiler::BuildsCore { toolchain: TOOLCHAIN });
        }
        // By its full path: rustup's rustc comes first in PATH.
        let debian = PathBuf::from("/usr/bin/rustc");
        if has_core(&debian) && speaks_our_llvm(&mut Command::new(&debian)) {
            return Ok(Compiler::HasCore { rustc: debian });
        }
        bail!(
            "nothing here compiles for {TARGET} with LLVM {LLVM_VERSION}, which bpf-linker {LINKER_VERSION} reads. \
             Run `cargo xtask setup`, which installs rustc-web and libstd-rust-web-dev-bpf on Debian; elsewhere \
             install a rustup nightly of that time with rust-src; or name a compiler with --rustc"
        )
    }

    fn given(rustc: PathBuf) -> Result<Compiler> {
        if has_core(&rustc) {
            return Ok(Compiler::HasCore { rustc });
        }
        bail!("{} has no core library for {TARGET} (or does not run)", rustc.display())
    }

    fn describe(&self) -> Result<String> {
        match self {
            Compiler::BuildsCore { toolchain } => {
                Ok(format!("rustup's {toolchain}, {}", output(rustc_of(toolchain).arg("--version"))?))
            }
            Compiler::HasCore { rustc } => {
                Ok(format!("{}, {}", rustc.display(), output(Command::new(rustc).arg("--version"))?))
            }
        }
    }

    /// cargo with this compiler.
    fn cargo(&self) -> Command {
        match self {
            Compiler::BuildsCore { toolchain } => {
                let mut cargo = Command::new("rustup");
                // Set by the cargo that runs us, for its own toolchain.
                cargo.args(["run", toolchain, "cargo"]).env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC");
                cargo
            }
            Compiler::HasCore { rustc } => {
                let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
                // Features that are unstable by name: inline assembly for this target.
                cargo.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
                cargo
            }
        }
    }

    /// Where the LLVM library lies that bpf-linker is to load: in the toolchain, when it is of the right version.
    /// Debian's compiler has the system's, which is found without being told.
    fn llvm(&self) -> Option<PathBuf> {
        let mut rustc = match self {
            Compiler::BuildsCore { toolchain } => rustc_of(toolchain),
            Compiler::HasCore { .. } => Command::new("rustc"),
        };
        let libraries = Path::new(&output(rustc.args(["--print", "sysroot"])).ok()?).join("lib");
        let fits = |name: &str| name.starts_with("libLLVM") && name.contains(LLVM_VERSION);
        let found =
            fs::read_dir(&libraries).ok()?.flatten().any(|entry| fits(&entry.file_name().to_string_lossy()));
        found.then_some(libraries)
    }
}

fn rustc_of(toolchain: &str) -> Command {
    let mut rustc = Command::new("rustup");
    rustc.args(["run", toolchain, "rustc"]).env_remove("RUSTUP_TOOLCHAIN");
    rustc
}

fn speaks_our_llvm(rustc: &mut Command) -> bool {
    let wanted = format!("LLVM version: {LLVM_VERSION}.");
    output(rustc.arg("-vV")).is_ok_and(|version| version.lines().any(|line| line.starts_with(&wanted)))
}

fn has_core(rustc: &Path) -> bool {
    let libraries = output(Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]));
    let Ok(entries) = libraries.and_then(|directory| Ok(fs::read_dir(directory)?)) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libcore-"))
}

/// bpf-linker: the one in PATH, else the one that was installed into the cache, else that is done now.
pub(crate) fn linker() -> Result<PathBuf> {
    let installed = cache()?.join("tools");
    let candidates = [PathBuf::from("bpf-linker"), installed.join("bin/bpf-linker")];
    let wanted = format!("bpf-linker {LINKER_VERSION}");
    let fits = |linker: &&PathBuf| output(Command::new(linker).arg("--version")).is_ok_and(|it| it == wanted);
    if let Some(linker) = candidates.iter().find(fits) {
        return Ok(linker.clone());
    }
    println!("installing bpf-linker {LINKER_VERSION} into {} (about two minutes)", installed.display());
    run_command(
        Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["install", "bpf-linker", "--locked", "--version", LINKER_VERSION, "--root"])
            .arg(&installed),
    )?;
    Ok(installed.join("bin/bpf-linker"))
}

/// `~/.cache/checkpoint-guard`, shared by all checkouts.
pub(crate) fn cache() -> Result<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    Ok(cache
        .context("neither XDG_CACHE_HOME nor HOME is set, so there is no place for tools")?
        .join("checkpoint-guard"))
}

fn build(compiler: &Compiler, linker: &Path, directory: &Path, root: &Path) -> Result<Command> {
    let mut cargo = compiler.cargo();
    cargo.current_dir(root);
    cargo.args(["build", "--quiet", "--profile", "ebpf", "--target", TARGET, "--package", "guard-ebpf"]);
    cargo.args(["--bin", "guard-ebpf", "--features", "program", "--target-dir"]).arg(directory);
    if let Compiler::BuildsCore { .. } = compiler {
        cargo.args(["-Z", "build-std=core"]);
    }
    if let Some(llvm) = compiler.llvm() {
        cargo.env("LD_LIBRARY_PATH", prepended("LD_LIBRARY_PATH", &llvm)?);
    }
    cargo.env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker);
    // Meant for the machine's own programs.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    Ok(cargo)
}

fn prepended(variable: &str, directory: &Path) -> Result<std::ffi::OsString> {
    let others = env::var_os(variable).unwrap_or_default();
    let others = env::split_paths(&others).filter(|path| !path.as_os_str().is_empty());
    Ok(env::join_paths(std::iter::once(directory.to_owned()).chain(others))?)
}

/// Writes `file` unless it is so already, complete or not at all.
fn replace(file: &Path, contents: &[u8]) -> Result<()> {
    if fs::read(file).is_ok_and(|old| old == contents) {
        return Ok(());
    }
    let new = file.with_extension("new");
    let written = fs::write(&new, contents).and_then(|()| fs::rename(&new, file));
    written.with_context(|| format!("cannot write {}", file.display()))
}
