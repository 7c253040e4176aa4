//! `doctor` on real filesystems: what is essential and missing, who may read the archives, what encrypts them.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};

use guard::model::Bytes;
use serde_json::Value;
use tests::archives::Archive;
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::{directory_table, hour_of_2026};
use tests::setting::Setting;

/// Thresholds that the machine's own disk does not reach.
const QUIET: &str = "[pressure]\nsoft = false\nhard = { available = \"1B\", inodes-free = false }\ncritical = false\nkubelet-config = \"off\"";

fn setting_for(directory: &Path) -> Setting {
    let setting = Setting::new();
    setting.configure(&format!("{}\n{QUIET}", directory_table(directory)));
    setting
}

fn is_root(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("SKIPPED view_doctor {test}: it needs root");
    }
    root
}

/// State and value of a check.
fn found(report: &Value, section: &str, name: &str) -> (String, String) {
    found_on(report, section, "", name)
}

/// The same, about a directory whose path ends like this.
fn found_on(report: &Value, section: &str, subject: &str, name: &str) -> (String, String) {
    let sections = report["sections"].as_array().unwrap();
    let section = sections.iter().find(|it| it["name"] == section).unwrap_or_else(|| panic!("no {section}"));
    let checks = section["checks"].as_array().unwrap();
    let is_on = |it: &Value| it["subject"].as_str().unwrap_or_default().ends_with(subject);
    let check = checks.iter().find(|it| it["name"] == name && is_on(it));
    let check = check.unwrap_or_else(|| panic!("no {name} in {section:#}"));
    let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
    (text("state"), text("value"))
}

