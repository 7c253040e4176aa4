//! One VM: boots, runs, and what came of it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result};

use crate::command::line;
use crate::setup;
use crate::tally::{Tally, summarise};

/// Longer than everything takes, when two VMs and much else share two processors: a quarter of it on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(900);

const QEMU: &str = "qemu-system-x86_64";

/// A VM to be started.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Of its kernel.
    pub(crate) name: String,
    pub(crate) image: PathBuf,
    pub(crate) initramfs: PathBuf,
    pub(crate) parameters: String,
    /// Where its logs go.
    pub(crate) place: PathBuf,
}

/// What it takes to start one, and is not there.
pub(crate) fn missing() -> Vec<&'static str> {
    [QEMU, "busybox"].into_iter().filter(|program| setup::find(program).is_none()).collect()
}

/// What came of a VM.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) kernel: String,
    /// What the test programs printed.
    pub(crate) output: String,
    /// What the kernel said, when that matters.
    console: Option<String>,
    tally: Tally,
    /// Why it is no success, beyond failed tests.
    trouble: Option<String>,
    took: Duration,
}

impl Machine {
    /// Boots it and waits for its end. An emulator that loses its way while booting (once in 34 boots) gets a second try.
    pub(crate) fn run(&self) -> Outcome {
        let first = self.boot();
        if first.output.contains("VM begin") {
            return first;
        }
        println!("-- {} did not get as far as the tests, once more\n{first}", self.name);
        self.boot()
    }

    fn boot(&self) -> Outcome {
        let (console, output) = (self.place.join("console.log"), self.place.join("output.log"));
        let (ended, took) = timed(|| self.run_emulator(&console, &output));
        let read = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        let (console, output) = (read(&console), read(&output).replace('\r', ""));
        let (tally, _) = summarise(&output);
        let trouble = match ended {
            Err(error) => Some(format!("{error:#}")),
            Ok(()) => trouble(&output),
        };
        let console = (trouble.is_some() || tally.failed > 0).then_some(console);
        Outcome { kernel: self.name.clone(), output, console, tally, trouble, took }
    }

    fn run_emulator(&self, console: &Path, output: &Path) -> Result<()> {
        let mut qemu = Command::new(QEMU);
        // Not kvm, which not every machine has: a result should not depend on it. One thread for both processors: with two,
        // one of them now and then goes on executing what the other has patched (a function that a program was attached
        // to), and traps for ever ("soft lockup" at bpf_lsm_file_permission).
        qemu.args([
            "-accel",
            "tcg,thread=single",
            "-m",
            "1536",
            "-smp",
            "2",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
        ]);
        for log in [console, output] {
            // What an earlier run left there is not this one's.
            fs::write(log, "")?;
            qemu.args(["-serial", &format!("file:{}", log.display())]);
        }
        qemu.arg("-kernel").arg(&self.image).arg("-initrd").arg(&self.initramfs);
        qemu.args(["-append", &self.parameters]);
        qemu.stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = qemu.spawn().with_context(|| line(&qemu))?;
        wait(&mut child)
    }
}

/// Waits for the emulator's end, and makes one when it does not come.
#[expect(clippy::disallowed_methods, reason = "waits for another process, so it measures time")]
fn wait(child: &mut Child) -> Result<()> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            anyhow::ensure!(status.success(), "{QEMU} ended with {status}");
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("not done after {} s, so it was ended", PATIENCE.as_secs());
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// What is wrong with a run that ended by itself.
fn trouble(output: &str) -> Option<String> {
    let begun = output.lines().filter(|line| line.starts_with("VM begin ")).count();
    let unsuccessful = output.lines().find(|line| line.starts_with("VM end ") && !line.ends_with(" 0"));
    if begun == 0 {
        return Some("it did not boot as far as the tests".to_owned());
    }
    if !output.lines().any(|line| line == "VM done") {
        return Some("it ended before the tests had ended".to_owned());
    }
    unsuccessful.map(|line| format!("a test program failed: {}", line.trim_start_matches("VM end ")))
}

impl Outcome {
    /// Whether every test passed.
    pub(crate) fn is_good(&self) -> bool {
        self.trouble.is_none() && self.tally.failed == 0
    }

    /// The short form, in libtest's words so that whoever counts tests counts these.
    pub(crate) fn line(&self) -> String {
        let verdict = if self.is_good() { "ok" } else { "FAILED" };
        let Tally { passed, failed, skipped } = self.tally;
        let trouble = self.trouble.as_ref().map(|it| format!("; {it}")).unwrap_or_default();
        format!(
            "test result: {verdict}. {passed} passed; {failed} failed; {skipped} ignored; kernel {}, {:.0} s{trouble}",
            self.kernel,
            self.took.as_secs_f64()
        )
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(console) = &self.console {
            writeln!(f, "-- console of {}:\n{}", self.kernel, console.trim_end())?;
        }
        let (_, shown) = summarise(&self.output);
        for line in shown.iter().filter(|line| !line.starts_with("VM ")) {
            writeln!(f, "{}: {line}", self.kernel)?;
        }
        let programs: Vec<&str> =
            self.output.lines().filter_map(|line| line.strip_prefix("VM took ")).collect();
        write!(f, "-- {} took {:.0} s: {}", self.kernel, self.took.as_secs_f64(), programs.join(", "))
    }
}

#[expect(clippy::disallowed_methods, reason = "each VM is shown with the time it took")]
fn timed<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let result = run();
    (result, began.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(output: &str, expect: Option<&str>) {
        assert_eq!(trouble(output).as_deref(), expect);
    }

    #[test]
    fn a_run_is_good_when_every_program_ended_well() {
        check("VM begin a\nVM end a 0\nVM done\n", None);
        check("", Some("it did not boot as far as the tests"));
        check("VM begin a\nVM end a 0\nVM begin b\n", Some("it ended before the tests had ended"));
        check("VM begin a\nVM end a 101\nVM done\n", Some("a test program failed: a 101"));
    }
}
