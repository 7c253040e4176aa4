//! Who makes a filesystem grow.

use super::*;
use crate::model::{Identity, Kind, Owner, States};
use crate::observe::probe::{Slot, Writer};

fn entry(ino: u64, bytes: u64, pid: u32) -> LedgerEntry {
    LedgerEntry {
        file: FileId { dev: 1, ino },
        slot: Slot(0),
        bytes: Bytes(bytes),
        writer: Writer { pid, comm: "criu".to_owned(), cgroup: 1 },
        last: Monotonic::default(),
    }
}

fn checkpoint(ino: u64, namespace: &str) -> Checkpoint {
    Checkpoint {
        directory: 0,
        kind: Kind::Archive,
        states: States::BEING_WRITTEN,
        name: std::ffi::OsString::from(format!("{ino}.tar")).into(),
        file: FileId { dev: 1, ino },
        created: jiff::Timestamp::UNIX_EPOCH,
        modified: jiff::Timestamp::UNIX_EPOCH,
        len: Bytes(1),
        allocated: Bytes(4096),
        inodes: 1,
        identity: Identity { owner: Owner::new(namespace, "web", "app"), ..Identity::default() },
    }
}

#[test]
fn growth_is_told_by_namespace_and_by_writer_and_shrinking_is_none() {
    let inventory = Inventory {
        directories: vec!["/c".into()],
        checkpoints: vec![checkpoint(1, "a"), checkpoint(2, "b"), checkpoint(3, "a"), checkpoint(4, "a")],
        foreign: 0,
    };
    let before = HashMap::from([
        (FileId { dev: 1, ino: 1 }, Bytes(100)),
        (FileId { dev: 1, ino: 3 }, Bytes(500)),
        (FileId { dev: 1, ino: 4 }, Bytes(500)),
    ]);
    let now = [entry(1, 300, 7), entry(2, 700, 8), entry(3, 1100, 7), entry(4, 400, 7), entry(9, 50, 9)];
    let growth = growth(&now, &before, Duration::from_secs(2), &inventory);
    let namespaces: Vec<_> =
        growth.namespaces.iter().map(|it| (it.namespace.as_deref(), it.bytes_per_second)).collect();
    assert_eq!(namespaces, [(Some("a"), 400), (Some("b"), 350), (None, 25)]);
    let writers: Vec<_> =
        growth.writers.iter().map(|it| (it.pid, it.bytes_per_second, it.known_by.as_str())).collect();
    assert_eq!(
        writers,
        [(8, 350, "checkpoint"), (7, 300, "checkpoint"), (7, 100, "checkpoint"), (9, 25, "nothing")]
    );
}
