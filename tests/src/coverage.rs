//! [`Row`]: what a backend counts of each way of writing on a filesystem, tried out.
//!
//! `tests/fixtures/coverage/<kernel>.tsv` holds the rows of each kernel that was tried, and docs/KERNEL.md is made of them.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use guard::model::Bytes;

use crate::watching::Watching;
use crate::ways::Way;

/// So much is written in each way: whole blocks of every size, less than a folio may be large.
const LEN: usize = 256 << 10;

/// Of what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    /// The space it takes, to the byte.
    Exactly,
    /// Something else than that: the guard wakes, too early or too late.
    Inexactly,
    /// Nothing: statfs alone shows it.
    NotAtAll,
    /// The filesystem cannot do it.
    Impossible,
}

impl Seen {
    /// Its word in the files.
    pub fn as_str(self) -> &'static str {
        match self {
            Seen::Exactly => "exact",
            Seen::Inexactly => "seen",
            Seen::NotAtAll => "statfs",
            Seen::Impossible => "-",
        }
    }

    /// The value with that word.
    pub fn parse(word: &str) -> Option<Seen> {
        [Seen::Exactly, Seen::Inexactly, Seen::NotAtAll, Seen::Impossible]
            .into_iter()
            .find(|seen| seen.as_str() == word)
    }
}

/// One thing to try.
type Trial = fn(&Watching, &Path) -> io::Result<Seen>;

/// What is tried, under the names that the columns have.
pub const TRIALS: [(&str, Trial); 16] = [
    ("write", |watching, path| way(watching, path, Way::Write)),
    ("pwrite", |watching, path| way(watching, path, Way::Pwrite)),
    ("writev", |watching, path| way(watching, path, Way::Writev)),
    ("splice", |watching, path| way(watching, path, Way::Splice)),
    ("sendfile", |watching, path| way(watching, path, Way::Sendfile)),
    ("copy_file_range", |watching, path| way(watching, path, Way::CopyFileRange)),
    ("io_uring", |watching, path| way(watching, path, Way::IoUring)),
    ("mmap", |watching, path| way(watching, path, Way::Mmap)),
    ("O_DIRECT", |watching, path| way(watching, path, Way::Direct)),
    ("fallocate", |watching, path| way(watching, path, Way::Fallocate)),
    ("truncate down", truncate_down),
    ("truncate up", truncate_up),
    ("O_TMPFILE + link", nameless),
    ("rename in", renamed_in),
    ("link in", linked_in),
    ("reflink", reflink),
];

/// What a backend counts on a filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The backend's name.
    pub backend: String,
    /// The filesystem's.
    pub filesystem: String,
    /// In the order of [`TRIALS`].
    pub seen: Vec<Seen>,
}

impl Row {
    /// Tries everything in the directory that `watching` watches.
    pub fn find_out(backend: &str, filesystem: &str, watching: &Watching) -> Row {
        let try_it = |(name, trial): &(&str, Trial)| {
            let path = watching.path().join(name.replace(' ', "-"));
            match trial(watching, &path) {
                // What is asked for is counted there, and now and then io_uring asks twice: not exact, though it may look so.
                Ok(Seen::Exactly) if backend == "kprobe" && *name == "io_uring" => Seen::Inexactly,
                Ok(seen) => seen,
                // EINVAL, EOPNOTSUPP, EXDEV: not on this filesystem.
                Err(error) => {
                    println!("{filesystem} cannot {name}: {error}");
                    Seen::Impossible
                }
            }
        };
        Row {
            backend: backend.to_owned(),
            filesystem: filesystem.to_owned(),
            seen: TRIALS.iter().map(try_it).collect(),
        }
    }

    /// Reads a line of a file.
    pub fn parse(line: &str) -> Option<Row> {
        let mut columns = line.split('\t');
        let (backend, filesystem) = (columns.next()?.to_owned(), columns.next()?.to_owned());
        let seen: Vec<Seen> = columns.map(Seen::parse).collect::<Option<_>>()?;
        (seen.len() == TRIALS.len()).then_some(Row { backend, filesystem, seen })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\t{}", self.backend, self.filesystem)?;
        self.seen.iter().try_for_each(|seen| write!(f, "\t{}", seen.as_str()))
    }
}

/// Where the files lie.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/coverage")
}

/// The series of a kernel release: `6.12` of `6.12.117+deb13-cloud-amd64`.
pub fn series(release: &str) -> String {
    release.split('.').take(2).collect::<Vec<_>>().join(".")
}

