//! What lies in an engine's work directory, at any depth: which file takes how much, and whose it is as far as its path
//! tells. Only looks; nothing here or elsewhere deletes from it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::model::{Bytes, FileId};
use crate::observe::attribution::{self, Workload};
use crate::observe::scan::{self, Sort};

/// One look at a staging directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// What each regular file holds, `st_size`, or takes, `st_blocks × 512`, whichever is less: neither holes nor what xfs
    /// sets aside for a growing file come into an archive. A file with several names is there once.
    pub files: HashMap<FileId, Bytes>,
    /// Whose a file is, where its path names a container or a pod.
    pub workloads: HashMap<FileId, Workload>,
    /// Not everything was looked at: too much, too deep, or unreadable.
    pub is_partial: bool,
}

/// Deeper than this no engine nests its work.
const DEPTH_MAX: usize = 16;
/// A directory with more files than this is not one for checkpoints alone, but an engine's whole storage. Looking at so
/// many takes 0.1 s.
const ENTRIES_MAX: usize = 50_000;

/// Looks at everything below `directory`, without following links or entering other filesystems.
///
/// # Errors
/// The directory itself cannot be read. What vanishes meanwhile is not there.
pub fn look(directory: BorrowedFd<'_>) -> Result<Look, Errno> {
    let mut look = Look::default();
    let dev = nix::sys::stat::fstat(directory)?.st_dev;
    let mut entries = 0;
    below(directory, Path::new(""), dev, DEPTH_MAX, &mut entries, &mut look)?;
    Ok(look)
}

fn below(
    directory: BorrowedFd<'_>,
    path: &Path,
    dev: u64,
    depth: usize,
    entries: &mut usize,
    look: &mut Look,
) -> Result<(), Errno> {
    let mut directories: Vec<PathBuf> = Vec::new();
    let unreadable = scan::scan(directory, |name, stat| {
        *entries += 1;
        match stat.sort {
            Sort::File if look.files.len() < ENTRIES_MAX => {
                look.files.insert(stat.file, stat.allocated.min(stat.len));
                let workload = of_path(&path.join(name));
                if workload.is_known() {
                    look.workloads.insert(stat.file, workload);
                }
            }
            Sort::Directory if stat.file.dev == dev => directories.push(name.into()),
            _ => {}
        }
    })?;
    look.is_partial |= unreadable > 0 || (depth == 0 && !directories.is_empty());
    for name in directories.iter().take_while(|_| depth > 0) {
        if *entries >= ENTRIES_MAX {
            look.is_partial = true;
            break;
        }
        match scan::open_directory(directory, name.as_os_str()) {
            Ok(fd) => {
                // It may vanish while it is read: engines clear up.
                let read = below(fd.as_fd(), &path.join(name), dev, depth - 1, entries, look);
                look.is_partial |= read.is_err();
            }
            Err(Errno::ENOENT) => {}
            Err(_) => look.is_partial = true,
        }
    }
    Ok(())
}

/// Engines keep a container's work below a directory that is called by its id: CRI-O
/// `overlay-containers/<id>/userdata/checkpoint`, containerd `containers/<id>/ctrd-checkpoint`. In a content store such a
/// name is a digest and says nothing.
fn of_path(path: &Path) -> Workload {
    let is_store = |part: &OsStr| ["sha256", "ingest", "blobs"].iter().any(|store| part == *store);
    if path.iter().any(is_store) {
        return Workload::default();
    }
    // The file's own name is not asked: a container is a directory.
    let parent = path.parent().unwrap_or(path);
    attribution::of_path(&parent.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::MetadataExt as _;

    const ID: &str = "2540fdaa9dd148c3096a1f4c1a07eb2cbdd6a22aaed07a589d538a4dc1b7c4f3";

    #[test]
    fn a_path_names_the_container_unless_it_is_a_content_store() {
        let check = |path: &str, expect: Option<&str>| {
            let found = of_path(Path::new(&path.replace("{id}", ID)));
            assert_eq!(found.container.as_deref(), expect, "{path}");
        };
        check("overlay-containers/{id}/userdata/checkpoint/pages-1.img", Some(ID));
        check("containers/{id}/ctrd-checkpoint/checkpoint/pages-1.img", Some(ID));
        check("libpod-{id}/x", Some(ID));
        check("{id}", None);
        check("io.containerd.content.v1.content/blobs/sha256/{id}", None);
        check("io.containerd.content.v1.content/ingest/{id}/data", None);
        check("tmp/dump-1/pages-1.img", None);
    }

    #[test]
    fn files_are_seen_at_any_depth_once_each_and_links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("outside"), [1; 9000]).unwrap();
        let deep = root.path().join(format!("containers/{ID}/ctrd-checkpoint/checkpoint"));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("pages-1.img"), [1; 5000]).unwrap();
        fs::write(root.path().join("top"), [1; 100]).unwrap();
        fs::hard_link(root.path().join("top"), deep.join("again")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), root.path().join("link")).unwrap();

        let look = look(File::open(root.path()).unwrap().as_fd()).unwrap();
        assert_eq!((look.files.len(), look.is_partial), (2, false));
        let metadata = fs::metadata(deep.join("pages-1.img")).unwrap();
        let pages = FileId { dev: metadata.dev(), ino: metadata.ino() };
        assert_eq!(look.files[&pages], Bytes(5000));
        assert_eq!(look.workloads[&pages].container.as_deref(), Some(ID));
    }
}
