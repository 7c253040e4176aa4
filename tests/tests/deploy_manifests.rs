//! deploy/kubernetes and deploy/systemd against the configurations that they bring along: what a guard.toml names must be
//! there, writable, and seen when it is mounted later.
//!
//! What a green run does not prove: that a kubelet, a container runtime or systemd does what these files ask for.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use guard::config::{ConfigFile, Layout};
use serde_json::Value;

const POOLS: [&str; 4] = ["general", "gpu", "edge", "forensics"];
const POOL_LABEL: &str = "checkpoint-guard.io/pool";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error} in\n{text}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Where a pool's guard.toml lies: the general nodes have that of the base.
fn config_path(pool: &str) -> String {
    match pool {
        "general" => "deploy/kubernetes/base/guard.toml".to_owned(),
        _ => format!("deploy/kubernetes/overlays/{pool}/guard.toml"),
    }
}

fn config(path: &str) -> ConfigFile {
    ConfigFile::parse(&read(path), Path::new(path)).unwrap_or_else(|problems| panic!("{problems}"))
}

/// The base's pod with what the overlay of `pool` adds, in the order of kustomize: the base first.
fn pods(pool: &str) -> [Value; 2] {
    let paths =
        ["deploy/kubernetes/base/daemonset.yaml", &format!("deploy/kubernetes/overlays/{pool}/nodes.yaml")];
    paths.map(|path| yaml(&read(path))["spec"]["template"]["spec"].clone())
}

fn container(pod: &Value) -> &Value {
    &pod["containers"][0]
}

/// A directory of the node in the container.
#[derive(Debug)]
struct Mount {
    path: PathBuf,
    writable: bool,
}

/// The host paths that `pods` mount, each at its own path and so that later mounts beneath it are seen.
fn mounts(pods: &[Value]) -> Vec<Mount> {
    let volumes = || pods.iter().flat_map(|pod| list(&pod["volumes"]));
    let mounted = pods.iter().flat_map(|pod| list(&container(pod)["volumeMounts"]));
    mounted
        .filter_map(|mount| {
            assert!(mount["subPath"].is_null(), "a subPath never sees an update: {mount}");
            let volume =
                volumes().find(|volume| volume["name"] == mount["name"] && !volume["name"].is_null())?;
            let host = volume["hostPath"]["path"].as_str()?;
            assert_eq!(mount["mountPath"], host, "guard.toml names the node's paths");
            let writable = mount["readOnly"] != true;
            // The guard's own: nobody mounts anything there later.
            if !["/var/log/checkpoint-guard", "/var/lib/checkpoint-guard"].contains(&host) {
                assert_eq!(mount["mountPropagation"], "HostToContainer", "{host}");
            }
            Some(Mount { path: host.into(), writable })
        })
        .collect()
}

/// That `file` finds in `mounts` whatever it names for `pool`.
fn check(file: &ConfigFile, pool: Option<&str>, mounts: &[Mount]) {
    let config = file.effective(pool).unwrap();
    let has = |path: &Path, write: bool| {
        let found = mounts.iter().any(|mount| path.starts_with(&mount.path) && (mount.writable || !write));
        assert!(found, "{}: {path:?} is not in {mounts:?}", file.path().display());
    };
    for directory in &config.directories {
        has(&directory.path, directory.layout != Layout::Staging);
    }
    has(config.audit.path.as_deref().unwrap(), true);
    has(config.kubernetes.state.as_deref().unwrap(), true);
    let settings = file.settings(pool).unwrap();
    let kubelet = &settings.iter().find(|setting| setting.key == "pressure.kubelet-config").unwrap().value;
    if kubelet != "false" {
        has(Path::new(kubelet.trim_matches('"')), false);
    }
}

/// Distributions whose kubelet has another root directory: a pool of config/edge.toml and a component each.
const ELSEWHERE: [&str; 2] = ["microk8s", "k0s"];

#[test]
fn every_directory_of_a_configuration_is_mounted_where_it_names_it() {
    for pool in POOLS {
        let file = config(&config_path(pool));
        let mounts = mounts(&pods(pool));
        check(&file, None, &mounts);
        for table in file.pools().filter(|table| !ELSEWHERE.contains(table)) {
            check(&file, Some(table), &mounts);
        }
    }
}

#[test]
fn case_47_another_root_directory_of_the_kubelet_is_a_component() {
    ELSEWHERE.iter().for_each(|distribution| check_component(distribution));
}

#[track_caller]
fn check_component(distribution: &str) {
    let component = yaml(&read(&format!("deploy/kubernetes/components/{distribution}/kustomization.yaml")));
    let patch = yaml(component["patches"][0]["patch"].as_str().unwrap());
    let pod = patch["spec"]["template"]["spec"].clone();
    let pool = container(&pod)["env"][0]["value"].as_str().unwrap().to_owned();
    let [mut base, _] = pods("edge");
    // What the patch deletes, and what it redefines.
    let gone = |mount: &Value| mount["name"] == "kubelet";
    base["containers"][0]["volumeMounts"].as_array_mut().unwrap().retain(|mount| !gone(mount));
    base["volumes"].as_array_mut().unwrap().retain(|volume| !gone(volume));
    check(&config(&config_path("edge")), Some(&pool), &mounts(&[base, pod]));
}

