//! Counting what test programs print.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::ops::Add;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result};

/// How many tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// That ran and found nothing wrong.
    pub(crate) passed: u32,
    /// That found something wrong.
    pub(crate) failed: u32,
    /// That did not run: marked `#[ignore]`, or they said themselves that something is missing here.
    pub(crate) skipped: u32,
}

impl Add for Tally {
    type Output = Tally;
    fn add(self, other: Tally) -> Tally {
        Tally {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Runs `cargo test … -- --show-output`, shows what matters of its output and counts.
pub(crate) fn run_tests(command: &mut Command) -> Result<(Tally, ExitStatus)> {
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {command:?}"))?;
    let output = child.stdout.take().context("its output was asked for")?;
    let mut reader = Reader::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if reader.read(&line) {
            println!("{line}");
        }
    }
    Ok((reader.tally, child.wait()?))
}

/// What the output of test programs says: counts, and the lines worth showing.
pub(crate) fn summarise(output: &str) -> (Tally, Vec<&str>) {
    let mut reader = Reader::default();
    let shown = output.lines().filter(|line| reader.read(line)).collect();
    (reader.tally, shown)
}

/// Follows the output of libtest.
#[derive(Debug, Default)]
struct Reader {
    tally: Tally,
    /// Within the output of tests that passed.
    in_successes: bool,
    /// Tests of the program under way that said they could not run.
    said_skipped: u32,
}

impl Reader {
    /// Takes a line; whether it is worth showing.
    fn read(&mut self, line: &str) -> bool {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            self.add(result);
            return true;
        }
        match line {
            "successes:" => self.in_successes = true,
            "failures:" => self.in_successes = false,
            _ => {}
        }
        if self.in_successes {
            let skipped = line.starts_with("SKIPPED");
            self.said_skipped += u32::from(skipped);
            return skipped;
        }
        let dots = !line.is_empty() && line.chars().all(|c| c == '.');
        !line.is_empty() && !dots && !line.ends_with(" ... ok") && !line.starts_with("running ")
    }

    /// `ok. 27 passed; 0 failed; 1 ignored; 0 measured; 9 filtered out; finished in 0.51s`.
    fn add(&mut self, result: &str) {
        let (_, counts) = result.split_once(". ").unwrap_or(("", result));
        let count = |word: &str| -> u32 {
            let part = counts.split("; ").find(|part| part.ends_with(word));
            part.and_then(|part| part.split(' ').next()?.parse().ok()).unwrap_or(0)
        };
        let said_skipped = std::mem::take(&mut self.said_skipped).min(count("passed"));
        self.tally = self.tally
            + Tally {
                passed: count("passed") - said_skipped,
                failed: count("failed"),
                skipped: count("ignored") + said_skipped,
            };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 3 tests
test a::works ... ok
test a::needs_promtool ... ok
test a::later ... ignored

successes:

---- a::needs_promtool stdout ----
SKIPPED a::needs_promtool: promtool: No such file or directory

successes:
    a::needs_promtool
    a::works

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

running 2 tests
.F
failures:

---- b::breaks stdout ----
SKIPPED is what it says, but it failed

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn results_are_summed_and_a_test_that_says_skipped_did_not_pass() {
        let mut reader = Reader::default();
        let shown: Vec<_> = OUTPUT.lines().filter(|line| reader.read(line)).collect();
        assert_eq!(reader.tally, Tally { passed: 2, failed: 1, skipped: 2 });
        assert_eq!(reader.tally.to_string(), "2 passed, 1 failed, 2 skipped");
        assert!(shown.contains(&"SKIPPED a::needs_promtool: promtool: No such file or directory"));
        assert!(shown.contains(&"---- b::breaks stdout ----"));
        assert!(!shown.iter().any(|line| line.ends_with("... ok") || line.contains("successes")));
    }
}
