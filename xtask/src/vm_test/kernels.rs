//! Kernels to boot: Debian's, fetched once through the mirror that this machine is configured for, or any other.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};

use crate::command::{output, run};

/// A kernel to boot.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// How it is called in reports.
    pub(crate) name: String,
    /// The bootable image.
    pub(crate) image: PathBuf,
    /// Its modules, in whatever folders below.
    pub(crate) modules: Option<PathBuf>,
}

/// A line of Debian's kernels.
struct Series {
    /// What `--only` compares with.
    name: &'static str,
    /// The releases that have it; the newest kernel in any of them is taken.
    suites: &'static [&'static str],
}

/// The oldest kernel that the guard supports, those of the releases in use, and what is to come.
const SERIES: [Series; 4] = [
    Series { name: "5.10", suites: &["bullseye"] },
    Series { name: "6.1", suites: &["bookworm"] },
    Series { name: "6.12", suites: &["trixie"] },
    Series { name: "newest", suites: &["trixie-backports", "forky", "sid"] },
];

/// For messages.
pub(crate) const NAMES: &str = "5.10, 6.1, 6.12 and newest";

impl Kernel {
    /// The user's own.
    pub(crate) fn given(image: &Path, modules: Option<&Path>) -> Result<Kernel> {
        let found =
            |path: &Path| path.canonicalize().with_context(|| format!("there is no {}", path.display()));
        let name = image.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let modules = modules.map(found).transpose()?;
        Ok(Kernel { name, image: found(image)?, modules })
    }

    /// One that was unpacked into `directory` completely, which its file `version` proves.
    fn unpacked(directory: &Path) -> Option<Kernel> {
        let version = fs::read_to_string(directory.join("version")).ok()?;
        let image = find(directory, &|name| name.starts_with("vmlinuz"))?;
        Some(Kernel { name: version.trim().to_owned(), image, modules: Some(directory.to_owned()) })
    }
}

/// Debian's cloud kernels: small, with every filesystem that matters here, and the same ones that nodes boot.
pub(crate) fn debian(directory: &Path, only: &[String], refresh: bool) -> Result<Vec<Kernel>> {
    let is_meant = |only: &String, name| only == name || only.starts_with(&format!("{name}."));
    let wanted = |series: &&Series| only.is_empty() || only.iter().any(|only| is_meant(only, series.name));
    let series: Vec<&Series> = SERIES.iter().filter(wanted).collect();
    let there = |series: &Series| Kernel::unpacked(&directory.join(series.name));
    if refresh || series.iter().any(|series| there(series).is_none()) {
        let apt = Apt::new(&directory.join("apt"), &series)?;
        for series in &series {
            if refresh || there(series).is_none() {
                fetch(series, &apt, &directory.join(series.name))
                    .with_context(|| format!("cannot fetch Debian's kernel {}", series.name))?;
            }
        }
    }
    series
        .iter()
        .map(|series| there(series).with_context(|| format!("{} was not unpacked", series.name)))
        .collect()
}

/// Downloads the packages of a kernel and unpacks them. apt checks sizes and hashes against its signed lists.
#[expect(clippy::disallowed_methods, reason = "the project's own cache")]
fn fetch(series: &Series, apt: &Apt, directory: &Path) -> Result<()> {
    let version = apt.newest(series)?;
    if fs::read_to_string(directory.join("packages")).is_ok_and(|it| it.contains(&version)) {
        return Ok(());
    }
    println!("fetching Debian's kernel {} ({version})", series.name);
    let packages = apt.kernel_packages(&version)?;
    // Afresh: a half unpacked one must not be taken for whole.
    let empty = directory.with_extension("new");
    for old in [&empty, directory] {
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
    }
    fs::create_dir_all(&empty)?;
    run(apt.get().arg("download").args(&packages).current_dir(&empty).stdout(std::process::Stdio::null()))?;
    for package in files(&empty)?.iter().filter(|file| file.extension().is_some_and(|it| it == "deb")) {
        run(Command::new("dpkg").arg("-x").arg(package).arg(&empty))?;
        fs::remove_file(package)?;
    }
    fs::write(empty.join("packages"), packages.join("\n"))?;
    // `linux-image-6.12.117+deb13-cloud-amd64=…` boots as 6.12.117+deb13-cloud-amd64, of which the number is enough;
    // older ones say only 6.1.0-50 there, and their package's version says more.
    let number: String = version.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    fs::write(empty.join("version"), number)?;
    fs::rename(&empty, directory)?;
    Ok(())
}

/// apt with lists and sources of its own, so that nothing of this machine's is changed.
struct Apt {
    directory: PathBuf,
}

