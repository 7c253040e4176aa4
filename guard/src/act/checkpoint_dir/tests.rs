use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt, symlink};

use super::*;
use crate::observe::scan::{self, Stat};

struct Watched {
    _scratch: tempfile::TempDir,
    path: PathBuf,
    dir: CheckpointDir,
}

impl Watched {
    fn new() -> Watched {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("checkpoints");
        fs::create_dir(&path).unwrap();
        let dir = CheckpointDir::open(&path).unwrap();
        Watched { _scratch: scratch, path, dir }
    }

    fn archive(&self, name: &str) -> Planned {
        fs::write(self.path.join(name), vec![7; 10_000]).unwrap();
        Planned::of(&self.path.join(name), Kind::Archive)
    }

    fn pod_checkpoint(&self, name: &str) -> Planned {
        let root = self.path.join(name);
        fs::create_dir_all(root.join("container/deep/er")).unwrap();
        fs::write(root.join("pod.json"), "{}").unwrap();
        fs::write(root.join("container/checkpoint.tar"), vec![7; 50_000]).unwrap();
        fs::write(root.join("container/deep/er/file"), "x").unwrap();
        symlink("/etc/passwd", root.join("container/link")).unwrap();
        symlink("/etc", root.join("container/dirlink")).unwrap();
        Planned::of(&root, Kind::PodCheckpoint)
    }

    fn remove(&self, planned: &Planned) -> Result<Removed, Refused> {
        self.dir.remove(&planned.expected(), 1)
    }

    /// Every refusal leaves everything as it was.
    #[track_caller]
    fn check_refused(&self, planned: &Planned, expect: Refused) {
        let before = self.names();
        assert_eq!(self.remove(planned), Err(expect));
        assert_eq!(self.names(), before);
    }

    fn names(&self) -> Vec<OsString> {
        let mut names = list(&self.dir).unwrap();
        names.retain(|name| name != aside::PRIVATE);
        names.sort();
        names
    }
}

struct Planned {
    name: OsString,
    kind: Kind,
    file: FileId,
    len: Bytes,
    modified: Timestamp,
}

impl Planned {
    fn of(path: &Path, kind: Kind) -> Planned {
        let metadata = fs::symlink_metadata(path).unwrap();
        let (name, parent) = (path.file_name().unwrap(), File::open(path.parent().unwrap()).unwrap());
        let (len, modified) = match kind {
            Kind::Archive => Stat::at(parent.as_fd(), name).map(|stat| (stat.len, stat.modified)).unwrap(),
            Kind::PodCheckpoint => scan::measure(parent.as_fd(), name, &mut |_, _| false)
                .map(|tree| (tree.len, tree.modified))
                .unwrap(),
        };
        let file = FileId { dev: metadata.dev(), ino: metadata.ino() };
        Planned { name: name.to_owned(), kind, file, len, modified }
    }

    fn expected(&self) -> Expected<'_> {
        let &Planned { ref name, kind, file, len, modified } = self;
        Expected { name, kind, file, len, modified }
    }
}

#[test]
fn what_is_as_planned_is_deleted_and_nothing_else() {
    let watched = Watched::new();
    let (victim, _other) = (watched.archive("a.tar"), watched.archive("b.tar"));
    let removed = watched.remove(&victim).unwrap();
    assert!(removed.allocated.0 >= 10_000 && removed.inodes == 1, "{removed:?}");
    assert_eq!(watched.names(), ["b.tar"]);
    assert_eq!(watched.remove(&victim), Err(Refused::Gone));
    let Watched { path, dir, .. } = &watched;
    assert!(dir.is_still_at(path));
}

#[test]
fn case_06_pinned_archives_and_pod_checkpoints_stay() {
    let watched = Watched::new();
    for planned in [watched.archive("a.tar"), watched.pod_checkpoint("checkpoint-web")] {
        let marker = watched.path.join(marker_of(&planned.name));
        symlink("nowhere", &marker).unwrap();
        watched.check_refused(&planned, Refused::Pinned(Pin::Marker));
        fs::rename(&marker, watched.path.join("away")).unwrap();
        watched.remove(&planned).unwrap();
    }
}

