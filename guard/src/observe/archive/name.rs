//! [`CheckpointName`]: what a file or directory name says.

use std::ffi::OsStr;
use std::sync::Arc;

use jiff::Timestamp;

use super::label::{is_dns_label, is_dns_subdomain};
use crate::model::{Kind, Owner};

/// The name that the kubelet gives a checkpoint, taken apart.
///
/// Archive: `checkpoint-<pod>_<namespace>-<container>-<RFC3339>.tar` (kubelet: `CheckpointContainer`,
/// pkg/kubelet/kubelet.go). Pod checkpoint (KEP-5823): `checkpoint-<pod>_<namespace>-<RFC3339>`, perhaps with
/// `-<digits>` behind. A pod name has no `_` and a label no `T`, so pod and time are exact; where the namespace
/// ends is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointName {
    /// The pod's name.
    pub pod: Arc<str>,
    /// Every legal reading of what stands between pod and time, the shortest namespace first; never empty.
    pub splits: Vec<Split>,
    /// The time in the name: whole seconds, when the kubelet asked for the checkpoint.
    pub time: Timestamp,
}

/// One reading of `<namespace>-<container>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The container; `None` for a pod checkpoint.
    pub container: Option<Arc<str>>,
}

impl CheckpointName {
    /// Takes `name` apart; `None` when it is not of the kubelet's form, whatever bytes it holds.
    pub fn parse(name: &OsStr, kind: Kind) -> Option<CheckpointName> {
        let rest = name.to_str()?.strip_prefix("checkpoint-")?;
        let (pod, rest) = rest.split_once('_')?;
        if !is_dns_subdomain(pod) {
            return None;
        }
        let (between, time) = match kind {
            Kind::Archive => split_time(rest.strip_suffix(".tar")?)?,
            Kind::PodCheckpoint => split_time(rest).or_else(|| split_time(without_counter(rest)?))?,
        };
        let splits = match kind {
            Kind::Archive => namespace_and_container(between),
            Kind::PodCheckpoint => namespace(between).into_iter().collect(),
        };
        (!splits.is_empty()).then(|| CheckpointName { pod: pod.into(), splits, time })
    }

    /// Every owner that the name allows.
    pub fn owners(&self) -> impl Iterator<Item = Owner> + '_ {
        self.splits.iter().map(|split| Owner {
            namespace: Some(split.namespace.clone()),
            pod: Some(self.pod.clone()),
            container: split.container.clone(),
        })
    }
}

/// `<between>-<time>`; the time is `2026-11-30T07:46:14Z` or `2026-11-30T09:46:14+02:00`.
fn split_time(text: &str) -> Option<(&str, Timestamp)> {
    let shapes: [&[u8]; 3] =
        [b"0000-00-00T00:00:00Z", b"0000-00-00T00:00:00+00:00", b"0000-00-00T00:00:00-00:00"];
    shapes.iter().find_map(|shape| {
        let (between, time) = text.split_at_checked(text.len().checked_sub(shape.len())?)?;
        let alike =
            |(byte, like): (u8, &u8)| if *like == b'0' { byte.is_ascii_digit() } else { byte == *like };
        let has_shape = time.bytes().zip(*shape).all(alike);
        // The shape holds back what jiff accepts beyond RFC 3339.
        has_shape.then_some(())?;
        Some((between.strip_suffix('-')?, time.parse().ok()?))
    })
}

/// `text` without a `-<digits>` at its end.
fn without_counter(text: &str) -> Option<&str> {
    let (front, digits) = text.rsplit_once('-')?;
    let counter = (1..=10).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    counter.then_some(front)
}

fn namespace_and_container(text: &str) -> Vec<Split> {
    let legal = |(at, _): (usize, &str)| {
        let (namespace, container) = (&text[..at], &text[at + 1..]);
        (is_dns_label(namespace) && is_dns_label(container))
            .then(|| Split { namespace: namespace.into(), container: Some(container.into()) })
    };
    text.match_indices('-').filter_map(legal).collect()
}

