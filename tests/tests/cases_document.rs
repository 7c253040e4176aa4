//! docs/CASES.md says which tests drive which case.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a case waits for beside its tests, or instead of any.
const LATER: [(u32, &str); 0] = [];
/// So many columns has a row, the tests among them.
const COLUMNS: usize = 5;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Number → the tests that carry it, as `room::case_NN_promise`.
fn tests_by_case() -> BTreeMap<u32, Vec<String>> {
    let mut files = Vec::new();
    rust_files(&root().join("guard/src"), &mut files);
    rust_files(&root().join("tests/tests"), &mut files);
    let mut cases: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for file in files {
        let module = module_of(&file);
        let text = std::fs::read_to_string(&file).unwrap();
        for line in text.lines() {
            let Some(name) = line.trim().strip_prefix("fn case_") else { continue };
            let Some((number, promise)) = name.trim_end_matches("() {").split_once('_') else { continue };
            let Ok(number) = number.parse() else { continue };
            cases.entry(number).or_default().push(format!("`{module}::case_{number:02}_{promise}`"));
        }
    }
    cases.values_mut().for_each(|tests| tests.sort());
    cases
}

/// `decide::plan` in the library, `daemon_victims` among the tests.
fn module_of(file: &Path) -> String {
    let file = file.strip_prefix(root()).unwrap().with_extension("");
    let parts: Vec<_> = file.iter().skip(2).map(|part| part.to_str().unwrap()).collect();
    parts.join("::")
}

/// The row of a case with the tests that there are; any other line as it is.
fn up_to_date(line: &str, cases: &BTreeMap<u32, Vec<String>>) -> String {
    let columns: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    let Ok(number) = columns[0].parse::<u32>() else { return line.to_owned() };
    let mut told = cases.get(&number).cloned().unwrap_or_default();
    told.extend(LATER.iter().filter(|(case, _)| *case == number).map(|(_, what)| (*what).to_owned()));
    assert!(!told.is_empty(), "no test drives case {number}, and nothing says why");
    format!("| {} | {} |", columns[..COLUMNS - 1].join(" | "), told.join("<br>"))
}

#[test]
fn the_page_of_cases_lists_the_tests_that_drive_each() {
    let path = root().join("docs/CASES.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let cases = tests_by_case();
    let listed =
        page.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse::<u32>().ok());
    let listed: Vec<_> = listed.collect();
    assert!(listed.iter().copied().eq(1..=listed.len() as u32), "{listed:?}");
    let unknown: Vec<_> = cases.keys().filter(|number| !listed.contains(number)).collect();
    assert!(unknown.is_empty(), "{unknown:?} are not on the page");
    let now: String = page.lines().map(|line| up_to_date(line, &cases) + "\n").collect();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    assert!(std::fs::read_to_string(&path).unwrap() == now, "UPDATE_DOCS=1 rewrites docs/CASES.md");
}
