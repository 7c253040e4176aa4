use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::observe::archive::Limits;

struct Watched {
    folders: Vec<tempfile::TempDir>,
    catalog: Catalog,
}

impl Watched {
    fn new(directories: usize) -> Watched {
        let folders: Vec<_> = (0..directories).map(|_| tempfile::tempdir().unwrap()).collect();
        let catalog = Catalog::new(folders.iter().map(|folder| folder.path().to_owned()).collect());
        Watched { folders, catalog }
    }

    fn path(&self, directory: usize) -> &Path {
        self.folders[directory].path()
    }

    fn scan(&mut self, directory: usize) {
        let dir = File::open(self.path(directory)).unwrap();
        self.catalog.scan(directory as u16, dir.as_fd(), Holds::Archives).unwrap();
    }

    /// An event about an entry.
    fn hear(&mut self, directory: usize, name: &str) {
        self.is_written(directory, name);
    }

    /// The same; whether its end is to be awaited.
    fn is_written(&mut self, directory: usize, name: &str) -> bool {
        let dir = File::open(self.path(directory)).unwrap();
        self.catalog.refresh(directory as u16, dir.as_fd(), Holds::Archives, OsStr::new(name))
    }

    fn read_all(&mut self) {
        for request in self.catalog.wanted(usize::MAX) {
            let file = File::open(self.path(request.directory.into()).join(&request.name)).unwrap();
            let contents = archive::read(&file, &Limits::default()).map(Box::new);
            self.catalog.answer((request, contents.map_or(Reading::Unreadable, Reading::Contents)));
        }
    }

    fn foreign(&self) -> usize {
        self.catalog.inventory().foreign
    }

    fn states(&self, name: &str) -> States {
        let mut all = self.catalog.inventory().checkpoints.iter();
        all.find(|checkpoint| *checkpoint.name == *name).unwrap().states
    }
}

/// A complete tar of empty files with these names.
fn write_tar(path: &Path, entries: &[&str]) {
    let mut builder = tar::Builder::new(File::create(path).unwrap());
    for name in entries {
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        header.set_mode(0o600);
        builder.append_data(&mut header, name, std::io::empty()).unwrap();
    }
    builder.finish().unwrap();
}

#[test]
fn what_is_no_checkpoint_is_counted_in_all_directories_and_after_each_event() {
    let mut watched = Watched::new(2);
    for (directory, name) in [(0, "a.txt"), (0, "b.txt"), (1, "c.txt")] {
        std::fs::write(watched.path(directory).join(name), name).unwrap();
    }
    std::fs::create_dir(watched.path(1).join("folder")).unwrap();
    watched.scan(0);
    assert_eq!(watched.foreign(), 2);
    watched.scan(1);
    assert_eq!(watched.foreign(), 4);
    watched.scan(0);
    assert_eq!(watched.foreign(), 4, "those of the other directory are still there");
    std::fs::write(watched.path(0).join("d.txt"), "d").unwrap();
    watched.hear(0, "d.txt");
    assert_eq!(watched.foreign(), 5);
    std::fs::rename(watched.path(0).join("d.txt"), watched.path(0).join("e.txt")).unwrap();
    watched.hear(0, "d.txt");
    assert_eq!(watched.foreign(), 4);
    watched.hear(0, "e.txt");
    write_tar(&watched.path(0).join("mine.tar"), &["config.dump", "spec.dump", "checkpoint/pages-1.img"]);
    watched.hear(0, "mine.tar");
    assert_eq!(watched.foreign(), 6, "nobody has looked into it yet");
    watched.read_all();
    watched.catalog.forget_directory(1);
    assert_eq!(watched.foreign(), 4);
}

