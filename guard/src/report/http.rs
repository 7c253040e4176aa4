//! `/metrics`, `/healthz`, `/readyz`: one small server for Prometheus and the kubelet's probes.
//!
//! It shares the process with the loop, so everything is bounded: connections, time, request size. It reads no
//! request bodies and holds no connection open for a second request.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::health::Health;
use super::metrics::Metrics;
use crate::model::Monotonic;

/// So many connections are served at a time; more wait in the listener's backlog.
///
/// Two Prometheus replicas and the kubelet's two probes make four.
const CONNECTIONS_MAX: usize = 16;

/// A request that is not there by then, and a response that is not read by then, end the connection.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(10);

/// Request line and headers together. Prometheus sends about 300 bytes.
const REQUEST_HEAD_MAX: usize = 16 << 10;

/// Responses under way get so long at shutdown; the daemon as a whole has two seconds.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(500);

/// After a failed accept (out of file descriptors), rather than spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const INDEX: &str = "\
checkpoint-guard

/metrics   for Prometheus; every metric is explained in docs/METRICS.md
/healthz   200 while the loop runs
/readyz    200 once the configuration is loaded and every directory has been scanned
";

/// Why nobody can be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// EADDRINUSE.
    #[error(
        "cannot serve metrics on {address}: another process listens there (ss -ltnp 'sport = :{}'); is a second \
         guard running? Another address goes into [metrics] listen",
        address.port()
    )]
    InUse {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// EADDRNOTAVAIL.
    #[error(
        "cannot serve metrics on {address}: this machine has no such address (ip addr); [metrics] listen takes one of \
         its own, such as 127.0.0.1:9477"
    )]
    NoSuchAddress {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// Anything else.
    #[error("cannot serve metrics on {address}, as [metrics] listen says: {source}")]
    Other {
        /// The address that was asked for.
        address: SocketAddr,
        /// What bind(2) or listen(2) said.
        source: io::Error,
    },
}

/// What the endpoints show.
#[derive(Clone)]
pub struct Endpoints {
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For `/healthz` and `/readyz`.
    pub health: Arc<Health>,
    /// The clock that the loop's heartbeats are told in.
    pub now: Arc<dyn Fn() -> Monotonic + Send + Sync>,
}

/// Opens the listener. Without one the daemon goes on: protecting matters more than telling.
///
/// # Errors
/// When the address cannot be listened on; the message says what to do about it.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { address },
        io::ErrorKind::AddrNotAvailable => ListenError::NoSuchAddress { address },
        _ => ListenError::Other { address, source },
    })
}

/// Serves until `shutdown` is ready, then lets responses under way end, for at most half a second.
pub async fn serve(listener: &TcpListener, endpoints: Endpoints, shutdown: impl Future<Output = ()>) {
    let metrics = endpoints.metrics.clone();
    let service = TowerToHyperService::new(routes(endpoints));
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    let mut fails = false;
    loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
            (slot, listener.accept().await)
        };
        tokio::select! {
            () = &mut shutdown => break,
            Some(ended) = connections.join_next() => if ended.is_err() {
                tracing::error!("a bug: a connection for metrics panicked");
                metrics.panicked();
            },
            (slot, accepted) = next => match accepted {
                Ok((stream, _)) => {
                    fails = false;
                    let service = service.clone();
                    connections.spawn(async move {
                        serve_one(stream, service).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    // Ten times a second until somebody closes a descriptor; said once.
                    if !std::mem::replace(&mut fails, true) {
                        tracing::warn!(%error, "cannot accept connections for metrics; trying again");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_TIME_MAX, drained).await.is_err() {
        tracing::debug!("a metrics client was cut off at shutdown");
    }
}

/// One connection, one request, one response.
async fn serve_one(stream: TcpStream, service: TowerToHyperService<Router>) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_TIME_MAX)
        .max_buf_size(REQUEST_HEAD_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_TIME_MAX, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a metrics client spoke no proper HTTP"),
        Err(_) => tracing::debug!("a metrics client took too long"),
    }
}

fn routes(endpoints: Endpoints) -> Router {
    Router::new()
        .route("/", get(INDEX))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(endpoints)
}

async fn metrics(State(endpoints): State<Endpoints>) -> Response {
    match endpoints.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot encode the metrics");
            (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
        }
    }
}

async fn healthz(State(endpoints): State<Endpoints>) -> Response {
    verdict(endpoints.health.dead((endpoints.now)()))
}

async fn readyz(State(endpoints): State<Endpoints>) -> Response {
    verdict(endpoints.health.missing())
}

/// 200 and `ok`, or 503 and what speaks against it, one line each.
fn verdict(objections: Vec<String>) -> Response {
    if objections.is_empty() {
        return "ok\n".into_response();
    }
    let mut body = objections.join("\n");
    body.push('\n');
    (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