#[test]
fn the_configurations_are_the_samples_with_an_address_that_probes_reach() {
    for pool in POOLS {
        let path = config_path(pool);
        let text = read(&path);
        let added = text.strip_prefix(&read(&format!("config/{pool}.toml")));
        let added = added.unwrap_or_else(|| panic!("{path} does not begin with config/{pool}.toml"));
        let tables: Vec<_> = added.lines().filter(|line| line.starts_with('[')).collect();
        assert_eq!(tables, ["[metrics]"], "{path}");
        let listen = config(&path).effective(None).unwrap().metrics.listen.unwrap();
        assert!(listen.ip().is_unspecified(), "{path}: {listen}");
        let [pod, _] = pods(pool);
        assert_eq!(container(&pod)["ports"][0]["containerPort"], listen.port(), "{path}");
        for probe in ["livenessProbe", "readinessProbe"] {
            let port = &container(&pod)[probe]["httpGet"]["port"];
            assert_eq!(port, &container(&pod)["ports"][0]["name"], "{probe}");
        }
    }
}

#[test]
fn every_node_has_exactly_one_guard() {
    let [_, general] = pods("general");
    let terms = &general["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let term = &terms["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!((&term["key"], &term["operator"]), (&POOL_LABEL.into(), &"NotIn".into()));
    let left_to_others: BTreeSet<_> = list(&term["values"]).iter().map(|it| it.as_str().unwrap()).collect();
    let others: BTreeSet<_> = POOLS.into_iter().filter(|pool| *pool != "general").collect();
    assert_eq!(left_to_others, others);
    for pool in others {
        let [_, pod] = pods(pool);
        assert_eq!(pod["nodeSelector"], serde_json::json!({ POOL_LABEL: pool }));
    }
    let base = yaml(&read("deploy/kubernetes/base/daemonset.yaml"));
    let strategy = &base["spec"]["updateStrategy"]["rollingUpdate"];
    // maxSurge would be a second guard on a node.
    assert_eq!(strategy, &serde_json::json!({ "maxUnavailable": 1 }));
}

/// What kustomize makes of `kustomization`; `None`, loudly, where there is no kubectl.
fn build(kustomization: &str) -> Option<Vec<Value>> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("kustomization.yaml"), kustomization).unwrap();
    let output = match Command::new("kubectl").arg("kustomize").arg(directory.path()).output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED kubectl kustomize: {error}");
            return None;
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{kustomization}\n{errors}");
    Some(said.split("\n---").map(yaml).collect())
}

/// deploy/kubernetes as seen from a temporary directory: kustomize takes no absolute paths, but any number of steps up.
fn here() -> String {
    let up = "../".repeat(std::env::temp_dir().canonicalize().unwrap().components().count());
    format!("{up}{}/deploy/kubernetes", root().canonicalize().unwrap().strip_prefix("/").unwrap().display())
}

/// That each guard runs as an account that a binding gives a role.
#[track_caller]
fn check_rights(objects: &[Value]) {
    let of = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    let names = |kind| of(kind).map(|it| &it["metadata"]["name"]).collect::<Vec<_>>();
    assert!(of("DaemonSet").count() > 0);
    for daemonset in of("DaemonSet") {
        let account = &daemonset["spec"]["template"]["spec"]["serviceAccountName"];
        assert!(names("ServiceAccount").contains(&account), "{account}");
        let subject = serde_json::json!([{
            "kind": "ServiceAccount", "name": account, "namespace": daemonset["metadata"]["namespace"],
        }]);
        let bound: Vec<_> = of("ClusterRoleBinding").filter(|it| it["subjects"] == subject).collect();
        assert_eq!(
            bound.len(),
            1,
            "{account} has no rights: {:?}",
            of("ClusterRoleBinding").collect::<Vec<_>>()
        );
        assert!(names("ClusterRole").contains(&&bound[0]["roleRef"]["name"]));
    }
}

#[test]
fn what_else_is_in_a_kustomization_takes_no_rights_from_the_guards() {
    let here = here();
    // What the page of installation shows, from a checkout beside it.
    let page = read("docs/INSTALL.md");
    let example = page.split("```yaml\n").find(|block| block.starts_with("# kustomization.yaml")).unwrap();
    let example = example.split("```").next().unwrap().replace("checkpoint-guard/deploy/kubernetes", &here);
    let Some(objects) = build(&example) else { return };
    check_rights(&objects);
    let images = objects
        .iter()
        .filter(|object| object["kind"] == "DaemonSet")
        .map(|it| container(&it["spec"]["template"]["spec"])["image"].as_str().unwrap().to_owned());
    assert_eq!(images.collect::<Vec<_>>(), ["REGISTRY/checkpoint-guard:0.1.0"; 2]);

    let other = "configMapGenerator: [{name: mine, namespace: kube-system, literals: [a=b]}]";
    for more in [other, "namespace: guards", "namePrefix: our-"] {
        check_rights(
            &build(&format!("resources: [{here}/overlays/gpu, {here}/overlays/edge]\n{more}\n")).unwrap(),
        );
    }
}

