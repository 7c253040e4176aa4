//! What lies on the disk before the storm, and what the guard is told.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use guard::model::Bytes;
use jiff::{SignedDuration, Timestamp};
use tests::archives::Archive;

/// Where the levels begin, in per cent of the disk. The configuration is written from these, and the picture drawn.
pub(crate) const SOFT_PERCENT: u64 = 25;
pub(crate) const HARD_PERCENT: u64 = 18;
pub(crate) const CRITICAL_PERCENT: u64 = 10;
pub(crate) const MINIMUM_RECLAIM_PERCENT: u64 = 4;

/// The namespaces that the storm writes for, and what they are worth. `team` and `team-prod` look alike on purpose.
pub(crate) const STORM_NAMESPACES: [(&str, u8); 4] =
    [("ci", 5), ("team", 50), ("team-prod", 80), ("batch", 30)];

/// Something that must survive whatever happens.
#[derive(Debug)]
pub(crate) struct Keepsake {
    /// Why it must.
    pub why: &'static str,
    path: PathBuf,
    content: Vec<u8>,
}

impl Keepsake {
    /// Whether it is there, whole.
    pub(crate) fn survived(&self) -> bool {
        std::fs::read(&self.path).is_ok_and(|content| content == self.content)
    }
}

/// Puts down what must survive. Old, and of little worth but for the one thing that each has.
pub(crate) fn keepsakes(directory: &Path, now: Timestamp) -> Result<Vec<Keepsake>> {
    let old = now - SignedDuration::from_hours(48);
    let write = |why, namespace: &str, pod: &str| -> Result<Keepsake> {
        let archive = Archive::new(namespace, pod, "main", old, Bytes::mib(8).0);
        let path = archive.write_in(directory).context("cannot write the first archives")?;
        Ok(Keepsake { why, content: std::fs::read(&path)?, path })
    };
    let protected = write("protected namespace", "forensics", "incident-17")?;
    let pinned = write("pinned", "ci", "golden")?;
    std::fs::write(format!("{}.keep", pinned.path.display()), "kept for the demo\n")?;
    let foreign = directory.join("README.txt");
    let text = b"not a checkpoint\n".to_vec();
    std::fs::write(&foreign, &text)?;
    let foreign = Keepsake { why: "not a checkpoint", path: foreign, content: text };
    let open = write("in use", "ci", "being-copied")?;
    Ok(vec![protected, pinned, foreign, open])
}

/// Opens the keepsake that is to be in use, for as long as the file lives.
pub(crate) fn hold_open(keepsakes: &[Keepsake]) -> Result<std::fs::File> {
    let open = keepsakes.iter().find(|keepsake| keepsake.why == "in use").context("there is one in use")?;
    std::fs::File::open(&open.path).context("cannot open the archive that is to be in use")
}

/// How many checkpoints of each namespace lie in `directory`, and their bytes on disk.
pub(crate) fn census(directory: &Path) -> Result<BTreeMap<String, (u64, Bytes)>> {
    let mut found: BTreeMap<String, (u64, Bytes)> = BTreeMap::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // checkpoint-<pod>_<namespace>-main-<time>.tar: every container here is called main, so this is exact.
        let namespace = name.strip_suffix(".tar").and_then(|name| {
            let (_, rest) = name.split_once('_')?;
            rest.split_once("-main-").map(|(namespace, _)| namespace.to_owned())
        });
        let Some(namespace) = namespace else { continue };
        let held = found.entry(namespace).or_default();
        held.0 += 1;
        held.1 += Bytes(std::os::unix::fs::MetadataExt::blocks(&entry.metadata()?) * 512);
    }
    Ok(found)
}

/// `percent` of the disk as the guard sees it.
pub(crate) fn share(capacity: Bytes, percent: u64) -> Bytes {
    Bytes((u128::from(capacity.0) * u128::from(percent) / 100) as u64)
}

/// What the guard is told beyond the directory.
pub(crate) fn settings() -> String {
    let namespaces: Vec<_> =
        STORM_NAMESPACES.iter().map(|(name, protection)| format!("{name} = {protection}")).collect();
    format!(
        r#"[pressure]
soft              = {{ available = "{SOFT_PERCENT}%", grace-period = "2s" }}
hard              = {{ available = "{HARD_PERCENT}%" }}
critical          = {{ available = "{CRITICAL_PERCENT}%" }}
minimum-reclaim   = {{ available = "{MINIMUM_RECLAIM_PERCENT}%" }}
transition-period = "1s"

[protection]
namespaces = {{ forensics = 100, {} }}
"#,
        namespaces.join(", "),
    )
}
