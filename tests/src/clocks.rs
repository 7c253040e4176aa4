//! [`Clocks`]: a guard whose clocks a test sets, as NTP, an administrator or a machine that slept would.
//!
//! The guard is linked with glibc dynamically in a test, so a preloaded library can answer clock_gettime(2) in its place. What
//! sleeps (poll, the threads) still sleeps real time: a green run is about what clocks are believed to say, not about timers.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The preloaded library: adds what a file says to the clocks, one number of seconds for each of wall and monotonic.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long *offsets;
__attribute__((constructor)) static void start(void) {
    const char *path = getenv("TEST_CLOCK_OFFSETS");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = mmap(0, 16, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) offsets = map;
}
int clock_gettime(clockid_t id, struct timespec *at) {
    int status = syscall(SYS_clock_gettime, id, at);
    if (status == 0 && offsets) {
        if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) at->tv_sec += offsets[0];
        if (id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE) at->tv_sec += offsets[1];
    }
    return status;
}
"#;

/// The offsets of one guard's clocks.
#[derive(Debug)]
pub struct Clocks {
    scratch: tempfile::TempDir,
    offsets: File,
}

impl Clocks {
    /// At the true time. Fails without a C compiler.
    pub fn new() -> Result<Clocks> {
        let scratch = tempfile::tempdir()?;
        let source = scratch.path().join("clocks.c");
        std::fs::write(&source, SOURCE)?;
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(scratch.path().join("clocks.so"))
            .arg(&source)
            .output()
            .context("cc")?;
        ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
        let offsets =
            File::options().read(true).write(true).create_new(true).open(scratch.path().join("offsets"))?;
        offsets.set_len(16)?;
        Ok(Clocks { scratch, offsets })
    }

    fn library(&self) -> PathBuf {
        self.scratch.path().join("clocks.so")
    }

    /// Has `command` read these clocks.
    pub fn rule(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", self.library())
            .env("TEST_CLOCK_OFFSETS", self.scratch.path().join("offsets"));
    }

    /// Sets the wall clock to so many seconds from the truth.
    pub fn set_wall(&self, seconds: i64) {
        self.offsets.write_all_at(&seconds.to_ne_bytes(), 0).expect("a small file");
    }

    /// Lets the monotonic clock be so many seconds ahead. It never goes back.
    pub fn advance_monotonic(&self, seconds: i64) {
        self.offsets.write_all_at(&seconds.to_ne_bytes(), 8).expect("a small file");
    }
}