#[test]
fn a_tar_without_both_dumps_is_unproven() {
    let name = |container: &str| format!("checkpoint-web_team-{container}-2026-01-01T00:00:00Z.tar");
    let mut watched = Watched::new(1);
    let folder = watched.path(0).to_owned();
    write_tar(&folder.join(name("other")), &["etc/passwd"]);
    write_tar(&folder.join(name("unreadable-dumps")), &["config.dump", "spec.dump"]);
    write_tar(&folder.join(name("one-dump")), &["config.dump"]);
    write_tar(&folder.join(name("images")), &["checkpoint/pages-1.img"]);
    std::fs::write(folder.join(name("encrypted")), [7; 4096]).unwrap();
    std::fs::write(folder.join(name("cut")), [0; 100]).unwrap();
    watched.scan(0);
    watched.read_all();
    for (container, expect) in [
        ("other", States::UNPROVEN),
        ("encrypted", States::UNPROVEN),
        ("cut", States::INCOMPLETE),
        ("unreadable-dumps", States::empty()),
        ("one-dump", States::UNPROVEN),
        ("images", States::UNPROVEN),
    ] {
        let states = watched.states(&name(container));
        assert_eq!(states & (States::UNPROVEN | States::INCOMPLETE), expect, "{container}: {states:?}");
    }
    // A scan that finds nothing changed does not forget it, and what is written anew is looked into again.
    watched.scan(0);
    assert!(watched.states(&name("other")).contains(States::UNPROVEN));
    write_tar(&folder.join(name("other")), &["spec.dump", "config.dump"]);
    watched.hear(0, &name("other"));
    watched.read_all();
    assert!(!watched.states(&name("other")).contains(States::UNPROVEN));
}

#[test]
fn what_waits_to_be_read_stands_in_the_queue_once_however_often_it_is_looked_at() {
    let mut watched = Watched::new(1);
    let folder = watched.path(0).to_owned();
    let names: Vec<String> = (0..50)
        .map(|n| format!("checkpoint-web_team-app-2026-01-01T00:00:{n:02}Z.tar"))
        .chain((0..50).map(|n| format!("stranger-{n}")))
        .collect();
    names.iter().for_each(|name| write_tar(&folder.join(name), &["config.dump"]));
    for round in 0..10 {
        watched.scan(0);
        // Also when it has become another one meanwhile.
        for name in &names {
            write_tar(&folder.join(name), &vec!["config.dump"; round + 1]);
            watched.hear(0, name);
        }
    }
    assert_eq!((watched.catalog.unread.len(), watched.catalog.unread_strangers.len()), (50, 50));
    watched.read_all();
    assert!(!watched.catalog.has_unread());
    let is_read = |checkpoint: &Checkpoint| !checkpoint.states.contains(States::BEING_WRITTEN);
    assert!(watched.catalog.inventory().checkpoints.iter().all(is_read));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "somebody else deletes what is only a test's")]
fn what_moves_up_while_it_waits_to_be_read_is_read_all_the_same() {
    let mut watched = Watched::new(1);
    let folder = watched.path(0).to_owned();
    let names: Vec<String> =
        (0..50).map(|n| format!("checkpoint-web_team-app-2026-01-01T00:00:{n:02}Z.tar")).collect();
    names.iter().for_each(|name| write_tar(&folder.join(name), &["config.dump", "spec.dump"]));
    watched.scan(0);
    // The last ones move to where these were.
    for name in names.iter().step_by(3) {
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    watched.scan(0);
    watched.read_all();
    assert!(!watched.catalog.has_unread());
    let is_read = |checkpoint: &Checkpoint| !checkpoint.states.contains(States::BEING_WRITTEN);
    assert_eq!(watched.catalog.inventory().checkpoints.iter().filter(|it| is_read(it)).count(), 33);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "somebody else deletes what is only a test's")]
fn names_of_pods_that_have_no_checkpoint_any_more_are_forgotten() {
    let mut watched = Watched::new(1);
    let folder = watched.path(0).to_owned();
    let name = |pod: u32| format!("checkpoint-job-{pod}_ci-app-2026-01-01T00:00:00Z.tar");
    let mut most = 0;
    for pod in 0..100 {
        write_tar(&folder.join(name(pod)), &["config.dump", "spec.dump"]);
        watched.scan(0);
        watched.read_all();
        std::fs::remove_file(folder.join(name(pod))).unwrap();
        most = most.max(watched.catalog.strings.len());
    }
    // Those of two pods at most: two identities, read and unread, and three names for each reading.
    assert!((3..=20).contains(&most), "{most}");
}

