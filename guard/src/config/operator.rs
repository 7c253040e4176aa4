//! Turning a CheckpointRestoreOperator resource into our TOML.
//!
//! The operator's behaviour is that of its code at v0.1.0 (internal/controller/
//! checkpointrestoreoperator_controller.go, api/v1/checkpointrestoreoperator_types.go), where that differs from
//! its documentation. The differences that matter to somebody who moves are written as comments into the result.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Deserialize;
use serde_json::Value;

use super::kubelet_file;
use super::kubernetes_quantity::{self, in_our_notation};
use super::raw::quote;

/// Why a file was not turned into TOML.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Not YAML.
    #[error("not YAML: {0}")]
    Yaml(String),
    /// There is no such resource in it.
    #[error("no resource of kind CheckpointRestoreOperator in it; found: {0}")]
    NoResource(String),
    /// The operator itself lets the last one that it saw win; that is no order to rely on.
    #[error("several resources of kind CheckpointRestoreOperator in it: {0}; keep the one that is in force")]
    SeveralResources(String),
    /// The resource is not what the operator's schema says.
    #[error("{name} is not a CheckpointRestoreOperator of criu.org/v1: {problem}")]
    Malformed {
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    checkpoint_directory: Option<String>,
    apply_policies_immediately: Option<bool>,
    #[serde(default)]
    global_policy: GlobalPolicy,
    #[serde(default)]
    container_policies: Vec<OwnPolicy>,
    #[serde(default)]
    pod_policies: Vec<OwnPolicy>,
    #[serde(default)]
    namespace_policies: Vec<OwnPolicy>,
    #[serde(flatten)]
    unknown: BTreeMap<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GlobalPolicy {
    retain_orphan: Option<bool>,
    max_checkpoints_per_namespace: Option<i64>,
    max_checkpoints_per_pod: Option<i64>,
    max_checkpoints_per_container: Option<i64>,
    max_checkpoint_size: Option<Value>,
    max_total_size_per_namespace: Option<Value>,
    max_total_size_per_pod: Option<Value>,
    max_total_size_per_container: Option<Value>,
    #[serde(flatten)]
    unknown: BTreeMap<String, Value>,
}

/// A container's, pod's or namespace's policy.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnPolicy {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    pod: String,
    #[serde(default)]
    container: String,
    retain_orphan: Option<bool>,
    max_checkpoints: Option<i64>,
    max_checkpoint_size: Option<Value>,
    max_total_size: Option<Value>,
    #[serde(flatten)]
    unknown: BTreeMap<String, Value>,
}

/// The scopes of a limit, narrowest first, as our keys call them.
const SCOPES: [&str; 3] = ["container", "pod", "namespace"];

/// One of our retention rules in the making.
#[derive(Default)]
struct Rule {
    /// What to know about it.
    comments: Vec<String>,
    /// `(key, value)` of the owner.
    owner: Vec<(&'static str, String)>,
    /// By scope; `None`: not limited.
    max_count: [Option<u32>; 3],
    max_total_size: [Option<u64>; 3],
    max_size: Option<u64>,
    retain_orphans: bool,
    /// Scopes that a zero switches off: where ours keeps none, the operator then does nothing there.
    off: [bool; 3],
}

/// What differs whatever the resource says.
const REMARKS: [&str; 3] = [
    "# Limits are checked when a checkpoint is complete, on a timer, and when this file changes. Under disk pressure,",
    "# which the operator does not look at, [pressure], [eviction] and [protection] decide: they have their defaults",
    "# here. A pin (.keep) means the same to both.",
];

/// Our TOML for the CheckpointRestoreOperator in `yaml`, which may be a `List` or several documents.
pub fn import_operator(yaml: &str) -> Result<String, ImportError> {
    let (name, spec) = resource(yaml)?;
    let mut text = String::new();
    let mut line = |written: &str| {
        text.push_str(written);
        text.push('\n');
    };
    line(&format!("# From the CheckpointRestoreOperator {}.", in_comment(&name)));
    line("#");
    for remark in REMARKS {
        line(remark);
    }
    match spec.apply_policies_immediately {
        Some(true) => {}
        _ => line("# applyPoliciesImmediately was false: here a changed policy is applied at once."),
    }
    for unknown in spec.unknown.keys() {
        line(&format!("# Not understood and left out: spec.{}", in_comment(unknown)));
    }
    let directory = spec.checkpoint_directory.as_deref().filter(|path| !path.is_empty());
    line("\n[[directory]]");
    line(&format!("path = {}", quote(directory.unwrap_or("/var/lib/kubelet/checkpoints"))));
    for rule in rules(spec, &name)? {
        text.push_str(&rule);
    }
    Ok(text)
}

/// `text` on one line: whoever wrote the resource chooses names, and a line break in one must not end the comment.
fn in_comment(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut line, c| {
        match c {
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
        line
    })
}

/// The one resource, and `namespace/name`.
fn resource(yaml: &str) -> Result<(String, Spec), ImportError> {
    const KIND: &str = "CheckpointRestoreOperator";
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml)
        .map_err(|error| ImportError::Yaml(kubelet_file::first_line(&error)))?;
    let mut kinds = Vec::new();
    let mut found = Vec::new();
    for document in documents {
        let items = match document.get("items").and_then(Value::as_array) {
            Some(items) => items.clone(),
            None => vec![document],
        };
        for item in items {
            let kind = item.get("kind").and_then(Value::as_str).unwrap_or("nothing with a kind").to_owned();
            if kind == KIND {
                found.push(item);
            }
            kinds.push(kind);
        }
    }
    let name = |item: &Value| {
        let part = |key| item.pointer(&format!("/metadata/{key}")).and_then(Value::as_str);
        format!("{}/{}", part("namespace").unwrap_or("default"), part("name").unwrap_or("unnamed"))
    };
    match found.as_mut_slice() {
        [] => Err(ImportError::NoResource(kinds.join(", "))),
        [one] => {
            let name = name(one);
            let spec = one.get_mut("spec").map_or(Value::Object(Default::default()), Value::take);
            serde_json::from_value(spec)
                .map(|spec| (name.clone(), spec))
                .map_err(|error| ImportError::Malformed { name, problem: error.to_string() })
        }
        several => {
            Err(ImportError::SeveralResources(several.iter().map(name).collect::<Vec<_>>().join(", ")))
        }
    }
}

