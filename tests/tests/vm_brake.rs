//! The brake by BPF LSM, on kernels that have it: who is refused, who is not, and what is left when something dies.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use guard::act::brake::lsm::LsmBrake;
use guard::act::brake::{LEASE, Stance};
use guard::model::{Bytes, Monotonic};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc;
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use tests::brake::{self, Writer, create, median, monotonic, now, settings, until_open};
use tests::immutable::Immutable;
use tests::loopfs::{Filesystem, LoopMount};
use tests::scene::{Scene, directory_table};

/// Whether the kernel has BPF LSM and `bpf` among its active modules; loudly not.
#[track_caller]
fn has_lsm() -> bool {
    match guard::observe::probe::Refusing::load() {
        Ok(_) => true,
        // Then nothing excuses it: the verifier refuses a program, or one of them does not work.
        Err(error) if is_active() => panic!("bpf is an active security module, and {error}"),
        Err(error) => {
            println!("SKIPPED vm_brake: {error}");
            false
        }
    }
}

/// Whether `bpf` is among the active security modules, as the kernel says, or the command line where securityfs is not
/// mounted.
fn is_active() -> bool {
    let names_bpf = |list: &str| list.trim().split(',').any(|module| module == "bpf");
    let command_line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let asked = command_line.split_whitespace().filter_map(|word| word.strip_prefix("lsm=")).next_back();
    match std::fs::read_to_string("/sys/kernel/security/lsm") {
        Ok(active) => names_bpf(&active),
        Err(_) => asked.is_some_and(names_bpf),
    }
}

fn is_refused<T>(result: std::io::Result<T>) -> bool {
    brake::is_refused(result, Errno::ENOSPC)
}

/// tmpfs: nothing else than the brake makes anything fail there.
fn helpless() -> Scene {
    brake::helpless(LoopMount::new(Filesystem::Tmpfs, Bytes::mib(128)), "lsm")
}

#[test]
fn writers_are_refused_also_in_the_middle_and_nobody_else() {
    if !has_lsm() {
        return;
    }
    let scene = helpless();
    let at = |name: &str| scene.directory().join(name);
    let mut under_way = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(at("under-way.tar"))
        .unwrap();
    under_way.write_all(&[7; 8192]).unwrap();
    std::fs::create_dir(at("below")).unwrap();
    std::fs::write(at("emptied"), "content").unwrap();
    let mut daemon = scene.setting.start();
    brake::wait_for_brake(&scene, &mut daemon, Errno::ENOSPC);
    assert!(is_refused(create(&scene, "refused.tar")));
    assert!(!scene.has("refused.tar"), "nothing is left of a refused creation");

    assert!(is_refused(under_way.write_all(&[7; 4096])), "a write in progress");
    let grown = fallocate(&under_way, FallocateFlags::empty(), 8192, 65536);
    assert!(is_refused(grown.map_err(std::io::Error::from)), "fallocate");
    let mut opened = File::options().append(true).open(at("readable")).expect("nothing is written yet");
    assert!(is_refused(opened.write_all(&[7; 512])), "appending");
    let nameless = File::options().write(true).custom_flags(libc::O_TMPFILE).open(scene.directory());
    assert!(is_refused(nameless), "a file without a name");
    let emptied = File::options().write(true).truncate(true).open(at("emptied"));
    assert_eq!(emptied.expect("who makes his file smaller passes").metadata().unwrap().len(), 0);
    assert!(is_refused(std::fs::create_dir(at("checkpoint-web_team-2026-01-01T00:00:00Z"))), "a directory");
    assert!(is_refused(File::create(at("below/deep.img"))), "further down");

    let mut content = String::new();
    File::open(at("readable")).unwrap().read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
    under_way.seek(SeekFrom::Start(0)).unwrap();
    assert_eq!(under_way.read(&mut [0; 16]).unwrap(), 16);
    under_way.set_len(100).expect("who makes his file smaller passes");
    std::fs::rename(at("readable"), scene.mount.path().join("away")).unwrap();
    std::fs::write(scene.mount.path().join("beside"), "other directories are free").unwrap();
    File::create(at("under-way.tar.keep")).expect("a pin may be set at any time");
    #[expect(clippy::disallowed_methods, reason = "somebody else deletes, and may")]
    std::fs::remove_file(at("under-way.tar")).unwrap();
    assert!(scene.setting.run(&["list"]).status.success());
    assert_eq!(daemon.get("/readyz").unwrap().0, 200);
    daemon.wait_until("counting", |daemon| {
        let calls = daemon.metric("checkpoint_guard_brake_refused_calls_total{writer=\"other\"}");
        calls.is_some_and(|calls| calls >= 7.0)
            // The writes and what fallocate(2) was to allocate.
            && daemon.metric("checkpoint_guard_brake_refused_bytes_total") == Some(4096.0 + 512.0 + 65536.0)
    });
    let engaged = daemon.audit().into_iter().find(|line| line["kind"] == "Brake").unwrap();
    assert_eq!((&engaged["engaged"], &engaged["mode"]), (&true.into(), &"lsm".into()));

    assert!(scene.setting.run(&["brake", "release"]).status.success());
    create(&scene, "released.tar").expect("in force when the command has ended").write_all(b"x").unwrap();
    assert!(scene.setting.run(&["brake", "engage"]).status.success());
    assert!(is_refused(create(&scene, "engaged.tar")), "in force when the command has ended");
}

