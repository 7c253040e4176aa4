//! Rounds of deletions, posted: to a server that is well, and to one that is away, slow, or says no.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use guard::model::Bytes;
use serde_json::Value;
use tests::cluster::eventually;
use tests::http::free_address;
use tests::receiver::{Answer, Receiver};
use tests::scene::Scene;
use tests::setting::Daemon;

/// Nothing is spared for being young or last.
const UNHURRIED: &str = "[eviction]\nmin-age = \"0s\"\nkeep-last = 0\n";

/// A scene with four archives whose rounds go to `url`.
fn scene(url: &str, more: &str) -> (Scene, Vec<String>) {
    let scene = Scene::new();
    let names = (1..=4).map(|hour| scene.archive("web", hour, Bytes::mib(8))).collect();
    scene.configure(&format!("{UNHURRIED}[notify]\nurl = {url:?}\n{more}"));
    (scene, names)
}

/// What the audit log says of posted rounds.
fn webhooks(daemon: &Daemon) -> Vec<Value> {
    daemon.audit().into_iter().filter(|line| line["kind"] == "Webhook").collect()
}

fn rounds(daemon: &Daemon, outcome: &str) -> Option<f64> {
    daemon.metric(&format!("checkpoint_guard_webhook_rounds_total{{outcome=\"{outcome}\"}}"))
}

#[test]
fn each_round_is_posted_once_and_says_what_the_audit_log_says() {
    let receiver = Receiver::start(|_| Answer::Status(204));
    let (scene, names) = scene(&receiver.url(), "");
    let mut daemon = scene.setting.start();
    scene.leave(Bytes::mib(60));
    daemon.wait_until("two deleted", |daemon| daemon.deleted().len() == 2);
    daemon.wait_until("posted", |daemon| rounds(daemon, "delivered").is_some_and(|count| count >= 1.0));
    let requests = receiver.requests();
    let head = requests[0].head.to_lowercase();
    assert!(head.starts_with("post /rounds http/1.1") && head.contains("idempotency-key: "), "{head}");
    assert!(!head.contains("authorization"), "{head}");
    let told: Vec<&Value> =
        requests.iter().flat_map(|request| request.body["deletions"].as_array().unwrap()).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    let audit = daemon.audit();
    for (deletion, name) in told.iter().zip(&names) {
        let is_it = |line: &&Value| line["id"] == deletion["auditId"] && line["phase"] == "outcome";
        let line = audit.iter().find(is_it).unwrap();
        for field in ["name", "namespace", "pod", "trigger", "reason", "outcome", "freedBytes", "sizeBytes"] {
            assert_eq!(deletion[field], line[field], "{field}");
        }
        assert_eq!(deletion["name"], **name);
    }
    let round = &requests[0].body;
    assert_eq!((&round["kind"], &round["apiVersion"]), (&"Round".into(), &"checkpoint-guard/v1".into()));
    assert_eq!(round["directories"][0], scene.directory().to_str().unwrap());
    let recorded = webhooks(&daemon);
    assert_eq!(recorded.len(), requests.len(), "{recorded:?}");
    assert_eq!((&recorded[0]["outcome"], &recorded[0]["attempts"]), (&"delivered".into(), &1.into()));
    assert_eq!(recorded[0]["round"], round["id"]);
    let server = recorded[0]["server"].as_str().unwrap();
    assert!(receiver.url().starts_with(server) && !server.contains("/rounds"), "{server}");
    daemon.stop();
}

#[test]
fn a_server_that_fails_is_tried_again_with_the_same_round() {
    let receiver = Receiver::start(|before| Answer::Status(if before < 2 { 500 } else { 200 }));
    // By name: the resolver works inside of the sandbox, too.
    let (scene, _) = scene(&receiver.url().replace("127.0.0.1", "localhost"), "");
    let mut daemon = scene.setting.start();
    scene.leave(Bytes::mib(60));
    daemon.wait_until("delivered", |daemon| rounds(daemon, "delivered").is_some_and(|count| count >= 1.0));
    let requests = receiver.requests();
    assert!(requests[..3].iter().all(|request| request.body["id"] == requests[0].body["id"]));
    assert_eq!(webhooks(&daemon)[0]["attempts"], 3);
    assert_eq!(daemon.metric("checkpoint_guard_webhook_failures_total"), Some(2.0));
    // Once when it begins and once when it is over.
    let log = daemon.log();
    assert_eq!(log.matches("a round could not be posted").count(), 1, "{log}");
    assert!(log.contains("rounds can be posted again"), "{log}");
}

