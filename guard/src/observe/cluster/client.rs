//! How to reach the API server, and as which Node.

use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::trust;

/// Where the credentials come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// A kubeconfig file.
    Kubeconfig(std::path::PathBuf),
    /// The service account of the pod.
    ServiceAccount,
}

/// There is no way to ask.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Neither a kubeconfig nor a service account.
    #[error(
        "kubernetes.mode is \"on\", and there are no credentials: neither kubernetes.kubeconfig nor a service account \
         (/var/run/secrets/kubernetes.io/serviceaccount; automountServiceAccountToken?) nor KUBECONFIG"
    )]
    NoCredentials,
    /// The credentials cannot be used.
    #[error("cannot use the credentials of {whose}: {problem}")]
    Unusable {
        /// The file, or the service account.
        whose: String,
        /// What is wrong.
        problem: String,
    },
    /// Nobody says which Node this is.
    #[error("which Node is this? Set kubernetes.node-name, or NODE_NAME (fieldRef spec.nodeName)")]
    NoNode,
}

/// Connecting to a server that answers takes milliseconds.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

impl Access {
    /// The credentials there are: the configured file, else the pod's service account, else `KUBECONFIG` (its first file).
    pub fn find(configured: Option<&Path>) -> Option<Access> {
        if let Some(path) = configured {
            return Some(Access::Kubeconfig(path.to_owned()));
        }
        if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && Path::new(TOKEN).exists() {
            return Some(Access::ServiceAccount);
        }
        let variable = std::env::var_os("KUBECONFIG")?;
        let first = std::env::split_paths(&variable).find(|path| !path.as_os_str().is_empty())?;
        Some(Access::Kubeconfig(first))
    }

    /// A client with these credentials. Asks nobody yet.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn client(&self) -> Result<Client, ClientError> {
        let whose = match self {
            Access::Kubeconfig(path) => format!("{path:?}"),
            Access::ServiceAccount => "the service account".to_owned(),
        };
        let unusable = |problem: String| ClientError::Unusable { whose: whose.clone(), problem };
        let mut config = match self {
            Access::Kubeconfig(path) => {
                let file = Kubeconfig::read_from(path).map_err(|error| unusable(error.to_string()))?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                    .await
                    .map_err(|error| unusable(error.to_string()))?
            }
            Access::ServiceAccount => Config::incluster().map_err(|error| unusable(error.to_string()))?,
        };
        if config.root_cert.is_none() && !config.accept_invalid_certs {
            let trusted = trust::authorities().map_err(|error| unusable(error.to_string()))?;
            config.root_cert = Some(trusted.iter().map(|certificate| certificate.to_vec()).collect());
        }
        config.connect_timeout = Some(CONNECT_LIMIT);
        // Who calls has a limit and a back-off of his own; retries beneath those would only hide what is wrong.
        config.default_retry = false;
        Client::try_from(config).map_err(|error| unusable(error.to_string()))
    }
}

/// The Node object of this machine: as configured, else `NODE_NAME`, else the host name.
///
/// # Errors
/// None of the three says anything.
pub fn node_name(configured: Option<&str>) -> Result<String, ClientError> {
    let variable = || std::env::var("NODE_NAME").ok();
    // The kubelet's own rule: the host name in small letters (`pkg/util/node.GetHostname`).
    let host =
        || std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_lowercase());
    let named = configured.map(str::to_owned).or_else(variable).or_else(host);
    named.filter(|name| !name.is_empty()).ok_or(ClientError::NoNode)
}
