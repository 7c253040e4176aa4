//! Clearing away what a refused creation leaves.
//!
//! `open(O_CREAT)` makes the name first and asks for permission afterwards, so a refusal by fanotify leaves an empty file.
//! It is nobody's: its maker got an error. But an empty file may also be somebody's, so here each of these must be shown:
//! it is the very inode that was refused; it was born while writers were being refused and was never modified since; it
//! has no content and no blocks; nobody has it open, it has no other link and no pin. The last ones are shown by the same
//! steps as for every other deletion, with the same rename aside and the same last look.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

use jiff::Timestamp;
use nix::errno::Errno;

use super::{CheckpointDir, Expected, is_one_component};
use crate::act::refusal::{Changed, Refused};
use crate::model::{Bytes, FileId, Kind};

/// The audit id in the private name of what is cleared away: there is no audit line of its own, it is counted in the
/// brake's. A crash between the rename and the unlink leaves `.evicting-0-<inode>`, which the next start finishes.
const NO_AUDIT_ID: u64 = 0;

impl CheckpointDir {
    /// Deletes the empty file that a refused creation left as `name`; see the module's text. `since` is when the brake
    /// engaged.
    ///
    /// # Errors
    /// [`Refused::InUse`] for the instant in which the event is being answered; everything else is for good.
    pub fn clear_refused(&self, name: &OsStr, file: FileId, since: Timestamp) -> Result<(), Refused> {
        if !is_one_component(name) {
            return Err(Refused::NotACheckpoint("its name is not one path component"));
        }
        let found = self.open_entry(name).map_err(|errno| match errno {
            Errno::ENOENT => Refused::Gone,
            Errno::ELOOP => Refused::NotACheckpoint("a symbolic link"),
            errno => Refused::failed("openat")(errno),
        })?;
        let found = File::from(found);
        let metadata = found.metadata().map_err(|error| Refused::CannotProve(error.to_string()))?;
        if (FileId { dev: metadata.dev(), ino: metadata.ino() }) != file || !metadata.is_file() {
            return Err(Refused::Changed(Changed::File));
        }
        if metadata.len() != 0 || metadata.blocks() != 0 {
            return Err(Refused::Changed(Changed::Content));
        }
        let (Ok(born), Ok(modified)) = (metadata.created(), metadata.modified()) else {
            return Err(Refused::CannotProve("the filesystem does not tell when a file was made".to_owned()));
        };
        let timestamp = |time: std::time::SystemTime| {
            Timestamp::try_from(time).map_err(|error: jiff::Error| Refused::CannotProve(error.to_string()))
        };
        let (born, modified) = (timestamp(born)?, timestamp(modified)?);
        if born != modified || born < since {
            return Err(Refused::CannotProve("it was not made by the call that was refused".to_owned()));
        }
        drop(found);
        let expected = Expected { name, kind: Kind::Archive, file, len: Bytes::ZERO, modified };
        self.remove(&expected, NO_AUDIT_ID).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    struct Scene {
        scratch: tempfile::TempDir,
        dir: CheckpointDir,
    }

    fn scene() -> Scene {
        let scratch = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::open(scratch.path()).unwrap();
        Scene { scratch, dir }
    }

    impl Scene {
        fn path(&self) -> std::path::PathBuf {
            self.scratch.path().join("a.tar")
        }

        fn clear(&self, file: FileId, since: Timestamp) -> Result<(), Refused> {
            self.dir.clear_refused(OsStr::new("a.tar"), file, since)
        }
    }

    fn id(path: &Path) -> FileId {
        let metadata = std::fs::metadata(path).unwrap();
        FileId { dev: metadata.dev(), ino: metadata.ino() }
    }

    fn birth(path: &Path) -> Timestamp {
        std::fs::metadata(path).unwrap().created().unwrap().try_into().unwrap()
    }

    #[test]
    fn an_empty_file_that_was_born_while_braking_goes() {
        let scene = scene();
        drop(File::create(scene.path()).unwrap());
        let since = birth(&scene.path()) - Duration::from_millis(1);
        scene.clear(id(&scene.path()), since).unwrap();
        assert!(!scene.path().exists());
        assert_eq!(scene.clear(FileId { dev: 0, ino: 0 }, since), Err(Refused::Gone));
    }

    #[test]
    fn an_empty_file_that_might_be_somebodys_stays() {
        let spared = |prepare: &dyn Fn(&Scene), since: &dyn Fn(Timestamp) -> Timestamp| {
            let scene = scene();
            let keep = File::create(scene.path()).unwrap();
            let file = id(&scene.path());
            let since = since(birth(&scene.path()));
            drop(keep);
            prepare(&scene);
            let refused = scene.clear(file, since).unwrap_err();
            assert!(scene.path().exists(), "{refused}");
            refused
        };
        let before = |birth: Timestamp| birth - Duration::from_millis(1);
        let nothing = |_: &Scene| {};
        let write = |scene: &Scene, bytes: &[u8]| {
            std::thread::sleep(Duration::from_millis(20));
            let mut file = File::options().write(true).open(scene.path()).unwrap();
            file.write_all(bytes).unwrap();
            file
        };
        assert!(matches!(
            spared(&nothing, &|birth| birth + Duration::from_millis(1)),
            Refused::CannotProve(_)
        ));
        assert_eq!(spared(&|scene| drop(write(scene, b"x")), &before), Refused::Changed(Changed::Content));
        let emptied = |scene: &Scene| write(scene, b"x").set_len(0).unwrap();
        assert!(matches!(spared(&emptied, &before), Refused::CannotProve(_)));
        let other = |scene: &Scene| {
            std::fs::rename(scene.path(), scene.scratch.path().join("b.tar")).unwrap();
            drop(File::create(scene.path()).unwrap());
        };
        assert_eq!(spared(&other, &before), Refused::Changed(Changed::File));
        let pin = |scene: &Scene| drop(File::create(scene.scratch.path().join("a.tar.keep")).unwrap());
        assert!(matches!(spared(&pin, &before), Refused::Pinned(_)));
        let link =
            |scene: &Scene| std::fs::hard_link(scene.path(), scene.scratch.path().join("b.tar")).unwrap();
        assert_eq!(spared(&link, &before), Refused::Linked);
    }

    #[test]
    fn one_that_somebody_has_open_stays() {
        let scene = scene();
        let _open = File::create(scene.path()).unwrap();
        let since = birth(&scene.path()) - Duration::from_millis(1);
        assert!(matches!(scene.clear(id(&scene.path()), since), Err(Refused::InUse { .. })));
        assert!(scene.path().exists());
    }
}