fn missing(report: &Value) -> Vec<(String, String)> {
    let sections = report["sections"].as_array().unwrap();
    let checks = sections.iter().flat_map(|section| section["checks"].as_array().unwrap());
    let missing = checks.filter(|check| check["state"] == "missing");
    missing
        .map(|check| {
            assert!(check["advice"].is_string(), "what is missing comes with advice: {check}");
            (check["subject"].to_string(), check["value"].to_string())
        })
        .collect()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn set(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_node_that_has_what_is_needed_is_ready_and_is_described() {
    let scratch = tempfile::tempdir().unwrap();
    let setting = setting_for(scratch.path());
    let output = setting.run(&["doctor"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("\nready"), "{}", text(&output));
    let report = setting.json(&["doctor"]);
    assert_eq!((&report["apiVersion"], &report["kind"]), (&"checkpoint-guard/v1".into(), &"Doctor".into()));
    assert_eq!(report["ready"], true);
    let release = nix::sys::utsname::uname().unwrap().release().to_str().unwrap().to_owned();
    assert_eq!(found(&report, "kernel", "release").1, release);
    assert_eq!(found(&report, "daemon", "running").1, "no");
    assert_eq!(found(&report, "backends", "inotify").0, "ok");
    assert_eq!(found(&report, "directories", "deleting"), ("ok".to_owned(), "permitted".to_owned()));
    assert!(found(&report, "directories", "mount").1.contains(" from "));
}

#[test]
fn a_running_daemon_is_found_and_its_rights_are_shown() {
    let scratch = tempfile::tempdir().unwrap();
    let setting = setting_for(scratch.path());
    let daemon = setting.start();
    let report = setting.json(&["doctor"]);
    let (state, value) = found(&report, "daemon", "running");
    assert!(state == "ok" && value.contains(&format!("pid {}", daemon.pid())), "{value}");
    let (_, whose) = found(&report, "capabilities", "whose");
    assert!(whose.contains(&format!("running daemon, pid {}", daemon.pid())), "{whose}");
    // Both say what sees the writes.
    let backend = found(&report, "daemon", "backend").1;
    if backend != "raw-tracepoint" {
        println!("SKIPPED comparing backends: {backend}");
        return;
    }
    assert_eq!(found(&report, "backends", "raw-tracepoint").0, "ok");
}

#[test]
fn without_capabilities_it_names_them_and_the_backend_that_is_lost() {
    if !is_root("without capabilities") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let setting = setting_for(scratch.path());
    let config = setting.config();
    let output = Command::new("setpriv")
        .args(["--bounding-set=-bpf,-perfmon,-sys_admin", "--inh-caps=-bpf,-perfmon,-sys_admin"])
        .arg(tests::setting::binary())
        .args(["doctor", "-o", "json", "--config"])
        .arg(&config)
        .output()
        .expect("setpriv is part of util-linux");
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(output.status.code(), Some(0), "inotify and statfs are enough to work");
    assert_eq!(found(&report, "capabilities", "CAP_BPF").0, "degraded");
    assert_eq!(found(&report, "capabilities", "CAP_LEASE").0, "ok");
    let (state, value) = found(&report, "backends", "raw-tracepoint");
    assert!(state == "degraded" && value.contains("CAP_BPF"), "{value}");
}

#[test]
fn what_is_essential_and_missing_ends_with_1_and_says_what_to_do() {
    if !is_root("read-only and immutable directories") {
        return;
    }
    let setting = setting_for(Path::new("/nowhere/checkpoints"));
    assert_eq!(setting.run(&["doctor"]).status.code(), Some(1));
    let report = setting.json(&["doctor"]);
    assert_eq!(report["ready"], false);
    assert!(missing(&report)[0].0.contains("/nowhere/checkpoints"), "{report:#}");

    let broken = Setting::new();
    broken.configure("[[directory]]\npath = \"relative\"\n[pressure]\nhard = 5");
    assert_eq!(broken.run(&["doctor"]).status.code(), Some(1));
    let report = broken.json(&["doctor"]);
    assert!(missing(&report).len() >= 2, "every problem of the file is there: {report:#}");
    assert_eq!(
        found(&report, "backends", "inotify").0,
        "ok",
        "the rest of the node is looked at all the same"
    );

    let disk = LoopMount::new(Filesystem::Ext4, Bytes::mib(16));
    let directory = disk.path().join("checkpoints");
    std::fs::create_dir(&directory).unwrap();
    let setting = setting_for(&directory);
    assert_eq!(setting.run(&["doctor"]).status.code(), Some(0), "{}", text(&setting.run(&["doctor"])));
    let sh = |words: &[&str]| {
        let output = Command::new(words[0]).args(&words[1..]).arg(&directory).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    for (flag, word) in [("i", "immutable"), ("a", "append-only")] {
        sh(&["chattr", &format!("+{flag}")]);
        let report = setting.json(&["doctor"]);
        sh(&["chattr", &format!("-{flag}")]);
        assert!(found(&report, "directories", "deleting").1.contains(word), "{report:#}");
        assert_eq!(report["ready"], false);
    }
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(disk.path()).status().unwrap();
    assert!(remounted.success());
    let report = setting.json(&["doctor"]);
    assert_eq!(found(&report, "directories", "deleting").1, "the filesystem is mounted read-only");
}

#[test]
fn thresholds_behind_the_kubelets_are_missing_and_both_are_shown() {
    let scratch = tempfile::tempdir().unwrap();
    let kubelet = scratch.path().join("config.yaml");
    std::fs::write(
        &kubelet,
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nevictionHard:\n  nodefs.available: \"30%\"\n",
    )
    .unwrap();
    let directory = scratch.path().join("checkpoints");
    std::fs::create_dir(&directory).unwrap();
    let setting = Setting::new();
    let pressure = |available: &str| {
        setting.configure(&format!(
            "{}\n[pressure]\nsoft = false\nhard = {{ available = {available:?}, inodes-free = false }}\n\
             critical = false\nkubelet-config = {kubelet:?}",
            directory_table(&directory)
        ));
        setting.json(&["doctor"])
    };
    let report = pressure("20%");
    assert_eq!(report["ready"], false);
    assert_eq!(found(&report, "thresholds", "too late").0, "missing");
    let (_, value) = found(&report, "thresholds", "hard available");
    assert!(value.contains("(20%)") && value.contains("nodefs.available<30%"), "{value}");
    assert_eq!(pressure("60%")["ready"], true);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "takes another name of an archive away, as an operator would")]
fn the_gauge_and_doctor_agree_on_who_may_read_and_permissions_are_put_right() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("checkpoints");
    std::fs::create_dir(&directory).unwrap();
    let archive = |pod: &str| {
        let archive = Archive::new("team", pod, "main", hour_of_2026(1), Archive::SMALLEST);
        archive.write_in(&directory).unwrap()
    };
    let (open, closed, linked) = (archive("open"), archive("closed"), archive("linked"));
    set(&open, 0o644);
    set(&closed, 0o600);
    set(&linked, 0o644);
    let outside = scratch.path().join("outside.tar");
    std::fs::hard_link(&linked, &outside).unwrap();
    std::fs::write(directory.join("notes.txt"), "no checkpoint\n").unwrap();
    set(&directory.join("notes.txt"), 0o644);
    symlink(&outside, directory.join("checkpoint-a_b-c-2026-01-01T00:00:00Z.tar")).unwrap();
    let setting = setting_for(&directory);
    let told = |above: u32, itself: u32| {
        set(scratch.path(), above);
        set(&directory, itself);
        let mut daemon = setting.start();
        let report = setting.json(&["doctor"]);
        let (state, value) = found(&report, "privacy", "checkpoints that others may read");
        let told = if state == "ok" { 0 } else { value.split(' ').next().unwrap().parse().unwrap() };
        daemon.wait_until(&format!("saying what doctor says: {value}"), |daemon| {
            daemon.metric("checkpoint_guard_exposed_checkpoints") == Some(f64::from(told))
        });
        told
    };
    assert_eq!(told(0o700, 0o755), 0, "nobody gets as far as the directory");
    assert_eq!(told(0o755, 0o700), 0, "nobody gets into it");
    assert_eq!(told(0o755, 0o711), 2, "whoever knows the name gets at it");
    assert_eq!(told(0o755, 0o755), 2);

    let fixed = setting.run(&["doctor", "--fix-permissions"]);
    let said = text(&fixed);
    assert_eq!(fixed.status.code(), Some(1), "one had to stay as it is: {said}");
    assert!(said.contains("checkpoints: 0755 -> 0700"), "{said}");
    assert!(said.contains("checkpoint-open_team-main-2026-01-01T01:00:00Z.tar: 0644 -> 0600"), "{said}");
    assert!(said.contains("left as it is: it has 2 names"), "{said}");
    assert_eq!((mode(&directory), mode(&open), mode(&closed)), (0o700, 0o600, 0o600));
    assert_eq!(
        (mode(&outside), mode(&directory.join("notes.txt"))),
        (0o644, 0o644),
        "those are no business of ours"
    );
    std::fs::remove_file(&outside).unwrap();
    let report = setting.json(&["doctor", "--fix-permissions"]);
    assert_eq!(report["kind"], "PermissionChangeList");
    assert_eq!(report["items"][0]["from"], "0644");
    let again = setting.run(&["doctor", "--fix-permissions"]);
    assert_eq!((again.status.code(), text(&again).as_str()), (Some(0), "0 changed, 0 left as they are\n"));
}

#[test]
fn what_belongs_to_somebody_else_keeps_its_mode() {
    if !is_root("giving files away") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    set(scratch.path(), 0o755);
    let archive = Archive::new("team", "web", "main", hour_of_2026(1), Archive::SMALLEST);
    let path = archive.write_in(scratch.path()).unwrap();
    set(&path, 0o644);
    nix::unistd::chown(&path, Some(12345.into()), None).unwrap();
    let output = setting_for(scratch.path()).run(&["doctor", "--fix-permissions"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("it belongs to user 12345"), "{}", text(&output));
    assert_eq!(mode(&path), 0o644);
}

/// `FS_IOC_SET_ENCRYPTION_POLICY` with a policy of version 2 (Linux 5.4), whose key nobody has: enough to be seen.
fn set_fscrypt_policy(directory: &Path) -> nix::Result<()> {
    const FS_IOC_SET_ENCRYPTION_POLICY: nix::libc::c_ulong = 0x800c_6613;
    // version 2, AES-256-XTS, AES-256-CTS, padding of 32, reserved, the identifier of a key.
    let mut policy = [0u8; 24];
    policy[..4].copy_from_slice(&[2, 1, 4, 3]);
    policy[8..].copy_from_slice(b"checkpoint-guard");
    let file = File::open(directory).unwrap();
    // SAFETY: the ioctl reads a policy of 24 bytes, as its version says, through the pointer, and keeps no reference.
    let result = unsafe { nix::libc::ioctl(file.as_raw_fd(), FS_IOC_SET_ENCRYPTION_POLICY, policy.as_ptr()) };
    nix::errno::Errno::result(result).map(drop)
}

/// A loop device is as its file: not encrypted, unless the machine's own disk is.
fn is_plain(state: &str, value: &str) -> bool {
    (state == "degraded" && value.contains("not encrypted")) || value == "dm-crypt"
}

#[test]
fn a_directory_with_an_fscrypt_policy_counts_as_encrypted_and_its_filesystem_does_not() {
    if !is_root("mounting") {
        return;
    }
    let disk = LoopMount::with_options(Filesystem::Ext4, Bytes::mib(16), &["-O", "encrypt"], "").unwrap();
    let (plain, encrypted) = (disk.path().join("plain"), disk.path().join("encrypted"));
    std::fs::create_dir(&plain).unwrap();
    std::fs::create_dir(&encrypted).unwrap();
    if let Err(errno) = set_fscrypt_policy(&encrypted) {
        println!("SKIPPED view_doctor fscrypt: this kernel has none ({errno})");
        return;
    }
    let setting = Setting::new();
    setting.configure(&format!("{}\n{}\n{QUIET}", directory_table(&plain), directory_table(&encrypted)));
    let report = setting.json(&["doctor"]);
    let (state, value) = found_on(&report, "privacy", "/plain", "encryption");
    assert!(is_plain(&state, &value), "{value}");
    assert_eq!(
        found_on(&report, "privacy", "/encrypted", "encryption"),
        ("ok".to_owned(), "fscrypt".to_owned())
    );
}

#[test]
fn each_filesystem_has_its_own_page() {
    if !is_root("mounting") {
        return;
    }
    for (filesystem, size, word) in [
        (Filesystem::Xfs, Bytes::mib(300), "beyond the end of growing files"),
        (Filesystem::Btrfs, Bytes::mib(128), "snapshot"),
        (Filesystem::Tmpfs, Bytes::mib(16), "lives in memory"),
    ] {
        let disk = LoopMount::new(filesystem, size);
        let report = setting_for(disk.path()).json(&["doctor"]);
        assert!(found(&report, "directories", "peculiarity").1.contains(word), "{report:#}");
        assert!(found(&report, "directories", "mount").1.starts_with(filesystem.as_str()));
        let (state, value) = found(&report, "privacy", "encryption");
        let is_right =
            if filesystem == Filesystem::Tmpfs { state == "note" } else { is_plain(&state, &value) };
        assert!(is_right, "{report:#}");
    }
    let reserving = LoopMount::with_options(Filesystem::Ext4, Bytes::mib(64), &["-m", "5"], "").unwrap();
    let report = setting_for(reserving.path()).json(&["doctor"]);
    assert!(found(&report, "directories", "space").1.contains("reserved for root"), "{report:#}");
}
