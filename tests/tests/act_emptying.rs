//! Space of large deleted archives comes back on every kind of ext4 and xfs, all of it and soon, by whichever way; and who
//! can still get at the content keeps all of it.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use guard::act::checkpoint_dir::{CheckpointDir, Expected};
use guard::act::refusal::Refused;
use guard::model::Bytes;
use guard::observe::filesystem::observe;
use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tests::checkpoints::{checkpoint_at, write_archive};
use tests::loopfs::{Filesystem, LoopMount};

/// What a filesystem is made and mounted with, and whether what nobody can reach is emptied there rather than closed.
const KINDS: [(Filesystem, &[&str], &str, bool); 8] = [
    (Filesystem::Ext4, &[], "", true),
    (Filesystem::Ext4, &["-O", "^has_journal"], "", true),
    (Filesystem::Ext4, &["-t", "ext2"], "", true),
    (Filesystem::Ext4, &["-t", "ext3"], "", true),
    (Filesystem::Ext4, &[], "data=journal", true),
    (Filesystem::Ext4, &[], "sync", false),
    (Filesystem::Xfs, &[], "", true),
    (Filesystem::Xfs, &[], "sync", false),
];
const SIZE: Bytes = Bytes::mib(400);
/// Directories, the private place, what mounting itself takes.
const SLACK: Bytes = Bytes::mib(1);

struct Place {
    mount: LoopMount,
    dir: CheckpointDir,
    is_emptied: bool,
    what: String,
}

fn on_every_kind(test: impl Fn(&Place)) {
    for (filesystem, mkfs, options, is_emptied) in KINDS {
        let what = format!("{filesystem:?} {mkfs:?} {options:?}");
        let mount = LoopMount::with_options(filesystem, SIZE, mkfs, options).expect(&what);
        let dir = CheckpointDir::open(mount.path()).unwrap();
        test(&Place { mount, dir, is_emptied, what });
    }
}

impl Place {
    fn available(&self) -> Bytes {
        observe(&self.dir).unwrap().available
    }

    /// Deletes `path`; how long the kernel took to give the space back.
    #[expect(clippy::disallowed_methods, reason = "how long it takes is one of the questions")]
    fn delete(&self, path: &Path) -> Duration {
        let unlinked = self.dir.unlink(&Expected::from(&checkpoint_at(path)), 1).expect(&self.what);
        assert_eq!(unlinked.is_unreachable(), self.is_emptied, "{}", self.what);
        let began = Instant::now();
        unlinked.free();
        began.elapsed()
    }

    fn check_all_came_back(&self, before: Bytes) {
        let shown = || self.available() + SLACK >= before;
        let in_time = (0..100).any(|_| {
            std::thread::sleep(if shown() { Duration::ZERO } else { Duration::from_millis(20) });
            shown()
        });
        assert!(in_time, "{}: {} of {before} is available", self.what, self.available());
    }
}

#[test]
fn all_space_comes_back_of_what_is_written_and_of_what_is_still_dirty() {
    on_every_kind(|place| {
        let path = place.mount.path().join("a.tar");
        let before = place.available();
        write_archive(&path, Bytes::mib(96));
        let written = place.delete(&path);
        place.check_all_came_back(before);
        // A length that is no multiple of anything, and pages that no writeback has seen.
        fs::write(&path, vec![1; (96 << 20) + 12_345]).unwrap();
        let dirty = place.delete(&path);
        place.check_all_came_back(before);
        println!("{}: {written:?}, dirty {dirty:?}", place.what);
        // Without steps that wait for a commit each: 48 of them. What is on its way to the disk is waited for, by any way:
        // 2.6 s beside others who write at full speed.
        assert!(written < Duration::from_secs(5), "{}: {written:?}", place.what);
    });
}

#[test]
fn a_hole_as_long_as_the_filesystem_allows_costs_nothing() {
    on_every_kind(|place| {
        let path = place.mount.path().join("a.tar");
        let before = place.available();
        let file = File::create(&path).unwrap();
        let longest = (0..63).rev().map(|bits| (1_u64 << bits) - 4096).find(|len| file.set_len(*len).is_ok());
        let longest = longest.expect("some length is allowed");
        file.write_all_at(&[1; 8192], 0).unwrap();
        file.write_all_at(&[1; 8192], longest - 8192).unwrap();
        drop(file);
        let took = place.delete(&path);
        println!("{}: {longest} bytes in {took:?}", place.what);
        assert!(longest >= 1 << 39 && took < Duration::from_secs(2), "{}: {longest}, {took:?}", place.what);
        place.check_all_came_back(before);
    });
}

