//! [`identify`]: whose checkpoint it is, by all witnesses together.
//!
//! The witnesses, in the order in which they are believed: `.name` in `config.dump`, which no tenant can write;
//! the engine's own keys in `spec.dump`, which a tenant can write only where the node's administrator passes pod
//! annotations through (containerd's `pod_annotations`); the labels in `status.dump`; the file name, which anybody
//! chooses who can write into the directory.
//!
//! A tenant's words against the engine's own make the identity ambiguous, and that is all they do: the reading that they
//! would add is left out, because every reading protects, and who wrote `kube-system` into his annotations would have his
//! checkpoints outlive everybody else's.

use jiff::Timestamp;

use super::{CheckpointName, Contents};
use crate::model::{Certainty, Engine, Identity, Owner};

/// Whether a plain file is a checkpoint at all. What is none is foreign and never touched.
///
/// It is one when the kubelet's form of name says so, or when two of the three things that make one lie inside:
/// `config.dump`, `spec.dump`, criu's images. One alone may lie in any tar; a checkpoint without images, or with one
/// dump missing, is still managed (checkpointctl#213).
pub fn is_checkpoint(name: Option<&CheckpointName>, contents: Option<&Contents>) -> bool {
    let inside = |contents: &Contents| {
        [contents.has_config, contents.has_spec, contents.has_images]
            .into_iter()
            .filter(|&there| there)
            .count()
            >= 2
    };
    name.is_some() || contents.is_some_and(inside)
}

/// Joins what the name and the contents say, and gives the time the checkpoint was made: by its name, else by
/// `config.dump`; `None` where neither says (the file's mtime is the next best).
///
/// The identity is
/// - *exact* when the inside names an owner and nothing contradicts it;
/// - *name-only* when the inside is silent, or names only parts of what the name says in full: the first reading of
///   the name counts, the others are alternatives;
/// - *ambiguous* when two witnesses contradict each other: the one believed most counts, and every other reading is
///   an alternative;
/// - *unknown* when nobody says enough.
pub fn identify(name: Option<&CheckpointName>, contents: Option<&Contents>) -> (Identity, Option<Timestamp>) {
    let time = name.map(|name| name.time).or_else(|| contents?.checkpointed);
    let said = match contents {
        Some(contents) => Inside::of(contents).join(name),
        None => Inside::default().join(name),
    };
    let identity = Identity {
        owner: said.owner,
        alternatives: said.alternatives.into(),
        pod_uid: contents.and_then(|contents| contents.pod_uid.clone()),
        engine: contents.map(|contents| contents.engine).unwrap_or_default(),
        certainty: said.certainty,
    };
    (identity, time)
}

/// What the inside says.
#[derive(Default)]
struct Inside {
    /// Every reading, the most believed first; without empty ones and without repetition.
    readings: Vec<Owner>,
    /// podman wrote it: there is no namespace and no pod to know.
    podman: bool,
    /// The keys in `spec.dump` say otherwise than the engine's own name, so somebody else wrote them.
    planted: bool,
}

struct Said {
    owner: Owner,
    alternatives: Vec<Owner>,
    certainty: Certainty,
}

impl Inside {
    fn of(contents: &Contents) -> Inside {
        let mut readings = Vec::new();
        let engine_name = contents.engine_name.as_ref();
        let planted = engine_name.is_some_and(|name| !agree(name, &contents.keys));
        let all = [engine_name, Some(&contents.keys).filter(|_| !planted), contents.labels.as_ref()];
        for reading in all.into_iter().flatten() {
            if *reading != Owner::default() && !readings.contains(reading) {
                readings.push(reading.clone());
            }
        }
        Inside { readings, podman: contents.engine == Engine::Podman && engine_name.is_none(), planted }
    }

    fn join(self, name: Option<&CheckpointName>) -> Said {
        let planted = self.planted;
        let said = self.join_undisputed(name);
        if planted { Said { certainty: Certainty::Ambiguous, ..said } } else { said }
    }

