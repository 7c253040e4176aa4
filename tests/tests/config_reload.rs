//! A file that changes while it is in force.

use std::os::unix::fs::symlink;
use std::path::Path;

use guard::config::{ConfigFile, Reload, load};

const GOOD: &str = "[[directory]]\npath = \"/checkpoints\"\n[pool.gpu]\npressure.hard.available = \"16%\"\n";

/// A ConfigMap as the kubelet mounts it: files are links through `..data`, which is swapped as a whole
/// (AtomicWriter, pkg/volume/util/atomic_writer.go).
fn swap(mount: &Path, version: &str, text: &str) {
    let data = mount.join(format!("..{version}"));
    std::fs::create_dir(&data).expect("each version is new");
    std::fs::write(data.join("guard.toml"), text).expect("writable");
    symlink(format!("..{version}"), mount.join("..data_tmp")).expect("no other swap is under way");
    std::fs::rename(mount.join("..data_tmp"), mount.join("..data")).expect("a link can replace a link");
    if !mount.join("guard.toml").exists() {
        symlink("..data/guard.toml", mount.join("guard.toml")).expect("first version only");
    }
}

fn changed(reload: Reload) -> (ConfigFile, Vec<String>) {
    match reload {
        Reload::Changed { file, changes } => (*file, changes),
        other => panic!("{other:?}"),
    }
}

#[test]
fn case_51_a_configmap_is_taken_up_and_an_invalid_one_changes_nothing() {
    let mount = tempfile::tempdir().unwrap();
    swap(mount.path(), "1", GOOD);
    let path = mount.path().join("guard.toml");
    let file = load(&path).unwrap();
    assert!(matches!(file.reload(Some("gpu")), Reload::Same));

    swap(mount.path(), "2", &GOOD.replace("16%", "16"));
    let Reload::Invalid(problems) = file.reload(Some("gpu")) else { panic!("\"16\" has no unit") };
    assert!(problems.to_string().contains("pool.gpu.pressure.hard.available"), "{problems}");

    swap(mount.path(), "3", &GOOD.replace("16%", "18%"));
    let (file, changes) = changed(file.reload(Some("gpu")));
    assert_eq!(changes, [format!("pressure.hard.available: \"16%\" → \"18%\" ({}:4)", path.display())]);
    assert!(matches!(file.reload(Some("gpu")), Reload::Same));
}

#[test]
fn what_does_not_concern_this_pool_is_no_change() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("guard.toml");
    std::fs::write(&path, GOOD).unwrap();
    let file = load(&path).unwrap();
    std::fs::write(&path, format!("# a comment\n{}", GOOD.replace("16%", "18%"))).unwrap();
    assert!(matches!(file.reload(None), Reload::Same));
    assert_eq!(changed(file.reload(Some("gpu"))).1.len(), 1);
}

#[test]
fn a_pool_that_is_in_force_must_not_go_away() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("guard.toml");
    std::fs::write(&path, GOOD).unwrap();
    let file = load(&path).unwrap();
    std::fs::write(&path, GOOD.replace("pool.gpu", "pool.edge")).unwrap();
    assert!(matches!(file.reload(Some("gpu")), Reload::Invalid(_)));
}