#[test]
fn what_a_server_refuses_is_not_tried_again() {
    let receiver = Receiver::start(|_| Answer::Status(400));
    let (scene, _) = scene(&receiver.url(), "");
    let mut daemon = scene.setting.start();
    scene.leave(Bytes::mib(60));
    daemon.wait_until("refused", |daemon| rounds(daemon, "refused").is_some_and(|count| count >= 1.0));
    daemon.keeps_running_for(Duration::from_millis(1500));
    let refused = webhooks(&daemon);
    assert_eq!(receiver.requests().len(), refused.len());
    assert!(refused[0]["error"].as_str().unwrap().contains("400"), "{refused:?}");
}

#[test]
fn a_server_that_is_away_delays_no_deletion_and_is_told_when_it_is_back() {
    let address = free_address().unwrap();
    let (scene, names) = scene(&format!("http://{address}/rounds"), "");
    let mut daemon = scene.setting.start();
    scene.leave(Bytes::mib(60));
    daemon.wait_until("two deleted", |daemon| daemon.deleted().len() == 2);
    assert_eq!(daemon.deleted(), names[..2]);
    let failed = |daemon: &Daemon| daemon.metric("checkpoint_guard_webhook_failures_total");
    daemon.wait_until("tried", |daemon| failed(daemon).is_some_and(|count| count >= 2.0));
    daemon.wait_until("waiting", |daemon| {
        daemon.metric("checkpoint_guard_webhook_waiting").is_some_and(|count| count >= 1.0)
    });
    assert!(daemon.log().contains("Connection refused"), "{}", daemon.log());
    let receiver = Receiver::start_at(address, |_| Answer::Status(200));
    daemon.wait_until("delivered", |daemon| rounds(daemon, "delivered").is_some_and(|count| count >= 1.0));
    assert_eq!(
        receiver.requests()[0].body["deleted"],
        receiver.requests()[0].body["deletions"].as_array().unwrap().len()
    );
    daemon
        .wait_until("nothing waits", |daemon| daemon.metric("checkpoint_guard_webhook_waiting") == Some(0.0));
}

#[test]
fn a_server_that_never_answers_delays_neither_deletions_nor_the_end() {
    let receiver = Receiver::start(|_| Answer::Late(Duration::from_secs(3600)));
    let (scene, _) = scene(&receiver.url(), "");
    let mut daemon = scene.setting.start();
    scene.leave(Bytes::mib(60));
    daemon.wait_until("two deleted", |daemon| daemon.deleted().len() == 2);
    eventually(&daemon, "posting", || !receiver.requests().is_empty());
    // And the next one, while the first POST hangs.
    scene.leave(Bytes::mib(60));
    daemon.wait_until("all deleted", |daemon| daemon.deleted().len() == 4);
    let took = daemon.stop();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// An https server with a certificate of its own authority, which keeps what it is sent in `bodies`.
struct Https(Child);

impl Drop for Https {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SERVER: &str = r#"
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(sys.argv[2] + "/bodies", "ab") as bodies:
            bodies.write((self.headers["Authorization"] or "none").encode() + b" " + body + b"\n")
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_): pass
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2] + "/server.crt", sys.argv[2] + "/server.key")
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"#;

fn openssl(folder: &Path, arguments: &str) -> bool {
    let output = Command::new("openssl").args(arguments.split(' ')).current_dir(folder).output();
    output.is_ok_and(|output| output.status.success())
}

/// Certificates of the throw-away authorities `ca` and `other` in `folder`, an https server that `ca` vouches for, and its URL.
/// `None`, loudly, where it cannot be made.
fn https(folder: &Path) -> Option<(Https, String)> {
    fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    let authority = |name: &str| {
        openssl(
            folder,
            &format!(
                "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {name}.key -out {name}.crt"
            ),
        )
    };
    let made = authority("ca")
        && authority("other")
        && openssl(folder, "req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr")
        && openssl(
            folder,
            "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.crt",
        );
    let address = free_address().unwrap();
    let port = address.port().to_string();
    let server = Command::new("python3")
        .args(["-c", SERVER, &port, folder.to_str().unwrap()])
        .stderr(Stdio::null())
        .spawn();
    let (true, Ok(server)) = (made, server) else {
        println!("SKIPPED: no openssl or no python3 (Debian: openssl python3)");
        return None;
    };
    Some((Https(server), format!("https://{address}/rounds?key=hidden")))
}

fn bodies(folder: &Path) -> String {
    fs::read_to_string(folder.join("bodies")).unwrap_or_default()
}

fn has_failed(daemon: &Daemon) -> bool {
    daemon.metric("checkpoint_guard_webhook_failures_total").is_some_and(|count| count >= 1.0)
}

