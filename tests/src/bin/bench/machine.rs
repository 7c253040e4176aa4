//! What the numbers were measured on.

use std::time::Instant;

use guard::model::Bytes;
use jiff::Timestamp;

/// Kernel, processor, memory.
pub(crate) fn describe() -> String {
    let kernel = read("/proc/sys/kernel/osrelease");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let meminfo = read("/proc/meminfo");
    let memory = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let memory = memory
        .and_then(|kib| kib.parse().ok())
        .map_or("?".to_owned(), |kib: u64| Bytes(kib << 10).to_string());
    format!("Linux {}, {cores} cores ({model}), {memory} of memory", kernel.trim())
}

/// When a benchmark began, and how busy the machine was then.
#[derive(Debug)]
pub(crate) struct Before {
    at: Timestamp,
    began: Instant,
    load: String,
}

impl Before {
    #[expect(clippy::disallowed_methods, reason = "a measurement is dated")]
    pub(crate) fn note() -> Before {
        let load = read("/proc/loadavg");
        let load = load.split(' ').next().unwrap_or("?").to_owned();
        Before { at: Timestamp::now(), began: Instant::now(), load }
    }

    /// For the line below the tables.
    pub(crate) fn tell(&self) -> String {
        let took = self.began.elapsed().as_secs_f64();
        format!("{}; load {} beforehand; took {took:.1} s", self.at.strftime("%Y-%m-%d %H:%M UTC"), self.load)
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