#[test]
fn what_is_seen_of_the_inventory_changes_its_number() {
    let mut watched = Watched::new(1);
    let name = "checkpoint-web_team-app-2026-01-01T00:00:00Z.tar";
    write_tar(&watched.path(0).join(name), &["config.dump", "spec.dump"]);
    let mut seen = watched.catalog.revision();
    let mut is_new =
        |catalog: &Catalog| std::mem::replace(&mut seen, catalog.revision()) != catalog.revision();
    watched.scan(0);
    assert!(is_new(&watched.catalog));
    watched.read_all();
    assert!(is_new(&watched.catalog));
    watched.catalog.set_states(0, name.as_ref(), States::REFUSED);
    assert!(is_new(&watched.catalog));
    watched.catalog.forgive();
    assert!(is_new(&watched.catalog));
    watched.catalog.set_cluster(Arc::default());
    assert!(is_new(&watched.catalog));
    assert!(watched.catalog.wanted(1).is_empty() && !is_new(&watched.catalog));
    watched.catalog.remove(0, name.as_ref());
    assert!(is_new(&watched.catalog));
}

#[test]
fn what_changes_while_it_is_read_is_read_again() {
    let mut watched = Watched::new(1);
    let name = "checkpoint-web_team-app-2026-01-01T00:00:00Z.tar";
    let path = watched.path(0).join(name);
    write_tar(&path, &["config.dump"]);
    watched.scan(0);
    let asked = watched.catalog.wanted(usize::MAX);
    write_tar(&path, &["config.dump", "spec.dump"]);
    watched.hear(0, name);
    for request in asked {
        watched.catalog.answer((request, Reading::Stale));
    }
    assert!(watched.states(name).contains(States::BEING_WRITTEN));
    watched.read_all();
    assert!(!watched.states(name).contains(States::BEING_WRITTEN));
}

#[test]
fn an_empty_file_is_about_to_be_written_until_it_has_been_read() {
    let mut watched = Watched::new(1);
    for name in ["checkpoint-web_team-app-2026-01-01T00:00:00Z.tar", "a stranger"] {
        let path = watched.path(0).join(name);
        drop(File::create(&path).unwrap());
        assert!(watched.is_written(0, name), "{name}: nobody has it open yet");
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(&[1; 4096]).unwrap();
        assert!(watched.is_written(0, name), "{name}");
        drop(file);
        assert!(!watched.is_written(0, name), "{name}");
    }
    let abandoned = "checkpoint-web_team-app-2026-01-02T00:00:00Z.tar";
    drop(File::create(watched.path(0).join(abandoned)).unwrap());
    watched.hear(0, abandoned);
    watched.read_all();
    assert!(!watched.is_written(0, abandoned));
}

#[test]
fn what_could_not_be_deleted_is_left_alone_until_a_scan_or_until_it_is_another_one() {
    let mut watched = Watched::new(2);
    let name = "checkpoint-web_team-app-2026-01-01T00:00:00Z.tar";
    let folder = watched.path(0).to_owned();
    write_tar(&folder.join(name), &["config.dump", "spec.dump"]);
    watched.scan(0);
    watched.read_all();
    let refuse = |watched: &mut Watched| {
        watched.catalog.set_states(0, OsStr::new(name), States::REFUSED);
    };
    let is_refused = |watched: &Watched| watched.states(name).contains(States::REFUSED);
    refuse(&mut watched);
    // Out of sight and back, as it goes when the last step fails.
    std::fs::rename(folder.join(name), folder.join(".evicting-1")).unwrap();
    std::fs::rename(folder.join(".evicting-1"), folder.join(name)).unwrap();
    watched.hear(0, name);
    assert!(is_refused(&watched));
    watched.scan(1);
    assert!(is_refused(&watched), "that was another directory");
    watched.scan(0);
    assert!(!is_refused(&watched));
    refuse(&mut watched);
    write_tar(&folder.join(name), &["config.dump", "spec.dump", "checkpoint/pages-1.img"]);
    watched.hear(0, name);
    assert!(!is_refused(&watched));
    refuse(&mut watched);
    watched.catalog.forgive();
    assert!(!is_refused(&watched));
}

