//! What may happen, and how likely it is.

use std::path::Path;

use guard::config::{Config, ConfigFile};
use proptest::prelude::*;

/// One thing that happens. Numbers choose among what there is.
#[derive(Clone, Debug)]
pub enum Op {
    Arrive { owner: usize, pages: u64 },
    Begin { owner: usize, pages: u64 },
    ArrivePod { owner: usize, pages: u64 },
    BeginPod { owner: usize, pages: u64 },
    Finish(usize),
    Abandon(usize),
    Foreign(u8),
    Pin(usize),
    Unpin(usize),
    Reader(usize),
    Link(usize),
    Append(usize),
    Delete(usize),
    Replace(usize),
    Leave { percent: u64 },
    Wait { seconds: u64 },
    SetClock { seconds: i64 },
    Statfs(bool),
    Configure(usize),
    Cover,
    Uncover,
    Swap { anew: bool },
    Crash { at: Crash, down: u32 },
    Scan,
}

/// Where a deletion is cut off.
#[derive(Clone, Copy, Debug)]
pub enum Crash {
    Idle,
    Announced,
    Aside,
    WithTwin,
    /// Of a pod checkpoint, which need not be what would have gone next.
    HalfEmpty,
}

pub fn op() -> impl Strategy<Value = Op> {
    let number = 0usize..1000;
    prop_oneof![
        12 => (0usize..5, 0u64..60).prop_map(|(owner, pages)| Op::Arrive { owner, pages }),
        4 => (0usize..5, 0u64..60).prop_map(|(owner, pages)| Op::Begin { owner, pages }),
        4 => (0usize..5, 0u64..40).prop_map(|(owner, pages)| Op::ArrivePod { owner, pages }),
        2 => (0usize..5, 0u64..40).prop_map(|(owner, pages)| Op::BeginPod { owner, pages }),
        4 => number.clone().prop_map(Op::Finish),
        1 => number.clone().prop_map(Op::Abandon),
        1 => (0u8..3).prop_map(Op::Foreign),
        2 => number.clone().prop_map(Op::Pin),
        2 => number.clone().prop_map(Op::Unpin),
        3 => number.clone().prop_map(Op::Reader),
        2 => number.clone().prop_map(Op::Link),
        2 => number.clone().prop_map(Op::Append),
        1 => number.clone().prop_map(Op::Delete),
        1 => number.prop_map(Op::Replace),
        6 => (0u64..60).prop_map(|percent| Op::Leave { percent }),
        8 => (1u64..400).prop_map(|seconds| Op::Wait { seconds }),
        1 => (-4000i64..100_000).prop_map(|seconds| Op::SetClock { seconds }),
        1 => any::<bool>().prop_map(Op::Statfs),
        1 => (0usize..CONFIGURATIONS.len()).prop_map(Op::Configure),
        1 => Just(Op::Cover),
        1 => Just(Op::Uncover),
        1 => any::<bool>().prop_map(|anew| Op::Swap { anew }),
        4 => (crash(), 0u32..3).prop_map(|(at, down)| Op::Crash { at, down }),
        2 => Just(Op::Scan),
    ]
}

pub fn crash() -> impl Strategy<Value = Crash> {
    prop_oneof![
        1 => Just(Crash::Idle),
        1 => Just(Crash::Announced),
        1 => Just(Crash::Aside),
        1 => Just(Crash::WithTwin),
        2 => Just(Crash::HalfEmpty)
    ]
}

/// Each has `forensics` at 100.
pub const CONFIGURATIONS: [&str; 5] = [
    "[eviction]\nmin-age = \"2m\"\nkeep-last = 1",
    "[eviction]\nmin-age = \"0s\"\nkeep-last = 0\norder = [\"largest\"]\n[[retention]]\nnamespace = \"*\"\nmax-count = { namespace = 4 }",
    "[eviction]\nmin-age = \"1m\"\nkeep-last = 2\norder = [\"incomplete\", \"least-protected\", \"smallest-loss\"]",
    "[eviction]\nmin-age = \"1m\"\nkeep-last = 1\n[[retention]]\nnamespace = \"*\"\nmax-count = { container = 1 }",
    "[eviction]\nmin-age = \"10m\"\nkeep-last = 1\nkeep-together = true\norder = [\"oldest\"]",
];

pub fn configuration(number: usize, directory: &Path) -> Config {
    let text = format!(
        "[[directory]]\npath = {directory:?}\n[pressure]\nsoft = {{ available = \"30%\", inodes-free = \"15%\", \
         grace-period = \"30s\" }}\nhard = {{ available = \"20%\", inodes-free = \"10%\" }}\ncritical = {{ available = \"8%\", \
         inodes-free = \"5%\" }}\nminimum-reclaim = {{ available = \"5%\", inodes-free = \"3%\" }}\ntransition-period = \"1m\"\n\
         kubelet-config = false\n[protection]\ndefault = 50\nnamespaces = {{ forensics = 100, ci = 5 }}\n{}",
        CONFIGURATIONS[number]
    );
    ConfigFile::parse(&text, Path::new("model.toml"))
        .and_then(|file| file.effective(None))
        .unwrap_or_else(|it| panic!("{it}"))
}
