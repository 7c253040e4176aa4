//! [`Clocks`]: a guard whose clocks a test sets, as NTP, an administrator or a machine that slept would.
//!
//! The guard is linked with glibc dynamically in a test, so a preloaded library can answer clock_gettime(2) in its place. What
//! sleeps (poll, the threads) still sleeps real time: a green run is about what clocks are believed to say, not about timers.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The preloaded library: adds what a file says to the clocks, one number of seconds for each of wall and monotonic. The file
/// also says how many more times the monotonic one fails, and in threads of which name; it never does so for long, so a
/// program is right to take such a failure for a bug and to panic.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long *offsets;
static __thread char name[16];
__attribute__((constructor)) static void start(void) {
    const char *path = getenv("TEST_CLOCK_OFFSETS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = mmap(0, 40, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) offsets = map;
}
int pthread_setname_np(pthread_t thread, const char *to) {
    int (*next)(pthread_t, const char *) = dlsym(RTLD_NEXT, "pthread_setname_np");
    if (thread == pthread_self()) strncpy(name, to, sizeof name - 1);
    return next(thread, to);
}
static int fails(void) {
    if (offsets[2] <= 0 || strncmp(name, (const char *)&offsets[3], sizeof name)) return 0;
    return __atomic_fetch_sub(&offsets[2], 1, __ATOMIC_SEQ_CST) > 0;
}
int clock_gettime(clockid_t id, struct timespec *at) {
    if (id == CLOCK_MONOTONIC && offsets && fails()) {
        errno = EINVAL;
        return -1;
    }
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
        offsets.set_len(40)?;
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
    /// Lets the monotonic clock fail in threads of this name, so many more times.
    pub fn fail_in(&self, thread: &str, times: i64) {
        let mut name = [0; 16];
        name[..thread.len()].copy_from_slice(thread.as_bytes());
        self.offsets.write_all_at(&name, 24).expect("a small file");
        self.offsets.write_all_at(&times.to_ne_bytes(), 16).expect("a small file");
    }
}
