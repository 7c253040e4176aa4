//! [`Kernel`]: version, type information, lockdown, security modules.

use std::path::Path;

/// What the running kernel says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// Size of `/sys/kernel/btf/vmlinux`; `None`: the kernel does not describe its structures.
    pub btf_bytes: Option<u64>,
    /// `none`, `integrity`, `confidentiality`; `None` where it cannot be seen (no securityfs, before 5.4).
    pub lockdown: Option<String>,
    /// The security modules in force; `None` where they cannot be seen.
    pub security_modules: Option<Vec<String>>,
}

impl Kernel {
    /// Of this machine.
    pub fn here() -> Kernel {
        Kernel::at(Path::new("/"))
    }

    /// Of the machine whose `/proc` and `/sys` lie below `root`.
    pub fn at(root: &Path) -> Kernel {
        let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
        let security = |name: &str| read(&format!("sys/kernel/security/{name}"));
        Kernel {
            release: read("proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            btf_bytes: std::fs::metadata(root.join("sys/kernel/btf/vmlinux")).ok().map(|it| it.len()),
            lockdown: security("lockdown").and_then(|text| chosen(&text)),
            security_modules: security("lsm").map(|text| {
                text.trim().split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
            }),
        }
    }

    /// Major and minor version; zeros when the release is not of that form.
    pub fn version(&self) -> (u32, u32) {
        let mut parts =
            self.release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }
}

/// The bracketed word of `none [integrity] confidentiality`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_read_from_its_files() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(Kernel::at(root.path()), Kernel::default());
        write("proc/sys/kernel/osrelease", "6.12.117+deb13-cloud-amd64\n");
        write("sys/kernel/btf/vmlinux", "1234");
        write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
        write("sys/kernel/security/lsm", "lockdown,capability,bpf");
        let kernel = Kernel::at(root.path());
        assert_eq!(kernel.version(), (6, 12));
        assert_eq!((kernel.btf_bytes, kernel.lockdown.as_deref()), (Some(4), Some("integrity")));
        assert_eq!(kernel.security_modules.unwrap(), ["lockdown", "capability", "bpf"]);
    }
}
