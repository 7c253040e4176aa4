//! Every seed of the fuzz targets, every fixture, and everything that fuzzing ever found, through the targets once more.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use guard::fuzzing::TARGETS;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries
        .flat_map(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() { files(&path) } else { vec![path] }
        })
        .collect();
    files.sort();
    files
}

#[test]
fn what_fuzzing_found_stays_mended() {
    for target in TARGETS {
        let own = ["seeds", "regressions"].map(|folder| root().join("fuzz").join(folder).join(target.name));
        let borrowed = ["tests/fixtures", "config"].map(|folder| root().join(folder));
        let inputs: Vec<_> = own.iter().chain(&borrowed).flat_map(|folder| files(folder)).collect();
        assert!(inputs.len() > 30, "{}: {inputs:?}", target.name);
        for input in inputs {
            println!("{}: {}", target.name, input.display());
            (target.run)(&fs::read(&input).unwrap());
        }
        // The shortest inputs there are.
        (target.run)(b"");
        (0..=u8::MAX).for_each(|byte| (target.run)(&[byte]));
    }
}

/// Without nightly and without coverage: seeds, damaged here and there. `FUZZ_SECONDS` makes it go on for so long a target.
#[test]
#[expect(clippy::disallowed_methods, reason = "may be asked to go on for some time")]
fn damaged_seeds_break_no_promise() {
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    for target in TARGETS {
        let own = ["seeds", "regressions"].map(|folder| root().join("fuzz").join(folder).join(target.name));
        let borrowed = ["tests/fixtures", "config"].map(|folder| root().join(folder));
        let inputs = own.iter().chain(&borrowed).flat_map(|folder| files(folder));
        // Large ones are slow, and what is in them is memory.
        let seeds: Vec<_> =
            inputs.map(|path| fs::read(path).unwrap()).filter(|it| it.len() < 64 << 10).collect();
        let (mut dice, mut runs) = (Dice(0x9e37_79b9_7f4a_7c15), 0_u64);
        let (began, limit) = (Instant::now(), seconds.map(Duration::from_secs));
        while limit.map_or(runs < 1500, |limit| began.elapsed() < limit) {
            let input = dice.damage(&seeds);
            let outcome = std::panic::catch_unwind(|| (target.run)(&input));
            if outcome.is_err() {
                let path = std::env::temp_dir().join(format!("checkpoint-guard-{}-{runs}", target.name));
                fs::write(&path, &input).unwrap();
                panic!("{} breaks at run {runs}: {}", target.name, path.display());
            }
            runs += 1;
        }
        println!("{}: {runs} runs in {:?}", target.name, began.elapsed());
    }
}

/// A xorshift sequence: the same damage each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end.max(1)
    }

    fn damage(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        const INTERESTING: [&[u8]; 10] =
            [b"\0", b"\n", b"\"", b"=", b"[[", b"-1", b"18446744073709551615", b"\xff\xff", b"size=", b"{}"];
        let mut input = seeds[self.below(seeds.len())].clone();
        for _ in 0..=self.below(6) {
            let at = self.below(input.len() + 1);
            let end = (at + 1 + self.below(40)).min(input.len());
            match self.below(6) {
                0 if at < input.len() => input[at] ^= 1 << self.below(8),
                1 => drop(input.splice(at..end.max(at), [])),
                2 => drop(input.splice(at..at, INTERESTING[self.below(10)].iter().copied())),
                3 => input.truncate(at),
                4 => {
                    let other = &seeds[self.below(seeds.len())];
                    let from = self.below(other.len());
                    let piece = other[from..(from + self.below(600)).min(other.len())].to_vec();
                    input.splice(at..end.max(at), piece);
                }
                _ if at < input.len() => input[at] = self.below(256) as u8,
                _ => {}
            }
        }
        input
    }
}

#[test]
fn every_target_has_a_program_and_the_other_way_round() {
    let programs = files(&root().join("fuzz/fuzz_targets"));
    let names: Vec<_> =
        programs.iter().map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(names, TARGETS.iter().map(|target| target.name).collect::<Vec<_>>());
    let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
    for (name, program) in names.iter().zip(programs) {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        let text = fs::read_to_string(program).unwrap();
        assert!(text.contains(&format!("run(\"{name}\"")), "{name}");
    }
}