impl Apt {
    /// Fetches the lists of the `series`' suites from where this machine gets Debian.
    fn new(directory: &Path, series: &[&Series]) -> Result<Apt> {
        for folder in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(directory.join(folder))?;
        }
        let directory = directory.canonicalize()?;
        let source = Source::of_this_machine()?;
        let suites = series.iter().flat_map(|series| series.suites);
        let lines: Vec<String> = suites.map(|suite| source.line(suite)).collect();
        fs::write(directory.join("sources.list"), lines.join("\n") + "\n")?;
        let apt = Apt { directory };
        // Not every mirror has every suite: what there is will do.
        if let Err(error) = output(apt.get().arg("update")) {
            println!("apt-get update says: {error:#}");
        }
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let directory = self.directory.display();
        let options = [
            format!("Dir::Etc::sourcelist={directory}/sources.list"),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State::lists={directory}/lists"),
            format!("Dir::Cache={directory}"),
            // Images for containers switch it off, and then each question takes as long as reading all lists.
            "Dir::Cache::pkgcache=pkgcache.bin".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            // Our own folders are not open to apt's sandbox user, who is there for root's sake.
            format!("APT::Sandbox::User={}", env::var("USER").unwrap_or_else(|_| "root".to_owned())),
        ];
        for option in options {
            command.arg("-o").arg(option);
        }
        command
    }

    fn get(&self) -> Command {
        let mut command = self.command("apt-get");
        command.arg("--quiet=2");
        command
    }

    /// The version of the newest cloud kernel in the series' suites.
    fn newest(&self, series: &Series) -> Result<String> {
        let rows = output(self.command("apt-cache").args(["madison", &meta_package()?]))?;
        // `linux-image-cloud-amd64 | 6.12.117-1 | https://… trixie/main amd64 Packages`, the newest first.
        let newest = rows.lines().find_map(|row| {
            let mut columns = row.split('|').map(str::trim);
            let version = columns.nth(1)?;
            let suite = columns.next()?.split(' ').nth(1)?.split('/').next()?;
            series.suites.contains(&suite).then(|| version.to_owned())
        });
        newest.with_context(|| format!("the mirror has no cloud kernel in {}", series.suites.join(", ")))
    }

    /// The packages with image and modules, as `name=version`: what the meta package needs in its own version.
    fn kernel_packages(&self, version: &str) -> Result<Vec<String>> {
        let same_version = format!("(= {version})");
        let mut packages = vec![format!("{}={version}", meta_package()?)];
        let mut at = 0;
        while let Some(package) = packages.get(at) {
            let shown = output(self.command("apt-cache").args(["show", package]))?;
            let depends = shown.lines().find_map(|line| line.strip_prefix("Depends: ")).unwrap_or_default();
            for needed in depends.split(", ").filter(|needed| needed.ends_with(&same_version)) {
                let needed = format!("{}={version}", needed.split(' ').next().unwrap_or_default());
                if !packages.contains(&needed) {
                    packages.push(needed);
                }
            }
            at += 1;
        }
        ensure!(packages.len() > 1, "{} of {version} needs no kernel", packages[0]);
        Ok(packages)
    }
}

fn meta_package() -> Result<String> {
    Ok(format!("linux-image-cloud-{}", output(Command::new("dpkg").arg("--print-architecture"))?))
}

/// Where this machine gets Debian from.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    uri: String,
    signed_by: Option<String>,
}

impl Source {
    fn of_this_machine() -> Result<Source> {
        let apt = Path::new("/etc/apt");
        let mut texts = vec![fs::read_to_string(apt.join("sources.list")).unwrap_or_default()];
        for file in files(&apt.join("sources.list.d")).unwrap_or_default() {
            let known = file.extension().is_some_and(|it| it == "list" || it == "sources");
            texts.extend(known.then(|| fs::read_to_string(&file).unwrap_or_default()));
        }
        let found = texts.iter().find_map(|text| Source::in_text(text));
        found.context("apt is configured for no Debian mirror here: give a kernel with --kernel")
    }

    /// The first one that ends in `/debian`, in either of apt's formats.
    fn in_text(text: &str) -> Option<Source> {
        let is_debian = |uri: &&str| uri.trim_end_matches('/').ends_with("/debian");
        for paragraph in text.split("\n\n") {
            let field =
                |name: &str| paragraph.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            if let Some(uri) = field("URIs:").and_then(|uris| uris.split(' ').find(is_debian)) {
                return Some(Source {
                    uri: uri.to_owned(),
                    signed_by: field("Signed-By:").map(str::to_owned),
                });
            }
        }
        let line = text
            .lines()
            .map(str::trim)
            .find(|line| line.starts_with("deb ") && line.split(' ').any(|word| is_debian(&word)))?;
        let options =
            line.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(it, _)| it);
        Some(Source {
            uri: line.split(' ').find(is_debian)?.to_owned(),
            signed_by: options.split(' ').find_map(|it| it.strip_prefix("signed-by=")).map(str::to_owned),
        })
    }

    fn line(&self, suite: &str) -> String {
        let options = self.signed_by.as_ref().map(|key| format!("[signed-by={key}] ")).unwrap_or_default();
        format!("deb {options}{} {suite} main", self.uri)
    }
}

/// The files in `directory`, sorted.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        files.push(entry?.path());
    }
    files.sort();
    Ok(files)
}

/// The first file at any depth below `directory` whose name is as wanted.
pub(crate) fn find(directory: &Path, is_it: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    for path in files(directory).ok()? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && !path.is_symlink() {
            if let Some(found) = find(&path, is_it) {
                return Some(found);
            }
        } else if is_it(&name) {
            return Some(path);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        assert_eq!(Source::in_text(text).map(|source| source.line("trixie")).as_deref(), expect);
    }

    #[test]
    fn the_machines_own_mirror_is_asked_for_another_suite() {
        check(
            "Types: deb\nURIs: http://m.example/debian-security\nSuites: s\n\nTypes: deb\n# why\nURIs: http://m.example/debian\n\
             Suites: bookworm\nSigned-By: /k.gpg\n",
            Some("deb [signed-by=/k.gpg] http://m.example/debian trixie main"),
        );
        check("# deb http://no.example/debian x main\n", None);
        check(
            "deb http://m.example/debian-security x main\ndeb [arch=amd64 signed-by=/k.asc] http://m.example/debian/ x main\n",
            Some("deb [signed-by=/k.asc] http://m.example/debian/ trixie main"),
        );
        check("deb http://m.example/debian x main", Some("deb http://m.example/debian trixie main"));
        check("deb https://other.example/ubuntu x main", None);
    }
}
