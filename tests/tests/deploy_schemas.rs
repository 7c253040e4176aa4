//! deploy: every manifest and everything the chart renders, against the schemas of the oldest and the newest Kubernetes that
//! are supported. A real server judges the same in tests/tests/cluster_rbac.rs, but it is older than both.

use std::path::{Path, PathBuf};
use std::process::Command;

use tests::tools::{helm, kubernetes_validate};

/// Of the first, `appArmorProfile` is in use; the second is the newest with published schemas.
const VERSIONS: [&str; 2] = ["1.33.0", "1.37.0"];

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// What is wrong with `manifest`, in any version; `None`, loudly, where nobody can say.
fn problems(name: &str, manifest: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(name);
    std::fs::write(&file, manifest).unwrap();
    let mut problems = String::new();
    for version in VERSIONS {
        let mut command = kubernetes_validate()?;
        let output = command.args(["-k", version]).arg(&file).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        // Resources of the Prometheus operator's, of which these schemas know nothing.
        let is_known = |line: &&str| {
            !["PodMonitor", "PrometheusRule"]
                .iter()
                .any(|kind| line.contains(&format!("schema for kind {kind}")))
        };
        let lines = said.lines().filter(is_known);
        problems.extend(lines.map(|line| format!("{line}\n")));
        if !output.status.success() && problems.is_empty() {
            problems = format!("{version}: {}\n", output.status);
        }
    }
    Some(problems)
}

#[test]
fn a_field_that_does_not_exist_is_noticed() {
    let wrong =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: a, imagee: b}]}\n";
    let Some(problems) = problems("wrong.yaml", wrong) else { return };
    assert_eq!(problems.matches("imagee").count(), VERSIONS.len(), "{problems}");
}

#[test]
fn every_overlay_fits_the_schemas() {
    for overlay in ["general", "gpu", "edge", "forensics"] {
        let path = deploy().join("kubernetes/overlays").join(overlay);
        let output = match Command::new("kubectl").arg("kustomize").arg(path).output() {
            Ok(output) => output,
            Err(error) => return println!("SKIPPED kubectl kustomize: {error}"),
        };
        assert!(output.status.success(), "{output:?}");
        let manifest = String::from_utf8(output.stdout).unwrap();
        let Some(problems) = problems(&format!("{overlay}.yaml"), &manifest) else { return };
        assert_eq!(problems, "");
    }
}

#[test]
fn what_the_chart_renders_fits_the_schemas() {
    for values in [["--set", "image.repository=guard"], ["--values", "ci/all-pools-values.yaml"]] {
        let Some(mut helm) = helm() else { return };
        helm.args(["template", "guard", "."])
            .args(values)
            .current_dir(deploy().join("helm/checkpoint-guard"));
        let output = helm.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let Some(problems) = problems("chart.yaml", &String::from_utf8(output.stdout).unwrap()) else {
            return;
        };
        assert_eq!(problems, "");
    }
}
