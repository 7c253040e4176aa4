//! Taking a changed file up: what differs, and that an invalid one changes nothing.

use super::{ConfigFile, Origin, Problems, Setting, load};

/// What reading the file again found.
#[derive(Debug)]
pub enum Reload {
    /// Nothing that matters: comments, order, other pools.
    Same,
    /// Other values for this pool.
    Changed {
        /// What is in force from now on.
        file: Box<ConfigFile>,
        /// `pressure.hard.available: "15%" → "20%" (guard.toml:6)`, one for each key.
        changes: Vec<String>,
    },
    /// Not valid: the old one stays in force.
    Invalid(Problems),
}

impl ConfigFile {
    /// Reads the file again, by its path: a ConfigMap changes by swapping the `..data` link beneath it. `pool` is
    /// the pool in force; when the new file no longer has it, that is a problem too.
    pub fn reload(&self, pool: Option<&str>) -> Reload {
        let file = match load(self.path()).and_then(|file| file.effective(pool).map(|_| file)) {
            Ok(file) => file,
            Err(problems) => return Reload::Invalid(problems),
        };
        let changes = self.changes(&file, pool);
        if changes.is_empty() { Reload::Same } else { Reload::Changed { file: Box::new(file), changes } }
    }

    /// How a pool's values in `newer` differ from these, one line for each key.
    pub fn changes(&self, newer: &ConfigFile, pool: Option<&str>) -> Vec<String> {
        let (Ok(old), Ok(new)) = (self.find(pool), newer.find(pool)) else { return Vec::new() };
        let find = |settings: &[Setting], key: &str| {
            settings.iter().find(|setting| setting.key == key).map(|setting| setting.value.clone())
        };
        let mut changes = Vec::new();
        for setting in &new.settings {
            let before = find(&old.settings, &setting.key);
            if before.as_ref() != Some(&setting.value) {
                let before = before.unwrap_or("nothing".to_owned());
                let origin = match &setting.origin {
                    Origin::Default => "default".to_owned(),
                    Origin::Written(place) => place.to_string(),
                };
                changes.push(format!("{}: {before} → {} ({origin})", setting.key, setting.value));
            }
        }
        for setting in &old.settings {
            if find(&new.settings, &setting.key).is_none() {
                changes.push(format!("{}: {} → nothing", setting.key, setting.value));
            }
        }
        if old.config.kubelet != new.config.kubelet {
            changes.push(format!(
                "the kubelet's thresholds: {} → {}",
                kubelet(&old.config.kubelet),
                kubelet(&new.config.kubelet)
            ));
        }
        changes
    }
}

fn kubelet(thresholds: &Option<super::KubeletThresholds>) -> String {
    let Some(thresholds) = thresholds else { return "not known".to_owned() };
    let all: Vec<_> = thresholds.hard.iter().chain(&thresholds.soft).map(ToString::to_string).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}