    fn join_undisputed(self, name: Option<&CheckpointName>) -> Said {
        let named: Vec<Owner> = name.into_iter().flat_map(CheckpointName::owners).collect();
        let Some(owner) = self.agreed() else { return self.contradicted(named) };
        if owner == Owner::default() {
            return by_name(named);
        }
        if self.podman {
            // The name speaks of a pod, the inside of none.
            return if named.is_empty() { exact(owner) } else { ambiguous(owner, named) };
        }
        let whole = owner.namespace.is_some() && owner.pod.is_some() && owner.container.is_some();
        let possible: Vec<Owner> = named.iter().filter(|named| agree(named, &owner)).cloned().collect();
        match (whole, named.is_empty(), possible.is_empty()) {
            (true, true, _) | (true, _, false) => exact(owner),
            (_, false, true) => ambiguous(owner, named),
            (false, _, false) => by_name(possible),
            (false, true, _) => Said { owner, alternatives: Vec::new(), certainty: Certainty::Unknown },
        }
    }

    /// All readings in one, each filling what the ones before leave open; `None` when two contradict each other.
    fn agreed(&self) -> Option<Owner> {
        self.readings.iter().try_fold(Owner::default(), |so_far, reading| {
            agree(&so_far, reading).then(|| Owner {
                namespace: so_far.namespace.or_else(|| reading.namespace.clone()),
                pod: so_far.pod.or_else(|| reading.pod.clone()),
                container: so_far.container.or_else(|| reading.container.clone()),
            })
        })
    }

    fn contradicted(self, named: Vec<Owner>) -> Said {
        let supported = named.iter().any(|named| self.readings.contains(named));
        let mut readings = self.readings.into_iter();
        let owner = readings.next().unwrap_or_default();
        // A name that supports one of the readings adds none.
        ambiguous(owner, readings.chain(if supported { Vec::new() } else { named }).collect())
    }
}

/// Whether two readings can be of one owner: no part is said differently.
fn agree(one: &Owner, other: &Owner) -> bool {
    let same = |pair| matches!(pair, (Some(a), Some(b)) if a == b) || matches!(pair, (None, _) | (_, None));
    same((one.namespace.as_deref(), other.namespace.as_deref()))
        && same((one.pod.as_deref(), other.pod.as_deref()))
        && same((one.container.as_deref(), other.container.as_deref()))
}

fn exact(owner: Owner) -> Said {
    Said { owner, alternatives: Vec::new(), certainty: Certainty::Exact }
}

fn ambiguous(owner: Owner, mut alternatives: Vec<Owner>) -> Said {
    alternatives.retain(|alternative| *alternative != owner);
    Said { owner, alternatives, certainty: Certainty::Ambiguous }
}

