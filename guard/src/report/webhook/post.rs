//! [`Poster`]: one POST.

use std::path::PathBuf;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use super::Posted;
use crate::config::WebhookConfig;
use crate::trust::{self, NoAuthorities};

/// A server that answers does so in milliseconds.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// From the first byte to the head of the answer.
const LIMIT: Duration = Duration::from_secs(10);

/// What became of a POST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Post {
    /// 2xx.
    Delivered,
    /// The server will not take it, now or later.
    Refused(String),
    /// Try again later.
    Failed(String),
}

/// There can be no POST at all.
#[derive(Debug, thiserror::Error)]
pub enum PosterError {
    /// `ca-file`.
    #[error("cannot use the certificates of {path:?} (notify.ca-file): {problem}")]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Neither has the environment.
    #[error("{0}; name some with notify.ca-file")]
    NoCertificates(#[from] NoAuthorities),
    /// Not a URL after all.
    #[error("notify.url: {0}")]
    Url(#[from] hyper::http::uri::InvalidUri),
    /// rustls refuses.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// Posts to one URL.
#[derive(Debug)]
pub struct Poster {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: Uri,
    token_file: Option<PathBuf>,
}

impl Poster {
    /// Reads the certificates. Asks nobody yet.
    ///
    /// # Errors
    /// An https server could not be checked.
    pub fn new(config: &WebhookConfig) -> Result<Poster, PosterError> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(CONNECT_LIMIT));
        let mut trusted = RootCertStore::empty();
        match &config.ca_file {
            Some(path) => trusted = certificates(path)?,
            None if config.url.starts_with("http:") => {}
            None => {
                trusted.add_parsable_certificates(trust::authorities()?);
            }
        }
        let tls = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(trusted)
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls);
        let connector = connector.https_or_http().enable_http1().wrap_connector(http);
        // A round comes when the disk fills: hours after the last one, or in the same second.
        let client =
            Client::builder(TokioExecutor::new()).pool_idle_timeout(Duration::from_secs(5)).build(connector);
        Ok(Poster { client, url: config.url.parse()?, token_file: config.token_file.clone() })
    }

    /// Posts it once. Redirections are not followed: a token is for one server.
    pub async fn post(&self, posted: &Posted) -> Post {
        let request = match self.request(posted) {
            Ok(request) => request,
            Err(problem) => return Post::Failed(problem),
        };
        let answer = match tokio::time::timeout(LIMIT, self.client.request(request)).await {
            Err(_) => return Post::Failed(format!("no answer within {} s", LIMIT.as_secs())),
            Ok(Err(error)) => return Post::Failed(with_cause(&error)),
            Ok(Ok(answer)) => answer.status(),
        };
        match answer {
            answer if answer.is_success() => Post::Delivered,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
                Post::Failed(format!("the server answers {answer}"))
            }
            // A token may be renewed, and then it is right.
            StatusCode::UNAUTHORIZED if self.token_file.is_some() => {
                Post::Failed(format!("the server answers {answer}"))
            }
            answer if answer.is_server_error() => Post::Failed(format!("the server answers {answer}")),
            answer => Post::Refused(format!("the server answers {answer}")),
        }
    }

    fn request(&self, posted: &Posted) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("checkpoint-guard/", env!("CARGO_PKG_VERSION")))
            // What Stripe and others made the usual name for it.
            .header("Idempotency-Key", posted.id.as_str());
        if let Some(path) = &self.token_file {
            let token =
                std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim()))
                .map_err(|_| format!("{} holds no token", path.display()))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        request.body(Full::new(Bytes::from(posted.body.clone()))).map_err(|error| error.to_string())
    }
}

fn certificates(path: &std::path::Path) -> Result<RootCertStore, PosterError> {
    let unusable = |problem: String| PosterError::Certificates { path: path.to_owned(), problem };
    let found = CertificateDer::pem_file_iter(path).map_err(|error| unusable(error.to_string()))?;
    let mut store = RootCertStore::empty();
    for certificate in found {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        store.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    if store.is_empty() {
        return Err(unusable("there are none in it".to_owned()));
    }
    Ok(store)
}

/// `client error (Connect): tcp connect error: Connection refused`: the last says most.
fn with_cause(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
