//! How soon the guard reacts on a kernel, through each backend that it lets in. Root only.
//!
//! An emulated processor tells nothing of a real one's times, but how the backends compare; `cargo xtask vm-test --bless`
//! records it for docs/BENCHMARKS.md.

use std::time::Duration;

use tests::reaction::{MARK, Row};
use tests::vm::{kernel, patience};

const CROSSINGS: usize = 12;

#[test]
fn each_crossing_is_told_by_a_wake_through_every_backend() {
    if kernel().is_some() {
        // Debian's 3 lets no kprobe in without CAP_SYS_ADMIN, which the guard gives up.
        std::fs::write("/proc/sys/kernel/perf_event_paranoid", "2").unwrap();
    }
    let mut by_ebpf = 0;
    for mode in ["fexit", "kprobe", "raw-tracepoint", "off"] {
        let limit = patience(Duration::from_secs(5));
        let Some(row) = Row::measure(mode, CROSSINGS, limit).unwrap() else { continue };
        println!("{MARK}{row}");
        if mode == "off" {
            assert_eq!(row.by_wake, 0, "{row:?}");
            continue;
        }
        by_ebpf += 1;
        // The timer may be first now and then, and this machine may stand still for a moment.
        assert!(row.by_wake * 2 >= row.crossings, "{row:?}");
        let (median, _) = row.own.expect("some were told by a wake");
        assert!(median < patience(Duration::from_millis(20)), "{row:?}");
    }
    assert!(by_ebpf > 0, "no kernel since 5.10 refuses all three");
}