fn by_name(named: Vec<Owner>) -> Said {
    let mut readings = named.into_iter();
    match readings.next() {
        Some(owner) => Said { owner, alternatives: readings.collect(), certainty: Certainty::NameOnly },
        None => Said { owner: Owner::default(), alternatives: Vec::new(), certainty: Certainty::Unknown },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Kind;
    use crate::observe::archive::End;

    /// `namespace/pod/container`, `?` for what is not known.
    fn owner(text: &str) -> Owner {
        let part = |part: &str| (part != "?").then(|| part.into());
        let mut parts = text.split('/').map(part);
        let mut next = || parts.next().expect("three parts");
        Owner { namespace: next(), pod: next(), container: next() }
    }

    fn inside(engine: Engine, keys: &str, engine_name: Option<&str>) -> Contents {
        Contents {
            engine,
            keys: owner(keys),
            engine_name: engine_name.map(owner),
            labels: None,
            pod_uid: None,
            created: None,
            checkpointed: Some(Timestamp::from_second(1_796_024_792).unwrap()),
            end: End::Marker,
            has_config: true,
            has_spec: true,
            has_images: true,
            has_dumps: true,
            has_parent: false,
            pre_checkpoint: false,
            bytes_read: 0,
            headers: 0,
        }
    }

    fn name(between: &str) -> CheckpointName {
        let name = format!("checkpoint-web_{between}-2026-11-30T07:46:29Z.tar");
        CheckpointName::parse(name.as_ref(), Kind::Archive).expect("the kubelet's form")
    }

    /// `certainty: owner | alternative | …`
    #[track_caller]
    fn check(named: Option<&str>, contents: Option<Contents>, expect: &str) {
        let identity = identify(named.map(name).as_ref(), contents.as_ref()).0;
        let readings: Vec<_> = identity.readings().map(Owner::to_string).collect();
        assert_eq!(format!("{}: {}", identity.certainty.as_str(), readings.join(" | ")), expect);
    }

    const CONTAINERD: Engine = Engine::Containerd;

    #[test]
    fn witnesses_that_agree_are_exact() {
        let both = || inside(CONTAINERD, "team-a/web/main", Some("team-a/web/main"));
        check(None, Some(both()), "exact: team-a/web/main");
        check(Some("team-a-main"), Some(both()), "exact: team-a/web/main");
        check(
            Some("team-a-main"),
            Some(inside(CONTAINERD, "team-a/web/main", None)),
            "exact: team-a/web/main",
        );
        check(
            None,
            Some(inside(Engine::Unknown, "?/?/?", Some("team-a/web/main"))),
            "exact: team-a/web/main",
        );
        check(
            None,
            Some(inside(CONTAINERD, "team-a/web/?", Some("team-a/web/main"))),
            "exact: team-a/web/main",
        );
        check(None, Some(inside(Engine::Podman, "?/?/counter", None)), "exact: ?/?/counter");
    }

    #[test]
    fn a_name_alone_gives_all_its_readings() {
        check(Some("team-a-main"), None, "name-only: team/web/a-main | team-a/web/main");
        check(Some("team-main"), None, "name-only: team/web/main");
        let silent = inside(Engine::Unknown, "?/?/?", None);
        check(Some("team-main"), Some(silent.clone()), "name-only: team/web/main");
        check(None, Some(silent), "unknown: ?/?/?");
        check(None, None, "unknown: ?/?/?");
    }

    #[test]
    fn a_partial_inside_narrows_the_name_down() {
        let partial = || inside(CONTAINERD, "team-a/?/?", None);
        check(Some("team-a-main"), Some(partial()), "name-only: team-a/web/main");
        check(None, Some(partial()), "unknown: team-a/?/?");
        check(Some("ci-main"), Some(partial()), "ambiguous: team-a/?/? | ci/web/main");
    }

    #[test]
    fn a_false_name_wins_nothing_but_an_alternative() {
        let tenant = || inside(CONTAINERD, "tenant/web/main", Some("tenant/web/main"));
        check(Some("forensics-main"), Some(tenant()), "ambiguous: tenant/web/main | forensics/web/main");
        let podman = inside(Engine::Podman, "?/?/main", None);
        check(Some("forensics-main"), Some(podman), "ambiguous: ?/?/main | forensics/web/main");
    }

    #[test]
    fn annotations_passed_through_by_containerd_lose_against_the_engines_name_and_protect_nothing() {
        let planted = |engine, keys| inside(engine, keys, Some("tenant/web/main"));
        let crio = || planted(Engine::CriO, "kube-system/coredns/coredns");
        check(Some("tenant-main"), Some(crio()), "ambiguous: tenant/web/main");
        check(None, Some(crio()), "ambiguous: tenant/web/main");
        check(Some("ci-main"), Some(crio()), "ambiguous: tenant/web/main | ci/web/main");
        let podman = planted(Engine::Podman, "?/?/main_web_tenant_u-1_0");
        check(Some("tenant-main"), Some(podman), "ambiguous: tenant/web/main");
    }

    #[test]
    fn the_time_is_the_names_then_the_archives() {
        let contents = || inside(CONTAINERD, "team/web/main", None);
        let seconds = |named: Option<&str>, contents: Option<Contents>| {
            identify(named.map(name).as_ref(), contents.as_ref()).1.map(Timestamp::as_second)
        };
        assert_eq!(seconds(Some("team-main"), Some(contents())), Some(1_796_024_789));
        assert_eq!(seconds(None, Some(contents())), Some(1_796_024_792));
        assert_eq!(seconds(None, None), None);
    }

    #[test]
    fn two_of_three_things_inside_make_a_checkpoint() {
        for (config, spec, images, expect) in [
            (true, true, false, true),
            (true, false, true, true),
            (false, true, true, true),
            (true, false, false, false),
            (false, false, true, false),
            (false, false, false, false),
        ] {
            let mut contents = inside(CONTAINERD, "team/web/main", None);
            (contents.has_config, contents.has_spec, contents.has_images) = (config, spec, images);
            assert_eq!(is_checkpoint(None, Some(&contents)), expect);
            assert!(is_checkpoint(Some(&name("team-main")), Some(&contents)));
        }
    }
}
