//! [`ApiServer`]: a real kube-apiserver on loopback, with etcd, RBAC and tokens; and [`Line`], a connection to it that can be cut.
//!
//! What a green run does not prove: that newer servers behave the same (this one is 1.20: no streaming lists, no
//! OpenAPI v3), and anything about load balancers in front of one.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::free_address;

/// It takes 6 s on an idle machine.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// Everybody who has a token. RBAC decides what each may do: `admin` everything, `nobody` nothing.
const TOKENS: &str = "\
admin-token,admin,uid0,\"system:masters\"\n\
guard-token,system:serviceaccount:kube-system:checkpoint-guard,uid1,\"system:serviceaccounts\"\n\
nobody-token,nobody,uid2,\"none\"\n";

/// What the server writes down of each call: the guard's as they arrive, nobody else's.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [ResponseStarted, ResponseComplete, Panic]\n\
rules: [{level: Metadata, users: [\"system:serviceaccount:kube-system:checkpoint-guard\"]}, {level: None}]\n";

/// A running API server. Ends with this process, however that ends.
#[derive(Debug)]
pub struct ApiServer {
    scratch: tempfile::TempDir,
    binary: PathBuf,
    etcd: SocketAddr,
    address: SocketAddr,
    /// In the order of their start.
    children: Vec<Guarded>,
}

/// A child that is killed when its parent is gone: its shell waits for the end of a pipe.
#[derive(Debug)]
struct Guarded(Child);

impl Guarded {
    fn start(log: &Path, program: &Path, arguments: &[String]) -> Guarded {
        let log = File::options().create(true).append(true).open(log).expect("a log can be made");
        let child = Command::new("sh")
            .args(["-c", "\"$@\" & child=$!; cat >/dev/null; kill -9 $child; wait $child 2>/dev/null", "sh"])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a descriptor is free"))
            .stderr(log)
            .spawn()
            .expect("sh starts");
        Guarded(child)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The server that all tests of one program share, one after the other; `None`, loudly, where there is none.
///
/// Each test makes namespaces and nodes of its own.
pub fn shared() -> Option<MutexGuard<'static, ApiServer>> {
    static SHARED: OnceLock<Option<Mutex<ApiServer>>> = OnceLock::new();
    let server = SHARED.get_or_init(|| ApiServer::start().map(Mutex::new)).as_ref()?;
    Some(server.lock().unwrap_or_else(PoisonError::into_inner))
}

impl ApiServer {
    /// Starts one. `None`, loudly, where there is none.
    pub fn start() -> Option<ApiServer> {
        let (Some(binary), Some(etcd)) = (kube_apiserver(), program("etcd")) else {
            println!(
                "SKIPPED everything that needs an API server: no kube-apiserver and etcd in KUBEBUILDER_ASSETS, and \
                 `cargo xtask setup` found none; `cargo xtask kube-apiserver` builds one in 5 min"
            );
            return None;
        };
        let scratch = tempfile::tempdir().expect("a temporary directory can be made");
        make_keys(scratch.path());
        let [client, peer] = [free_address().unwrap(), free_address().unwrap()];
        let address = free_address().unwrap();
        let mut server = ApiServer { scratch, binary, etcd: client, address, children: Vec::new() };
        let arguments = [
            format!("--data-dir={}", server.path("etcd").display()),
            format!("--listen-client-urls=http://{client}"),
            format!("--advertise-client-urls=http://{client}"),
            format!("--listen-peer-urls=http://{peer}"),
            format!("--initial-advertise-peer-urls=http://{peer}"),
            format!("--initial-cluster=default=http://{peer}"),
            // What it holds is thrown away: a busy disk must not make it lose its own leadership.
            "--unsafe-no-fsync".to_owned(),
        ];
        server.children.push(Guarded::start(&server.path("etcd.log"), &etcd, &arguments));
        server.start_server();
        Some(server)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    #[expect(clippy::disallowed_methods, reason = "waits for another process, so it measures time")]
    fn start_server(&mut self) {
        let pki = self.path("pki").display().to_string();
        let arguments = [
            format!("--etcd-servers=http://{}", self.etcd),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.address.port()),
            format!("--tls-cert-file={pki}/server.crt"),
            format!("--tls-private-key-file={pki}/server.key"),
            format!("--client-ca-file={pki}/ca.crt"),
            format!("--service-account-key-file={pki}/accounts.pub"),
            format!("--service-account-signing-key-file={pki}/accounts.key"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            format!("--token-auth-file={pki}/tokens.csv"),
            "--authorization-mode=RBAC".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--allow-privileged=true".to_owned(),
            format!("--audit-policy-file={pki}/audit.yaml"),
            format!("--audit-log-path={}", self.path("audit.log").display()),
        ];
        let log = self.path("api.log");
        self.children.push(Guarded::start(&log, &self.binary, &arguments));
        let began = Instant::now();
        while self.try_request("GET", "/readyz", None).is_none_or(|(status, _)| status != 200) {
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(began.elapsed() < READY_WITHIN, "the API server does not become ready:\n{}", said());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Kills the API server, as a node that dies would; etcd stays.
    pub fn kill(&mut self) {
        self.children.truncate(1);
    }

    /// Starts it again, at the same address, with what etcd has and an empty memory of what changed when.
    pub fn restart(&mut self) {
        self.kill();
        self.start_server();
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The credentials of `admin`, `guard` or `nobody`, for the server itself.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.kubeconfig_at(user, self.address)
    }

    /// The same, for the server as it is reached at `address`.
    pub fn kubeconfig_at(&self, user: &str, address: SocketAddr) -> PathBuf {
        let path = self.path(&format!("{user}-{}.kubeconfig", address.port()));
        let authority = self.path("pki/ca.crt");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters: [{{name: test, cluster: {{server: \"https://{address}\", certificate-authority: {authority:?}}}}}]\n\
             users: [{{name: test, user: {{token: {user}-token}}}}]\n\
             contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n"
        );
        std::fs::write(&path, text).expect("a temporary directory is writable");
        path
    }

    /// One call as admin; `None` when there was no answer.
    fn try_request(&self, method: &str, path: &str, body: Option<(&str, &Value)>) -> Option<(u16, Value)> {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--max-time", "20", "--write-out", "\n%{http_code}", "--request", method]);
        curl.arg("--cacert").arg(self.path("pki/ca.crt"));
        curl.args(["--header", "Authorization: Bearer admin-token"]);
        if let Some((kind, body)) = body {
            curl.args(["--header", &format!("Content-Type: {kind}"), "--data", &body.to_string()]);
        }
        curl.arg(format!("https://{}{path}", self.address));
        let output = curl.output().expect("curl starts: `cargo xtask setup` installs it");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n')?;
        let status = status.parse().ok().filter(|status| *status != 0)?;
        Some((status, serde_json::from_str(body).unwrap_or_else(|_| json!(body))))
    }

    #[track_caller]
    fn request(&self, method: &str, path: &str, body: Option<(&str, &Value)>) -> Value {
        let (status, answer) = self.try_request(method, path, body).expect("the API server answers");
        assert!((200..300).contains(&status), "{method} {path}: {status}\n{answer:#}");
        answer
    }

    /// Whether a call would be accepted; the answer when not.
    pub fn accepts(&self, path: &str, object: &Value) -> Result<(), String> {
        let dry = format!("{path}?dryRun=All");
        match self.try_request("POST", &dry, Some(("application/json", object))) {
            Some((200..300, _)) => Ok(()),
            Some((status, answer)) => Err(format!("{status} {answer}")),
            None => Err("no answer".to_owned()),
        }
    }

    /// Makes an object; gives what the server made of it.
    #[track_caller]
    pub fn create(&self, path: &str, object: &Value) -> Value {
        self.request("POST", path, Some(("application/json", object)))
    }

    /// Changes an object by a merge patch.
    #[track_caller]
    pub fn patch(&self, path: &str, patch: &Value) {
        self.request("PATCH", path, Some(("application/merge-patch+json", patch)));
    }

    /// Deletes an object at once.
    #[track_caller]
    pub fn delete(&self, path: &str) {
        self.request("DELETE", &format!("{path}?gracePeriodSeconds=0"), None);
    }

    /// Reads an object or a list.
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        self.request("GET", path, None)
    }

    /// Makes a Node with these labels.
    #[track_caller]
    pub fn node(&self, name: &str, labels: &Value) {
        self.create("/api/v1/nodes", &json!({"metadata": {"name": name, "labels": labels}}));
    }

    /// Makes a namespace with these annotations.
    #[track_caller]
    pub fn namespace(&self, name: &str, annotations: &Value) {
        self.create("/api/v1/namespaces", &json!({"metadata": {"name": name, "annotations": annotations}}));
    }

    /// Makes a pod on `node` with these annotations; gives its uid.
    #[track_caller]
    pub fn pod(&self, namespace: &str, name: &str, node: &str, annotations: &Value) -> String {
        let pod = self.create(
            &format!("/api/v1/namespaces/{namespace}/pods"),
            &json!({
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}]},
            }),
        );
        pod["metadata"]["uid"].as_str().expect("a pod has a uid").to_owned()
    }

    /// Serves PodCheckpoint objects, which this server does not know of: by a definition with no more of a schema than their
    /// status being a subresource. Does nothing the second time.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "waits for another process, so it measures time")]
    pub fn pod_checkpoints(&self) {
        const API: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let anything =
            json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let version = json!({"name": "v1alpha1", "served": true, "storage": true, "schema": anything,
            "subresources": {"status": {}}});
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "podcheckpoints.checkpoint.k8s.io",
                "annotations": {"api-approved.kubernetes.io": "unapproved, a test's"}},
            "spec": {"group": "checkpoint.k8s.io", "scope": "Namespaced", "versions": [version],
                "names": {"kind": "PodCheckpoint", "plural": "podcheckpoints"}},
        });
        let answer = self.try_request("POST", API, Some(("application/json", &definition)));
        assert!(answer.as_ref().is_some_and(|(status, _)| [201, 409].contains(status)), "{answer:?}");
        let began = Instant::now();
        let served = || self.try_request("GET", "/apis/checkpoint.k8s.io/v1alpha1/podcheckpoints", None);
        while served().is_none_or(|(status, _)| status != 200) {
            assert!(began.elapsed() < READY_WITHIN, "the definition is not taken up");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Grants the guard's service account `rules`, in place of what it had.
    #[track_caller]
    pub fn grant(&self, rules: &Value) {
        const API: &str = "/apis/rbac.authorization.k8s.io/v1";
        let metadata = json!({"name": "checkpoint-guard"});
        let role = json!({"metadata": metadata, "rules": rules});
        let path = format!("{API}/clusterroles");
        match self.try_request("POST", &path, Some(("application/json", &role))) {
            Some((409, _)) => self.patch(&format!("{path}/checkpoint-guard"), &json!({"rules": rules})),
            answer => assert!(answer.as_ref().is_some_and(|(status, _)| *status == 201), "{answer:?}"),
        }
        let binding = json!({
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "checkpoint-guard"},
            "subjects": [{"kind": "ServiceAccount", "name": "checkpoint-guard", "namespace": "kube-system"}],
        });
        // 409: it is there already, and the same.
        self.try_request("POST", &format!("{API}/clusterrolebindings"), Some(("application/json", &binding)));
    }

    /// The calls that guards have made so far: verb and URI of each.
    #[track_caller]
    pub fn calls(&self) -> Vec<(String, String)> {
        let log = std::fs::read_to_string(self.path("audit.log")).unwrap_or_default();
        // The last line may be half there.
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let text = |line: &Value, field: &str| line[field].as_str().unwrap_or_default().to_owned();
        lines.map(|line| (text(&line, "verb"), text(&line, "requestURI"))).collect()
    }

    /// What a call with this `Accept` header answers, in bytes.
    #[track_caller]
    pub fn size(&self, path: &str, accept: &str) -> usize {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--fail",
            "--max-time",
            "20",
            "--header",
            "Authorization: Bearer admin-token",
        ]);
        curl.arg("--cacert").arg(self.path("pki/ca.crt")).args(["--header", &format!("Accept: {accept}")]);
        let output = curl.arg(format!("https://{}{path}", self.address)).output().expect("curl starts");
        assert!(output.status.success(), "{path}: {output:?}");
        output.stdout.len()
    }

    /// The Events about an object: type, reason and note of each, oldest first.
    #[track_caller]
    pub fn events(&self, namespace: &str, kind: &str, name: &str) -> Vec<(String, String, String)> {
        let list = self.get(&format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"));
        let mut events: Vec<_> = list["items"].as_array().cloned().unwrap_or_default();
        events.retain(|event| event["regarding"]["kind"] == kind && event["regarding"]["name"] == name);
        events.sort_by_key(|event| event["eventTime"].to_string());
        let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        events.iter().map(|event| (text(event, "type"), text(event, "reason"), text(event, "note"))).collect()
    }
}

/// The rules of the ClusterRole as it is shipped.
pub fn shipped_rules() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes/base/rbac.yaml");
    let text = std::fs::read_to_string(path).expect("the repository is whole");
    let role = text.split("\n---").next().unwrap_or_default();
    let role: Value = serde_saphyr::from_str(role).expect("the manifest is YAML");
    role["rules"].clone()
}

/// Certificates of a throw-away authority.
fn make_keys(scratch: &Path) {
    let pki = scratch.join("pki");
    std::fs::create_dir(&pki).expect("a temporary directory is writable");
    std::fs::write(pki.join("tokens.csv"), TOKENS).expect("a temporary directory is writable");
    std::fs::write(pki.join("audit.yaml"), AUDIT_POLICY).expect("a temporary directory is writable");
    let names = "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc";
    std::fs::write(pki.join("names"), names).expect("a temporary directory is writable");
    let openssl = |arguments: &str| {
        let arguments = arguments.split_whitespace();
        let output = Command::new("openssl").args(arguments).current_dir(&pki).output();
        let output = output.expect("openssl starts: `cargo xtask setup` installs it");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(&format!("req -x509 {KEY} -days 30 -keyout ca.key -out ca.crt -subj /CN=test-authority"));
    openssl(&format!("req {KEY} -keyout server.key -out server.csr -subj /CN=kube-apiserver"));
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out server.crt -extfile names",
    );
    openssl("genrsa -out accounts.key 2048");
    openssl("rsa -in accounts.key -pubout -out accounts.pub");
}

/// In envtest's directory, else in PATH.
fn program(name: &str) -> Option<PathBuf> {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<_> = assets.into_iter().chain(std::env::split_paths(&path)).collect();
    let is_program = |file: &PathBuf| {
        std::fs::metadata(file).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    directories.iter().map(|directory| directory.join(name)).find(is_program)
}

/// In envtest's directory, else in PATH, else where `cargo xtask setup` puts it.
fn kube_apiserver() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cached = || Some(cache.or_else(home)?.join("checkpoint-guard/kube-apiserver"));
    program("kube-apiserver").or_else(|| cached().filter(|file| file.is_file()))
}

/// A line to the API server that a test can cut or make silent.
#[derive(Debug)]
pub struct Line {
    address: SocketAddr,
    state: Arc<AtomicU8>,
    ends: Arc<Mutex<Vec<TcpStream>>>,
}

const OPEN: u8 = 0;
const SILENT: u8 = 1;
const CUT: u8 = 2;

impl Line {
    /// A line to `server`.
    pub fn to(server: SocketAddr) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (state, ends) = (Arc::new(AtomicU8::new(OPEN)), Arc::new(Mutex::new(Vec::new())));
        let (shared_state, shared_ends) = (state.clone(), ends.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let state = shared_state.load(Ordering::Relaxed);
                if state == CUT {
                    continue;
                }
                let Ok(far) = TcpStream::connect(server) else { continue };
                let mut ends = shared_ends.lock().unwrap_or_else(PoisonError::into_inner);
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    ends.push(from.try_clone().unwrap());
                    let state = shared_state.clone();
                    std::thread::spawn(move || carry(from, to, &state));
                }
            }
        });
        Line { address, state, ends }
    }

    /// Where it begins.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Breaks every connection, and lets none come about.
    pub fn cut(&self) {
        self.state.store(CUT, Ordering::Relaxed);
        for end in self.ends.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Takes everything and answers nothing.
    pub fn silence(&self) {
        self.state.store(SILENT, Ordering::Relaxed);
    }

    /// As it was.
    pub fn mend(&self) {
        self.state.store(OPEN, Ordering::Relaxed);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, state: &AtomicU8) {
    let mut piece = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        while state.load(Ordering::Relaxed) == SILENT {
            std::thread::sleep(Duration::from_millis(20));
        }
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
