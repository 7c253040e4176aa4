//! [`Notice`]: one Event in our own words, before it is published.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{Bytes, Level, Trigger};
use crate::report::audit;

/// What an Event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum About {
    /// This machine's Node.
    Node,
    /// A pod that exists.
    Pod {
        /// Its namespace.
        namespace: Arc<str>,
        /// Its name.
        name: Arc<str>,
        /// Its uid.
        uid: Arc<str>,
    },
    /// A PodCheckpoint object.
    PodCheckpoint {
        /// Its group and version.
        api_version: Arc<str>,
        /// Its namespace.
        namespace: Arc<str>,
        /// Its name.
        name: Arc<str>,
        /// Its uid.
        uid: Arc<str>,
    },
}

/// One Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What it is about.
    pub about: About,
    /// Whether somebody should look: type Warning rather than Normal.
    pub warning: bool,
    /// One word for programs.
    pub reason: &'static str,
    /// What the guard did or does.
    pub action: &'static str,
    /// For people.
    pub text: Text,
}

/// The words of a notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// As it is.
    Sentence(String),
    /// Deletions; those that wait for the same reader are added up.
    Tally(Tally),
}

/// Deletions for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// `under hard pressure on /var/lib/kubelet/checkpoints`. Tallies with the same are added up.
    pub why: String,
    /// How many.
    pub count: u64,
    /// What that freed, as measured.
    pub freed: Bytes,
    /// The first few.
    pub names: Vec<String>,
    /// In so many rounds.
    pub rounds: u64,
}

/// A checkpoint that was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// Its name.
    pub name: String,
    /// What that freed, as measured.
    pub freed: Bytes,
    /// Why.
    pub trigger: Trigger,
    /// Its pod, where that exists on this node.
    pub pod: Option<About>,
    /// Its PodCheckpoint object, where there is one.
    pub object: Option<About>,
}

/// So many checkpoints are named.
const NAMED_MAX: usize = 3;
/// A round tells so many pods at most that theirs are gone, and the Node of so many reasons: retention of a busy node
/// may take from a hundred pods at once.
const TOLD_MAX: usize = 8;

impl Tally {
    /// Adds another up.
    pub fn add(&mut self, other: Tally) {
        self.count += other.count;
        self.freed = Bytes(self.freed.0.saturating_add(other.freed.0));
        self.rounds += other.rounds;
        let room = NAMED_MAX.saturating_sub(self.names.len());
        self.names.extend(other.names.into_iter().take(room));
    }

    fn sentence(&self) -> String {
        let Tally { why, count, freed, names, rounds } = self;
        let plural = if *count == 1 { "" } else { "s" };
        let more = if *count > names.len() as u64 { ", …" } else { "" };
        let rounds = if *rounds > 1 { format!(" in {rounds} rounds") } else { String::new() };
        format!("deleted {count} checkpoint{plural} {why}{rounds}, freed {freed}: {}{more}", names.join(", "))
    }
}

impl Notice {
    /// The words, at most 1,024 bytes: the API server takes no more (`events.k8s.io/v1` note).
    pub fn note(&self) -> String {
        let text = match &self.text {
            Text::Sentence(sentence) => sentence.clone(),
            Text::Tally(tally) => tally.sentence(),
        };
        if text.len() <= 1024 {
            return text;
        }
        let end = (0..=1020).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        format!("{}…", &text[..end])
    }

    /// Whether both say the same to the same reader, but for what can be added up.
    pub fn is_like(&self, other: &Notice) -> bool {
        let same_words = match (&self.text, &other.text) {
            (Text::Tally(one), Text::Tally(other)) => one.why == other.why,
            (one, other) => one == other,
        };
        same_words && self.about == other.about && self.reason == other.reason
    }

    fn node(warning: bool, reason: &'static str, action: &'static str, sentence: String) -> Notice {
        Notice { about: About::Node, warning, reason, action, text: Text::Sentence(sentence) }
    }

