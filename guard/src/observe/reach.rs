//! [`Reach`]: who besides its owner gets as far as what lies in a directory.
//!
//! A file's own mode says who may read it once he is there; to be there he must pass every directory above. An archive
//! of mode 0644 in a directory of mode 0700 is nobody's to read, and a gauge that counts it is an alarm about nothing.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat};

/// Who may pass a directory and all of those above it, by their modes (`x`). Access control lists show in the group's
/// bits, which are their mask; where another mount shows the same directory is not looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Somebody of the directories' groups.
    pub group: bool,
    /// Anybody.
    pub others: bool,
}

impl Reach {
    /// As far as nothing is known.
    pub const EVERYBODY: Reach = Reach { group: true, others: true };

    /// Walks up from `dir`. What cannot be looked at keeps nobody out.
    pub fn of(dir: BorrowedFd<'_>) -> Reach {
        // No path is that deep.
        const LEVELS_MAX: usize = 2048;
        let mut reach = Reach::EVERYBODY;
        let mut here: Option<OwnedFd> = None;
        for _ in 0..LEVELS_MAX {
            let fd = here.as_ref().map_or(dir, |fd| fd.as_fd());
            let Ok(stat) = fstat(fd) else { break };
            reach.pass(stat.st_mode);
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            let Ok(above) = openat(fd, c"..", flags, Mode::empty()) else { break };
            let is_root = fstat(&above).is_ok_and(|it| (it.st_dev, it.st_ino) == (stat.st_dev, stat.st_ino));
            if is_root || reach == (Reach { group: false, others: false }) {
                break;
            }
            here = Some(above);
        }
        reach
    }

    fn pass(&mut self, mode: u32) {
        self.others &= mode & 0o001 != 0;
        // One of the group is also one of the others of any other directory.
        self.group &= mode & 0o011 != 0;
    }

    /// Whether somebody else than its owner may read or write a file of this mode; a directory, look into it or pass it.
    pub fn exposes(self, mode: u32, is_directory: bool) -> bool {
        let bits = if is_directory { 0o7 } else { 0o6 };
        (self.others && mode & bits != 0) || (self.group && mode & (bits << 3) != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[track_caller]
    fn check(above: u32, directory: u32, file: u32, is_exposed: bool) {
        let scratch = tempfile::tempdir().unwrap();
        let set = |path: &std::path::Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let dir = scratch.path().join("a/b");
        std::fs::create_dir_all(&dir).unwrap();
        set(&dir, directory);
        set(dir.parent().unwrap(), above);
        set(scratch.path(), 0o755);
        let reach = Reach::of(std::fs::File::open(&dir).unwrap().as_fd());
        assert_eq!(reach.exposes(file, false), is_exposed, "{above:o}/{directory:o}/{file:o}");
    }

    #[test]
    fn a_file_is_exposed_only_to_those_who_get_there() {
        check(0o755, 0o755, 0o644, true);
        check(0o755, 0o755, 0o600, false);
        check(0o755, 0o700, 0o644, false);
        check(0o700, 0o755, 0o644, false);
        check(0o711, 0o711, 0o604, true);
        check(0o750, 0o755, 0o604, false);
        check(0o750, 0o755, 0o640, true);
        check(0o755, 0o755, 0o602, true);
    }

    #[test]
    fn a_directory_is_exposed_when_it_may_be_passed() {
        assert!(Reach::EVERYBODY.exposes(0o711, true));
        assert!(!Reach::EVERYBODY.exposes(0o700, true));
    }
}
