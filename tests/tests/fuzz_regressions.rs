//! Every seed of the fuzz targets, every fixture, and everything that fuzzing ever found, through the targets once more.

use std::fs;
use std::path::{Path, PathBuf};

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