#[test]
fn what_somebody_has_open_stays() {
    let watched = Watched::new();
    let planned = watched.archive("a.tar");
    let in_use = |file| Refused::InUse { file, holders: Vec::new() };
    let reader = File::open(watched.path.join("a.tar")).unwrap();
    watched.check_refused(&planned, in_use(planned.file));
    drop(reader);
    watched.remove(&planned).unwrap();

    let pod = watched.pod_checkpoint("checkpoint-web");
    let deep = Planned::of(&watched.path.join("checkpoint-web/container/deep/er/file"), Kind::Archive);
    let reader = File::open(watched.path.join("checkpoint-web/container/deep/er/file")).unwrap();
    watched.check_refused(&pod, in_use(deep.file));
    assert!(watched.path.join("checkpoint-web/pod.json").exists());
    drop(reader);
    watched.remove(&pod).unwrap();
}

#[test]
fn what_changed_since_it_was_planned_stays() {
    let watched = Watched::new();
    let planned = watched.archive("a.tar");
    fs::write(watched.path.join("a.tar"), vec![7; 10_001]).unwrap();
    watched.check_refused(&planned, Refused::Changed(Changed::Content));

    fs::write(watched.path.join("a.tar"), vec![7; 10_000]).unwrap();
    watched.check_refused(&planned, Refused::Changed(Changed::Content));

    fs::rename(watched.path.join("a.tar"), watched.path.join("kept.tar")).unwrap();
    watched.archive("a.tar");
    watched.check_refused(&planned, Refused::Changed(Changed::File));
}

#[test]
fn a_pod_checkpoint_in_which_anything_was_written_since_it_was_planned_stays() {
    let watched = Watched::new();
    let root = watched.path.join("checkpoint-web");
    let write: [&dyn Fn(); 5] = [
        &|| fs::write(root.join("container/checkpoint.tar"), vec![7; 50_001]).unwrap(),
        &|| fs::write(root.join("container/checkpoint.tar"), vec![7; 50_001]).unwrap(),
        &|| fs::write(root.join("container/deep/one-more"), "").unwrap(),
        &|| fs::create_dir(root.join("one-more")).unwrap(),
        &|| fs::rename(root.join("pod.json"), root.join("container/pod.json")).unwrap(),
    ];
    let mut planned = watched.pod_checkpoint("checkpoint-web");
    for write in write {
        // Times of files go by the kernel's ticks.
        std::thread::sleep(Duration::from_millis(20));
        write();
        watched.check_refused(&planned, Refused::Changed(Changed::Content));
        planned = Planned::of(&root, Kind::PodCheckpoint);
    }
    watched.remove(&planned).unwrap();
}

#[test]
fn links_directories_and_special_files_are_no_archives() {
    let watched = Watched::new();
    let planned = watched.archive("a.tar");
    let path = watched.path.join("a.tar");
    fs::hard_link(&path, watched.path.join("second")).unwrap();
    watched.check_refused(&planned, Refused::Linked);
    fs::rename(&path, watched.path.join("away")).unwrap();
    symlink("away", &path).unwrap();
    watched.check_refused(&planned, Refused::NotACheckpoint("a symbolic link"));
    fs::rename(&path, watched.path.join("away2")).unwrap();
    nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
    watched.check_refused(&planned, Refused::NotACheckpoint("a special file"));
    fs::rename(&path, watched.path.join("away3")).unwrap();
    fs::create_dir(&path).unwrap();
    watched.check_refused(&planned, Refused::NotACheckpoint("a directory where an archive was"));
}

#[test]
fn names_are_single_components() {
    let watched = Watched::new();
    let mut planned = watched.archive("a.tar");
    for name in ["../checkpoints/a.tar", "./a.tar", "", ".", "..", "/etc/passwd", "a.tar/"] {
        planned.name = name.into();
        watched.check_refused(&planned, Refused::NotACheckpoint("its name is not one path component"));
    }
}

