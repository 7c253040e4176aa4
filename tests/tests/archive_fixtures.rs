//! The archives that podman, containerd and CRI-O wrote, against what is known of them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use guard::model::{Certainty, Engine, Identity, Kind, Owner};
use guard::observe::archive::{CheckpointName, Contents, End, Limits, identify, is_checkpoint, read};
use jiff::Timestamp;
use serde_json::Value;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/archives")
}

fn expected() -> BTreeMap<String, Value> {
    let text = fs::read(fixtures().join("EXPECTED.json")).expect("EXPECTED.json is there");
    serde_json::from_slice(&text).expect("EXPECTED.json is JSON")
}

fn open(fixture: &str) -> File {
    File::open(fixtures().join(fixture)).unwrap_or_else(|error| panic!("{fixture}: {error}"))
}

fn contents(fixture: &str) -> Contents {
    read(&open(fixture), &Limits::DEFAULT).expect("fixtures can be read")
}

fn name(fixture: &str) -> Option<CheckpointName> {
    CheckpointName::parse(Path::new(fixture).file_name()?, Kind::Archive)
}

fn identity(fixture: &str) -> Identity {
    identify(name(fixture).as_ref(), Some(&contents(fixture))).0
}

fn owner(expect: &Value) -> Owner {
    let part = |key: &str| expect[key].as_str().map(Into::into);
    Owner { namespace: part("namespace"), pod: part("pod"), container: part("container") }
}

/// What the truncated and cut-down archives say all the same, by `.name` in their `config.dump`; EXPECTED.json
/// looked only at `spec.dump`.
fn owner_by_engine_name(fixture: &str) -> Option<Owner> {
    match fixture {
        "derived/containerd-derived-cut-in-spec.tar" => Some(Owner::new("default", "counters", "counter")),
        "derived/crio-derived-no-spec.tar" => {
            Some(Owner::new("monitoring", "prometheus-k8s-0", "prometheus"))
        }
        _ => None,
    }
}

#[test]
fn every_archive_that_an_engine_wrote_is_identified() {
    let expected = expected();
    assert_eq!(expected.len(), 36);
    for (fixture, expect) in &expected {
        let contents = contents(fixture);
        let (said, _) = identify(name(fixture).as_ref(), Some(&contents));
        let engine = match expect["engine"].as_str() {
            Some("podman") => Engine::Podman,
            Some("containerd") => Engine::Containerd,
            Some("cri-o") => Engine::CriO,
            _ => Engine::Unknown,
        };
        assert_eq!(contents.engine, engine, "{fixture}");
        let owner = owner_by_engine_name(fixture).unwrap_or_else(|| owner(expect));
        let certainty = if owner == Owner::default() { Certainty::Unknown } else { Certainty::Exact };
        assert_eq!((said.owner, said.certainty), (owner, certainty), "{fixture}");
        assert!(said.alternatives.is_empty(), "{fixture}");

        let time = |key: &str| expect[key].as_str().map(|text| text.parse::<Timestamp>().unwrap());
        assert_eq!(contents.created, time("created_config"), "{fixture}");
        assert_eq!(contents.checkpointed, time("checkpointed"), "{fixture}");
        let end = if expect["read_error"].is_null() { End::Marker } else { End::Early };
        assert_eq!(contents.end, end, "{fixture}");
        assert!(contents.bytes_read <= 128 << 10, "{fixture}: {} bytes read", contents.bytes_read);
    }
}

#[test]
fn the_kubelets_names_fit_what_lies_inside() {
    let mut named = 0;
    for fixture in expected().keys() {
        let Some(name) = name(fixture) else { continue };
        named += 1;
        let contents = contents(fixture);
        let inside = identify(None, Some(&contents)).0;
        assert!(name.owners().any(|owner| owner == inside.owner), "{fixture}");
        let apart = (contents.checkpointed.unwrap().as_second() - name.time.as_second()).abs();
        assert!(apart <= 1, "{fixture}: {apart} s between name and config.dump");
    }
    assert_eq!(named, 11);
}

#[test]
fn pods_are_known_by_their_uid_where_a_cri_engine_wrote() {
    for (fixture, expect) in expected() {
        let uid = identity(&fixture).pod_uid;
        let by_name = owner_by_engine_name(&fixture).is_some();
        assert_eq!(uid.is_some(), by_name || !expect["pod"].is_null(), "{fixture}");
    }
}

#[test]
fn a_tenant_that_plants_annotations_stays_in_its_namespace() {
    for fixture in [
        "containerd/checkpoint-spoof_tenant-x-main-2026-11-30T07:46:15Z.tar",
        "crio/checkpoint-spoof_tenant-x-main-2026-11-30T07:46:32Z.tar",
    ] {
        let said = identity(fixture);
        assert_eq!((said.owner, said.certainty), (Owner::new("tenant-x", "spoof", "main"), Certainty::Exact));
    }
}

