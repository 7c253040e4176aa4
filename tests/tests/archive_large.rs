//! Archives of many gigabytes are identified by a few kilobytes (checkpointctl reads them whole, three times).

use std::io::{Seek, SeekFrom};

use guard::model::{Certainty, Owner};
use guard::observe::archive::{End, Limits, identify, read};
use jiff::Timestamp;
use tests::archives::Archive;

fn made_at() -> Timestamp {
    "2026-11-30T07:46:32.109597393Z".parse().unwrap()
}

/// The read is a few headers and two dumps, and the identity is right.
#[track_caller]
fn check(archive: &Archive) {
    let mut file = tempfile::tempfile().unwrap();
    assert_eq!(archive.write_sparse(&file).unwrap(), archive.size);
    file.seek(SeekFrom::Start(7)).unwrap();
    let contents = read(&file, &Limits::DEFAULT).unwrap();
    let (identity, time) = identify(None, Some(&contents));
    assert_eq!(identity.owner, Owner::new("team", "web-0", "main"));
    assert_eq!((identity.certainty, time), (Certainty::Exact, Some(made_at())));
    assert_eq!(contents.end, End::Marker);
    assert!(contents.bytes_read <= 128 << 10, "{} bytes read", contents.bytes_read);
    assert!(contents.headers <= 32, "{} headers", contents.headers);
    assert_eq!(file.stream_position().unwrap(), 7, "the caller's offset stays where it is");
}

#[test]
fn case_15_five_gibibytes_are_identified_by_their_headers() {
    check(&Archive::new("team", "web-0", "main", made_at(), 5 << 30));
    check(&Archive::new("team", "web-0", "main", made_at(), 5 << 30).containerd());
}

#[test]
fn sizes_beyond_ustar_are_understood() {
    check(&Archive::new("team", "web-0", "main", made_at(), 12 << 30));
    check(&Archive::new("team", "web-0", "main", made_at(), 12 << 30).containerd());
}

#[test]
fn a_large_archive_cut_before_its_dumps_is_incomplete_and_nobodys() {
    let file = tempfile::tempfile().unwrap();
    let archive = Archive::new("team", "web-0", "main", made_at(), 5 << 30);
    archive.write_sparse(&file).unwrap();
    file.set_len(4 << 30).unwrap();
    let contents = read(&file, &Limits::DEFAULT).unwrap();
    assert!(contents.incomplete());
    assert_eq!(identify(None, Some(&contents)).0.certainty, Certainty::Unknown);
}
