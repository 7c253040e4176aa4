//! Archives made to hurt: each costs a bounded number of bytes, and the worst outcome is "unknown".

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use guard::model::{Certainty, Kind, Owner};
use guard::observe::archive::{
    CheckpointName, Contents, End, Limits, ReadError, identify, is_checkpoint, read,
};
use jiff::Timestamp;
use tar::{EntryType, Header};
use tests::archives::Archive;

/// A tar entry by entry, with whatever lies one wants.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn header(mut self, name: &str, kind: EntryType, size: u64) -> Tar {
        let mut header = Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self
    }

    fn entry(self, name: &str, data: &[u8]) -> Tar {
        self.typed(name, EntryType::Regular, data)
    }

    fn typed(mut self, name: &str, kind: EntryType, data: &[u8]) -> Tar {
        self = self.header(name, kind, data.len() as u64);
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn owned_by(self, owner: [&str; 3]) -> Tar {
        self.entry("config.dump", &config(owner)).entry("spec.dump", &spec(owner))
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

const TENANT: [&str; 3] = ["tenant-x", "web", "main"];
const SYSTEM: [&str; 3] = ["kube-system", "coredns", "coredns"];

fn config([namespace, pod, container]: [&str; 3]) -> Vec<u8> {
    let name = format!("{container}_{pod}_{namespace}_19799841-684a-43df-95e8-50ad687b8d68_0");
    format!(r#"{{"name":"{name}","checkpointedTime":"2026-11-30T07:46:32Z"}}"#).into_bytes()
}

fn spec([namespace, pod, container]: [&str; 3]) -> Vec<u8> {
    format!(
        r#"{{"annotations":{{"io.kubernetes.cri.sandbox-namespace":"{namespace}",
            "io.kubernetes.cri.sandbox-name":"{pod}","io.kubernetes.cri.container-name":"{container}"}}}}"#
    )
    .into_bytes()
}

