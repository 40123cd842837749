//! Client of model registries. It pulls models into a [`Store`](puna_store::Store) and pushes them
//! from it, as Ollama does. It works with registries for Ollama's clients and with those that
//! follow the OCI distribution specification.
//!
//! Security: names and digests are parsed into types as soon as a response arrives. No text of a
//! registry becomes a file path or part of a URL. Manifests, tokens, error texts, redirects and
//! waiting times have limits.
//!
//! ```no_run
//! # async fn pull() -> Result<(), puna_registry::RegistryError> {
//! use std::sync::Arc;
//! use puna_registry::{Options, Registry, Settings};
//! use puna_store::{ModelRef, Store};
//! let store = Arc::new(Store::open("/home/me/.ollama/models")?);
//! let registry = Registry::new(Settings::default());
//! let (report, mut lines) = tokio::sync::mpsc::channel(16);
//! let name = ModelRef::parse("llama3.2:1b").expect("a name");
//! let pull = async { registry.pull(&store, &name, &Options::default(), report).await };
//! let show = async {
//!     while let Some(line) = lines.recv().await {
//!         println!("{} {}/{}", line.status, line.completed, line.total);
//!     }
//! };
//! let (pulled, ()) = tokio::join!(pull, show);
//! pulled
//! # }
//! ```
//!
//! A download is split into byte ranges that several connections fetch concurrently. The client
//! records the received ranges next to the data every two seconds, in Ollama's format. After a
//! crash, this program or Ollama resumes the download. The digest is computed while the data
//! arrives. A blob gets its final name only if the digest is correct.

#![forbid(unsafe_code)]

mod auth;
mod blocking;
mod client;
mod discovery;
mod disk_space;
mod display;
mod download;
mod error;
mod hub;
mod lock;
mod manifest;
mod outgoing;
mod packaging;
mod pull;
mod push;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

pub use auth::identity::{EMPTY_BODY_HASH, Identity, KeyError, parse_public_key};
use client::endpoint::Endpoint;
pub use client::hosts::{Credentials, Host, Hosts, Secret};
use client::rate_limit::RateLimit;
pub use client::settings::{
    BlobReuse, Options, Progress, Proxies, Report, Settings, WAITING_PREFIX,
};
pub use client::tls::config as tls_config;
pub use discovery::{Announcement, DiscoveredMirror, MIRROR_SERVICE, announce, discover_mirrors};
pub use display::{is_terminal_control, redact, root_cause, single_line};
pub use download::resumable_sha256::{ResumableSha256, Sha256State};
pub use error::{
    BundleProblem, ListingProblem, ManifestProblem, RegistryError, SetupProblem, UnpackProblem,
    WithheldCredentials,
};
use lock::lock;
pub use outgoing::{
    Destination, HostPattern, OutgoingAccess, OutgoingPolicy, OutgoingRefusal, Resolver,
};
pub use packaging::bundle::write_bundle;
pub use packaging::{Format, TemplateDetector};
pub use pull::file_url::FileUrl;
pub use pull::pull_through::{DownloadReader, PinGuard, RegistryBlob, RegistryModel, TagContent};

/// Client of registries. It is cheap to clone; clones share running downloads.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    settings: Settings,
    /// HTTP clients, created on first use because that reads the system's certificates. The key is
    /// the path of additional certificates, and whether the client is for mirrors.
    clients: Mutex<HashMap<(Option<PathBuf>, bool), reqwest::Client>>,
    /// TLS configurations by the path of additional certificates.
    tls_configs: Mutex<HashMap<Option<PathBuf>, rustls::ClientConfig>>,
    downloads: Arc<download::shared::SharedDownloads>,
    rate_limit: Option<Arc<RateLimit>>,
    /// Rate limits of individual hosts.
    host_limits: Mutex<HashMap<String, Arc<RateLimit>>>,
}

impl Registry {
    /// Creates a client with the given settings. Opens no connection.
    pub fn new(settings: Settings) -> Self {
        let rate_limit = settings.limit_rate.map(|rate| Arc::new(RateLimit::new(rate)));
        let (clients, tls_configs, host_limits, downloads) = Default::default();
        Self(Arc::new(Inner { settings, clients, tls_configs, downloads, rate_limit, host_limits }))
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(crate) fn downloads(&self) -> &Arc<download::shared::SharedDownloads> {
        &self.0.downloads
    }

    /// The HTTP client for an endpoint, shared by all operations.
    pub(crate) fn client(&self, endpoint: &Endpoint) -> Result<reqwest::Client, RegistryError> {
        let kind = (endpoint.settings.ca.clone(), endpoint.mirror_of.is_some());
        let mut clients = lock(&self.0.clients);
        if let Some(client) = clients.get(&kind) {
            return Ok(client.clone());
        }
        let client = self.build_client(endpoint, None)?;
        clients.insert(kind, client.clone());
        Ok(client)
    }

    /// An HTTP client for an endpoint that connects only to the checked addresses of a destination.
    pub(crate) fn pinned_client(
        &self,
        endpoint: &Endpoint,
        destination: &Destination,
    ) -> Result<reqwest::Client, RegistryError> {
        self.build_client(endpoint, Some(destination))
    }

    fn build_client(
        &self,
        endpoint: &Endpoint,
        destination: Option<&Destination>,
    ) -> Result<reqwest::Client, RegistryError> {
        let tls = self.tls_config(endpoint.settings.ca.as_deref())?;
        client::http::registry_client(&self.0.settings, endpoint, tls, destination)
    }

    /// The TLS configuration with additional certificates. Later changes of the file have no
    /// effect.
    fn tls_config(&self, ca: Option<&Path>) -> Result<rustls::ClientConfig, RegistryError> {
        let key = ca.map(Path::to_owned);
        let mut tls_configs = lock(&self.0.tls_configs);
        if let Some(config) = tls_configs.get(&key) {
            return Ok(config.clone());
        }
        let config = client::tls::config_with(ca)?;
        tls_configs.insert(key, config.clone());
        Ok(config)
    }

    /// An HTTP client for a host that is not a registry. It uses the proxies, and the certificates
    /// configured for the host.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub fn http_client(&self, host: &str) -> Result<reqwest::Client, RegistryError> {
        client::http::client_for_host(&self.0.settings, host)
    }

    /// Checks the address of a registry, such as that of a mirror in a request.
    ///
    /// # Errors
    /// [`SetupProblem::Address`].
    pub fn check_address(&self, address: &str) -> Result<(), RegistryError> {
        Endpoint::parse(self.settings(), address, false).map(drop)
    }

    /// The rate limits of an operation: its own and the global one.
    pub(crate) fn rate_limits(&self, options: &Options) -> Vec<Arc<RateLimit>> {
        let own = options.limit_rate.map(|rate| Arc::new(RateLimit::new(rate)));
        own.into_iter().chain(self.0.rate_limit.clone()).collect()
    }

    /// The rate limit of a host, for downloads and uploads together.
    pub(crate) fn host_rate_limit(&self, endpoint: &Endpoint) -> Option<Arc<RateLimit>> {
        let rate = endpoint.settings.limit_rate?;
        let mut host_limits = lock(&self.0.host_limits);
        let rate_limit = host_limits
            .entry(endpoint.host.clone())
            .or_insert_with(|| Arc::new(RateLimit::new(rate)));
        Some(rate_limit.clone())
    }
}