fn namespace(text: &str) -> Option<Split> {
    is_dns_label(text).then(|| Split { namespace: text.into(), container: None })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    /// `pod namespace/container|namespace/container time`, or nothing.
    #[track_caller]
    fn check(name: &str, kind: Kind, expect: Option<&str>) {
        let said = CheckpointName::parse(OsStr::new(name), kind).map(|parsed| {
            let splits: Vec<_> = parsed
                .splits
                .iter()
                .map(|split| format!("{}/{}", split.namespace, split.container.as_deref().unwrap_or("-")))
                .collect();
            format!("{} {} {}", parsed.pod, splits.join("|"), parsed.time)
        });
        assert_eq!(said.as_deref(), expect, "{name:?}");
    }

    #[test]
    fn the_kubelets_archive_names_are_understood() {
        let check = |name, expect| check(name, Kind::Archive, Some(expect));
        check(
            "checkpoint-counters_default-counter-2026-11-30T07:46:11Z.tar",
            "counters default/counter 2026-11-30T07:46:11Z",
        );
        check(
            "checkpoint-coredns-5d78c9869d-4xk2p_kube-system-coredns-2026-11-30T07:46:14Z.tar",
            "coredns-5d78c9869d-4xk2p kube/system-coredns|kube-system/coredns 2026-11-30T07:46:14Z",
        );
        check(
            "checkpoint-web.v1-0_team-a-side-car-2026-11-30T07:46:29Z.tar",
            "web.v1-0 team/a-side-car|team-a/side-car|team-a-side/car 2026-11-30T07:46:29Z",
        );
        // Two dashes in a row belong to one label, they do not end it.
        check("checkpoint-p_a--b-c-2026-11-30T07:46:29Z.tar", "p a--b/c 2026-11-30T07:46:29Z");
        // A container that looks like a date.
        check(
            "checkpoint-p_n-2026-11-30-2026-11-30T07:46:29Z.tar",
            "p n/2026-11-30|n-2026/11-30|n-2026-11/30 2026-11-30T07:46:29Z",
        );
        let pod = "a".repeat(200);
        check(
            &format!("checkpoint-{pod}_n-c-2026-11-30T07:46:29Z.tar"),
            &format!("{pod} n/c 2026-11-30T07:46:29Z"),
        );
    }

    #[test]
    fn case_02_times_are_instants_whatever_their_zone() {
        let at = |time: &str| {
            let name = format!("checkpoint-p_n-c-{time}.tar");
            CheckpointName::parse(OsStr::new(&name), Kind::Archive).expect("the kubelet's form").time
        };
        assert_eq!(at("2026-10-25T02:30:00+02:00"), at("2026-10-25T00:30:00Z"));
        assert!(at("2026-10-25T02:30:00+02:00") < at("2026-10-25T02:10:00+01:00"), "by instant, not by text");
        assert_eq!(at("2026-10-25T00:30:00-05:30"), at("2026-10-25T06:00:00Z"));
    }

    #[test]
    fn pod_checkpoint_directories_are_understood() {
        let check = |name, expect| check(name, Kind::PodCheckpoint, expect);
        check("checkpoint-web_team-2026-01-01T00:00:00Z", Some("web team/- 2026-01-01T00:00:00Z"));
        check("checkpoint-web_team-2026-01-01T00:00:00Z-12", Some("web team/- 2026-01-01T00:00:00Z"));
        check("checkpoint-web_team-a-2026-01-01T02:00:00+02:00-1", Some("web team-a/- 2026-01-01T00:00:00Z"));
        check("checkpoint-web_team-2025-12-31T22:00:00-02:00", Some("web team/- 2026-01-01T00:00:00Z"));
        check("checkpoint-web_team-2026-01-01T00:00:00Z-", None);
        check("checkpoint-web_team-2026-01-01T00:00:00Z-x", None);
        check("checkpoint-web_team-2026-01-01T00:00:00Z-12345678901", None);
        check("checkpoint-web_team-2026-01-01T00:00:00Z.tar", None);
        check("checkpoint-web_-2026-01-01T00:00:00Z", None);
        check(".evicting-12", None);
    }

    #[test]
    fn other_names_are_nobodys() {
        for name in [
            "",
            "checkpoint-",
            "checkpoint-.tar",
            "notes.txt",
            "checkpoint-p_n-c-2026-11-30T07:46:29Z.tar.keep",
            "checkpoint-p_n-c-2026-11-30T07:46:29Z.tar.gz",
            "checkpoint-p_n-c-2026-11-30T07:46:29Z",
            "Checkpoint-p_n-c-2026-11-30T07:46:29Z.tar",
            "checkpoint-P_n-c-2026-11-30T07:46:29Z.tar",
            "checkpoint-_n-c-2026-11-30T07:46:29Z.tar",
            "checkpoint-p_nc-2026-11-30T07:46:29Z.tar",
            "checkpoint-p_n_x-c-2026-11-30T07:46:29Z.tar",
            "checkpoint-p_n-c2026-11-30T07:46:29Z.tar",
            "checkpoint-p_n-c-2026-11-30 07:46:29Z.tar",
            "checkpoint-p_n-c-2026-11-30T07:46:29.5Z.tar",
            "checkpoint-p_n-c-2026-11-30t07:46:29z.tar",
            "checkpoint-p_n-c-2026-13-30T07:46:29Z.tar",
            "checkpoint-p_n-c-2026-11-30T07:46:29+99:00.tar",
            "checkpoint-p_n-c-2026-11-30T07:46:29+0200.tar",
            "checkpoint-p_n-c-١٢٣٤-11-30T07:46:29Z.tar",
            "checkpoint-p/../q_n-c-2026-11-30T07:46:29Z.tar",
        ] {
            check(name, Kind::Archive, None);
        }
    }

    #[test]
    fn names_of_255_bytes_and_invalid_utf8_are_handled() {
        let name =
            format!("checkpoint-{}_n-{}-2026-11-30T07:46:29Z.tar", "p".repeat(199), "a-".repeat(8) + "b");
        assert_eq!(name.len(), 255);
        assert_eq!(CheckpointName::parse(OsStr::new(&name), Kind::Archive).unwrap().splits.len(), 9);
        let invalid = OsStr::from_bytes(b"checkpoint-p\xff_n-c-2026-11-30T07:46:29Z.tar");
        assert_eq!(CheckpointName::parse(invalid, Kind::Archive), None);
        assert_eq!(CheckpointName::parse(OsStr::from_bytes(&[0xff; 255]), Kind::PodCheckpoint), None);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(0u8.., 0..256)) {
            for kind in [Kind::Archive, Kind::PodCheckpoint] {
                CheckpointName::parse(OsStr::from_bytes(&bytes), kind);
            }
        }

        #[test]
        fn what_the_kubelet_writes_is_among_the_readings(
            pod in "[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?",
            namespace in "[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?",
            container in "[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?",
            second in 0i64..4_102_444_800,
        ) {
            proptest::prop_assume!(is_dns_subdomain(&pod));
            let time = Timestamp::from_second(second).unwrap();
            let name = format!("checkpoint-{pod}_{namespace}-{container}-{time}.tar");
            let parsed = CheckpointName::parse(OsStr::new(&name), Kind::Archive).unwrap();
            proptest::prop_assert_eq!(parsed.time, time);
            proptest::prop_assert!(parsed.owners().any(|owner| owner == Owner::new(&namespace, &pod, &container)));
        }
    }
}