    /// What of the audit log's events is worth an Event.
    pub fn from_audit(event: &audit::Event<'_>) -> Option<Notice> {
        Some(match event {
            audit::Event::Pressure { directories, from, to, available_bytes } => {
                let (place, available) = (directories.join(", "), Bytes(*available_bytes));
                match to {
                    Level::Normal => {
                        let sentence =
                            format!("pressure on {place} is over (was {from}): {available} available");
                        Notice::node(false, "CheckpointPressureOver", "Watching", sentence)
                    }
                    _ => {
                        let sentence =
                            format!("{to} pressure on {place} (was {from}): {available} available");
                        Notice::node(to > from, "CheckpointPressure", "Reclaiming", sentence)
                    }
                }
            }
            audit::Event::Unreachable { directories, reason, .. } => {
                let sentence = format!("{}: {reason}", directories.join(", "));
                Notice::node(true, "CheckpointTargetUnreachable", "Reclaiming", sentence)
            }
            audit::Event::Brake { directories, engaged, mode, reason, .. } => {
                let place = directories.join(", ");
                let (name, verb) = match engaged {
                    true => ("CheckpointBrakeEngaged", "are refused"),
                    false => ("CheckpointBrakeReleased", "are let through again"),
                };
                let sentence = format!("writes into {place} {verb} ({mode}): {reason}");
                Notice::node(*engaged, name, "Braking", sentence)
            }
            // Told where it matters, with the target that cannot be reached.
            audit::Event::InUse { .. } => return None,
            audit::Event::Configuration { path, accepted: false, reason } => {
                let sentence = format!("{path} is invalid, the old configuration stays in force: {reason}");
                Notice::node(true, "CheckpointGuardConfigInvalid", "Configuring", sentence)
            }
            audit::Event::Configuration { path, accepted: true, .. } => {
                let sentence = format!("{path} was taken up");
                Notice::node(false, "CheckpointGuardConfigured", "Configuring", sentence)
            }
            audit::Event::Command {
                directory,
                name,
                outcome: outcome @ ("failed" | "timed-out"),
                error,
                ..
            } => {
                let error = error.unwrap_or_default();
                let sentence = format!("the command before deleting {directory}/{name} {outcome}: {error}");
                Notice::node(true, "CheckpointCommandFailed", "Reclaiming", sentence)
            }
            audit::Event::Command { .. } | audit::Event::Webhook { .. } => return None,
            audit::Event::Deletion(_)
            | audit::Event::Leftover { .. }
            | audit::Event::Start { .. }
            | audit::Event::Stop { .. } => return None,
        })
    }

    /// Less is seen than was asked for; `by` says by what, and what it lacks.
    pub fn backend_degraded(by: &str) -> Notice {
        let sentence = format!(
            "writes to a watched directory are seen by {by}: its filesystem, this kernel or the guard's capabilities do not grant more (the log tells which); reactions take longer"
        );
        Notice::node(true, "CheckpointGuardBackendDegraded", "Watching", sentence)
    }

    /// What a round of deletions on `place` is worth: one for the Node for each reason, one for each pod.
    pub fn of_round(place: &str, deleted: &[Deleted]) -> Vec<Notice> {
        let mut by_reason: BTreeMap<String, (bool, Tally)> = BTreeMap::new();
        let mut by_pod: Vec<(About, bool, Tally)> = Vec::new();
        for it in deleted {
            let pressing = matches!(it.trigger, Trigger::Pressure(_));
            let why = match &it.trigger {
                Trigger::Pressure(level) => format!("under {level} pressure on {place}"),
                other => format!("for {other} in {place}"),
            };
            let tally = Tally { why, count: 1, freed: it.freed, names: vec![it.name.clone()], rounds: 1 };
            add(by_reason.entry(tally.why.clone()).or_insert_with(|| (pressing, empty(&tally.why))), &tally);
            for reader in it.pod.iter().chain(&it.object) {
                let place =
                    by_pod.iter().position(|(about, _, known)| about == reader && known.why == tally.why);
                match place {
                    Some(place) => by_pod[place].2.add(Tally { rounds: 0, ..tally.clone() }),
                    None if by_pod.len() < TOLD_MAX => by_pod.push((reader.clone(), pressing, tally.clone())),
                    None => {}
                }
            }
        }
        let of_node =
            by_reason.into_values().take(TOLD_MAX).map(|(pressing, tally)| (About::Node, pressing, tally));
        let all = of_node.chain(by_pod);
        all.map(|(about, warning, tally)| Notice {
            about,
            warning,
            reason: "CheckpointsDeleted",
            action: "Reclaiming",
            text: Text::Tally(tally),
        })
        .collect()
    }
}

fn empty(why: &str) -> Tally {
    Tally { why: why.to_owned(), count: 0, freed: Bytes::ZERO, names: Vec::new(), rounds: 1 }
}

