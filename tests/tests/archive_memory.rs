//! What one hostile archive costs in memory. Alone in its process, because the kernel's high-water mark is of the
//! whole process; decoders in C allocate past Rust's allocator.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use guard::observe::archive::{Limits, read};
use tar::{EntryType, Header};

/// A line of /proc/self/status in KiB.
fn status(key: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse().unwrap()
}

/// The memory in KiB that reading `archive` takes at its peak.
fn peak_kib(archive: &[u8]) -> u64 {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(archive, 0).unwrap();
    // "5" lowers VmHWM to what is resident now, proc_pid_clear_refs(5).
    File::options().write(true).open("/proc/self/clear_refs").unwrap().write_all(b"5").unwrap();
    let before = status("VmRSS");
    read(&file, &Limits::DEFAULT).unwrap();
    status("VmHWM").saturating_sub(before)
}

fn header(name: &str, size: u64) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.set_path(name).unwrap();
    header.set_entry_type(EntryType::Regular);
    header.set_size(size);
    header.set_cksum();
    header.as_bytes().to_vec()
}

/// The start of an endless entry: `period` bytes of noise (half a bit each) over and over, `mib` MiB in all.
fn pages(period: usize, mib: usize) -> impl Read {
    let mut state = 1_u32;
    let noise = std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b"aaaaaaab"[(state >> 29) as usize]
    });
    let noise: Vec<u8> = noise.take(period).collect();
    let data = noise.repeat((mib << 20) / period);
    io::Cursor::new(header("checkpoint/pages-1.img", 1 << 30)).chain(io::Cursor::new(data))
}

fn zstd() -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.window_log(23).unwrap();
    io::copy(&mut pages(64 << 10, 16), &mut encoder).unwrap();
    encoder.finish().unwrap()
}

fn xz() -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 6);
    io::copy(&mut pages(64 << 10, 2), &mut encoder).unwrap();
    encoder.finish().unwrap()
}

fn bzip2() -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
    io::copy(&mut pages(1 << 20, 1), &mut encoder).unwrap();
    encoder.finish().unwrap()
}

fn large_dumps() -> Vec<u8> {
    let value = "x".repeat(Limits::DEFAULT.dump as usize - 128);
    let dump = |key: &str| format!(r#"{{"name":"","annotations":{{"{key}":"{value}"}},"labels":{{}}}}"#);
    let mut tar = Vec::new();
    for name in ["config.dump", "spec.dump", "status.dump"].repeat(4) {
        let dump = dump("io.kubernetes.cri-o.Labels");
        tar.extend(header(name, dump.len() as u64));
        tar.extend(dump.as_bytes());
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar
}

#[test]
fn a_hostile_archive_costs_at_most_16_mib() {
    // What is freed must leave at once, or the next archive is read into memory that is already resident.
    // SAFETY: mallopt(3) sets a tuning value; M_MMAP_THRESHOLD takes any number of bytes.
    assert_eq!(unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 64 << 10) }, 1);
    // The lower bounds are what a decoder's window or the dumps must take: the measurement sees them.
    for (what, archive, least_mib) in
        [("large dumps", large_dumps(), 2), ("zstd", zstd(), 7), ("xz", xz(), 1), ("bzip2", bzip2(), 1)]
    {
        let peak = peak_kib(&archive);
        assert!((least_mib << 10..=16 << 10).contains(&peak), "{what}: {peak} KiB");
    }
    for hostile in tests::hostile::all() {
        let peak = peak_kib(&hostile.bytes);
        println!("{}: {peak} KiB", hostile.what);
        assert!(peak <= 16 << 10, "{}: {peak} KiB", hostile.what);
    }
}