fn is_delivered(daemon: &Daemon) -> bool {
    rounds(daemon, "delivered").is_some_and(|count| count >= 1.0)
}

#[test]
fn an_https_server_is_checked_and_shown_the_token() {
    let keys = tempfile::tempdir().unwrap();
    let folder = keys.path();
    let Some((_server, url)) = https(folder) else { return };
    fs::write(folder.join("token"), "a-secret\n").unwrap();
    let more =
        |ca: &str| format!("ca-file = {:?}\ntoken-file = {:?}\n", folder.join(ca), folder.join("token"));

    let (wrong, _) = scene(&url, &more("other.crt"));
    let mut daemon = wrong.setting.start();
    wrong.leave(Bytes::mib(60));
    daemon.wait_until("refusing it", |daemon| has_failed(daemon) && daemon.log().contains("certificate"));
    assert!(bodies(folder).is_empty(), "{}", bodies(folder));
    daemon.stop();

    let (right, _) = scene(&url, &more("ca.crt"));
    let mut daemon = right.setting.start();
    right.leave(Bytes::mib(60));
    daemon.wait_until("delivered", is_delivered);
    assert!(bodies(folder).starts_with("Bearer a-secret {"), "{}", bodies(folder));
    // Neither the token nor what may be a secret in the URL goes anywhere else.
    let audit = fs::read_to_string(right.setting.audit_path()).unwrap();
    for text in [audit, daemon.log()] {
        assert!(!text.contains("a-secret") && !text.contains("hidden"), "{text}");
    }
    daemon.stop();
}

#[test]
fn certificates_that_are_missing_are_looked_for_again_with_each_round() {
    let keys = tempfile::tempdir().unwrap();
    let folder = keys.path();
    let Some((_server, url)) = https(folder) else { return };
    let (scene, _) = scene(&url, &format!("ca-file = {:?}\n", folder.join("later.crt")));
    let mut daemon = scene.setting.start();
    scene.leave(Bytes::mib(60));
    daemon.wait_until("two deleted", |daemon| daemon.deleted().len() == 2);
    daemon.wait_until("failing", |daemon| {
        has_failed(daemon) && daemon.log().contains("a round could not be posted")
    });
    assert!(daemon.log().contains("later.crt"), "{}", daemon.log());
    fs::copy(folder.join("ca.crt"), folder.join("later.crt")).unwrap();
    daemon.wait_until("delivered", is_delivered);
    daemon.stop();
}

#[test]
fn without_ca_file_the_systems_authorities_are_trusted_and_without_a_system_the_public_ones() {
    let keys = tempfile::tempdir().unwrap();
    let folder = keys.path();
    let Some((_server, url)) = https(folder) else { return };
    let (with_system, _) = scene(&url, "");
    let mut daemon = with_system.setting.start_with(&[], &mut |command| {
        command.env("SSL_CERT_FILE", folder.join("ca.crt"));
    });
    with_system.leave(Bytes::mib(60));
    daemon.wait_until("delivered", is_delivered);
    daemon.stop();

    let received = bodies(folder);
    let (without, _) = scene(&url, "");
    // Every place that is looked at for certificates lies below these.
    let bare = "for place in /etc/ssl /etc/pki /usr/share/ca-certificates /usr/lib/ssl /usr/local/ssl; do \
                [ ! -d $place ] || mount -t tmpfs none $place || exit; done; exec \"$@\"";
    let mut daemon = without.setting.start_through(&[
        "env",
        "--unset=SSL_CERT_FILE",
        "--unset=SSL_CERT_DIR",
        "unshare",
        "--mount",
        "sh",
        "-c",
        bare,
        "sh",
    ]);
    without.leave(Bytes::mib(60));
    // There are some, or nobody could be asked for a certificate.
    daemon.wait_until("refusing it", |daemon| has_failed(daemon) && daemon.log().contains("UnknownIssuer"));
    assert_eq!(bodies(folder), received);
    daemon.stop();
}

#[test]
fn a_dry_run_posts_nothing() {
    let receiver = Receiver::start(|_| Answer::Status(200));
    let (scene, _) = scene(&receiver.url(), "");
    let mut daemon = scene.setting.start_with(&["--dry-run"], &mut |_| {});
    scene.leave(Bytes::mib(60));
    daemon.wait_until("deciding", |daemon| daemon.log().contains("would be deleted"));
    assert_eq!(daemon.metric("checkpoint_guard_dry_run"), Some(1.0));
    daemon.keeps_running_for(Duration::from_millis(500));
    assert!(receiver.requests().is_empty());
}
