//! CASES.md, what archives say and how much of it is told, through the real guard and its commands.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use guard::model::Bytes;
use jiff::Timestamp;
use serde_json::Value;
use tests::archives::{Archive, kubelet_name};
use tests::footprint::Footprint;
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::{Scene, TARGET, hour_of_2026};

const UNHURRIED: &str = "[eviction]\nmin-age = \"0s\"\nkeep-last = 0";

/// A tar of these entries, whole.
fn tar_of(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in entries {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        builder.append_data(&mut header, name, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Puts `content` into the scene under the kubelet's name for it; gives the name.
fn put(scene: &Scene, namespace: &str, hour: u32, content: &[u8]) -> String {
    let name = kubelet_name(namespace, "web", "main", hour_of_2026(hour));
    std::fs::write(scene.directory().join(&name), content).unwrap();
    name
}

/// What `list` says of `name`.
fn listed(scene: &Scene, name: &str) -> Value {
    let list = scene.setting.json(&["list"]);
    let items = list["items"].as_array().unwrap();
    items
        .iter()
        .find(|item| item["name"] == name)
        .unwrap_or_else(|| panic!("{name} is not listed: {list}"))
        .clone()
}

fn config_of(name: &str) -> String {
    format!(r#"{{"name":"{name}","checkpointedTime":"2026-01-01T01:00:00Z"}}"#)
}

#[test]
fn case_03_archives_of_all_three_families_are_told_by_whom_they_belong_to() {
    let scene = Scene::new();
    scene.configure(UNHURRIED);
    let families = [
        r#"{"annotations":{"io.kubernetes.cri.sandbox-namespace":"team-x","io.kubernetes.cri.sandbox-name":"web","io.kubernetes.cri.container-name":"main"}}"#,
        r#"{"annotations":{"io.kubernetes.cri-o.Labels":"{\"io.kubernetes.pod.namespace\":\"team-x\",\"io.kubernetes.pod.name\":\"web\",\"io.kubernetes.container.name\":\"main\"}","io.container.manager":"cri-o"}}"#,
        r#"{"annotations":{"org.criu.checkpoint.pod.namespace":"team-x","org.criu.checkpoint.pod.name":"web","org.criu.checkpoint.container.name":"main"}}"#,
    ];
    for (spec, hour) in families.into_iter().zip(1..) {
        // The name alone has two readings: namespace team, container x-main.
        let name = put(&scene, "team-x", hour, &tar_of(&[("config.dump", "{}"), ("spec.dump", spec)]));
        let item = listed(&scene, &name);
        assert_eq!(
            (&item["namespace"], &item["container"], &item["identity"]),
            (&"team-x".into(), &"main".into(), &"exact".into()),
            "{item}"
        );
    }
}

#[test]
fn case_04_one_without_known_annotations_is_read_once_and_may_go() {
    let scene = Scene::new();
    let mut tar =
        tar_of(&[("config.dump", r#"{"name":"x"}"#), ("spec.dump", r#"{"annotations":{"a":"b"}}"#)]);
    tar.resize(16 << 20, 0);
    let names: Vec<_> = (1..=2).map(|hour| put(&scene, "team", hour, &tar)).collect();
    scene.configure(UNHURRIED);
    assert_eq!(listed(&scene, &names[0])["identity"], "name-only");
    let mut daemon = scene.setting.start_with(&["--log-level", "debug"], &mut |_| {});
    daemon.keeps_running_for(Duration::from_secs(4));
    for name in &names {
        assert!(
            daemon.log().matches(name.as_str()).count() <= 2,
            "spoken of again and again\n{}",
            daemon.log()
        );
    }
    scene.leave(Bytes::mib(60));
    daemon.wait_until("at its target", |_| scene.available() >= TARGET);
    assert_eq!(daemon.deleted(), names[..1]);
}

#[test]
fn case_15_five_gibibytes_on_a_full_disk_are_identified_in_little_memory_and_without_a_file() {
    let scene = Scene::new();
    let archive = Archive::new("team", "web-0", "main", hour_of_2026(1), 5 << 30);
    archive.write_sparse(&File::create(scene.directory().join(archive.kubelet_name())).unwrap()).unwrap();
    scene.configure("[eviction]\nmin-age = \"0s\"\nkeep-last = 1");
    scene.leave(Bytes::mib(20));
    let before = scene.available();
    let item = listed(&scene, &archive.kubelet_name());
    assert_eq!((&item["pod"], &item["identity"]), (&"web-0".into(), &"exact".into()), "{item}");
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_secs(1));
    let resident = Footprint::of(daemon.pid().as_raw()).unwrap().resident;
    assert!(resident < Bytes::mib(64), "{resident} resident");
    // Below critical only what cannot be avoided is written: the place for a deletion in progress.
    assert!(scene.available() + Bytes::mib(1) >= before, "{} of {before} are left", scene.available());
}

#[test]
fn case_16_one_without_images_is_managed_like_any_other() {
    let scene = Scene::new();
    let spec = r#"{"annotations":{"io.kubernetes.cri.sandbox-namespace":"team","io.kubernetes.cri.sandbox-name":"web","io.kubernetes.cri.container-name":"main"}}"#;
    let mut tar = tar_of(&[("config.dump", &config_of("main_web_team_uid_0")), ("spec.dump", spec)]);
    tar.resize(16 << 20, 0);
    let name = put(&scene, "team", 1, &tar);
    let other = scene.archive("other", 2, Bytes::mib(16));
    scene.configure(UNHURRIED);
    assert_eq!(listed(&scene, &name)["identity"], "exact");
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting it", |daemon| daemon.deleted() == [name.clone()]);
    assert!(scene.has(&other));
}

#[test]
fn case_17_streams_and_a_bomb_named_tar_cost_little_and_end_nothing() {
    let scene = Scene::new();
    let archive = Archive::new("team-x", "web", "main", hour_of_2026(1), Archive::SMALLEST);
    let mut plain = Vec::new();
    archive.write_to(&mut plain).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).unwrap();
    let packed = [gzip.finish().unwrap(), zstd::encode_all(plain.as_slice(), 1).unwrap()];
    let names: Vec<_> =
        packed.iter().zip(1..).map(|(packed, hour)| put(&scene, "team-x", hour, packed)).collect();
    // 4 GiB of nothing in 130 KiB.
    let bomb = zstd::encode_all(std::io::repeat(0).take(4 << 30), 1).unwrap();
    let bomb = put(&scene, "team", 3, &bomb);
    scene.configure(UNHURRIED);
    for name in &names {
        assert_eq!(listed(&scene, name)["identity"], "exact", "{name}");
    }
    assert_ne!(listed(&scene, &bomb)["identity"], "exact");
    let mut daemon = scene.setting.start();
    daemon.keeps_running_for(Duration::from_secs(1));
    let footprint = Footprint::of(daemon.pid().as_raw()).unwrap();
    assert!(footprint.resident < Bytes::mib(64), "{footprint:?}");
}

#[test]
fn case_23_one_deletion_that_is_enough_stays_the_only_one_where_statistics_lag() {
    // btrfs shows what was freed at its next commit, up to 30 s later.
    let scene = Scene::on(LoopMount::new(Filesystem::Btrfs, Bytes::mib(512)));
    let names: Vec<_> = (1..=5).map(|hour| scene.archive("web", hour, Bytes::mib(32))).collect();
    scene.configure(UNHURRIED);
    scene.leave(Bytes::mib(60));
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting", |daemon| !daemon.deleted().is_empty());
    daemon.keeps_running_for(Duration::from_secs(2));
    assert_eq!(daemon.deleted(), names[..1], "{}", daemon.log());
}

#[test]
fn case_32_what_a_customised_kubelet_does_not_name_is_shown_as_not_there() {
    let scene = Scene::new();
    let kubelet = scene.mount.path().join("kubelet.yaml");
    std::fs::write(&kubelet, "kind: KubeletConfiguration\nevictionHard:\n  nodefs.available: 12%\n").unwrap();
    scene.configure_fully(&format!("[pressure]\nkubelet-config = {kubelet:?}"));
    let shown = scene.setting.json(&["check-config"]).to_string();
    assert!(shown.contains("nodefs.available<12%"), "{shown}");
    assert!(!shown.contains("imagefs.available<15%") && !shown.contains("nodefs.inodesFree<5%"), "{shown}");
}

#[test]
fn case_35_never_and_rather_not_are_shown_in_advance_by_plan() {
    let scene = Scene::new();
    let names = ["kube-system", "forensics", "team"]
        .map(|namespace| scene.archive_of(namespace, "web", 1, Bytes::mib(16)));
    let rules = "[protection]\nnamespaces = { \"kube-*\" = 99, forensics = 100 }";
    scene.configure(&format!("{UNHURRIED}\n{rules}"));
    let plan = scene.setting.json(&["plan", "--assume-available", "1%"]);
    let filesystem = &plan["filesystems"][0];
    let delete: Vec<_> = filesystem["delete"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(delete, [&names[2], &names[0]], "{plan}");
    let reason = filesystem["delete"][1]["reason"].as_str().unwrap();
    assert!(reason.contains("kube-*") && reason.contains("99"), "{reason}");
    let spared = &filesystem["spare"][0];
    assert_eq!(spared["name"], names[1], "{plan}");
    assert!(spared["reason"].as_str().unwrap().contains("forensics"), "{spared}");
}

#[test]
fn case_37_on_a_full_copy_on_write_filesystem_the_guard_gets_through() {
    let scene = Scene::on(LoopMount::new(Filesystem::Btrfs, Bytes::mib(128)));
    let names: Vec<_> = (1..=2).map(|hour| scene.archive("web", hour, Bytes::mib(8))).collect();
    fill_to_the_last_byte(scene.mount.path());
    scene.configure_fully(&format!(
        "[pressure]\nsoft = false\nhard = {{ available = \"4MiB\" }}\ncritical = {{ available = \"2MiB\" }}\n\
         minimum-reclaim = {{ available = \"1MiB\" }}\nkubelet-config = false\n{UNHURRIED}"
    ));
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting", |daemon| daemon.deleted().contains(&names[0]));
    assert!(!scene.has(&names[0]));
}

/// Data with a large file and metadata with small ones, until nothing fits any more.
fn fill_to_the_last_byte(directory: &Path) {
    let mut large = File::create(directory.join("filler")).unwrap();
    while large.write_all(&[1; 1 << 16]).is_ok() {}
    let _ = large.sync_data();
    for number in 0..100_000 {
        if std::fs::write(directory.join(format!("{number:0200}")), [1; 2000]).is_err() {
            break;
        }
    }
    let _ = nix::unistd::syncfs(File::open(directory).unwrap());
}

#[test]
fn case_42_forty_deletions_in_one_round_are_counted_exactly_and_each_is_recorded() {
    let scene = Scene::new();
    let at = |number: i64| hour_of_2026(1) + jiff::SignedDuration::from_secs(number);
    let names: Vec<String> = (0..41)
        .map(|number| {
            let archive = Archive::new("team", "web", "main", at(number), 2 << 20);
            archive.write_in(&scene.directory()).unwrap();
            archive.kubelet_name()
        })
        .collect();
    let write = |hard: u64| {
        scene.configure_fully(&format!(
            "[pressure]\nsoft = false\nhard = {{ available = \"{hard}KiB\" }}\ncritical = false\n\
             minimum-reclaim = {{ available = \"0\" }}\nkubelet-config = false\n{UNHURRIED}"
        ));
    };
    // Just as much as the first forty take.
    let taken: u64 = 40 * (2 << 20);
    write((scene.available().0 + taken - (1 << 20)) >> 10);
    let mut daemon = scene.setting.start();
    daemon.wait_until("deleting forty", |daemon| daemon.deleted().len() >= 40);
    daemon.keeps_running_for(Duration::from_millis(500));
    assert_eq!(daemon.deleted(), names[..40]);
    assert_eq!(daemon.metric("checkpoint_guard_deletions_total"), Some(40.0));
    assert_eq!(daemon.metric("checkpoint_guard_namespace_deletions_total{namespace=\"team\"}"), Some(40.0));
    let freed = daemon.metric("checkpoint_guard_freed_bytes_total").unwrap();
    let recorded: u64 = daemon.audit().iter().filter_map(|line| line["freedBytes"].as_u64()).sum();
    assert_eq!(freed, recorded as f64);
    assert!(freed >= 0.9 * taken as f64, "{freed}");
}

#[test]
fn case_43_checkpoints_of_hundreds_of_namespaces_stay_few_series() {
    let scene = Scene::new();
    for number in 0..300u32 {
        let at: Timestamp = hour_of_2026(number % 24);
        let archive = Archive::new(&format!("team-{number}"), "web", "main", at, Archive::SMALLEST);
        archive.write_in(&scene.directory()).unwrap();
    }
    scene.configure(UNHURRIED);
    let mut daemon = scene.setting.start();
    daemon.wait_until("knowing them all", |daemon| {
        daemon.metric("checkpoint_guard_checkpoints").is_some_and(|all| all >= 300.0)
    });
    let (_, body) = daemon.get("/metrics").unwrap();
    let of_namespaces: Vec<_> =
        body.lines().filter(|line| line.starts_with("checkpoint_guard_checkpoints{")).collect();
    assert!(of_namespaces.iter().any(|line| line.contains("namespace=\"other\"")), "{of_namespaces:?}");
    let namespaces: std::collections::BTreeSet<_> = of_namespaces
        .iter()
        .filter_map(|line| line.split("namespace=\"").nth(1)?.split('"').next())
        .collect();
    assert!(namespaces.len() <= 52, "{namespaces:?}");
    for word in ["2026-01-01", "checkpoint-web", "pod=\"", ".tar"] {
        assert!(!body.contains(word), "{word} in the metrics");
    }
}