/// All rules as TOML, the general one first.
fn rules(spec: Spec, name: &str) -> Result<Vec<String>, ImportError> {
    let mut rules = vec![global(spec.global_policy, name)?];
    let levels = [
        (2, "namespacePolicies", spec.namespace_policies),
        (1, "podPolicies", spec.pod_policies),
        (0, "containerPolicies", spec.container_policies),
    ];
    for (scope, list, policies) in levels {
        let level_begins = rules.len();
        for (index, policy) in policies.into_iter().enumerate() {
            let at = format!("{list}[{index}]");
            let mut rule = own(policy, scope, &at, name)?;
            if rules[level_begins..].iter().any(|earlier| earlier.owner == rule.owner) {
                rule.comments
                    .push(format!("{at}: the operator looks at the first policy for an owner only."));
                rule.owner.clear();
            }
            rules.push(rule);
        }
    }
    let mut texts = Vec::new();
    for index in 0..rules.len() {
        let (before, rest) = rules.split_at(index);
        texts.push(rest[0].to_toml(before));
    }
    Ok(texts)
}

fn global(policy: GlobalPolicy, name: &str) -> Result<Rule, ImportError> {
    let mut rule = Rule {
        owner: vec![("namespace", "*".to_owned())],
        retain_orphans: policy.retain_orphan.unwrap_or(true),
        ..Rule::default()
    };
    let counts = [
        ("maxCheckpointsPerContainer", policy.max_checkpoints_per_container, 10),
        ("maxCheckpointsPerPod", policy.max_checkpoints_per_pod, 20),
        ("maxCheckpointsPerNamespace", policy.max_checkpoints_per_namespace, 30),
    ];
    for (scope, (field, written, default)) in counts.into_iter().enumerate() {
        // The operator keeps its default when the field is absent or negative.
        let written = written.filter(|count| *count >= 0);
        if written.is_none() {
            rule.comments.push(format!("{field} was not set: {default} is the operator's default."));
        }
        rule.max_count[scope] = rule.count(field, written.or(Some(default)), &[scope]);
    }
    let sizes = [
        ("maxTotalSizePerContainer", policy.max_total_size_per_container),
        ("maxTotalSizePerPod", policy.max_total_size_per_pod),
        ("maxTotalSizePerNamespace", policy.max_total_size_per_namespace),
    ];
    for (scope, (field, written)) in sizes.into_iter().enumerate() {
        rule.max_total_size[scope] = rule.size(field, written, &[scope], name)?;
    }
    rule.max_size = rule.size("maxCheckpointSize", policy.max_checkpoint_size, &[0, 1, 2], name)?;
    rule.unknown("globalPolicy", &policy.unknown);
    rule.switch_off(&[0, 1, 2]);
    Ok(rule)
}

fn own(policy: OwnPolicy, scope: usize, at: &str, name: &str) -> Result<Rule, ImportError> {
    let parts = [("namespace", policy.namespace), ("pod", policy.pod), ("container", policy.container)];
    let needed = 3 - scope;
    let mut rule = Rule { retain_orphans: policy.retain_orphan.unwrap_or(true), ..Rule::default() };
    if let Some((part, _)) = parts[..needed].iter().find(|(_, value)| value.trim().is_empty()) {
        rule.comments.push(format!("{at} names no {part}, so it never applied."));
    } else {
        rule.owner = parts.into_iter().take(needed).collect();
    }
    rule.max_count[scope] = rule.count("maxCheckpoints", policy.max_checkpoints, &[scope]);
    rule.max_total_size[scope] = rule.size("maxTotalSize", policy.max_total_size, &[scope], name)?;
    rule.max_size = rule.size("maxCheckpointSize", policy.max_checkpoint_size, &[scope], name)?;
    rule.unknown(at, &policy.unknown);
    rule.switch_off(&[scope]);
    Ok(rule)
}