fn file(bytes: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn read_bytes(bytes: &[u8]) -> Contents {
    read(&file(bytes), &Limits::DEFAULT).unwrap()
}

/// The owner that is believed without reserve, if any.
fn exact(contents: &Contents) -> Option<Owner> {
    let identity = identify(None, Some(contents)).0;
    (identity.certainty == Certainty::Exact).then_some(identity.owner)
}

#[track_caller]
fn check(bytes: &[u8], end: End, owner: Option<[&str; 3]>) {
    let contents = read_bytes(bytes);
    let owner = owner.map(|[namespace, pod, container]| Owner::new(namespace, pod, container));
    assert_eq!((contents.end, exact(&contents)), (end, owner));
}

#[test]
fn endless_entries_cost_a_bounded_number_of_headers() {
    let mut tar = Tar::default();
    for _ in 0..20_000 {
        tar = tar.header("checkpoint/core-1.img", EntryType::Regular, 0);
    }
    let contents = read_bytes(&tar.owned_by(SYSTEM).end());
    assert_eq!((contents.end, contents.headers), (End::NotReached, Limits::DEFAULT.headers));
    assert!(contents.bytes_read <= Limits::DEFAULT.bytes);
}

#[test]
fn many_large_dumps_cost_a_bounded_number_of_bytes() {
    let large = vec![b' '; 1 << 20];
    let mut tar = Tar::default();
    for _ in 0..20 {
        tar = tar.entry("spec.dump", &large);
    }
    let contents = read_bytes(&tar.end());
    assert_eq!(contents.end, End::NotReached);
    assert!(contents.bytes_read <= Limits::DEFAULT.bytes + 512);
}

#[test]
fn a_huge_extended_header_is_not_read() {
    for kind in [EntryType::XHeader, EntryType::GNULongName, EntryType::GNULongLink, EntryType::XGlobalHeader]
    {
        let file = file(&Tar::default().header("x", kind, 1 << 30).0);
        file.set_len(2 << 30).unwrap();
        let contents = read(&file, &Limits::DEFAULT).unwrap();
        assert_eq!(contents.end, End::NotReached, "{kind:?}");
        assert!(contents.bytes_read <= 1024, "{kind:?}");
    }
}

#[test]
fn two_extended_headers_for_one_entry_are_not_believed() {
    let mut tar = Tar::default();
    for _ in 0..100 {
        tar = tar.typed("x", EntryType::XHeader, b"9 size=5\n");
    }
    check(&tar.owned_by(SYSTEM).end(), End::NotReached, None);
}

#[test]
fn sizes_beyond_the_file_end_it_early() {
    let lies =
        |size| Tar::default().owned_by(TENANT).header("checkpoint/pages-1.img", EntryType::Regular, size).0;
    check(&lies(1), End::Early, Some(TENANT));
    check(&lies(1 << 62), End::Early, Some(TENANT));
    check(&lies(u64::MAX), End::NotReached, Some(TENANT));
    let pax = format!("29 size={}\n", u64::MAX - 1024);
    let tar = Tar::default().owned_by(TENANT).typed("x", EntryType::XHeader, pax.as_bytes()).entry("a", b"");
    check(&tar.end(), End::Early, Some(TENANT));
}

#[test]
fn only_regular_files_at_the_top_of_the_archive_say_whose_it_is() {
    let spoofs = |tar: Tar| {
        tar.entry("volumes/spec.dump", &spec(SYSTEM))
            .entry("/spec.dump", &spec(SYSTEM))
            .entry("checkpoint/../spec.dump", &spec(SYSTEM))
            .entry("spec.dump/", &spec(SYSTEM))
            .entry("Spec.dump", &spec(SYSTEM))
    };
    check(&spoofs(Tar::default().owned_by(TENANT)).end(), End::Marker, Some(TENANT));
    // A directory of that name hides the file before it, whatever lies behind its header.
    for kind in [EntryType::Symlink, EntryType::Link, EntryType::Directory, EntryType::Fifo] {
        let tar = Tar::default().owned_by(TENANT).header("spec.dump", kind, 0).header("config.dump", kind, 0);
        check(&tar.end(), End::Marker, None);
    }
    check(&Tar::default().entry("././config.dump", &config(TENANT)).end(), End::Marker, Some(TENANT));
}

#[test]
fn the_last_of_two_equal_entries_counts() {
    check(&Tar::default().owned_by(SYSTEM).owned_by(TENANT).end(), End::Marker, Some(TENANT));
    let unreadable = vec![b'x'; (1 << 20) + 1];
    let tar = Tar::default().owned_by(SYSTEM).entry("config.dump", &unreadable).entry("spec.dump", b"{");
    check(&tar.end(), End::Marker, None);
}

#[test]
fn long_names_are_read_as_go_reads_them() {
    let long =
        |kind, record: &[u8]| Tar::default().typed("x", kind, record).entry("short", &config(TENANT)).end();
    check(&long(EntryType::GNULongName, b"config.dump\0"), End::Marker, Some(TENANT));
    let both = Tar::default().typed("x", EntryType::XHeader, b"14 path=other\n");
    let both =
        both.typed("x", EntryType::GNULongName, b"config.dump\0").entry("short", &config(TENANT)).end();
    check(&both, End::Marker, Some(TENANT));
    check(&long(EntryType::XHeader, b"20 path=config.dump\n"), End::Marker, Some(TENANT));
    check(&long(EntryType::XHeader, b"22 path=./config.dump\n"), End::Marker, Some(TENANT));
    check(&long(EntryType::XHeader, b"20 path=config.dump\n22 GNU.sparse.major=1\n"), End::Marker, None);
    check(&long(EntryType::XGlobalHeader, b"17 comment=hello\n"), End::Marker, None);
    // Some readers apply a global name or size to every entry, others to none.
    check(&long(EntryType::XGlobalHeader, b"20 path=config.dump\n"), End::NotReached, None);
    check(&long(EntryType::XHeader, b"99 path=config.dump\n"), End::NotReached, None);
}

#[test]
fn directories_carry_no_data_whatever_their_size_says() {
    let tar = Tar::default().header("checkpoint/", EntryType::Directory, 4096).owned_by(TENANT);
    check(&tar.end(), End::Marker, Some(TENANT));
    // Unix V7's tar wrote a directory as a plain file, type 0, with a slash at the end.
    let mut old = Header::new_old();
    old.as_mut_bytes()[..11].copy_from_slice(b"checkpoint/");
    old.as_mut_bytes()[156] = 0;
    old.set_size(4096);
    old.set_cksum();
    check(&Tar(old.as_bytes().to_vec()).owned_by(TENANT).end(), End::Marker, Some(TENANT));
}

#[test]
fn what_is_no_tar_is_left_alone_and_what_is_torn_is_broken() {
    check(b"", End::Early, None);
    check(b"ustar", End::Early, None);
    check(&[b'x'; 4096], End::Unrecognised, None);
    check(&[0; 4096], End::Broken, None);
    let mut torn = Tar::default().owned_by(TENANT).0;
    torn.extend_from_slice(&[b'x'; 4096]);
    check(&torn, End::Broken, Some(TENANT));
    let mut lone_zero_block = Tar::default().owned_by(TENANT).0;
    lone_zero_block.extend_from_slice(&[0; 512]);
    check(&Tar(lone_zero_block).owned_by(SYSTEM).end(), End::Broken, Some(TENANT));
}

#[test]
fn names_inside_that_could_not_be_names_are_dropped() {
    for namespace in ["a/b", "..", "UPPER", "a\\nb", "a\\u001b[31m", &"a".repeat(64), "", "ä"] {
        let tar = Tar::default().entry("config.dump", &config([namespace, "p", "c"]));
        let contents = read_bytes(&tar.entry("spec.dump", &spec([namespace, "p", "c"])).end());
        assert_eq!((contents.keys.namespace, contents.engine_name), (None, None), "{namespace:?}");
    }
}

#[test]
fn json_made_to_hurt_says_nothing() {
    let deep = [vec![b'['; 1 << 19], vec![b']'; 1 << 19]].concat();
    let nested = [br#"{"annotations":"#.as_slice(), &deep, b"}"].concat();
    let twice = br#"{"annotations":{"io.container.manager":"cri-o","io.container.manager":"libpod"}}"#;
    for bad in [&deep, nested.as_slice(), twice, b"", b"null", b"{\"annotations\":7}", b"\xff\xfe"] {
        let contents = read_bytes(&Tar::default().entry("spec.dump", bad).entry("config.dump", bad).end());
        assert!(!contents.has_spec && !contents.has_config);
        assert_eq!((contents.end, exact(&contents)), (End::Marker, None));
    }
}

fn pack(kind: &str, reader: &mut dyn Read) -> Vec<u8> {
    let mut packed = Vec::new();
    let copied = match kind {
        "gzip" => {
            io::copy(reader, &mut flate2::write::GzEncoder::new(&mut packed, flate2::Compression::fast()))
        }
        "zstd" => io::copy(reader, &mut zstd::Encoder::new(&mut packed, 1).unwrap().auto_finish()),
        "xz" => io::copy(reader, &mut liblzma::write::XzEncoder::new(&mut packed, 0)),
        "bzip2" => {
            io::copy(reader, &mut bzip2::write::BzEncoder::new(&mut packed, bzip2::Compression::fast()))
        }
        other => panic!("no packing {other:?}"),
    };
    copied.unwrap();
    packed
}

const PACKINGS: [&str; 4] = ["gzip", "zstd", "xz", "bzip2"];

#[test]
fn case_17_every_stream_is_understood_whatever_its_name() {
    let at: Timestamp = "2026-11-30T07:46:32Z".parse().unwrap();
    let mut tar = Vec::new();
    Archive::new("tenant-x", "web", "main", at, 64 << 10).write_to(&mut tar).unwrap();
    for kind in PACKINGS {
        let packed = pack(kind, &mut tar.as_slice());
        check(&packed, End::Marker, Some(TENANT));
        for cut in [1, 100, packed.len() / 2, packed.len() - 20] {
            let contents = read_bytes(&packed[..packed.len() - cut]);
            assert!(
                matches!(contents.end, End::Early | End::Marker),
                "{kind} cut by {cut}: {:?}",
                contents.end
            );
        }
    }
}

#[test]
fn case_17_a_decompression_bomb_costs_little_and_the_name_remains() {
    let name =
        CheckpointName::parse("checkpoint-web_team-main-2026-11-30T07:46:29Z.tar".as_ref(), Kind::Archive);
    for kind in PACKINGS {
        let bomb = Tar::default().header("checkpoint/pages-1.img", EntryType::Regular, 32 << 20).0;
        let packed = pack(kind, &mut bomb.as_slice().chain(io::repeat(0).take(32 << 20)));
        let contents = read_bytes(&packed);
        assert_eq!(contents.end, End::NotReached, "{kind}");
        assert!(contents.bytes_read <= 300 << 10, "{kind}: {} bytes read", contents.bytes_read);
        let (identity, time) = identify(name.as_ref(), Some(&contents));
        assert_eq!(identity.owner, Owner::new("team", "web", "main"), "{kind}");
        assert_eq!(
            (identity.certainty, time),
            (Certainty::NameOnly, name.as_ref().map(|name| name.time)),
            "{kind}"
        );
    }
}

#[test]
fn a_stream_that_asks_for_too_much_memory_is_not_condemned() {
    let tar = Tar::default().owned_by(TENANT).end();
    let mut zstd = zstd::Encoder::new(Vec::new(), 1).unwrap();
    zstd.window_log(27).unwrap();
    zstd.write_all(&tar).unwrap();
    let xz = liblzma::stream::Stream::new_easy_encoder(9, liblzma::stream::Check::Crc64).unwrap();
    let mut xz = liblzma::write::XzEncoder::new_stream(Vec::new(), xz);
    xz.write_all(&tar).unwrap();
    for packed in [zstd.finish().unwrap(), xz.finish().unwrap()] {
        let contents = read_bytes(&packed);
        assert_eq!((contents.end, contents.incomplete()), (End::NotReached, false));
    }
}

#[test]
fn what_follows_the_first_member_of_a_stream_is_not_followed() {
    let half = Tar::default().owned_by(TENANT).0;
    for kind in PACKINGS {
        let mut packed = pack(kind, &mut half.as_slice());
        packed.extend(pack(kind, &mut [0; 1024].as_slice()));
        check(&packed, End::NotReached, Some(TENANT));
    }
}

#[test]
fn a_stream_of_something_else_is_left_alone() {
    for kind in PACKINGS {
        let contents = read_bytes(&pack(kind, &mut [b'x'; 10_000].as_slice()));
        assert_eq!(contents.end, End::Unrecognised, "{kind}");
        assert!(!is_checkpoint(None, Some(&contents)), "{kind}");
    }
}

#[test]
fn case_04_a_complete_archive_with_no_known_annotation_goes_by_its_name() {
    let name = "checkpoint-web_kube-system-main-2026-11-30T07:46:29Z.tar".as_ref();
    let name = CheckpointName::parse(name, Kind::Archive);
    let tar = Tar::default()
        .entry("config.dump", br#"{"name":"x"}"#)
        .entry("spec.dump", br#"{"annotations":{"a":"b"}}"#);
    let contents = read_bytes(&tar.end());
    assert!(contents.complete() && is_checkpoint(None, Some(&contents)));
    let identity = identify(name.as_ref(), Some(&contents)).0;
    assert_eq!(identity.certainty, Certainty::NameOnly);
    let readings: Vec<_> = identity.readings().cloned().collect();
    assert_eq!(
        readings,
        [Owner::new("kube", "web", "system-main"), Owner::new("kube-system", "web", "main")]
    );
}

#[test]
fn case_16_an_archive_without_images_is_still_identified() {
    let contents = read_bytes(&Tar::default().owned_by(TENANT).end());
    assert!(!contents.has_images && is_checkpoint(None, Some(&contents)));
    assert_eq!(exact(&contents), Some(Owner::new("tenant-x", "web", "main")));
}

#[test]
fn a_tar_with_one_dump_only_is_no_checkpoint() {
    let contents =
        read_bytes(&Tar::default().entry("config.dump", &config(TENANT)).entry("notes.txt", b"x").end());
    assert!(!is_checkpoint(None, Some(&contents)));
}

#[test]
fn only_regular_files_are_read() {
    let directory = File::open(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    assert!(matches!(read(&directory, &Limits::DEFAULT), Err(ReadError::NotRegular)));
    let null = File::open("/dev/null").unwrap();
    assert!(matches!(read(&null, &Limits::DEFAULT), Err(ReadError::NotRegular)));
}

/// Where single-byte damage matters most: around the headers and in the dumps.
fn tender_spots(archive: &[u8]) -> Vec<usize> {
    let blocks = archive.chunks_exact(512).enumerate();
    blocks
        .filter(|(_, block)| block[257..262] == *b"ustar" || block.contains(&b'_'))
        .flat_map(|(at, _)| at * 512..at * 512 + 512)
        .collect()
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(0u8.., 0..3000), packing in 0usize..6) {
        let magic: [&[u8]; 6] = [b"", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"BZh9", b"\x1f\x8b"];
        let contents = read_bytes(&[magic[packing], &bytes].concat());
        proptest::prop_assert!(contents.bytes_read <= 8192);
        proptest::prop_assert_eq!(exact(&contents), None);
    }
}

#[test]
fn damage_anywhere_never_makes_an_archive_anothers() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/archives");
    let whole = fs::read(fixtures.join("derived/crio-derived-prometheus.tar")).unwrap();
    let truth = Owner::new("monitoring", "prometheus-k8s-0", "prometheus");
    let (file, spots) = (file(&whole), tender_spots(&whole));
    let mut runner = proptest::test_runner::TestRunner::new(proptest::test_runner::Config::with_cases(2_000));
    let damage = (proptest::sample::select(spots), proptest::collection::vec(0u8.., 1..64));
    let outcome = runner.run(&damage, |(at, bytes)| {
        let bytes = &bytes[..bytes.len().min(whole.len() - at)];
        file.write_all_at(bytes, at as u64).unwrap();
        let contents = read(&file, &Limits::DEFAULT).unwrap();
        file.write_all_at(&whole[at..at + bytes.len()], at as u64).unwrap();
        proptest::prop_assert!(contents.bytes_read <= whole.len() as u64 + 512);
        let said = exact(&contents);
        proptest::prop_assert!(said.is_none() || said.as_ref() == Some(&truth), "{said:?}");
        Ok(())
    });
    outcome.unwrap();
}