#[test]
fn case_19_a_pod_checkpoint_goes_whole_and_its_links_are_not_followed() {
    let watched = Watched::new();
    let planned = watched.pod_checkpoint("checkpoint-web_team-2026-01-01T00:00:00Z");
    let removed = watched.remove(&planned).unwrap();
    assert_eq!(watched.names(), [""; 0]);
    // Four directories, three files, two links.
    assert_eq!(removed.inodes, 9);
    assert!(removed.allocated.0 >= 50_000);
    assert!(Path::new("/etc/passwd").exists());
}

#[test]
fn a_pod_checkpoint_deeper_than_any_is_left_alone() {
    let watched = Watched::new();
    let root = watched.path.join("checkpoint-deep");
    fs::create_dir_all(root.join("d/".repeat(70))).unwrap();
    let planned = Planned::of(&root, Kind::PodCheckpoint);
    watched.check_refused(&planned, Refused::NotACheckpoint("more than 64 directories lie in one another"));
}

#[test]
fn case_38_a_directory_swapped_for_a_link_is_not_deleted_from() {
    let watched = Watched::new();
    let planned = watched.archive("a.tar");
    let moved = watched.path.with_extension("moved");
    fs::rename(&watched.path, &moved).unwrap();
    symlink("/etc", &watched.path).unwrap();
    assert!(!watched.dir.is_still_at(&watched.path));
    watched.check_refused(&planned, Refused::Changed(Changed::Directory));
    assert!(moved.join("a.tar").exists());
}

#[test]
fn directories_that_cannot_be_watched_say_why() {
    let watched = Watched::new();
    let scratch = watched.path.parent().unwrap();
    let check = |name: &str, expect: OpenError| {
        let path = scratch.join(name);
        assert_eq!(CheckpointDir::open(&path).unwrap_err(), expect);
    };
    check("missing", OpenError::Missing(scratch.join("missing")));
    fs::write(scratch.join("file"), "").unwrap();
    check("file", OpenError::NotADirectory(scratch.join("file")));
    symlink("checkpoints", scratch.join("link")).unwrap();
    let link = OpenError::Link { path: scratch.join("link"), target: "checkpoints".into() };
    check("link", link.clone());
    check("link/", link);
    // A link above it is the administrator's business.
    symlink(scratch, scratch.join("parent")).unwrap();
    let through = CheckpointDir::open(&scratch.join("parent/checkpoints")).unwrap();
    assert_eq!(through.id(), watched.dir.id());
    assert_eq!(through.resolved(), fs::canonicalize(&watched.path).unwrap());
}