fn judge(counted: Bytes, takes: u64) -> Seen {
    match counted {
        counted if counted == Bytes(takes) => Seen::Exactly,
        Bytes::ZERO => Seen::NotAtAll,
        _ => Seen::Inexactly,
    }
}

fn way(watching: &Watching, path: &Path, way: Way) -> io::Result<Seen> {
    let elsewhere = watching.mount().path();
    let file = way.write(path, elsewhere, LEN)?;
    // Where copying became sharing, no space was taken.
    let takes = if way == Way::CopyFileRange && clones(elsewhere) { 0 } else { LEN as u64 };
    Ok(judge(watching.counted(&file), takes))
}

fn write(mut file: &File) -> io::Result<()> {
    file.write_all(&(0..LEN).map(|at| (at * 31 + (at >> 8) * 17) as u8).collect::<Vec<_>>())
}

fn truncate_down(watching: &Watching, path: &Path) -> io::Result<Seen> {
    let file = File::create(path)?;
    write(&file)?;
    file.sync_all()?;
    let before = watching.probe.written(Watching::SLOT).map_err(io::Error::other)?.freed;
    file.set_len(0)?;
    let after = watching.probe.written(Watching::SLOT).map_err(io::Error::other)?.freed;
    Ok(judge(after.saturating_sub(before), LEN as u64))
}

fn truncate_up(watching: &Watching, path: &Path) -> io::Result<Seen> {
    let file = File::create(path)?;
    file.set_len(LEN as u64)?;
    Ok(judge(watching.counted(&file), 0))
}

fn nameless(watching: &Watching, path: &Path) -> io::Result<Seen> {
    let file = File::options().write(true).custom_flags(libc::O_TMPFILE).open(watching.path())?;
    write(&file)?;
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    let follow = nix::fcntl::AtFlags::AT_SYMLINK_FOLLOW;
    nix::unistd::linkat(nix::fcntl::AT_FDCWD, source.as_str(), nix::fcntl::AT_FDCWD, path, follow)?;
    Ok(judge(watching.counted(&file), LEN as u64))
}

/// Written after it was renamed into the directory; renaming itself takes no space.
fn renamed_in(watching: &Watching, path: &Path) -> io::Result<Seen> {
    let outside = watching.mount().path().join("to-be-renamed");
    let file = File::create(&outside)?;
    std::fs::rename(outside, path)?;
    write(&file)?;
    Ok(judge(watching.counted(&file), LEN as u64))
}

/// Written by its old name outside after it was linked into the directory; linking itself takes no space.
fn linked_in(watching: &Watching, path: &Path) -> io::Result<Seen> {
    let outside = watching.mount().path().join("to-be-linked");
    let file = File::create(&outside)?;
    std::fs::hard_link(&outside, path)?;
    write(&file)?;
    Ok(judge(watching.counted(&file), LEN as u64))
}

/// Takes no space until one of the two is written over, and that is when it has to be counted.
fn reflink(watching: &Watching, path: &Path) -> io::Result<Seen> {
    let source = File::create(watching.mount().path().join("to-be-shared"))?;
    write(&source)?;
    source.sync_all()?;
    let source = File::open(watching.mount().path().join("to-be-shared"))?;
    let file = File::create(path)?;
    clone(&source, &file)?;
    let at_first = watching.counted(&file);
    file.write_all_at(&[1; LEN], 0)?;
    let then = watching.counted(&file);
    Ok(if at_first == Bytes::ZERO { judge(then, LEN as u64) } else { Seen::Inexactly })
}

/// Whether the filesystem of `directory` lets files share blocks.
fn clones(directory: &Path) -> bool {
    let try_it = || {
        let source = File::create(directory.join("share-from"))?;
        clone(&source, &File::create(directory.join("share-to"))?)
    };
    try_it().is_ok()
}

fn clone(source: &File, target: &File) -> io::Result<()> {
    // SAFETY: FICLONE takes a descriptor as its argument, and both are open.
    let done = unsafe { libc::ioctl(target.as_raw_fd(), libc::FICLONE, source.as_raw_fd()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let seen: Vec<Seen> = (0..TRIALS.len())
            .map(|n| [Seen::Exactly, Seen::Inexactly, Seen::NotAtAll, Seen::Impossible][n % 4])
            .collect();
        let row = Row { backend: "fexit".to_owned(), filesystem: "xfs".to_owned(), seen };
        assert_eq!(Row::parse(&row.to_string()), Some(row));
        assert_eq!(Row::parse("fexit\txfs\texact"), None);
    }
}
