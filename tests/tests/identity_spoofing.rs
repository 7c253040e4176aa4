//! What a container's owner can write about himself gains him nothing at anybody's expense.
//!
//! Each attack is compared with the same archives told honestly: nobody else's checkpoint may be deleted that honesty would
//! have spared, whatever has to be freed.

use std::collections::BTreeSet;
use std::path::Path;

use guard::config::ConfigFile;
use guard::decide::{Request, plan, protection, retention};
use guard::model::{Bytes, Checkpoint, Inventory, Level, Need, Plan, Policy, Trigger};
use guard::observe::archive::{Limits, read};
use guard::observe::catalog::{Catalog, Holds, Reading};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tests::forged::Forged;

const POLICY: &str = r#"
[[directory]]
path = "/checkpoints"
[pressure]
kubelet-config = false
[eviction]
min-age = "0s"
[protection]
namespaces = { kube-system = 90, forensics = 100 }
[[retention]]
namespace = "*"
max-count = { container = 4, namespace = 4 }
max-total-size.namespace = "500KiB"
"#;

const ATTACKER: [&str; 3] = ["tenant", "web", "main"];
const OTHERS: [[&str; 3]; 4] = [
    ["kube-system", "coredns", "coredns"],
    ["team", "app", "main"],
    ["forensics", "evidence", "disk"],
    ["team-tenant", "web", "main"],
];

fn policy() -> Policy {
    ConfigFile::parse(POLICY, Path::new("guard.toml")).unwrap().effective(None).unwrap().policy
}

fn hour(hour: i64) -> Timestamp {
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_hours(hour)
}

/// What the guard sees when the attacker's six archives lie among those of everybody else.
fn inventory(attack: &dyn Fn(Forged, i64) -> Forged) -> Inventory {
    let directory = tempfile::tempdir().unwrap();
    for (place, owner) in OTHERS.into_iter().enumerate() {
        for made in 0..4 {
            // The attacker's are older and newer than each of these.
            let at = hour(made * 10 + place as i64 + 1);
            Forged::honest(owner, at).write_in(directory.path()).unwrap();
        }
    }
    for made in 0..6 {
        attack(Forged::honest(ATTACKER, hour(made * 8)), made).write_in(directory.path()).unwrap();
    }
    let dir = std::fs::File::open(directory.path()).unwrap();
    let mut catalog = Catalog::new(vec![directory.path().to_owned()]);
    use std::os::fd::AsFd;
    catalog.scan(0, dir.as_fd(), Holds::Archives).unwrap();
    for request in catalog.wanted(usize::MAX) {
        let file = std::fs::File::open(directory.path().join(&request.name)).unwrap();
        let contents = read(&file, &Limits::DEFAULT).unwrap();
        catalog.answer((request, Reading::Contents(Box::new(contents))));
    }
    assert!(!catalog.has_unread());
    catalog.inventory().clone()
}

/// Those of others that a plan deletes, and how many of the attacker's are left.
type Outcome = (BTreeSet<String>, usize);

/// What the attacker's checkpoints take in all.
fn taken(inventory: &Inventory) -> Bytes {
    let his = inventory.checkpoints.iter().filter(|it| it.name.to_string_lossy().contains("web_tenant-"));
    his.map(|checkpoint| checkpoint.allocated).sum()
}

fn outcome(inventory: &Inventory, plan: &Plan) -> Outcome {
    let is_others = |name: &str| !name.starts_with("checkpoint-web_tenant-") && !name.contains("attack");
    let names: Vec<_> = inventory
        .checkpoints
        .iter()
        .map(|checkpoint| checkpoint.name.to_string_lossy().into_owned())
        .collect();
    let gone: Vec<_> = plan.victims.iter().map(|victim| names[victim.index as usize].clone()).collect();
    let kept = names.iter().filter(|name| !is_others(name) && !gone.contains(name)).count();
    (gone.into_iter().filter(|name| is_others(name)).collect(), kept)
}

/// Every decision there is: retention, and plans for every need there could be.
fn decisions(inventory: &Inventory) -> Vec<Outcome> {
    let (policy, now) = (policy(), hour(1000));
    let mut decisions = vec![outcome(inventory, &retention(inventory, &policy, now))];
    for level in [Level::Hard, Level::Critical] {
        for count in 1..=inventory.checkpoints.len() as u64 {
            let need = Need { bytes: Bytes((count * 70) << 10), inodes: 0 };
            let request = Request { need, trigger: Trigger::Pressure(level) };
            decisions.push(outcome(inventory, &plan(inventory, &request, &policy, now)));
        }
    }
    decisions
}

#[track_caller]
fn check(what: &str, attack: &dyn Fn(Forged, i64) -> Forged) {
    let (honest, attacked) = (inventory(&|forged, _| forged), inventory(attack));
    // Larger ones free more, so fewer of his go; nobody else pays for that.
    let same_size = taken(&honest) == taken(&attacked);
    let (honest, attacked) = (decisions(&honest), decisions(&attacked));
    for (step, ((others, kept), (others_honestly, kept_honestly))) in attacked.iter().zip(&honest).enumerate()
    {
        let condemned: Vec<_> = others.difference(others_honestly).collect();
        assert!(condemned.is_empty(), "{what}, step {step}: it gets {condemned:?} deleted");
        assert!(
            kept <= kept_honestly || !same_size,
            "{what}, step {step}: it keeps {kept}, honestly {kept_honestly}"
        );
    }
}

