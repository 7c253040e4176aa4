//! `import-operator`: what a CheckpointRestoreOperator says, in our words.

use std::path::Path;

use guard::config::{ConfigFile, import_operator};
use guard::model::{Bytes, Max, Owner};

const RESOURCE: &str = include_str!("../fixtures/config/operator.yaml");
const IMPORTED: &str = include_str!("../fixtures/config/operator.toml");

fn import(spec: &str) -> String {
    let yaml = format!("kind: CheckpointRestoreOperator\nmetadata: {{name: it}}\nspec:\n{spec}");
    import_operator(&yaml).unwrap_or_else(|error| panic!("{error}"))
}

fn parse(toml: &str) -> ConfigFile {
    ConfigFile::parse(toml, Path::new("imported.toml"))
        .unwrap_or_else(|problems| panic!("{problems}\n{toml}"))
}

#[test]
fn a_resource_becomes_our_toml_with_comments_for_what_differs() {
    let imported = import_operator(RESOURCE).unwrap();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write("fixtures/config/operator.toml", &imported).unwrap();
    }
    assert_eq!(imported, IMPORTED, "run with BLESS=1 and read the difference when this is meant");
}

#[test]
fn what_is_imported_passes_our_own_loader_and_means_the_same() {
    let rules = parse(IMPORTED).effective(None).unwrap().policy.retention;
    let owner = Owner::new("shop", "web-0", "nginx");
    let matching: Vec<_> = rules.iter().filter(|rule| rule.owner.matches(&owner)).collect();
    assert_eq!(matching.len(), 3, "the general, the pod's and the container's");
    let own = matching[2];
    assert_eq!(own.max_count.container, Some(Max::At(5)));
    assert_eq!(own.max_size, Some(Max::At(Bytes::mib(1536))));
    assert_eq!(own.retain_orphans, Some(false));
    // What the pod and the namespace may hold as a whole is not the container's to say, and a comment tells.
    assert_eq!((own.max_count.pod, own.max_count.namespace), (None, None));
    assert!(IMPORTED.contains("stays in force and counts these too"));
    assert_eq!(own.max_age, None);
}

#[test]
fn limits_that_were_not_set_are_the_operators_defaults() {
    let rules = parse(&import("  checkpointDirectory: /srv/checkpoints\n")).effective(None).unwrap();
    assert_eq!(rules.directories[0].path, Path::new("/srv/checkpoints"));
    let general = &rules.policy.retention[0];
    assert_eq!(general.max_count.container, Some(Max::At(10)));
    assert_eq!(general.max_count.pod, Some(Max::At(20)));
    assert_eq!(general.max_count.namespace, Some(Max::At(30)));
    assert_eq!(general.retain_orphans, Some(true));
}

#[test]
fn a_zero_which_switches_the_operator_off_does_not_delete_everything_here() {
    let toml = import(
        "  globalPolicy: {maxCheckpointsPerPod: 0, maxTotalSizePerPod: 5Gi, maxCheckpointsPerContainer: -1}\n",
    );
    let rule = &parse(&toml).effective(None).unwrap().policy.retention[0];
    assert_eq!(rule.max_count.pod, None);
    assert_eq!(rule.max_total_size.pod, None, "the operator skips the whole level");
    assert_eq!(rule.max_count.container, Some(Max::At(10)), "a negative count leaves the default");
}

#[test]
fn the_output_of_kubectl_get_is_understood() {
    let list = "apiVersion: v1\nkind: List\nitems:\n- kind: CheckpointRestoreOperator\n  metadata: {name: a}\n  spec: {}\n";
    parse(&import_operator(list).unwrap());
    let json = r#"{"kind":"CheckpointRestoreOperator","spec":{"globalPolicy":{"maxCheckpointSize":"1Gi"}}}"#;
    let rule = &parse(&import_operator(json).unwrap()).effective(None).unwrap().policy.retention[0];
    assert_eq!(rule.max_size, Some(Max::At(Bytes::gib(1))));
}

#[test]
fn what_is_no_such_resource_is_refused_for_its_own_reason() {
    let one = "kind: CheckpointRestoreOperator\nmetadata: {name: a}\nspec: {}\n";
    for (yaml, expect) in [
        ("a: [\n", "not YAML"),
        ("kind: Pod\n", "found: Pod"),
        (&format!("{one}---\n{one}") as &str, "several resources"),
        ("kind: CheckpointRestoreOperator\nspec: {globalPolicy: {maxCheckpointsPerPod: many}}\n", "\"many\""),
        (
            "kind: CheckpointRestoreOperator\nspec: {globalPolicy: {maxCheckpointSize: 10%}}\n",
            "maxCheckpointSize",
        ),
    ] {
        let error = import_operator(yaml).unwrap_err().to_string();
        assert!(error.contains(expect), "{yaml:?}: {error}");
    }
}