/// So long that it is emptied in steps.
const LARGE: usize = 9 << 20;

fn fresh(path: &Path) {
    fs::write(path, vec![1; LARGE]).unwrap();
}

fn is_whole(file: &File) -> bool {
    let mut content = vec![0; LARGE + 1];
    let mut len = 0;
    while let Ok(count @ 1..) = file.read_at(&mut content[len..], len as u64) {
        len += count;
    }
    content[..len] == vec![1; LARGE]
}

#[test]
fn who_holds_on_to_the_name_keeps_the_content() {
    on_every_kind(|place| {
        let path = place.mount.path().join("a.tar");
        let elsewhere = tempfile::tempdir().unwrap();

        // A handle, as container runtimes have.
        fresh(&path);
        let handle = File::options().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
        delete_doubted(place, &path);
        assert!(is_whole(&reopened(&handle)), "{}: by a handle", place.what);
        drop(handle);

        // The file itself mounted elsewhere, as a container's volume.
        fresh(&path);
        let target = elsewhere.path().join("mounted.tar");
        File::create(&target).unwrap();
        mount(Some(&path), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        delete_doubted(place, &path);
        let opened = File::open(&target);
        umount2(&target, MntFlags::MNT_DETACH).unwrap();
        assert!(is_whole(&opened.unwrap()), "{}: mounted elsewhere", place.what);
    });
}

#[test]
fn who_has_looked_at_it_through_an_overlay_keeps_the_content() {
    for filesystem in [Filesystem::Ext4, Filesystem::Xfs] {
        let lower = LoopMount::new(filesystem, SIZE);
        let dir = CheckpointDir::open(lower.path()).unwrap();
        let above = LoopMount::new(Filesystem::Tmpfs, Bytes::mib(16));
        for folder in ["upper", "work", "merged"] {
            fs::create_dir(above.path().join(folder)).unwrap();
        }
        let folder = |name: &str| above.path().join(name);
        fresh(&lower.path().join("a.tar"));
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.path().display(),
            folder("upper").display(),
            folder("work").display()
        );
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(folder("merged")).status();
        assert!(mounted.unwrap().success());
        let seen = File::options().read(true).custom_flags(libc::O_PATH).open(folder("merged/a.tar"));
        let unlinked = dir.unlink(&Expected::from(&checkpoint_at(&lower.path().join("a.tar"))), 1);
        let is_unreachable = unlinked.map(|unlinked| {
            let is_unreachable = unlinked.is_unreachable();
            unlinked.free();
            is_unreachable
        });
        let whole = seen.map(|seen| is_whole(&reopened(&seen)));
        umount2(&folder("merged"), MntFlags::MNT_DETACH).unwrap();
        assert_eq!((is_unreachable, whole.unwrap()), (Ok(false), true), "{filesystem:?}");
    }
}

#[test]
fn who_has_it_mapped_or_open_keeps_the_file() {
    on_every_kind(|place| {
        let path = place.mount.path().join("a.tar");
        fresh(&path);
        let open = File::open(&path).unwrap();
        let length = std::num::NonZeroUsize::new(LARGE).unwrap();
        let (read, shared) = (nix::sys::mman::ProtFlags::PROT_READ, nix::sys::mman::MapFlags::MAP_SHARED);
        // SAFETY: a fresh read-only mapping that nothing but munmap below touches.
        let mapping = unsafe { nix::sys::mman::mmap(None, length, read, shared, &open, 0) }.unwrap();
        drop(open);
        let refused = place.dir.unlink(&Expected::from(&checkpoint_at(&path)), 1).map(|it| it.removed());
        // SAFETY: this is the mapping made above, and nobody holds a reference into it.
        unsafe { nix::sys::mman::munmap(mapping, LARGE) }.unwrap();
        assert!(matches!(refused, Err(Refused::InUse { .. })), "{}: {refused:?}", place.what);
        assert!(is_whole(&File::open(&path).unwrap()), "{}", place.what);
    });
}

fn delete_doubted(place: &Place, path: &Path) {
    let unlinked = place.dir.unlink(&Expected::from(&checkpoint_at(path)), 1).expect(&place.what);
    assert!(!unlinked.is_unreachable(), "{}", place.what);
    unlinked.free();
    assert!(!path.exists());
}

fn reopened(handle: &File) -> File {
    File::open(format!("/proc/self/fd/{}", handle.as_raw_fd())).unwrap()
}