impl Rule {
    /// A count of the operator's `scopes`.
    fn count(&mut self, field: &str, written: Option<i64>, scopes: &[usize]) -> Option<u32> {
        match written {
            Some(count) if count <= 0 => {
                self.zero(field, &count.to_string(), scopes);
                None
            }
            Some(count) => Some(u32::try_from(count).unwrap_or(u32::MAX)),
            None => None,
        }
    }

    /// A size. The operator documents bare numbers as megabytes and compares them as bytes.
    fn size(
        &mut self,
        field: &str,
        written: Option<Value>,
        scopes: &[usize],
        name: &str,
    ) -> Result<Option<u64>, ImportError> {
        let Some(written) = written.filter(|value| !value.is_null()) else { return Ok(None) };
        let text = match &written {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if text.starts_with('-') || matches!(kubernetes_quantity::parse(&text), Ok(0)) {
            self.zero(field, &text, scopes);
            return Ok(None);
        }
        let bytes = kubernetes_quantity::parse(&text).map_err(|problem| ImportError::Malformed {
            name: name.to_owned(),
            problem: format!("{field}: {problem}"),
        })?;
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            self.comments.push(format!(
                "{field} was {text} without unit: MB, as the operator's documentation says (its code compares bytes)."
            ));
            return Ok(Some(bytes.saturating_mul(1_000_000)));
        }
        Ok(Some(bytes))
    }

    fn zero(&mut self, field: &str, written: &str, scopes: &[usize]) {
        let names: Vec<_> = scopes.iter().map(|scope| SCOPES[*scope]).collect();
        self.comments.push(format!(
            "{field} was {written}: the operator then applies no limit per {} at all, and nor does this.",
            names.join(", per "),
        ));
        scopes.iter().for_each(|scope| self.off[*scope] = true);
    }

    /// Drops what a zero switched off; when that is all of `scopes`, what holds for each checkpoint as well.
    fn switch_off(&mut self, scopes: &[usize]) {
        for scope in 0..SCOPES.len() {
            if self.off[scope] {
                self.max_count[scope] = None;
                self.max_total_size[scope] = None;
            }
        }
        if scopes.iter().all(|scope| self.off[*scope]) {
            self.max_size = None;
            self.retain_orphans = true;
        }
    }

    fn unknown(&mut self, at: &str, unknown: &BTreeMap<String, Value>) {
        self.comments
            .extend(unknown.keys().map(|field| format!("Not understood and left out: {at}.{field}")));
    }

    /// The widest scope that it is about the whole of.
    fn scope(&self) -> usize {
        SCOPES.len() - self.owner.len()
    }

    /// As TOML. The operator applies the most specific policy alone, where ours go field by field: what a less
    /// specific rule in `before` limits and this one does not is said to be unlimited.
    fn to_toml(&self, before: &[Rule]) -> String {
        let mut text = String::from("\n");
        for comment in &self.comments {
            let _ = writeln!(text, "# {}", in_comment(comment));
        }
        if self.owner.is_empty() {
            return text;
        }
        let has = |rule: &Rule, scope: usize| {
            rule.max_count[scope].is_some() || rule.max_total_size[scope].is_some()
        };
        if (self.scope() + 1..SCOPES.len()).any(|scope| before.iter().any(|rule| has(rule, scope))) {
            text.push_str(
                "# What its namespace or pod may hold as a whole stays in force and counts these too; the operator looks \
                 at this policy alone.\n",
            );
        }
        text.push_str("[[retention]]\n");
        for (key, value) in &self.owner {
            let _ = writeln!(text, "{key} = {}", quote(value));
        }
        let limit = |own: Option<String>, inherited: bool| match own {
            None if inherited => Some("\"unlimited\"".to_owned()),
            own => own,
        };
        let scopes = |of: &dyn Fn(&Rule, usize) -> Option<String>| {
            // What a whole pod or namespace may hold is not for a rule about a part of it to lift.
            let entry = |(scope, key): (usize, &&str)| {
                let inherited = scope <= self.scope() && before.iter().any(|rule| of(rule, scope).is_some());
                limit(of(self, scope), inherited).map(|value| format!("{key} = {value}"))
            };
            SCOPES.iter().enumerate().filter_map(entry).collect::<Vec<_>>().join(", ")
        };
        let bytes = |bytes: u64| format!("\"{}\"", in_our_notation(bytes));
        let counts = scopes(&|rule, scope| rule.max_count[scope].map(|count| count.to_string()));
        let totals = scopes(&|rule, scope| rule.max_total_size[scope].map(bytes));
        if !counts.is_empty() {
            let _ = writeln!(text, "max-count = {{ {counts} }}");
        }
        if !totals.is_empty() {
            let _ = writeln!(text, "max-total-size = {{ {totals} }}");
        }
        let inherited = before.iter().any(|rule| rule.max_size.is_some());
        if let Some(size) = limit(self.max_size.map(bytes), inherited) {
            let _ = writeln!(text, "max-size = {size}");
        }
        let _ = writeln!(text, "retain-orphans = {}", self.retain_orphans);
        text
    }
}
