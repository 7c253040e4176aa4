//! What the probe counts on ext4: every block, exactly. Root only.

use std::fs::File;
use std::io::Write;

use guard::model::Bytes;
use guard::observe::probe::{Coverage, SelfTest};
use tests::loopfs::{Filesystem, LoopMount};
use tests::watching::{Watching, allocated};

fn ext4() -> Watching {
    Watching::new(LoopMount::new(Filesystem::Ext4, Bytes::mib(128)))
}

#[test]
fn what_is_written_is_counted() {
    let watching = ext4();
    assert_eq!(watching.coverage, Coverage::Blocks);
    assert!(matches!(watching.probe.self_test(watching.directory()), Ok(SelfTest::Counts)));

    let mut file = File::create(watching.path().join("a")).unwrap();
    file.write_all(&vec![1; 1 << 20]).unwrap();
    assert_eq!(watching.counted(&file), Bytes::mib(1));
    file.sync_all().unwrap();
    assert_eq!(watching.counted(&file), allocated(&file));
    let entry = watching.entry(&file).unwrap();
    assert_eq!((entry.slot, entry.writer.pid), (Watching::SLOT, std::process::id()));
}
