//! The process, under the names that every Prometheus client gives it.

use procfs::process::Process;
use procfs::{CurrentSI, ProcResult};
use prometheus::{Counter, Gauge};

use super::families::{Families, FamilyKind};

#[derive(Debug)]
pub(super) struct ProcessFamilies {
    cpu: Counter,
    resident: Gauge,
    open_fds: Gauge,
    threads: Gauge,
    start: Gauge,
}

impl ProcessFamilies {
    pub(super) fn declare(families: &mut Families) -> ProcessFamilies {
        const CPU: &str = "process_cpu_seconds_total";
        const CPU_HELP: &str = "CPU time the guard has used, in user and system mode.";
        let cpu = Counter::new(CPU, CPU_HELP).expect("the name is a literal that the tests have seen");
        ProcessFamilies {
            cpu: families.declare(FamilyKind::Counter, CPU, &[], CPU_HELP, cpu),
            resident: families
                .gauge("process_resident_memory_bytes", "Memory of the guard that is in RAM (RSS)."),
            open_fds: families.gauge("process_open_fds", "File descriptors the guard has open."),
            threads: families.gauge("process_threads", "Threads of the guard."),
            start: families
                .gauge("process_start_time_seconds", "When the guard started (Unix time, from the kernel)."),
        }
    }

    /// Reads `/proc/self`. Leaves the values as they were where it cannot be read (`hidepid`, no procfs).
    pub(super) fn refresh(&self) {
        if let Err(error) = self.try_refresh() {
            tracing::debug!(%error, "cannot read /proc/self for the process metrics");
        }
    }

    fn try_refresh(&self) -> ProcResult<()> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let ticks = procfs::ticks_per_second() as f64;
        let used = (stat.utime + stat.stime) as f64 / ticks;
        // Two scrapes at once may read out of order; a counter only grows.
        self.cpu.inc_by((used - self.cpu.get()).max(0.0));
        self.resident.set((stat.rss * procfs::page_size()) as f64);
        self.threads.set(stat.num_threads as f64);
        self.open_fds.set(process.fd_count()? as f64);
        let booted = procfs::KernelStats::current()?.btime;
        self.start.set(booted as f64 + stat.starttime as f64 / ticks);
        Ok(())
    }
}