#[test]
fn case_18_nothing_is_kept_of_a_containers_environment() {
    let fixture =
        "containerd/checkpoint-payments-api-7c9f8d6b5-x2x7k_prod-payments-api-2026-11-30T07:46:12Z.tar";
    let secret = b"example-not-secret";
    let archive = fs::read(fixtures().join(fixture)).unwrap();
    assert!(archive.windows(secret.len()).any(|bytes| bytes == secret), "it is there in clear text");
    let kept = format!("{:?} {:?}", contents(fixture), identity(fixture));
    assert!(!kept.contains("example-not-secret") && !kept.contains("API_TOKEN"));
}

#[test]
fn process_memory_that_looks_like_tar_entries_is_not_believed() {
    let said = identity("derived/containerd-derived-pax-size.tar");
    assert_eq!(
        (said.owner, said.certainty),
        (Owner::new("default", "counters", "counter"), Certainty::Exact)
    );
}

#[test]
fn the_tail_of_an_overwritten_archive_is_not_read() {
    let said = identity("containerd/containerd-overwrite-trailing.tar");
    assert_eq!(
        (said.owner, said.certainty),
        (Owner::new("team-a", "web.v1-0", "side-car"), Certainty::Exact)
    );
}

#[test]
fn podmans_chains_are_recognised() {
    for fixture in expected().keys() {
        let contents = contents(fixture);
        assert_eq!(contents.has_parent, fixture.ends_with("podman-with-previous.tar"), "{fixture}");
        assert_eq!(contents.pre_checkpoint, fixture.ends_with("podman-pre-checkpoint.tar"), "{fixture}");
    }
}

#[test]
fn all_but_leftovers_are_checkpoints_whatever_they_are_called() {
    for fixture in expected().keys() {
        let leftover = fixture.ends_with("enospc-partial.tar");
        assert_eq!(is_checkpoint(None, Some(&contents(fixture))), !leftover, "{fixture}");
    }
    let name = CheckpointName::parse("checkpoint-p_n-c-2026-11-30T07:46:29Z.tar".as_ref(), Kind::Archive);
    let leftover = contents("crio/crio-enospc-partial.tar");
    assert!(is_checkpoint(name.as_ref(), Some(&leftover)), "a left-over under the kubelet's name is one");
}

#[test]
fn case_13_what_a_full_disk_leaves_is_incomplete() {
    for fixture in [
        "containerd/containerd-enospc-partial.tar",
        "crio/crio-enospc-partial.tar",
        "derived/containerd-derived-cut-in-spec.tar",
    ] {
        assert!(contents(fixture).incomplete(), "{fixture}");
    }
}

#[test]
fn case_17_a_stream_named_tar_is_decompressed_by_its_magic_bytes() {
    for fixture in ["podman/podman-default-compress.tar", "podman/podman-zstd-stopped.tar"] {
        let contents = contents(fixture);
        assert_eq!((contents.engine, contents.end), (Engine::Podman, End::Marker), "{fixture}");
    }
}

/// Where to cut: at every block and somewhere odd inside each; streams every 509 bytes.
fn cuts(len: usize, packed: bool) -> Vec<usize> {
    let step = if packed { 509 } else { 512 };
    let inside = |at: usize| at + 1 + at / 512 * 7 % 511;
    let mut cuts: Vec<usize> = (0..len).step_by(step).flat_map(|at| [at, inside(at)]).collect();
    cuts.retain(|&at| at < len);
    cuts.sort_unstable();
    cuts
}

#[test]
fn an_archive_cut_anywhere_is_never_mistaken_for_anothers() {
    let file = tempfile::tempfile().unwrap();
    for (fixture, expect) in expected() {
        let whole = fs::read(fixtures().join(&fixture)).unwrap();
        let truth = owner_by_engine_name(&fixture).unwrap_or_else(|| owner(&expect));
        let marker_ends = expect["end_of_entries"].as_u64().map_or(u64::MAX, |at| at + 1024);
        let packed = expect["compression"] != "none";
        file.set_len(0).unwrap();
        file.write_all_at(&whole, 0).unwrap();
        // From the end: shortening one file is much faster than writing thousands.
        for at in cuts(whole.len(), packed).into_iter().rev() {
            file.set_len(at as u64).unwrap();
            let contents = read(&file, &Limits::DEFAULT).expect("a regular file");
            let said = identify(None, Some(&contents)).0;
            match said.certainty {
                Certainty::Exact => assert_eq!(said.owner, truth, "{fixture} cut at {at}"),
                certainty => assert_eq!(certainty, Certainty::Unknown, "{fixture} cut at {at}"),
            }
            match contents.end {
                End::Early => assert!(packed || (at as u64) < marker_ends, "{fixture} cut at {at}"),
                // What is cut may be the checksum behind the marker.
                End::Marker => assert!(packed || at as u64 >= marker_ends, "{fixture} cut at {at}"),
                other => panic!("{fixture} cut at {at}: {other:?}"),
            }
        }
    }
}
