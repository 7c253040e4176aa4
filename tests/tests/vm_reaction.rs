//! How soon the guard reacts on a kernel, through each backend that it lets in. Root only.
//!
//! An emulated processor tells nothing of a real one's times, but how the backends compare; `cargo xtask vm-test --bless`
//! records it for docs/BENCHMARKS.md.

use std::time::Duration;

use tests::reaction::{MARK, Row};
use tests::vm::{kernel, patience};

const CROSSINGS: usize = 12;

#[test]
fn each_crossing_is_dealt_with_through_every_backend() {
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
        assert!(row.outside.0 < patience(Duration::from_millis(50)), "{row:?}");
        // What counts exactly has the whole headroom as its budget, so that its wake is the crossing; the others wake the guard
        // on the way, and it looks often from then on. The timer may be first now and then.
        if mode == "raw-tracepoint" {
            assert!(row.by_wake * 2 >= row.crossings, "{row:?}");
        }
    }
    assert!(by_ebpf > 0, "no kernel since 5.10 refuses all three");
}