#[test]
fn a_pod_checkpoint_that_could_not_be_deleted_is_left_alone_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let name = OsStr::new("checkpoint-web_team-2026-01-01T00:00:00Z");
    std::fs::create_dir(folder.path().join(name)).unwrap();
    std::fs::write(folder.path().join(name).join("app.tar"), [7; 4096]).unwrap();
    let dir = File::open(folder.path()).unwrap();
    let mut catalog = Catalog::new(vec![folder.path().to_owned()]);
    catalog.scan(0, dir.as_fd(), Holds::PodCheckpoints).unwrap();
    catalog.set_states(0, name, States::REFUSED);
    let hear = |catalog: &mut Catalog| {
        catalog.refresh(0, dir.as_fd(), Holds::PodCheckpoints, name);
        catalog.inventory().checkpoints[0].states.contains(States::REFUSED)
    };
    assert!(hear(&mut catalog));
    std::fs::write(folder.path().join(name).join("app.tar"), [7; 8192]).unwrap();
    assert!(!hear(&mut catalog));
    catalog.set_states(0, name, States::REFUSED);
    catalog.scan(0, dir.as_fd(), Holds::PodCheckpoints).unwrap();
    assert!(!catalog.inventory().checkpoints[0].states.contains(States::REFUSED));
}

#[test]
fn a_pod_checkpoint_of_which_no_event_tells_is_looked_at_until_it_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let dir = File::open(folder.path()).unwrap();
    let mut catalog = Catalog::new(vec![folder.path().to_owned()]);
    let tell = |catalog: &mut Catalog, seconds: u64| {
        catalog.set_now(Moment { monotonic: Monotonic(Duration::from_secs(seconds)), ..Moment::default() });
        if catalog.settles_at().is_some_and(|at| at <= Monotonic(Duration::from_secs(seconds))) {
            catalog.look_at_unsettled(0, dir.as_fd());
        }
        catalog.inventory().checkpoints.first().map(|it| (it.states - States::EXPOSED, it.len))
    };
    catalog.scan(0, dir.as_fd(), Holds::PodCheckpoints).unwrap();
    let name = OsStr::new("checkpoint-web_team-2026-01-01T00:00:00Z");
    std::fs::create_dir(folder.path().join(name)).unwrap();
    tell(&mut catalog, 100);
    catalog.refresh(0, dir.as_fd(), Holds::PodCheckpoints, name);
    assert_eq!(tell(&mut catalog, 101), Some((States::BEING_WRITTEN, Bytes(0))));
    std::fs::write(folder.path().join(name).join("app.tar"), [7; 4096]).unwrap();
    assert_eq!(tell(&mut catalog, 110), Some((States::BEING_WRITTEN, Bytes(4096))));
    std::fs::write(folder.path().join(name).join("side.tar"), [7; 4096]).unwrap();
    // Under pressure it is looked at sooner, but is not finished sooner.
    tell(&mut catalog, 111);
    catalog.look_again(0, dir.as_fd());
    assert_eq!(tell(&mut catalog, 111), Some((States::BEING_WRITTEN, Bytes(8192))));
    assert_eq!(tell(&mut catalog, 120), Some((States::BEING_WRITTEN, Bytes(8192))));
    assert_eq!(tell(&mut catalog, 121), Some((States::empty(), Bytes(8192))));
    assert_eq!(catalog.settles_at(), None);
    // What a refusal says is looked into again as well, and stands while it is so.
    let mut reader = File::open(folder.path().join(name).join("app.tar")).ok();
    for states in [States::IN_USE, States::empty()] {
        catalog.set_states(0, name, States::IN_USE);
        catalog.look_again(0, dir.as_fd());
        assert_eq!(tell(&mut catalog, 122), Some((states, Bytes(8192))));
        reader = None;
    }
    assert!(reader.is_none());
}