#[test]
fn writer() {
    brake::be_writer(Errno::ENOSPC);
}

/// Engaging is one write to a map, which takes less than a millisecond (the median: now and then somebody else has the
/// processor); and no write that begins later is done, also of a file that was open before.
#[test]
fn engaging_takes_less_than_a_millisecond_and_then_no_write_is_let_through() {
    const ROUNDS: usize = 9;
    if !has_lsm() {
        return;
    }
    let mount = LoopMount::new(Filesystem::Tmpfs, Bytes::mib(64));
    let directory = File::open(mount.path()).unwrap();
    let brake = LsmBrake::load(|| Monotonic(monotonic())).unwrap();
    let key = brake.watch(directory.as_fd()).unwrap();
    let (mut taken, mut times) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        brake.set(key, Stance::Ready);
        let writer = Writer::start(&mount.path().join("under-way.tar"));
        let began = monotonic();
        brake.set(key, Stance::Refusing);
        let done = monotonic();
        let stopped = writer.stopped();
        assert!(stopped.last_began <= done, "round {round}: a write began later and was let through");
        taken.push(done - began);
        times.push(stopped.refused.saturating_sub(began));
        let refusals = brake.take_refusals(key);
        let writer = &refusals.writers[0];
        assert_eq!((writer.comm.as_str(), writer.calls, writer.bytes), ("writer", 1, 4096), "{refusals:?}");
    }
    println!(
        "engaging took {taken:?}; the writer, on a processor that takes turns with this one, knew after {times:?}"
    );
    assert!(median(taken.clone()) < Duration::from_millis(1), "{taken:?}");
    let began = monotonic();
    brake.set(key, Stance::Ready);
    let took = monotonic() - began;
    assert!(took < Duration::from_millis(20), "{took:?}");
    drop(Writer::start(&mount.path().join("under-way.tar")));
}

/// The programs run on every read and write of the node while somebody is refused. What that costs others is printed; a
/// program that followed the path of everybody's file would cost several times as much.
#[test]
fn writers_elsewhere_pay_next_to_nothing_while_somebody_is_refused() {
    const ROUNDS: usize = 15;
    if !has_lsm() {
        return;
    }
    let [held, elsewhere] = [(); 2].map(|()| LoopMount::new(Filesystem::Tmpfs, Bytes::mib(64)));
    let directory = held.path().join("checkpoints");
    std::fs::create_dir(&directory).unwrap();
    let directory = File::open(&directory).unwrap();
    let beside = File::create(held.path().join("written")).unwrap();
    let elsewhere = File::create(elsewhere.path().join("written")).unwrap();
    let [mut off, mut again, mut outside, mut same] = [(); 4].map(|()| Vec::new());
    for _ in 0..ROUNDS {
        off.push(write_over(&elsewhere));
        let brake = LsmBrake::load(|| Monotonic(monotonic())).unwrap();
        let key = brake.watch(directory.as_fd()).unwrap();
        brake.set(key, Stance::Refusing);
        outside.push(write_over(&elsewhere));
        same.push(write_over(&beside));
        drop(brake);
        again.push(write_over(&elsewhere));
    }
    let [off, again, outside, same] = [off, again, outside, same].map(|times| median(times).as_secs_f64());
    println!(
        "4 KiB while somebody is refused: on another filesystem {:.3}, on the same {:.3} times as long; noise {:.3}",
        outside / off,
        same / off,
        again / off
    );
    assert!(outside < off * 2.0 && same < off * 2.0, "{outside} and {same} s, {off} s without");
}

