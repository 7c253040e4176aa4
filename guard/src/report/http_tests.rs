use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use super::*;
use crate::report::metrics::FilesystemLabel;

/// A server on a port of its own, and the clock it believes in.
struct Server {
    address: SocketAddr,
    endpoints: Endpoints,
    seconds: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    async fn start() -> Server {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let seconds = Arc::new(AtomicU64::new(1000));
        let clock = seconds.clone();
        let endpoints = Endpoints {
            metrics: Arc::new(Metrics::new()),
            health: Arc::new(Health::new(Duration::from_secs(30))),
            now: Arc::new(move || Monotonic(Duration::from_secs(clock.load(Ordering::Relaxed)))),
        };
        let (stop, stopped) = oneshot::channel();
        let shown = endpoints.clone();
        let served = async move {
            let until = async {
                // Err: the test ended without stopping the server, which is a stop as well.
                let _ = stopped.await;
            };
            serve(&listener, shown, until).await;
        };
        Server { address, endpoints, seconds, stop: Some(stop), task: tokio::spawn(served) }
    }

    async fn get(&self, path: &str) -> String {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: guard\r\n\r\n")).await
    }

    /// Sends `request` and reads until the server closes.
    async fn send(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // Err: the server may refuse before it has read everything.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response).await;
        String::from_utf8(response).unwrap()
    }
}

#[track_caller]
fn check(response: &str, status: &str, contains: &str) {
    assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{response}");
    assert!(response.contains(contains), "{response}");
}

#[tokio::test]
async fn a_response_that_panics_is_counted_and_the_others_are_served() {
    let mut server = Server::start().await;
    server.stop.take().map(|stop| stop.send(()));
    let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    server.address = listener.local_addr().unwrap();
    let now = Arc::new(|| panic!("a bug that this test has made"));
    let shown = Endpoints { now, ..server.endpoints.clone() };
    let task = tokio::spawn(async move { serve(&listener, shown, std::future::pending()).await });
    for count in 1..=CONNECTIONS_MAX + 1 {
        assert_eq!(server.get("/healthz").await, "");
        let told = format!("checkpoint_guard_loop_panics_total {count}");
        while !server.get("/metrics").await.lines().any(|line| line == told) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    task.abort();
}

#[tokio::test]
async fn metrics_are_served_as_prometheus_text() {
    let server = Server::start().await;
    let response = server.get("/metrics").await;
    check(&response, "200", "content-type: text/plain; version=0.0.4");
    check(&response, "200", "\ncheckpoint_guard_build_info{version=");
    check(&server.get("/").await, "200", "/readyz");
    check(&server.get("/etc/passwd").await, "404", "");
    check(&server.send("POST /metrics HTTP/1.1\r\nHost: guard\r\n\r\n").await, "405", "");
}

#[tokio::test]
async fn a_loop_that_no_longer_turns_is_unhealthy() {
    let server = Server::start().await;
    check(&server.get("/healthz").await, "200", "ok");
    let disk = FilesystemLabel::new(Path::new("/var/lib/kubelet/checkpoints"));
    server.endpoints.health.beat(&disk, Monotonic(Duration::from_secs(1000)));
    server.seconds.store(1031, Ordering::Relaxed);
    check(&server.get("/healthz").await, "503", "/var/lib/kubelet/checkpoints for 31 s");
    server.endpoints.health.beat(&disk, Monotonic(Duration::from_secs(1031)));
    check(&server.get("/healthz").await, "200", "ok");
}

#[tokio::test]
async fn readiness_says_what_is_missing() {
    let server = Server::start().await;
    server.endpoints.health.expect_scan(Path::new("/checkpoints"));
    server.endpoints.health.configured();
    check(&server.get("/readyz").await, "503", "directory /checkpoints has not been scanned yet");
    server.endpoints.health.scanned(Path::new("/checkpoints"));
    check(&server.get("/readyz").await, "200", "ok");
}

#[tokio::test]
async fn a_port_in_use_is_named_with_what_to_do() {
    let server = Server::start().await;
    let error = listen(server.address).await.unwrap_err().to_string();
    for part in [&server.address.to_string(), "another process listens there", "[metrics] listen"] {
        assert!(error.contains(part), "{error}");
    }
    let error = listen("192.0.2.1:9477".parse().unwrap()).await.unwrap_err().to_string();
    assert!(error.contains("no such address"), "{error}");
}

#[tokio::test]
async fn oversized_and_garbled_requests_are_refused() {
    let server = Server::start().await;
    let long = format!("GET / HTTP/1.1\r\nHost: guard\r\nX: {}\r\n\r\n", "x".repeat(2 * REQUEST_HEAD_MAX));
    assert!(!server.send(&long).await.starts_with("HTTP/1.1 200"));
    assert!(!server.send("\u{1}\u{2}\u{3}\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    check(&server.get("/healthz").await, "200", "ok");
}

// In real time: paused time takes a feature of tokio that would have everything compiled a second time for the tests.
#[tokio::test]
async fn idle_clients_take_every_slot_only_until_their_time_is_up() {
    let server = Server::start().await;
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        idle.push(TcpStream::connect(server.address).await.unwrap());
    }
    let began = tokio::time::Instant::now();
    check(&server.get("/healthz").await, "200", "ok");
    assert!(began.elapsed() >= CONNECTION_TIME_MAX, "{:?}", began.elapsed());
}

#[tokio::test]
async fn shutdown_ends_the_server_although_a_client_hangs() {
    let mut server = Server::start().await;
    let _hanging = TcpStream::connect(server.address).await.unwrap();
    check(&server.get("/healthz").await, "200", "ok");
    server.stop.take().unwrap().send(()).unwrap();
    tokio::time::timeout(2 * DRAIN_TIME_MAX, server.task).await.expect("ends in time").unwrap();
}
