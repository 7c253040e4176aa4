//! [`Level`]: how bad it is.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of one filesystem. Ordered: a later one is worse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Above every threshold.
    #[default]
    Normal,
    /// Below the soft threshold for longer than its grace period.
    Soft,
    /// Below the hard threshold: reclaim at once.
    Hard,
    /// Below the critical threshold: young and last checkpoints are no longer spared.
    Critical,
}

impl Level {
    /// Every level, mildest first.
    pub const ALL: [Level; 4] = [Level::Normal, Level::Soft, Level::Hard, Level::Critical];

    /// The word for it in configuration, metrics and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Level::Normal => "normal",
            Level::Soft => "soft",
            Level::Hard => "hard",
            Level::Critical => "critical",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