/// Processor time of two thousand writes over what is there.
fn write_over(mut file: &File) -> Duration {
    let piece = [7; 4096];
    let busy = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let began = busy();
    for _ in 0..2000 {
        file.rewind().unwrap();
        file.write_all(&piece).unwrap();
    }
    busy() - began
}

#[test]
fn a_guard_that_is_killed_leaves_nothing_engaged() {
    if !has_lsm() {
        return;
    }
    let scene = helpless();
    let mut daemon = scene.setting.start();
    brake::wait_for_brake(&scene, &mut daemon, Errno::ENOSPC);
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let (after, _) = until_open(&scene, &daemon);
    assert!(after < Duration::from_secs(2), "open after {after:?}");
}

#[test]
fn a_guard_that_is_stopped_lets_go_when_its_lease_is_over_and_brakes_again_when_it_goes_on() {
    if !has_lsm() {
        return;
    }
    let scene = helpless();
    let mut daemon = scene.setting.start();
    brake::wait_for_brake(&scene, &mut daemon, Errno::ENOSPC);
    let stopped = now();
    daemon.signal(Signal::SIGSTOP);
    until_open(&scene, &daemon);
    assert!(stopped.elapsed() < LEASE + Duration::from_secs(3), "open after {:?}", stopped.elapsed());
    daemon.signal(Signal::SIGCONT);
    brake::wait_for_brake(&scene, &mut daemon, Errno::ENOSPC);
}

#[test]
fn a_storm_with_everything_pinned_keeps_the_critical_reserve_and_the_rest_of_the_filesystem() {
    if !has_lsm() {
        return;
    }
    let disk = LoopMount::new(Filesystem::Tmpfs, Bytes::gib(1));
    brake::storm(disk, "lsm", Errno::ENOSPC, Duration::from_secs(8));
}

#[test]
fn a_directory_that_cannot_be_held_is_told_beside_one_that_is_and_held_as_soon_as_it_can_be() {
    if !has_lsm() {
        return;
    }
    let scene = brake::helpless(LoopMount::new(Filesystem::Ext4, Bytes::mib(256)), "lsm");
    let other = scene.mount.path().join("other");
    std::fs::create_dir(&other).unwrap();
    scene.configure(&format!("{}\n{}", settings("lsm"), directory_table(&other)));
    let immutable = Immutable::new(other.clone());
    let mut daemon = scene.setting.start();
    brake::wait_for_brake(&scene, &mut daemon, Errno::ENOSPC);
    daemon.wait_until("gauging that somebody may go on", |daemon| {
        daemon.metric("checkpoint_guard_brake_failing") == Some(1.0)
    });
    let status = scene.setting.run(&["brake", "status", "--output", "json"]);
    let told: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(told["items"][0]["engaged"], true, "{told}");
    assert!(told["items"][0]["problem"].as_str().unwrap().contains("other"), "{told}");

    drop(immutable);
    let mut number = 0;
    daemon.wait_until("braking there too", |_| {
        number += 1;
        is_refused(File::create(other.join(format!("attempt-{number}.tar"))))
    });
    daemon.wait_until("gauging that nobody may", |daemon| {
        daemon.metric("checkpoint_guard_brake_failing") == Some(0.0)
    });
    assert_eq!(daemon.log().matches("no brake here").count(), 1, "{}", daemon.log());
}

#[test]
fn a_kernel_without_it_is_told_by_name_and_auto_goes_on() {
    if has_lsm() {
        return;
    }
    let scene = Scene::on(LoopMount::new(Filesystem::Tmpfs, Bytes::mib(64)));
    scene.configure(&settings("lsm"));
    let mut refused = scene.setting.launch(&[], &mut |_| {});
    assert!(!refused.wait().success(), "{}", refused.log());
    assert!(refused.log().contains("lsm") || refused.log().contains("LSM"), "{}", refused.log());
    scene.configure(&settings("auto"));
    scene.setting.start();
}