fn labels(namespace: &str, pod: &str, container: &str) -> Value {
    json!({
        "io.kubernetes.pod.namespace": namespace,
        "io.kubernetes.pod.name": pod,
        "io.kubernetes.container.name": container,
    })
}

#[test]
fn annotations_that_a_tenant_plants_gain_nothing() {
    let system = || labels("kube-system", "coredns", "coredns");
    let crio = |owner: Value| json!({"io.container.manager": "cri-o", "io.kubernetes.cri-o.Labels": owner.to_string()});
    let table = [
        ("the flat keys of another engine", system()),
        (
            "checkpointctl's keys",
            json!({
                "org.criu.checkpoint.pod.namespace": "forensics",
                "org.criu.checkpoint.pod.name": "evidence",
                "org.criu.checkpoint.container.name": "disk",
            }),
        ),
        ("another engine, protected", crio(system())),
        ("another engine, never evicted", crio(labels("forensics", "evidence", "disk"))),
        ("another engine, somebody's quota", crio(labels("team", "app", "main"))),
        ("another engine, another pod of his own", crio(labels("tenant", "other", "main"))),
        ("an engine without namespaces", json!({"io.container.manager": "libpod"})),
        ("an engine that nobody knows", json!({"io.container.manager": "../../etc"})),
        (
            "another namespace in the engine's own keys",
            json!({"io.kubernetes.cri.sandbox-namespace": "forensics"}),
        ),
        ("names that cannot be names", json!({"io.kubernetes.cri.sandbox-namespace": "kube-system\n"})),
        (
            "no annotation at all",
            json!({
                "io.kubernetes.cri.sandbox-namespace": null,
                "io.kubernetes.cri.sandbox-name": null,
                "io.kubernetes.cri.container-name": null,
            }),
        ),
        ("a value that is no text", json!({"io.kubernetes.cri.sandbox-namespace": ["forensics"]})),
        ("more than is read", json!({"x": "y".repeat(2 << 20)})),
    ];
    for (what, planted) in table {
        check(what, &|forged, _| forged.planting(planted.clone()));
        // Some of them only: the others of his own must not live longer for it either.
        check(what, &|forged, made| if made % 2 == 0 { forged.planting(planted.clone()) } else { forged });
        check(what, &|forged, made| if made == 5 { forged.planting(planted.clone()) } else { forged });
    }
}

#[test]
fn memory_that_looks_like_an_archive_gains_nothing() {
    // Process memory is the tenant's: the walk must not take it for headers.
    let inner = Forged::honest(OTHERS[0], hour(999)).bytes();
    check("a tar in the memory pages", &|forged, _| Forged { pages: inner.clone(), ..forged });
    let end = [vec![0; 2048], inner.clone()].concat();
    check("an end marker in the memory pages", &|forged, _| Forged { pages: end.clone(), ..forged });
}

/// What docs/SECURITY.md says of an owner with so many processes that the guard does not get to what says whose they are.
#[test]
fn more_images_than_are_read_leave_the_name_with_all_its_readings_and_no_more() {
    let flooded = |images| {
        inventory(&|forged, _| Forged {
            owner: ["kube", "web", "system-attack"].map(str::to_owned),
            annotations: labels("forensics", "evidence", "disk"),
            images,
            ..forged
        })
    };
    let told = |inventory: &Inventory| -> BTreeSet<(&str, u8)> {
        let his = inventory.checkpoints.iter().filter(|it| it.name.to_string_lossy().contains("attack"));
        let protection = |it: &Checkpoint| {
            protection::of_readings(&policy().protection, it.identity.readings()).protection
        };
        his.map(|it| (it.identity.certainty.as_str(), protection(it).get())).collect()
    };
    let known = flooded(Limits::DEFAULT.headers - 5);
    let unknown = flooded(Limits::DEFAULT.headers);
    assert_eq!(told(&known), [("exact", policy().protection.default.get())].into());
    // Of the best protected namespace that the name may mean, and not of one that he chooses freely.
    assert_eq!(told(&unknown), [("name-only", 90)].into());
    // Retention takes nothing from anybody for it.
    let (now, policy) = (hour(1000), policy());
    let condemned = |inventory: &Inventory| outcome(inventory, &retention(inventory, &policy, now)).0;
    assert_eq!(condemned(&unknown), condemned(&known));
}

/// Whoever can rename in the directory is root already, and could pin or delete. Still, a lie in a name costs nobody his
/// quota, and supersedes nothing.
#[test]
fn a_lie_in_the_file_name_protects_itself_and_condemns_nobody() {
    let honest = inventory(&|forged, _| forged);
    let (now, policy) = (hour(1000), policy());
    let (others_honestly, _) = outcome(&honest, &retention(&honest, &policy, now));
    for owner in OTHERS {
        let [namespace, pod, container] = owner;
        let lied = inventory(&|forged, made| {
            let at = hour(900 + made);
            let name =
                format!("checkpoint-{pod}_{namespace}-{container}-{}.tar", at.strftime("%Y-%m-%dT%H:%M:%SZ"));
            Forged { name: Some(name), ..forged }
        });
        let plan = retention(&lied, &policy, now);
        let gone: BTreeSet<_> = plan
            .victims
            .iter()
            .map(|victim| &lied.checkpoints[victim.index as usize])
            .filter(|checkpoint| checkpoint.identity.owner.namespace.as_deref() != Some("tenant"))
            .map(|checkpoint| checkpoint.name.to_string_lossy().into_owned())
            .collect();
        assert_eq!(gone, others_honestly, "{namespace}");
    }
}