fn add((_, known): &mut (bool, Tally), tally: &Tally) {
    known.add(Tally { rounds: 0, ..tally.clone() });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> About {
        About::Pod { namespace: "team".into(), name: name.into(), uid: "1".into() }
    }

    fn deleted(name: &str, mib: u64, trigger: Trigger, of: Option<About>) -> Deleted {
        Deleted { name: name.to_owned(), freed: Bytes::mib(mib), trigger, pod: of, object: None }
    }

    #[test]
    fn a_round_is_one_notice_for_each_reason_with_the_first_names_and_totals() {
        let hard = || Trigger::Pressure(Level::Hard);
        let round = [
            deleted("a", 1, hard(), Some(pod("web-0"))),
            deleted("b", 2, hard(), Some(pod("web-0"))),
            deleted("c", 3, hard(), Some(pod("web-1"))),
            deleted("d", 4, hard(), None),
            deleted("e", 5, Trigger::Orphan, None),
        ];
        let notes: Vec<_> = Notice::of_round("/c", &round)
            .iter()
            .map(|it| (it.about.clone(), it.warning, it.note()))
            .collect();
        let text = |text: &str| text.to_owned();
        assert_eq!(
            notes,
            [
                (About::Node, false, text("deleted 1 checkpoint for orphan in /c, freed 5.00 MiB: e")),
                (
                    About::Node,
                    true,
                    text("deleted 4 checkpoints under hard pressure on /c, freed 10.0 MiB: a, b, c, …")
                ),
                (
                    pod("web-0"),
                    true,
                    text("deleted 2 checkpoints under hard pressure on /c, freed 3.00 MiB: a, b")
                ),
                (
                    pod("web-1"),
                    true,
                    text("deleted 1 checkpoint under hard pressure on /c, freed 3.00 MiB: c")
                ),
            ]
        );
    }

    #[test]
    fn case_42_forty_deletions_of_one_round_are_one_notice_with_exact_numbers() {
        let trigger = || Trigger::Pressure(Level::Critical);
        let round: Vec<_> = (0..40).map(|n| deleted(&format!("c-{n}"), 3, trigger(), None)).collect();
        let notices = Notice::of_round("/c", &round);
        let notes: Vec<_> = notices.iter().map(Notice::note).collect();
        assert_eq!(
            notes,
            ["deleted 40 checkpoints under critical pressure on /c, freed 120 MiB: c-0, c-1, c-2, …"]
        );
    }

    #[test]
    fn case_51_an_invalid_configuration_is_told_with_what_is_wrong() {
        let reason = "guard.toml:4: unknown key";
        let event = audit::Event::Configuration { path: "/etc/guard.toml", accepted: false, reason };
        let notice = Notice::from_audit(&event).unwrap();
        assert!(notice.warning && notice.note().ends_with(reason), "{notice:?}");
    }

    #[test]
    fn a_round_over_a_hundred_pods_does_not_make_a_hundred_events() {
        let round: Vec<_> =
            (0..100).map(|n| deleted("x", 1, Trigger::Orphan, Some(pod(&format!("p-{n}"))))).collect();
        assert_eq!(Notice::of_round("/c", &round).len(), 1 + TOLD_MAX);
    }

    #[test]
    fn pressure_is_a_warning_when_it_grows_and_told_when_it_is_over() {
        let directories = ["/c".to_owned()];
        let note = |from, to| {
            let event =
                audit::Event::Pressure { directories: &directories, from, to, available_bytes: 1 << 30 };
            let notice = Notice::from_audit(&event).unwrap();
            (notice.warning, notice.reason, notice.note())
        };
        let hard = note(Level::Normal, Level::Hard);
        assert_eq!(
            hard,
            (true, "CheckpointPressure", "hard pressure on /c (was normal): 1.00 GiB available".into())
        );
        assert!(!note(Level::Critical, Level::Hard).0);
        let over = note(Level::Hard, Level::Normal);
        assert_eq!((over.0, over.1), (false, "CheckpointPressureOver"));
    }

    #[test]
    fn a_note_is_never_longer_than_the_server_takes() {
        let notice = Notice::node(true, "X", "Y", "ä".repeat(2000));
        assert!(notice.note().len() <= 1024 && notice.note().ends_with('…'));
    }
}