#[test]
fn every_overlay_builds_with_every_component() {
    let here = here();
    let added = |kind: &str| match kind {
        "privileged" => ("securityContext", serde_json::json!(true), "/privileged"),
        "old-kernel" | "fanotify-brake" => {
            ("securityContext", serde_json::json!("SYS_ADMIN"), "/capabilities/add")
        }
        "dry-run" => ("args", serde_json::json!("--dry-run"), ""),
        other => panic!("component {other} has no row in this test"),
    };
    for pool in POOLS {
        for entry in std::fs::read_dir(root().join("deploy/kubernetes/components")).unwrap() {
            let component = entry.unwrap().file_name().into_string().unwrap();
            let text =
                format!("resources: [{here}/overlays/{pool}]\ncomponents: [{here}/components/{component}]\n");
            let Some(objects) = build(&text) else { return };
            check_rights(&objects);
            let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind);
            let daemonset = of("DaemonSet").unwrap();
            assert_eq!(daemonset["metadata"]["name"], format!("checkpoint-guard-{pool}"));
            assert_eq!(daemonset["spec"]["selector"]["matchLabels"][POOL_LABEL], pool);
            // The tolerations are those of Windows nodes, too.
            let selector = &daemonset["spec"]["template"]["spec"]["nodeSelector"];
            assert_eq!(selector["kubernetes.io/os"], "linux", "{pool} with {component}");
            assert_eq!(of("NetworkPolicy").unwrap()["spec"]["podSelector"]["matchLabels"][POOL_LABEL], pool);
            match component.as_str() {
                "podmonitor" => assert_eq!(of("PodMonitor").unwrap()["metadata"]["name"], "checkpoint-guard"),
                distribution if ELSEWHERE.contains(&distribution) => {
                    let pod = daemonset["spec"]["template"]["spec"].clone();
                    let file = config(&config_path("edge"));
                    check(&file, Some(distribution), &mounts(&[pod]));
                }
                component => {
                    let (field, value, pointer) = added(component);
                    let found =
                        container(&daemonset["spec"]["template"]["spec"])[field].pointer(pointer).unwrap();
                    assert!(*found == value || list(found).contains(&value), "{component}: {found}");
                }
            }
        }
    }
}

#[test]
fn case_30_a_node_with_disk_pressure_keeps_its_guard() {
    let [pod, _] = pods("general");
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    assert_eq!(pod["tolerations"], serde_json::json!([{ "operator": "Exists" }]));
    assert_eq!(container(&pod)["securityContext"]["readOnlyRootFilesystem"], true);
    // In memory, and no larger than a socket needs: nothing that the kubelet would count as the pod's use of the disk.
    for volume in list(&pod["volumes"]).iter().map(|volume| &volume["emptyDir"]).filter(|it| !it.is_null()) {
        assert_eq!((volume["medium"].as_str(), volume["sizeLimit"].as_str()), (Some("Memory"), Some("1Mi")));
    }
    for bounds in ["requests", "limits"] {
        assert!(container(&pod)["resources"][bounds]["ephemeral-storage"].is_null());
    }
}

/// The values of all lines `key=` of a unit, comments excepted.
fn unit(key: &str) -> Vec<String> {
    let text = read("deploy/systemd/checkpoint-guard.service");
    let values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

#[test]
fn systemd_lets_the_guard_write_where_its_configuration_says() {
    let path = "deploy/systemd/guard.toml";
    let mut mounts: Vec<_> =
        unit("ReadWritePaths").into_iter().map(|path| Mount { path: path.into(), writable: true }).collect();
    let log = Path::new("/var/log").join(&unit("LogsDirectory")[0]);
    mounts.push(Mount { path: log, writable: true });
    check(&config(path), None, &mounts);
    let made = read("deploy/systemd/checkpoint-guard.tmpfiles.conf");
    for directory in config(path).effective(None).unwrap().directories {
        let line = format!("d {} 0700 root root -", directory.path.display());
        assert!(made.lines().any(|it| it == line), "{line:?} is not in\n{made}");
    }
}

#[test]
fn the_guard_has_the_same_capabilities_in_a_pod_and_in_a_unit() {
    let [pod, _] = pods("general");
    let capabilities = &container(&pod)["securityContext"]["capabilities"];
    assert_eq!(capabilities["drop"], serde_json::json!(["ALL"]));
    let in_a_pod: BTreeSet<_> =
        list(&capabilities["add"]).iter().map(|name| format!("CAP_{}", name.as_str().unwrap())).collect();
    assert_eq!(in_a_pod, BTreeSet::from_iter(unit("CapabilityBoundingSet")));
}
