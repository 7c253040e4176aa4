//! [`Coverage`]: how well the writes to a filesystem are seen, and by which ways of writing they pass unseen.

use std::fmt;

use super::Backend;

/// A way of writing that has, or lacks, a hook of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// `writev`, `pwritev`, `pwritev2`.
    Vector,
    /// `splice`, `sendfile`, and `copy_file_range` where it copies.
    Splice,
    /// `fallocate`.
    Allocation,
    /// Shared mappings.
    Mapping,
    /// Direct I/O.
    Direct,
    /// io_uring's own writes.
    IoUring,
    /// libaio.
    Aio,
}

impl Writing {
    /// All of them.
    pub const ALL: [Writing; 7] = [
        Writing::Vector,
        Writing::Splice,
        Writing::Allocation,
        Writing::Mapping,
        Writing::Direct,
        Writing::IoUring,
        Writing::Aio,
    ];

    /// The calls that write so.
    pub fn as_str(self) -> &'static str {
        match self {
            Writing::Vector => "writev",
            Writing::Splice => "splice, sendfile, copy_file_range",
            Writing::Allocation => "fallocate",
            Writing::Mapping => "mmap",
            Writing::Direct => "O_DIRECT",
            Writing::IoUring => "io_uring",
            Writing::Aio => "libaio",
        }
    }
}

/// Some ways of writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writings(u8);

impl Writings {
    /// None.
    pub const NONE: Writings = Writings(0);

    /// Whether it is one of them.
    pub fn contains(self, writing: Writing) -> bool {
        self.0 & 1 << writing as u8 != 0
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// These and those.
    #[must_use]
    pub fn and(self, those: Writings) -> Writings {
        Writings(self.0 | those.0)
    }

    /// These, except those.
    #[must_use]
    pub fn without(self, those: Writings) -> Writings {
        Writings(self.0 & !those.0)
    }
}

impl FromIterator<Writing> for Writings {
    fn from_iter<I: IntoIterator<Item = Writing>>(writings: I) -> Writings {
        Writings(writings.into_iter().fold(0, |all, writing| all | 1 << writing as u8))
    }
}

impl fmt::Display for Writings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Writing::ALL.into_iter().filter(|writing| self.contains(*writing)).map(Writing::as_str);
        f.write_str(&names.collect::<Vec<_>>().join(", "))
    }
}

/// What passes unseen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseen {
    /// What the backend cannot see on this filesystem, whatever the kernel.
    pub by_design: Writings,
    /// What it would see if the kernel had the hook for it.
    pub for_lack_of_hooks: Writings,
}

/// How well the writes to a filesystem are seen.
///
/// Reflinks take no space until one of the files is written over, which is a write like others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Every block, when it is reserved or allocated and when it is given back, whatever way of writing: the ledger
    /// follows `st_blocks` (ext4).
    Blocks,
    /// Pages when they become dirty: rounded up to pages, nothing given back.
    Pages(Unseen),
    /// Bytes as the calls that write return them. Writing over what is there counts again, nothing is given back.
    Calls(Unseen),
    /// Bytes as the filesystem is asked to write them, whoever asks. Writing over what is there counts again, nothing is
    /// given back.
    Requests(Unseen),
    /// Nothing: only statfs shows that it fills.
    Nothing,
}

/// What every kernel from 5.10 on has been seen to have hooks for. Direct I/O (6.6) and io_uring (6.1) are younger.
const USUAL: [Writing; 4] = [Writing::Vector, Writing::Splice, Writing::Allocation, Writing::Mapping];

impl Coverage {
    /// What sees them.
    pub fn backend(self) -> Backend {
        match self {
            Coverage::Blocks | Coverage::Pages(_) => Backend::RawTracepoint,
            Coverage::Calls(_) => Backend::Fexit,
            Coverage::Requests(_) => Backend::Kprobe,
            Coverage::Nothing => Backend::Inotify,
        }
    }

    /// Whether nothing is written unseen, and what is counted is what is taken: then the whole headroom may be the budget.
    pub fn is_exact(self) -> bool {
        self == Coverage::Blocks
    }

    /// The ways of writing that pass unseen.
    pub fn unseen(self) -> Writings {
        match self {
            Coverage::Blocks => Writings::NONE,
            Coverage::Pages(unseen) | Coverage::Calls(unseen) | Coverage::Requests(unseen) => {
                unseen.by_design.and(unseen.for_lack_of_hooks)
            }
            Coverage::Nothing => Writing::ALL.into_iter().collect(),
        }
    }

    /// Those of them that are seen on other kernels as old as this one: something is wrong with it, or new about it.
    pub fn lacking(self) -> Writings {
        match self {
            Coverage::Pages(unseen) | Coverage::Calls(unseen) | Coverage::Requests(unseen) => {
                USUAL.into_iter().filter(|usual| unseen.for_lack_of_hooks.contains(*usual)).collect()
            }
            Coverage::Blocks | Coverage::Nothing => Writings::NONE,
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Coverage::Blocks => "every block, exactly",
            Coverage::Pages(_) => "written pages",
            Coverage::Calls(_) => "bytes as written",
            Coverage::Requests(_) => "bytes asked to be written",
            Coverage::Nothing => return f.write_str("nothing, statfs only"),
        })?;
        let unseen = self.unseen();
        if unseen.is_empty() { Ok(()) } else { write!(f, "; unseen: {unseen}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unseen(by_design: &[Writing], for_lack_of_hooks: &[Writing]) -> Unseen {
        let set = |writings: &[Writing]| writings.iter().copied().collect();
        Unseen { by_design: set(by_design), for_lack_of_hooks: set(for_lack_of_hooks) }
    }

    #[test]
    fn it_says_which_ways_of_writing_pass_unseen() {
        let calls = Coverage::Calls(unseen(&[Writing::Aio], &[Writing::Vector, Writing::IoUring]));
        assert_eq!(calls.to_string(), "bytes as written; unseen: writev, io_uring, libaio");
        assert_eq!(Coverage::Requests(Unseen::default()).to_string(), "bytes asked to be written");
        assert_eq!(Coverage::Blocks.to_string(), "every block, exactly");
        assert!(Writing::ALL.into_iter().all(|writing| Coverage::Nothing.unseen().contains(writing)));
    }

    #[test]
    fn what_kernels_of_that_age_lack_is_not_amiss() {
        let old = Coverage::Calls(unseen(&[Writing::Aio, Writing::Mapping], &[Writing::IoUring]));
        assert_eq!(old.lacking(), Writings::NONE);
        assert_eq!(
            Coverage::Pages(unseen(&[Writing::Allocation], &[Writing::Direct])).lacking(),
            Writings::NONE
        );
        let torn = Coverage::Calls(unseen(&[], &[Writing::Splice, Writing::IoUring]));
        assert_eq!(torn.lacking(), [Writing::Splice].into_iter().collect());
    }

    #[test]
    fn only_blocks_let_the_whole_headroom_be_the_budget() {
        assert!(Coverage::Blocks.is_exact());
        let none = Unseen::default();
        for coverage in [Coverage::Pages(none), Coverage::Calls(none), Coverage::Requests(none)] {
            assert!(!coverage.is_exact(), "{coverage}");
        }
    }
}