#[test]
fn leftovers_of_a_crash_are_finished() {
    let watched = Watched::new();
    let private = watched.path.join(aside::PRIVATE);
    fs::DirBuilder::new().create(&private).unwrap();
    fs::set_permissions(&private, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let aside = |planned: &Planned, id: u64, private: bool| {
        let name = format!(".evicting-{id}-{}", planned.file.ino);
        let place = if private { watched.path.join(aside::PRIVATE) } else { watched.path.clone() };
        fs::rename(watched.path.join(&planned.name), place.join(&name)).unwrap();
        name
    };
    let whole = aside(&watched.archive("a.tar"), 1, true);
    let beside = aside(&watched.archive("b.tar"), 2, false);
    let half = watched.pod_checkpoint("checkpoint-web");
    fs::rename(watched.path.join("checkpoint-web/pod.json"), watched.path.join("emptied")).unwrap();
    let half = aside(&half, 3, true);
    let pinned = aside(&watched.archive("pinned.tar"), 4, true);
    fs::write(watched.path.join("pinned.tar.keep"), "").unwrap();
    let mut slipped_in = watched.archive("c.tar");
    slipped_in.file.ino += 1;
    let slipped_in = aside(&slipped_in, 5, false);

    let name_of = |id: u64| (id == 4).then(|| OsString::from("pinned.tar"));
    let mut leftovers = watched.dir.finish_leftovers(&name_of).unwrap();
    leftovers.sort_by_key(|leftover| leftover.id);
    let outcome = |id: usize| (&leftovers[id - 1].left_as, leftovers[id - 1].outcome.as_ref().err());
    assert_eq!(outcome(1), (&whole.into(), None));
    assert_eq!(outcome(2), (&beside.into(), None));
    assert_eq!(outcome(3), (&half.into(), None));
    assert_eq!(outcome(4), (&pinned.into(), Some(&Refused::Pinned(Pin::Marker))));
    assert_eq!(outcome(5), (&slipped_in.clone().into(), Some(&Refused::Changed(Changed::File))));
    assert_eq!(watched.names(), [&*slipped_in, "emptied", "pinned.tar", "pinned.tar.keep"]);
    assert!(!private.exists());
}

#[test]
fn what_could_not_be_finished_is_taken_up_again_and_told_when_there_is_news() {
    let watched = Watched::new();
    let planned = watched.pod_checkpoint("checkpoint-web");
    let left_as = format!(".evicting-1-{}", planned.file.ino);
    fs::rename(watched.path.join("checkpoint-web"), watched.path.join(&left_as)).unwrap();
    let reader = File::open(watched.path.join(&left_as).join("pod.json")).unwrap();
    let leftovers = watched.dir.finish_leftovers(&|_| Some("checkpoint-web".into())).unwrap();
    assert!(matches!(leftovers[0].outcome, Err(Refused::InUse { .. })), "{leftovers:?}");
    assert_eq!(watched.dir.retry_leftovers(), []);
    drop(reader);
    // Another guard's, which is at it right now.
    let other = watched.pod_checkpoint("checkpoint-db");
    let its = format!(".evicting-2-{}", other.file.ino);
    fs::rename(watched.path.join("checkpoint-db"), watched.path.join(&its)).unwrap();
    let news = watched.dir.retry_leftovers();
    assert_eq!(news.len(), 1);
    assert!(
        news[0].outcome.is_ok() && news[0].name.as_deref() == Some(OsStr::new("checkpoint-web")),
        "{news:?}"
    );
    assert_eq!(watched.names(), [&*its]);
    assert_eq!(watched.dir.retry_leftovers(), []);
}

#[test]
fn a_leftover_whose_name_nobody_knows_is_spared_while_a_marker_may_be_its() {
    let watched = Watched::new();
    let planned = watched.archive("a.tar");
    let left_as = format!(".evicting-1-{}", planned.file.ino);
    fs::rename(watched.path.join("a.tar"), watched.path.join(&left_as)).unwrap();
    for marker in ["a.tar.keep", "b.tar.keep"] {
        fs::write(watched.path.join(marker), "").unwrap();
    }
    watched.archive("b.tar");
    let leftovers = watched.dir.finish_leftovers(&|_| None).unwrap();
    assert_eq!(leftovers[0].outcome, Err(Refused::Pinned(Pin::Nameless)));
    assert_eq!(watched.dir.retry_leftovers(), []);
    assert!(watched.path.join(&left_as).exists());
    fs::rename(watched.path.join("a.tar.keep"), watched.path.join("a.tar.kept")).unwrap();
    assert!(watched.dir.retry_leftovers()[0].outcome.is_ok());
    assert!(!watched.path.join(&left_as).exists());
}

#[test]
fn a_private_place_that_others_can_enter_is_not_used() {
    let watched = Watched::new();
    let elsewhere = watched.path.with_extension("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, watched.path.join(aside::PRIVATE)).unwrap();
    let planned = watched.archive("a.tar");
    watched.remove(&planned).unwrap();
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    assert_eq!(watched.names(), [""; 0]);
    assert!(fs::symlink_metadata(watched.path.join(aside::PRIVATE)).unwrap().is_symlink());
}

#[test]
fn the_private_place_goes_with_the_last_user() {
    let watched = Watched::new();
    watched.remove(&watched.archive("a.tar")).unwrap();
    let other = CheckpointDir::open(&watched.path).unwrap();
    other.remove(&watched.archive("b.tar").expected(), 2).unwrap();
    drop(other);
    assert!(!watched.path.join(aside::PRIVATE).exists());
    watched.remove(&watched.archive("c.tar")).unwrap();
    assert!(watched.path.join(aside::PRIVATE).exists(), "made again");
}
